"""The charts of trials: progress, contenders, shares of time, resources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.core.measurement import Outcome
from autotune.reporting import facts, stored
from autotune.reporting.drawing import Spec, field, of_names, scale
from autotune.reporting.study import FAILED, UNFINISHED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.reporting.amounts import Measure
    from autotune.reporting.study import Study, Trial

MOST_DRAWN = 1500
"""Trials that one chart shows of a study."""

CONTENDERS = 15
"""Trials whose intervals are shown."""

OUTCOMES = (*map(str, Outcome), FAILED, UNFINISHED)
"""In the order in which a trial may come to its end."""

OUTCOME_COLORS = (
    str(Outcome.REJECTED),
    str(Outcome.COMPILE_FAILED),
    str(Outcome.OK),
    str(Outcome.LAUNCH_FAILED),
    str(Outcome.WRONG_RESULT),
    str(Outcome.TIMEOUT),
    UNFINISHED,
    str(Outcome.ABANDONED),
    FAILED,
    str(Outcome.IMPLAUSIBLE),
)
"""In the order of the page's colours: what is right is green, what is wrong red."""

RESOURCES: Mapping[str, str] = {
    "registers": "registers of a thread",
    "occupancy": "occupancy (share of a multiprocessor's threads)",
    "spill_bytes": "bytes of spill code",
    "shared_bytes": "shared memory of a block (bytes)",
    "compile_s": "seconds of compiling",
}
"""Details of a measurement that are compared with speed."""


def progress(studies: Sequence[Study], measure: Measure, *, by_time: bool) -> Spec:
    """Every trial, and the best so far, by the number of trials or by time."""
    points, steps = [], []
    for study in studies:
        shown = {each.number for each in facts.sample(study.timed, MOST_DRAWN)}
        last: float | None = None
        for trial, best in facts.best_so_far(study):
            place = trial.ended_s if by_time else trial.number
            if place is None:
                continue
            at: dict[str, Any] = {"s": study.name, "x": round(place, 3)}
            if trial.number in shown and trial.value is not None:
                what = {"c": str(trial), "o": trial.outcome}
                points.append({**at, "y": measure.at(study, trial.value), **what})
            is_last = trial is study.trials[-1]
            if best is not None and (best != last or is_last):
                steps.append({**at, "y": measure.at(study, best)})
                last = best
    title = "seconds since the first trial began" if by_time else "trials"
    # Trials begin at 1, and the clock at 0.
    across = {"nice": False, "zero": by_time}
    x = {"field": "x", "type": "quantitative", "title": title, "scale": across}
    y = {"field": "y", "type": "quantitative", "title": measure.label, "scale": scale(measure)}
    return {
        "layer": [
            {
                "data": {"values": points},
                "mark": {
                    "type": "point",
                    "filled": True,
                    "size": 26,
                    "opacity": 0.5,
                    "aria": False,
                },
                "encoding": {
                    "x": x,
                    "y": y,
                    "color": of_names([study.name for study in studies]),
                    "tooltip": [
                        field("s", "study"),
                        field("x", title),
                        field("y", measure.label),
                        field("o", "outcome"),
                        field("c", "configuration"),
                    ],
                },
            },
            {
                "data": {"values": steps},
                "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 2.5},
                "encoding": {"x": x, "y": y, "color": of_names([study.name for study in studies])},
            },
            *stored.layers(
                stored.rows(
                    studies,
                    lambda _, trial: trial.ended_s if by_time else trial.number,
                    measure.at,
                ),
                x,
                y,
                measure.label,
            ),
        ],
        "height": 320,
    }


def contenders(study: Study, measure: Measure) -> Spec:
    """The fastest trials with their confidence intervals, and the stored winner's finals."""
    tied = facts.ties(study)
    rows = []
    for rank, trial in enumerate(study.ranked, start=1):
        if rank > CONTENDERS and trial is not study.stored:
            continue
        value = trial.value or 0.0
        ends = sorted(measure.at(study, end) for end in trial.interval or (value, value))
        rows.append(
            {
                "n": _ranked(rank, trial),
                "v": measure.at(study, value),
                "a": ends[0],
                "b": ends[1],
                "k": "fastest" if rank == 1 else "tie" if trial.number in tied else "slower",
                "c": str(trial),
            }
        )
    names = [row["n"] for row in rows]
    y = {"field": "n", "type": "nominal", "title": None, "scale": {"domain": names}}
    color = {
        "field": "k",
        "type": "nominal",
        "title": None,
        "scale": {"domain": ["fastest", "tie", "slower"]},
        "legend": {"values": list(dict.fromkeys(row["k"] for row in rows))},
    }
    tooltip = [field("n", "trial"), field("v", measure.label), field("c", "configuration")]
    x = {"type": "quantitative", "title": measure.label, "scale": {"zero": False}}
    return {
        "data": {"values": rows},
        "layer": [
            {
                "mark": {"type": "rule", "strokeWidth": 2},
                "encoding": {"x": {**x, "field": "a"}, "x2": {"field": "b"}, "color": color},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 70},
                "encoding": {"x": {**x, "field": "v"}, "color": color},
            },
            *_finals(study, measure, x, y),
        ],
        "encoding": {"y": y, "tooltip": tooltip},
        "height": 22 * len(rows),
    }


def _ranked(rank: int, trial: Trial) -> str:
    return f"{rank}. {trial.family or 'trial'} #{trial.number}"


def _finals(study: Study, measure: Measure, x: Spec, y: Spec) -> list[Spec]:
    """The stored winner's two marks, and the interval of its median in the finals."""
    ranks = {trial.number: rank for rank, trial in enumerate(study.ranked, start=1)}
    marked = stored.rows([study], lambda _, trial: _ranked(ranks[trial.number], trial), measure.at)
    if not marked or study.record is None:
        return []
    low, high = (measure.at(study, end) for end in study.record.interval_s)
    y = {**y, "field": "x"}
    interval: Spec = {
        "data": {"values": [{"x": marked[0]["x"], "a": low, "b": high}]},
        "mark": {"type": "rule", "strokeWidth": 1.5, "style": "interval"},
        "encoding": {"x": {**x, "field": "a"}, "x2": {"field": "b"}, "y": y},
    }
    return [interval, *stored.layers(marked, {**x, "field": "y"}, y, measure.label)]


def shares(
    rows: Sequence[Mapping[str, Any]], order: Sequence[str], colors: Sequence[str], title: str
) -> Spec:
    """Stacked bars, one a study.

    Args:
        rows: have the study `s`, the part `k` and its amount `v`.
        order: of the parts.
        colors: all parts, in the order of the page's colours.
        title: of the axis.
    """
    parts = dict.fromkeys(row["k"] for row in rows)
    known = [part for part in order if part in parts]
    several = len({row["s"] for row in rows}) > 1
    y: Spec = {"field": "s", "type": "nominal", "sort": None, "title": None}
    if not several:
        y["axis"] = None
    ranked = [{**row, "r": known.index(row["k"])} for row in rows]
    return {
        "data": {"values": ranked},
        "mark": {"type": "bar"},
        "encoding": {
            "y": y,
            "x": {"field": "v", "type": "quantitative", "title": title, "stack": "zero"},
            "color": {
                "field": "k",
                "type": "nominal",
                "title": None,
                "scale": {"domain": colors},
                "legend": {"values": known},
            },
            "order": {"field": "r", "type": "quantitative"},
            "tooltip": [field("s", "study"), field("k", "what"), field("v", title, ",.4~r")],
        },
        "height": 38 * len({row["s"] for row in rows}),
    }


def resource(studies: Sequence[Study], measure: Measure, name: str) -> Spec:
    """One resource of every measured trial against its speed."""
    rows = []
    for study in studies:
        known = [trial for trial in study.timed if trial.detail(name) is not None]
        for trial in facts.sample(known, MOST_DRAWN):
            rows.append(
                {
                    "s": study.name,
                    "f": trial.family or "trial",
                    "x": float(f"{trial.detail(name) or 0.0:.5g}"),
                    "y": measure.at(study, trial.value or 1.0),
                    "c": str(trial),
                }
            )
    color = {"field": "f", "type": "nominal", "title": "family"}
    x: Spec = {
        "field": "x",
        "type": "quantitative",
        "title": RESOURCES[name],
        "scale": {"zero": False, "nice": False, "padding": 12},
    }
    y = {"field": "y", "type": "quantitative", "title": measure.label, "scale": scale(measure)}
    trials: Spec = {
        "data": {"values": rows},
        "mark": {"type": "point", "size": 28, "opacity": 0.65, "aria": False},
        "encoding": {
            "x": x,
            "y": y,
            "color": color if len(studies) == 1 else of_names([study.name for study in studies]),
            "tooltip": [
                field("s", "study"),
                field("f", "family"),
                field("x", RESOURCES[name]),
                field("y", measure.label),
                field("c", "configuration"),
            ],
        },
    }
    marked = stored.rows(studies, lambda _, trial: trial.detail(name), measure.at)
    return {"layer": [trials, *stored.layers(marked, x, y, measure.label)], "height": 320}
