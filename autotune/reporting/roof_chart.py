"""The chart of the roofline: every timed trial under the roofs that are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from autotune.reporting import facts, roofline, stored
from autotune.reporting.charts import MOST_DRAWN
from autotune.reporting.drawing import Spec, field, of_names, powers

if TYPE_CHECKING:
    from autotune.reporting.study import Study

_WIDER = 4.0
"""How far the axis reaches beyond the intensities there are, as a factor."""


def roof(studies: Sequence[Study]) -> Spec:
    """Rates of studies of known problems over their intensities; both axes logarithmic."""
    places = [at for study in studies if (at := roofline.intensity(study)) is not None]
    points = [point for study in studies for point in _points(study)]
    marked = stored.rows(
        studies,
        lambda study, _: roofline.intensity(study),
        lambda study, value: study.rate(value) or 0.0,
    )
    found = roofline.roofs(studies)
    rates = [float(point["y"]) for point in (*points, *marked)]
    rates += [each.gflops for each in found if each.gflops is not None]
    across = (min(places) / _WIDER, max(places) * _WIDER)
    upwards = (min(rates) / 1.5, max(rates) * 1.8)
    flat = [_ends(each, across) for each in found if each.gbytes is None]
    slanted = [
        # It begins at the axis and ends where it meets the highest flat one.
        _ends(each, (max(across[0], upwards[0] / each.gbytes),
                     min(across[1], max(rates) / each.gbytes)))
        for each in found
        if each.gbytes is not None
    ]  # fmt: skip
    axes: Spec = {
        "x": _axis("x", "FLOP per byte of operands", across),
        "y": _axis("y", "GFLOP/s", upwards),
    }
    named = {**axes, "text": {"field": "n", "type": "nominal"}}
    text = {"type": "text", "baseline": "bottom", "limit": 420}
    return {
        "layer": [
            {
                "data": {"values": [end for ends in (*flat, *slanted) for end in ends]},
                "mark": {"type": "line", "strokeWidth": 1.5, "style": "interval"},
                "encoding": {**axes, "detail": {"field": "n", "type": "nominal"}},
            },
            {
                "data": {"values": [start for start, _ in flat]},
                "mark": {**text, "align": "left", "dx": 4, "dy": -4},
                "encoding": named,
            },
            {
                "data": {"values": [end for _, end in slanted]},
                "mark": {**text, "align": "right", "dx": -10, "dy": 4},
                "encoding": named,
            },
            {
                "data": {"values": points},
                "mark": {"type": "point", "size": 28, "opacity": 0.6, "aria": False},
                "encoding": {
                    **axes,
                    "color": of_names([study.name for study in studies]),
                    "tooltip": [
                        field("s", "study"),
                        field("y", "GFLOP/s"),
                        field("o", "outcome"),
                        field("c", "configuration"),
                    ],
                },
            },
            *stored.layers(marked, axes["x"], axes["y"], "GFLOP/s"),
        ],
        "height": 380,
    }


def _points(study: Study) -> list[dict[str, Any]]:
    at = roofline.intensity(study)
    if at is None:
        return []
    return [
        {
            "s": study.name,
            "x": float(f"{at:.5g}"),
            "y": float(f"{study.rate(trial.value or 1.0):.5g}"),
            "o": trial.outcome,
            "c": str(trial),
        }
        for trial in facts.sample(study.timed, MOST_DRAWN)
    ]


def _ends(roof: roofline.Roof, across: Sequence[float]) -> list[dict[str, Any]]:
    """A roof's two ends."""
    return [{"n": roof.name, "x": at, "y": roof.at(at)} for at in across]


def _axis(name: str, title: str, domain: tuple[float, float]) -> Spec:
    return {
        "field": name,
        "type": "quantitative",
        "title": title,
        "scale": {"type": "log", "domain": list(domain), "nice": False},
        "axis": {"format": ",~r", "values": powers(*domain)},
    }
