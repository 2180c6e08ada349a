"""Sections about the space: which parameters matter, what goes with what, what pruned it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.reporting import space_charts
from autotune.reporting.amounts import percent_text
from autotune.reporting.explore import MOST_EXPLORED
from autotune.reporting.layout import Cell, Figure, Section, Table
from autotune.search.importance import FAST_SHARE, FEWEST_POINTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.reporting.amounts import Measure
    from autotune.reporting.funnel import Funnel
    from autotune.reporting.study import Study
    from autotune.search.importance import Importance


def importance(found: Mapping[str, Sequence[Importance]]) -> Section:
    """How much each parameter decides whether a configuration is a fast one, by study."""
    known = {name: each for name, each in found.items() if each}
    share = percent_text(FAST_SHARE).replace(".0", "")
    text = [
        f"How much knowing a parameter tells whether a trial is among the fastest {share} of its "
        "study: Optuna's PED-ANOVA over all trials that were timed to the end. Shares add up to "
        "one. Bars reach to the estimate, lines over the middle 95 % of estimates from resampled "
        "trials: where lines overlap, the order of two parameters is not known. A search tries "
        "promising values more often, so shares of a search are of what it tried; those of a "
        "sweep are of the space."
    ]
    missing = [name for name, each in found.items() if not each]
    if missing:
        text.append(
            f"Not for {', '.join(missing)}: it takes {FEWEST_POINTS} timed trials, and parameters "
            "that differ among them."
        )
    table = Table(
        "importance-table",
        "Importance of the parameters",
        ("study", "parameter", "share", "at least", "at most"),
        [
            (
                name,
                one.name,
                *(Cell(percent_text(each), each) for each in (one.share, one.low, one.high)),
            )
            for name, each in known.items()
            for one in each
        ],
        ("share", "at least", "at most"),
    )
    figure = Figure(
        "importance-chart",
        "Importance of the parameters",
        "Bars are shares of importance, lines their 95 % bootstrap intervals.",
        [("", space_charts.importance(known))],
        table,
    )
    return Section("importance", "Parameter importance", text, (), [figure] if known else [])


def parallel(studies: Sequence[Study], measure: Measure) -> Section:
    """Every trial as a line through the values of its parameters."""
    figure = Figure(
        "parallel-chart",
        "Parallel coordinates",
        "A line for each trial, through the value of each of its parameters, bright where it was "
        "fast; the stored winner is drawn thick, or the fastest where none is stored. Lines are "
        "spread a little where values are equal.",
        [("", space_charts.parallel(measure))],
        Table(
            "parallel-table",
            "Values of the parameters among the trials shown",
            ("parameter", "value", "trials", f"best {measure.label}"),
            (),
            ("trials", f"best {measure.label}"),
        ),
        controls=("study", "share"),
    )
    return _explored("parallel", "Parallel coordinates", studies, figure)


def heat(studies: Sequence[Study], measure: Measure) -> Section:
    """The best for every pair of values of two parameters."""
    figure = Figure(
        "heat-chart",
        "Two parameters",
        "A cell for each pair of values of two parameters: the best of the trials that have both. "
        "The stored winner's cell is outlined; the first pair is of the two parameters that "
        "matter most.",
        [("", space_charts.heat(measure))],
        Table(
            "heat-table",
            "The best for each pair of values",
            ("across", "down", f"best {measure.label}", "trials"),
            (),
            (f"best {measure.label}", "trials"),
        ),
        controls=("study", "x", "y"),
        note="Empty cells were not tried, or not timed. A best of many trials is better than one "
        "of few: the table has their number.",
    )
    return _explored("heat", "Heat map", studies, figure)


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
    """What was left of the space at each stage, and what each restriction removed."""
    stages = Table(
        "funnel-table",
        "What was left at each stage",
        ("study", "stage", "left"),
        [
            (study, stage, Cell(f"{count:,}", count))
            for study, each in found.items()
            for stage, count in each.stages
        ],
        ("left",),
    )
    figure = Figure(
        "funnel-chart",
        "From every combination to those that were timed",
        "Bars are numbers of configurations left after each stage, on a scale of powers of ten.",
        [("", space_charts.funnel(found))],
        stages,
    )
    rows = []
    for study, each in found.items():
        for space in each.spaces:
            before: int | None = space.cartesian
            for step in space.steps:
                left, removed = step.remaining, None
                if before is not None and left is not None:
                    removed = before - left
                rows.append(
                    (
                        study,
                        space.family,
                        step.reason or step.expr,
                        step.expr,
                        _count(removed),
                        _count(left),
                    )
                )
                before = left
    restrictions = Table(
        "restrictions-table",
        "What each restriction removed, in their order",
        ("study", "family", "what must hold", "as written", "removed", "left"),
        rows,
        ("removed", "left"),
    )
    notes = {study: each.note for study, each in found.items() if each.note}
    text = tuple(f"{study}: {note}" for study, note in notes.items())
    return Section("funnel", "Pruning funnel", text, (), [figure], [restrictions] if rows else [])


def _count(number: int | None) -> Cell:
    """A number of configurations; unknown where counting would take too long."""
    return Cell("?") if number is None else Cell(f"{number:,}", float(number))
