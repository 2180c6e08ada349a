"""Sections about the space: which parameters matter, what goes with what, what pruned it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from autotune.core.device import DeviceLimits
from autotune.core.errors import AutotuneError
from autotune.core.measurement import Outcome
from autotune.reporting.charts import beside, category, layer, of_names, quantity, ramp, tooltip
from autotune.reporting.explore import MOST_EXPLORED
from autotune.reporting.layout import (
    Cell,
    Figure,
    Measure,
    Section,
    Spec,
    Table,
    cell,
    percent_text,
)
from autotune.reporting.study import FAILED, UNFINISHED, Study
from autotune.search.importance import FAST_SHARE, FEWEST_POINTS, Importance
from autotune.space import SearchSpace, SpaceUnion
from autotune.space.document import read_spaces
from autotune.targets.families import load_families
from autotune.targets.registry import make_target

_STAGES = (
    ("ended", (UNFINISHED,)),
    ("compiled", (Outcome.COMPILE_FAILED,)),
    ("within limits as compiled", (Outcome.REJECTED,)),
    ("ran", (Outcome.LAUNCH_FAILED, Outcome.TIMEOUT, FAILED)),
    ("right", (Outcome.WRONG_RESULT, Outcome.IMPLAUSIBLE)),
    ("timed to the end", (Outcome.ABANDONED,)),
)
"""Stages after a trial began, and the outcomes that did not come so far."""


@dataclass(frozen=True, slots=True)
class _Limits:
    """Limits as a study noted them."""

    noted: Mapping[str, int]

    def names(self) -> dict[str, int]:
        return dict(self.noted)


@dataclass(frozen=True, slots=True)
class Funnel:
    """Configurations left at each stage.

    Attributes:
        stages: what it is, and how many configurations.
        spaces: by family; none where they are not known.
        note: why not, or what is to be known of the numbers.
    """

    stages: tuple[tuple[str, int], ...]
    spaces: Mapping[str, SearchSpace]
    note: str


def funnel_of(study: Study, extra_families: tuple[Path, ...] = ()) -> Funnel:
    """The funnel of a study; its first stages only where its space can be built again."""
    spaces, note = _spaces(study, extra_families)
    stages = []
    if spaces:
        stages = [
            ("all combinations of values", sum(space.cartesian for space in spaces.values())),
            ("valid on the device", sum(space.size for space in spaces.values())),
        ]
    counts, left = study.counts, len(study.trials)
    stages.append(("tried", left))
    for words, outcomes in _STAGES:
        left -= sum(counts.get(outcome, 0) for outcome in outcomes)
        stages.append((words, left))
    return Funnel(tuple(stages), spaces, note)


def _spaces(study: Study, extra: tuple[Path, ...]) -> tuple[dict[str, SearchSpace], str]:
    """The spaces of a study's families, and what is to be known of them."""
    with suppress(AutotuneError):  # of a file that somebody else wrote
        if noted := study.noted("spaces"):
            written = read_spaces(dict(noted))
            return dict(written.spaces) if isinstance(written, SpaceUnion) else {"": written}, ""
    problem = study.problem
    if problem is None or not study.target or not study.families:
        return {}, "How the space was pruned is not recorded with these measurements."
    try:
        found = load_families(target=study.target, operation=problem.operation, extra=extra)
        families = [found[name] for name in study.families]
        if (limits := _limits(study)) is None:
            return {}, "The limits of the device are not recorded: its space cannot be counted."
        spaces = {family.name: family.space(problem, limits) for family in families}
    except (AutotuneError, KeyError):
        return {}, (
            "The families of this study are not here as they were: its space is not counted."
        )
    if study.space and SpaceUnion(spaces).digest != study.space:
        return spaces, (
            "The families or the limits have changed since this study: the first two stages, and "
            "the restrictions, are those of today."
        )
    return spaces, ""


def _limits(study: Study) -> DeviceLimits | None:
    """The device's limits as noted, or as they are where the device is the same one."""
    noted = study.noted("limits")
    if noted and all(type(value) is int for value in noted.values()):
        return _Limits(noted)
    with suppress(AutotuneError):
        device = make_target(study.target, {}).device(study.problem, None)
        if device.fingerprint.name == study.device:
            return device.limits
    return None


MOST_PARAMETERS = 20
"""Parameters whose importance is shown."""

_BAR = {"type": "bar", "cornerRadiusEnd": 2}


def importance(found: Mapping[str, Sequence[Importance]]) -> Section:
    """The importance of parameters for fast configurations, by study."""
    known = {name: several for name, several in found.items() if several}
    share = percent_text(FAST_SHARE).replace(".0", "")
    text = [
        f"How much knowing a parameter tells whether a trial is among the fastest {share} of its "
        "study: Optuna's PED-ANOVA over all trials that were timed to the end. Shares add up to "
        "one. Bars reach to the estimate, lines over the middle 95 % of estimates from resampled "
        "trials: where lines overlap, the order of two parameters is not known. A search tries "
        "promising values more often, so shares of a search are of what it tried; those of a "
        "sweep are of the space."
    ]
    if missing := [name for name, several in found.items() if not several]:
        text.append(
            f"Not for {', '.join(missing)}: it takes {FEWEST_POINTS} timed trials, and parameters "
            "that differ among them."
        )
    shares = ("share", "at least", "at most")
    table = Table(
        "importance-table",
        "Importance of the parameters",
        ("study", "parameter", *shares),
        [
            (
                name,
                one.name,
                *(cell(part, percent_text) for part in (one.share, one.low, one.high)),
            )
            for name, several in known.items()
            for one in several
        ],
        shares,
    )
    figure = Figure(
        "importance-chart",
        "Importance of the parameters",
        "Bars are shares of importance, lines their 95 % bootstrap intervals.",
        [("", importance_chart(known))],
        table,
    )
    return Section("importance", "Parameter importance", text, (), [figure] if known else [])


def importance_chart(found: Mapping[str, Sequence[Importance]]) -> Spec:
    """Shares of importance by study, with their intervals; the most important on top."""
    totals: defaultdict[str, float] = defaultdict(float)
    for several in found.values():
        for one in several:
            totals[one.name] += one.share
    ranked = sorted(totals, key=lambda name: (-totals[name], name))
    names = [name for name in ranked if totals[name] > 0][:MOST_PARAMETERS]
    rows = [
        {"s": study, "p": one.name}
        | {"v": round(one.share, 4), "a": round(one.low, 4), "b": round(one.high, 4)}
        for study, several in found.items()
        for one in several
        if one.name in names
    ]
    x = quantity("v", "share of the importance", axis={"format": "%"})
    rule = {"type": "rule", "strokeWidth": 1.5, "style": "interval"}
    percent = {"v": ("share", ".1%"), "a": ("at least", ".1%"), "b": ("at most", ".1%")}
    return {
        "data": {"values": rows},
        "layer": [
            {"mark": _BAR, "encoding": {"x": x, "color": of_names(list(found))}},
            {"mark": rule, "encoding": {"x": {**x, "field": "a"}, "x2": {"field": "b"}}},
        ],
        "encoding": {
            "y": category("p", scale={"domain": names}),
            "tooltip": tooltip(s="study", p="parameter", **percent),
            **beside(found),
        },
        "height": len(names) * (8 + 14 * len(found)),
    }


def parallel(studies: Sequence[Study], measure: Measure) -> Section:
    """Every trial as a line through the values of its parameters."""
    best = f"best {measure.label}"
    figure = Figure(
        "parallel-chart",
        "Parallel coordinates",
        "A line for each trial, through the value of each of its parameters, bright where it was "
        "fast; the stored winner is drawn thick, or the fastest where none is stored. Lines are "
        "spread a little where values are equal.",
        [("", _parallel_chart(measure))],
        Table(
            "parallel-table",
            "Values of the parameters among the trials shown",
            ("parameter", "value", "trials", best),
            (),
            ("trials", best),
        ),
        controls=("study", "share"),
    )
    return _explored("parallel", "Parallel coordinates", studies, figure)


def _parallel_chart(measure: Measure) -> Spec:
    """Parallel coordinates; the page fills the rows in: lines, and the values of every axis."""
    x = category(
        "p",
        sort=None,
        axis={"labelAngle": -35, "domain": False, "grid": True, "labelLimit": 140},
        scale={"padding": 0.2},
    )
    axis = {"domain": [-0.04, 1.04], "nice": False}
    y = {"field": "y", "type": "quantitative", "axis": None, "scale": axis}
    one_each = {"x": x, "y": y, "detail": {"field": "n", "type": "nominal"}}
    thin = {"type": "line", "strokeWidth": 1.2, "opacity": 0.55, "aria": False}
    text = {"type": "text", "align": "left", "dx": 6, "aria": False}
    lettered = {"x": x, "y": y, "text": {"field": "t", "type": "nominal"}}
    parts = [
        ("lines", thin, {**one_each, "color": ramp(measure, gradientOpacity=1)}),
        ("best", {"type": "line", "strokeWidth": 3.5, "style": "best"}, one_each),
        ("values", {**text, "style": "halo"}, lettered),  # readable on whatever lines
        ("values", text, lettered),
    ]
    layers = [{"data": {"name": name}, "mark": m, "encoding": e} for name, m, e in parts]
    return {"layer": layers, "height": 380}


def heat(studies: Sequence[Study], measure: Measure) -> Section:
    """The best for every pair of values of two parameters."""
    best = f"best {measure.label}"
    figure = Figure(
        "heat-chart",
        "Two parameters",
        "A cell for each pair of values of two parameters: the best of the trials that have both. "
        "The stored winner's cell is outlined; the first pair is of the two parameters that "
        "matter most.",
        [("", _heat_chart(measure))],
        Table(
            "heat-table",
            "The best for each pair of values",
            ("across", "down", best, "trials"),
            (),
            (best, "trials"),
        ),
        controls=("study", "x", "y"),
        note="Empty cells were not tried, or not timed. A best of many trials is better than one "
        "of few: the table has their number.",
    )
    return _explored("heat", "Heat map", studies, figure)


def _heat_chart(measure: Measure) -> Spec:
    """The best of every pair of values of two parameters; the page fills the rows in."""
    axes = {
        name: category(name, sort=None, axis={"labelLimit": 120, "labelAngle": 0}, title=name)
        for name in "xy"
    }
    told = tooltip(x="across", y="down", v=f"best {measure.label}", k="trials")
    readable = {"condition": {"test": "datum.bright", "value": "#111111"}, "value": "#ffffff"}
    text = {"field": "t", "type": "nominal"}
    outline = {"type": "rect", "filled": False, "strokeWidth": 3, "style": "stored"}
    return {
        "data": {"name": "cells"},
        "encoding": axes,
        "layer": [
            {"mark": {"type": "rect"}, "encoding": {"color": ramp(measure), "tooltip": told}},
            {"transform": [{"filter": "datum.s"}], "mark": outline},
            {
                "mark": {"type": "text", "aria": False},
                "encoding": {"text": text, "color": readable},
            },
        ],
        "height": 300,
    }


def _explored(id_: str, title: str, studies: Sequence[Study], figure: Figure) -> Section:
    if not any(study.ranked for study in studies):
        return Section(id_, title, ("No trial was verified and timed to the end.",))
    text = tuple(
        f"Of {study.name} {MOST_EXPLORED:,} trials are here, of {len(study.ranked):,}: the "
        "fastest quarter of these, the rest by lot."
        for study in studies
        if len(study.ranked) > MOST_EXPLORED
    )
    return Section(id_, title, text, (), [figure])


def funnel(found: Mapping[str, Funnel]) -> Section:
    """The space at each stage, and what each restriction removed."""
    stages = [(study, stage, count) for study, one in found.items() for stage, count in one.stages]
    figure = Figure(
        "funnel-chart",
        "From every combination to those that were timed",
        "Bars are numbers of configurations left after each stage, on a scale of powers of ten.",
        [("", _funnel_chart(list(found), stages))],
        Table(
            "funnel-table",
            "What was left at each stage",
            ("study", "stage", "left"),
            [(study, stage, cell(count)) for study, stage, count in stages],
            ("left",),
        ),
    )
    rows = []
    for study, one in found.items():
        for family, space in one.spaces.items():
            before: int | None = space.cartesian
            for step in space.funnel():
                left = step.remaining
                removed = None if before is None or left is None else before - left
                words = (step.reason or step.expr, step.expr)
                rows.append((study, family, *words, _count(removed), _count(left)))
                before = left
    restrictions = Table(
        "restrictions-table",
        "What each restriction removed, in their order",
        ("study", "family", "what must hold", "as written", "removed", "left"),
        rows,
        ("removed", "left"),
    )
    text = tuple(f"{study}: {one.note}" for study, one in found.items() if one.note)
    return Section("funnel", "Pruning funnel", text, (), [figure], [restrictions] if rows else [])


def _funnel_chart(studies: Sequence[str], stages: Sequence[tuple[str, str, int]]) -> Spec:
    """Configurations left at each stage, on a scale of powers of ten."""
    names = list(dict.fromkeys(stage for _, stage, _ in stages))
    most = max((count for _, _, count in stages), default=1)
    ticks = [0, *(10**power for power in range(len(str(most)) + 1))]
    spec = layer(
        ({"s": study, "g": stage, "n": count} for study, stage, count in stages),
        _BAR,
        y=category("g", scale={"domain": names}),
        x=quantity(
            "n",
            "configurations",
            scale={"type": "symlog", "domainMin": 0},
            axis={"values": ticks, "labelExpr": "format(datum.value, '~s')"},
        ),
        color=of_names(studies),
        tooltip=tooltip(s="study", g="stage", n=("left", ",")),
        **beside(studies),
    )
    return {**spec, "height": len(names) * (10 + 14 * len(studies))}


def _count(number: int | None) -> Cell:
    """A number of configurations; unknown where counting would take too long."""
    return Cell("?") if number is None else cell(number)
