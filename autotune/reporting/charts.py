"""Charts of trials: progress, contenders, shares of time, resources; and their vocabulary.

Rows have short fixed fields, and names from studies are only ever values: nothing that a study
says becomes part of an expression. Colours and fonts are the page's, see ``assets/page.js``.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from autotune.core.measurement import Outcome
from autotune.reporting import facts
from autotune.reporting.layout import Measure, Spec
from autotune.reporting.study import FAILED, UNFINISHED, Study, Trial

MOST_DRAWN = 1500
"""Trials that one chart shows of a study."""

CONTENDERS = 15
"""Trials whose intervals are shown."""

OUTCOMES = (*map(str, Outcome), FAILED, UNFINISHED)
"""In the order in which a trial may come to its end."""

_COLORED = (
    *(Outcome.REJECTED, Outcome.COMPILE_FAILED, Outcome.OK, Outcome.LAUNCH_FAILED),
    *(Outcome.WRONG_RESULT, Outcome.TIMEOUT, UNFINISHED, Outcome.ABANDONED, FAILED),
    Outcome.IMPLAUSIBLE,
)
OUTCOME_COLORS = tuple(map(str, _COLORED))
"""In the order of the page's colours: what is right is green, what is wrong red."""

RESOURCES: Mapping[str, str] = {
    "registers": "registers of a thread",
    "occupancy": "occupancy (share of a multiprocessor's threads)",
    "spill_bytes": "bytes of spill code",
    "shared_bytes": "shared memory of a block (bytes)",
    "compile_s": "seconds of compiling",
}
"""Details of a measurement that are compared with speed."""

SEARCH = "stored winner, as searched"
FINALS = "stored winner, in the finals"
"""The stored winner has two numbers: the search measured it by itself, and the finals in turns
with the other finalists. Each has a mark of its own shape."""


def quantity(name: str, title: str, **more: Any) -> Spec:
    """A field that is a number, under the title of its axis."""
    return {"field": name, "type": "quantitative", "title": title, **more}


def category(name: str, **more: Any) -> Spec:
    """A field that is a name, which needs no title."""
    return {"field": name, "type": "nominal", "title": None} | more


def tooltip(**titles: str | tuple[str, str]) -> list[Spec]:
    """The lines of a tooltip: titles by field, some with a format."""
    return [
        {"field": name, "title": title}
        if isinstance(title, str)
        else {"field": name, "title": title[0], "format": title[1]}
        for name, title in titles.items()
    ]


def layer(values: Iterable[Any], mark: Spec, **encoding: Any) -> Spec:
    """Rows, how they are drawn, and what their fields decide."""
    return {"data": {"values": list(values)}, "mark": mark, "encoding": encoding}


def scale(measure: Measure) -> Spec:
    """Rates begin at nothing; times are compared by powers."""
    return {"zero": True} if measure.is_rate else {"type": "log", "nice": False, "padding": 8}


def ramp(measure: Measure, **legend: Any) -> Spec:
    """Colours of a measure: bright is fast, whichever way it goes."""
    return quantity(
        "v",
        measure.label,
        scale={"scheme": "viridis", "reverse": not measure.is_rate},
        legend={"orient": "top", "gradientLength": 220, **legend},
    )


def of_names(names: Sequence[str]) -> Spec:
    """A colour for each study, and a legend where there are several."""
    legend = {"title": None, "columns": 1, "labelLimit": 480} if len(names) > 1 else None
    return {"field": "s", "type": "nominal", "scale": {"domain": list(names)}, "legend": legend}


def beside(names: Iterable[str]) -> Spec:
    """Bars of several studies beside each other."""
    studies = list(names)
    if len(studies) < 2:
        return {}
    return {"yOffset": {"field": "s", "type": "nominal", "scale": {"domain": studies}}}


def powers(low: float, high: float) -> list[float]:
    """Round numbers between two, for logarithmic axes: 1, 2 and 5 of a power, if they are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    digits = (1, 2, 5) if last - first <= 3 else (1,)
    found = [float(f"{digit}e{power}") for power in range(first, last + 1) for digit in digits]
    return [number for number in found if low <= number <= high]


def stored_rows(
    studies: Iterable[Study],
    place: Callable[[Study, Trial], float | str | None],
    height: Callable[[Study, float], float],
) -> list[dict[str, Any]]:
    """The two marks of every study whose record's winner is among its trials.

    A trial stands across at its `place`, or is not in the chart; its `height` is of its seconds.
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


def stored_layers(marked: Sequence[dict[str, Any]], x: Spec, y: Spec, label: str) -> list[Spec]:
    """The stored winners' marks, a ring and a diamond, with their legend; none for no marks."""
    if not marked:
        return []
    domain = {"domain": [SEARCH, FINALS], "range": ["circle", "diamond"]}
    mark = {"type": "point", "size": 140, "strokeWidth": 2, "style": "stored"}
    shape = category("k", scale=domain, legend={"columns": 1})
    told = tooltip(s="study", k="what", y=label, c="configuration")
    return [layer(marked, mark, x=x, y=y, shape=shape, tooltip=told)]


def progress(studies: Sequence[Study], measure: Measure, *, by_time: bool) -> Spec:
    """Every trial, and the best so far, by the number of trials or by time."""

    def place(trial: Trial) -> float | None:
        return trial.ended_s if by_time else trial.number

    points, steps = [], []
    for study in studies:
        shown = {trial.number for trial in facts.sample(study.timed, MOST_DRAWN)}
        last: float | None = None
        for trial, best in facts.best_so_far(study):
            if (across := place(trial)) is None:
                continue
            at: dict[str, Any] = {"s": study.name, "x": round(across, 3)}
            if trial.number in shown and trial.value is not None:
                what = {"c": str(trial), "o": trial.outcome}
                points.append({**at, "y": measure.at(study, trial.value), **what})
            if best is not None and (best != last or trial is study.trials[-1]):
                steps.append({**at, "y": measure.at(study, best)})
                last = best
    title = "seconds since the first trial began" if by_time else "trials"
    # Trials begin at 1, and the clock at 0.
    x = quantity("x", title, scale={"nice": False, "zero": by_time})
    y = quantity("y", measure.label, scale=scale(measure))
    axes = {"x": x, "y": y, "color": of_names([study.name for study in studies])}
    told = tooltip(s="study", x=title, y=measure.label, o="outcome", c="configuration")
    mark = {"type": "point", "filled": True, "size": 26, "opacity": 0.5, "aria": False}
    line = {"type": "line", "interpolate": "step-after", "strokeWidth": 2.5}
    marked = stored_rows(studies, lambda _, trial: place(trial), measure.at)
    return {
        "layer": [
            layer(points, mark, **axes, tooltip=told),
            layer(steps, line, **axes),
            *stored_layers(marked, x, y, measure.label),
        ],
        "height": 320,
    }


def contenders(study: Study, measure: Measure) -> Spec:
    """The fastest trials with their confidence intervals, and the stored winner's finals."""
    tied = facts.ties(study)
    rows, names = [], {}
    for rank, trial in enumerate(study.ranked, start=1):
        if rank > CONTENDERS and trial is not study.stored:
            continue
        value = trial.value or 0.0
        ends = sorted(measure.at(study, end) for end in trial.interval or (value, value))
        names[trial.number] = f"{rank}. {trial.family or 'trial'} #{trial.number}"
        kind = "fastest" if rank == 1 else "tie" if trial.number in tied else "slower"
        at = {"n": names[trial.number], "v": measure.at(study, value)}
        rows.append({**at, "a": ends[0], "b": ends[1], "k": kind, "c": str(trial)})
    y = category("n", scale={"domain": list(names.values())})
    kinds = list(dict.fromkeys(row["k"] for row in rows))
    color = category("k", scale={"domain": ["fastest", "tie", "slower"]}, legend={"values": kinds})
    x = quantity("v", measure.label, scale={"zero": False})
    ends_x = {"x": {**x, "field": "a"}, "x2": {"field": "b"}}
    layers: list[Spec] = [
        {"mark": {"type": "rule", "strokeWidth": 2}, "encoding": {**ends_x, "color": color}},
        {
            "mark": {"type": "point", "filled": True, "size": 70},
            "encoding": {"x": x, "color": color},
        },
    ]
    marked = stored_rows([study], lambda _, trial: names[trial.number], measure.at)
    if marked and study.record is not None:  # the interval of the finals, then the two marks
        low, high = (measure.at(study, end) for end in study.record.interval_s)
        rule = {"type": "rule", "strokeWidth": 1.5, "style": "interval"}
        across = {**y, "field": "x"}
        interval = [{"x": marked[0]["x"], "a": low, "b": high}]
        layers.append(layer(interval, rule, **ends_x, y=across))
        layers += stored_layers(marked, {**x, "field": "y"}, across, measure.label)
    told = tooltip(n="trial", v=measure.label, c="configuration")
    return {
        "data": {"values": rows},
        "layer": layers,
        "encoding": {"y": y, "tooltip": told},
        "height": 22 * len(rows),
    }


def energies(study: Study, measure: Measure) -> Spec:
    """Time and energy of the trials, and the front of those that none beats in both."""
    known, front = facts.fronts(study)
    best = {trial.number for trial in front}
    rows = [
        {
            "v": measure.at(study, trial.value or 0.0),
            "j": trial.detail("joules"),
            "k": "front" if trial.number in best else "beaten",
            "c": str(trial),
        }
        for trial in known
    ]
    return {
        "data": {"values": rows},
        "mark": {"type": "point", "filled": True, "size": 50},
        "encoding": {
            "x": quantity("v", measure.label, scale={"zero": False}),
            "y": quantity("j", "joules of a call", scale={"zero": False}),
            "color": category("k", scale={"domain": ["front", "beaten"]}),
            "tooltip": tooltip(v=measure.label, j="joules", c="configuration"),
        },
    }


def shares(
    rows: Sequence[Mapping[str, Any]], order: Sequence[str], colors: Sequence[str], title: str
) -> Spec:
    """Stacked bars, one a study `s`, of parts `k` with amounts `v`.

    `colors` are all parts in the order of the page's colours.
    """
    parts, studies = {row["k"] for row in rows}, {row["s"] for row in rows}
    known = [part for part in order if part in parts]
    single: Spec = {} if len(studies) > 1 else {"axis": None}
    spec = layer(
        ({**row, "r": known.index(row["k"])} for row in rows),
        {"type": "bar"},
        y=category("s", sort=None, **single),
        x=quantity("v", title, stack="zero"),
        color=category("k", scale={"domain": colors}, legend={"values": known}),
        order={"field": "r", "type": "quantitative"},
        tooltip=tooltip(s="study", k="what", v=(title, ",.4~r")),
    )
    return {**spec, "height": 38 * len(studies)}


def resource(studies: Sequence[Study], measure: Measure, name: str) -> Spec:
    """One resource of every measured trial against its speed."""
    title, rows = RESOURCES[name], []
    for study in studies:
        known = [trial for trial in study.timed if trial.detail(name) is not None]
        for trial in facts.sample(known, MOST_DRAWN):
            at = {"s": study.name, "f": trial.family or "trial", "c": str(trial)}
            x = float(f"{trial.detail(name) or 0.0:.5g}")
            rows.append({**at, "x": x, "y": measure.at(study, trial.value or 1.0)})
    names = [study.name for study in studies]
    axes: Spec = {
        "x": quantity("x", title, scale={"zero": False, "nice": False, "padding": 12}),
        "y": quantity("y", measure.label, scale=scale(measure)),
    }
    trials = layer(
        rows,
        {"type": "point", "size": 28, "opacity": 0.65, "aria": False},
        **axes,
        color=of_names(names) if names[1:] else category("f", title="family"),
        tooltip=tooltip(s="study", f="family", x=title, y=measure.label, c="configuration"),
    )
    marked = stored_rows(studies, lambda _, trial: trial.detail(name), measure.at)
    return {"layer": [trials, *stored_layers(marked, **axes, label=measure.label)], "height": 320}
