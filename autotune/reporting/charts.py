"""The charts of trials: progress, contenders, shares of time, roofline, resources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.core.measurement import Outcome
from autotune.reporting import facts, roofline
from autotune.reporting.drawing import Spec, field, of_names, scale
from autotune.reporting.study import FAILED, UNFINISHED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.reporting.amounts import Measure
    from autotune.reporting.study import Study

MOST_DRAWN = 1500
"""Trials that one chart shows of a study."""

CONTENDERS = 15
"""Trials whose intervals are shown."""

OUTCOMES = (*map(str, Outcome), FAILED, UNFINISHED)
"""In the order of their colours."""

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
        shown = {each.number for each in facts.sample(study.trials, MOST_DRAWN)}
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
    x = {"field": "x", "type": "quantitative", "title": title, "scale": {"nice": False}}
    y = {"field": "y", "type": "quantitative", "title": measure.label, "scale": scale(measure)}
    return {
        "layer": [
            {
                "data": {"values": points},
                "mark": {
                    "type": "point",
                    "filled": True,
                    "size": 16,
                    "opacity": 0.4,
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
        ],
        "height": 320,
    }


def contenders(study: Study, measure: Measure) -> Spec:
    """The fastest trials with their confidence intervals."""
    tied = facts.ties(study)
    rows = []
    for rank, trial in enumerate(study.ranked[:CONTENDERS], start=1):
        value = trial.value or 0.0
        ends = sorted(measure.at(study, end) for end in trial.interval or (value, value))
        rows.append(
            {
                "n": f"{rank}. {trial.family or 'trial'} #{trial.number}",
                "v": measure.at(study, value),
                "a": ends[0],
                "b": ends[1],
                "k": "fastest" if rank == 1 else "tie" if trial.number in tied else "slower",
                "c": str(trial),
            }
        )
    y = {"field": "n", "type": "nominal", "sort": None, "title": None}
    color = {
        "field": "k",
        "type": "nominal",
        "title": None,
        "scale": {"domain": ["fastest", "tie", "slower"]},
    }
    tooltip = [field("n", "trial"), field("v", measure.label), field("c", "configuration")]
    x = {"type": "quantitative", "title": measure.label, "scale": {"zero": False}}
    return {
        "data": {"values": rows},
        "layer": [
            {
                "mark": {"type": "rule", "strokeWidth": 2},
                "encoding": {"x": {**x, "field": "a"}, "x2": {"field": "b"}},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 70},
                "encoding": {"x": {**x, "field": "v"}},
            },
        ],
        "encoding": {"y": y, "color": color, "tooltip": tooltip},
        "height": 22 * len(rows),
    }


def shares(rows: Sequence[Mapping[str, Any]], order: Sequence[str], title: str) -> Spec:
    """Stacked bars, one a study: rows have the study `s`, the part `k` and its amount `v`."""
    parts = dict.fromkeys(row["k"] for row in rows)
    known = [*(part for part in order if part in parts), *(p for p in parts if p not in order)]
    ranked = [{**row, "r": known.index(row["k"])} for row in rows]
    return {
        "data": {"values": ranked},
        "mark": {"type": "bar"},
        "encoding": {
            "y": {"field": "s", "type": "nominal", "sort": None, "title": None},
            "x": {"field": "v", "type": "quantitative", "title": title, "stack": "zero"},
            "color": {
                "field": "k",
                "type": "nominal",
                "title": None,
                "scale": {"domain": known},
            },
            "order": {"field": "r", "type": "quantitative"},
            "tooltip": [field("s", "study"), field("k", "what"), field("v", title, ",.4~r")],
        },
        "height": 38 * len({row["s"] for row in rows}),
    }


def roof(studies: Sequence[Study]) -> Spec:
    """Every measured point under the roofs that are known."""
    points, places = [], []
    for study in studies:
        at = roofline.intensity(study)
        if at is None:
            continue
        places.append(at)
        for trial in facts.sample([t for t in study.trials if t.value is not None], MOST_DRAWN):
            rate = study.rate(trial.value or 1.0)
            what = {"c": str(trial), "o": trial.outcome}
            points.append({"s": study.name, "x": round(at, 4), "y": float(f"{rate:.5g}"), **what})
    low, high = min(places) / 4, max(places) * 4
    lines = []
    for number, each in enumerate(roofline.roofs(studies)):
        ends = [(low, each.at(low)), (high, each.at(high))]
        lines += [{"l": number, "n": each.name, "x": x, "y": y} for x, y in ends]
    x: Spec = {
        "field": "x",
        "type": "quantitative",
        "title": "FLOP per byte of operands",
        "scale": {"type": "log", "domain": [low, high], "nice": False},
        "axis": {"format": "~r", "tickCount": 6},
    }
    y: Spec = {
        "field": "y",
        "type": "quantitative",
        "title": "GFLOP/s",
        "scale": {"type": "log"},
        "axis": {"format": "~r", "tickCount": 6},
    }
    ends_only = [line for line in lines if line["x"] == low]
    return {
        "layer": [
            {
                "data": {"values": lines},
                "mark": {"type": "line", "strokeWidth": 1.5, "style": "interval"},
                "encoding": {"x": x, "y": y, "detail": {"field": "l", "type": "nominal"}},
            },
            {
                "data": {"values": ends_only},
                "mark": {
                    "type": "text",
                    "align": "left",
                    "baseline": "bottom",
                    "dx": 4,
                    "dy": -3,
                    "limit": 420,
                },
                "encoding": {"x": x, "y": y, "text": {"field": "n", "type": "nominal"}},
            },
            {
                "data": {"values": points},
                "mark": {"type": "point", "size": 28, "opacity": 0.6, "aria": False},
                "encoding": {
                    "x": x,
                    "y": y,
                    "color": of_names([study.name for study in studies]),
                    "tooltip": [
                        field("s", "study"),
                        field("y", "GFLOP/s"),
                        field("o", "outcome"),
                        field("c", "configuration"),
                    ],
                },
            },
        ],
        "height": 380,
    }


def resource(studies: Sequence[Study], measure: Measure, name: str) -> Spec:
    """One resource of every measured trial against its speed."""
    rows = []
    for study in studies:
        timed = [t for t in study.trials if t.value is not None and t.detail(name) is not None]
        for trial in facts.sample(timed, MOST_DRAWN):
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
    return {
        "data": {"values": rows},
        "mark": {"type": "point", "size": 28, "opacity": 0.65, "aria": False},
        "encoding": {
            "x": {"field": "x", "type": "quantitative", "title": RESOURCES[name]},
            "y": {
                "field": "y",
                "type": "quantitative",
                "title": measure.label,
                "scale": scale(measure),
            },
            "color": color if len(studies) == 1 else of_names([study.name for study in studies]),
            "tooltip": [
                field("s", "study"),
                field("f", "family"),
                field("x", RESOURCES[name]),
                field("y", measure.label),
                field("c", "configuration"),
            ],
        },
        "height": 320,
    }
