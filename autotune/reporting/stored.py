"""Marks of the winner that was stored, for every chart of trials.

It has two numbers: the search measured it by itself, and the finals in turns with the other
finalists, which its record keeps. Each has a mark of its own shape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.reporting.drawing import Spec, field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from autotune.reporting.study import Study, Trial

SEARCH = "stored winner, as searched"
FINALS = "stored winner, in the finals"


def rows(
    studies: Iterable[Study],
    place: Callable[[Study, Trial], float | str | None],
    height: Callable[[Study, float], float],
) -> list[dict[str, Any]]:
    """The two marks of every study whose record's winner is among its trials.

    Args:
        studies: those of the chart.
        place: where a trial stands across; None where it is not in the chart.
        height: what the chart shows of a trial that took so many seconds.
    """
    found: list[dict[str, Any]] = []
    for study in studies:
        trial, record = study.stored, study.record
        across = None if trial is None else place(study, trial)
        if trial is None or record is None or across is None or trial.value is None:
            continue
        same = {"s": study.name, "x": across, "c": str(trial)}
        found.append({**same, "y": height(study, trial.value), "k": SEARCH})
        found.append({**same, "y": height(study, record.median_s), "k": FINALS})
    return found


def layers(marked: Sequence[dict[str, Any]], x: Spec, y: Spec, label: str) -> list[Spec]:
    """The marks as layers of a chart, with their legend; none where there are no marks."""
    if not marked:
        return []
    return [
        {
            "data": {"values": list(marked)},
            "mark": {"type": "point", "size": 140, "strokeWidth": 2, "style": "stored"},
            "encoding": {
                "x": x,
                "y": y,
                "shape": shapes(),
                "tooltip": [field("s", "study"), field("k", "what"), field("y", label),
                            field("c", "configuration")],
            },
        }
    ]  # fmt: skip


def shapes() -> Spec:
    """A ring for the search's number, a diamond for that of the finals."""
    return {
        "field": "k",
        "type": "nominal",
        "title": None,
        "scale": {"domain": [SEARCH, FINALS], "range": ["circle", "diamond"]},
        "legend": {"columns": 1},
    }
