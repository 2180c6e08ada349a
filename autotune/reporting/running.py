"""Sections about the runs: where the time went, what failed, how near the hardware."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.measurement import Outcome
from autotune.reporting import charts, facts, roof_chart, roofline
from autotune.reporting.amounts import duration_text, rate_text
from autotune.reporting.layout import Cell, Figure, Section, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.reporting.amounts import Measure
    from autotune.reporting.study import Study

MOST_REASONS = 200
"""Rows of the table of failures, of each study."""

_UNKNOWN = "–"


def times(studies: Sequence[Study]) -> Section:
    """Where the wall time of the runs went, and what each family's trials took."""
    spent = {study.name: facts.spent(study) for study in studies}
    rows = [
        {"s": name, "k": what, "v": round(seconds, 3)}
        for name, each in spent.items()
        for what, seconds in each.items()
    ]
    table = Table(
        "time-table",
        "Wall time",
        ("study", "what", "time", "share"),
        [
            (
                name,
                what,
                Cell(duration_text(seconds), seconds),
                Cell(f"{seconds / sum(each.values()):.1%}", seconds / sum(each.values())),
            )
            for name, each in spent.items()
            for what, seconds in each.items()
        ],
        ("time", "share"),
    )
    order = (*facts.SPENT.values(), facts.REST)
    figure = Figure(
        "time-chart",
        "Wall time of the runs",
        "A bar for each study, divided by what the time went into.",
        [("", charts.shares(rows, order, order, "seconds"))],
        table,
    )
    text = []
    if missing := [name for name, each in spent.items() if not each]:
        text.append(f"Of {', '.join(missing)} no times were kept.")
    families = Table(
        "family-times",
        "What the trials of each family took",
        ("study", "family", "trials", "compiling", "verifying and timing", "of it timed calls"),
        [
            (
                study.name,
                each.family or _UNKNOWN,
                Cell(f"{each.trials:,}", each.trials),
                _seconds(each.compile_s),
                _seconds(each.trial_s),
                _seconds(each.timed_s or None),
            )
            for study in studies
            for each in facts.family_times(study)
        ],
        ("trials", "compiling", "verifying and timing", "of it timed calls"),
    )
    if any(each.compile_s for study in studies for each in facts.family_times(study)):
        text.append(
            "Seconds of compiling are those of all compiler processes together, which work side "
            "by side; the wall time has what was waited for."
        )
    return Section("time", "Where the time went", text, (), [figure] if rows else [], [families])


def failures(studies: Sequence[Study]) -> Section:
    """How trials ended, and why some were not timed to the end."""
    rows = [
        {"s": study.name, "k": outcome, "v": count}
        for study in studies
        for outcome, count in study.counts.items()
    ]
    outcomes = Table(
        "outcomes-table",
        "Trials by outcome",
        ("study", "outcome", "trials"),
        [
            (study.name, outcome, Cell(f"{count:,}", count))
            for study in studies
            for outcome, count in study.counts.items()
        ],
        ("trials",),
    )
    figure = Figure(
        "outcomes-chart",
        "Trials by outcome",
        "A bar for each study, divided by how its trials ended.",
        [("", charts.shares(rows, charts.OUTCOMES, charts.OUTCOME_COLORS, "trials"))],
        outcomes,
    )
    reasons = [
        (
            study.name,
            each.outcome,
            each.reason,
            Cell(f"{each.count:,}", each.count),
            str(each.example),
        )
        for study in studies
        for each in facts.failures(study)[:MOST_REASONS]
    ]
    table = Table(
        "reasons-table",
        "Reasons; those that differ in numbers only are counted together",
        ("study", "outcome", "reason", "trials", "for example"),
        reasons,
        ("trials",),
    )
    if not reasons:
        words = "Every trial was verified and timed to the end." if rows else "There is no trial."
        return Section("failures", "Failures", (words,), (), [figure] if rows else [])
    text = []
    if any(study.counts.get(Outcome.ABANDONED) for study in studies):
        text.append("Abandoned trials were right, and far behind the best after their first runs.")
    return Section("failures", "Failures", text, (), [figure], [table])


def roof(studies: Sequence[Study]) -> Section:
    """Every measured point under what limits it, as far as that is known."""
    known = [study for study in studies if roofline.intensity(study) is not None]
    if not any(study.timed for study in known):
        words = "No trial was timed whose operations and operands are known."
        return Section("roofline", "Roofline", (words,))
    found = roofline.roofs(known)
    rows = [
        (
            each.name,
            Cell(_UNKNOWN) if each.gflops is None else Cell(rate_text(each.gflops), each.gflops),
            Cell(_UNKNOWN) if each.gbytes is None else Cell(f"{each.gbytes:,.1f}", each.gbytes),
        )
        for each in found
    ]
    table = Table(
        "roofline-table", "The roofs", ("roof", "flat at", "GB/s"), rows, ("flat at", "GB/s")
    )
    text = [
        "Across is the problem's intensity: operations of the textbook algorithm per byte of the "
        "operands, each moved once. What kernels really move is not measured, so all trials of a "
        "problem stand above each other."
    ]
    if not any(each.name.startswith("peak") for each in found):
        text.append(
            "What the device could do at most is not recorded, so the highest roof is only the "
            "fastest thing that was measured here."
        )
    figure = Figure(
        "roofline-chart",
        "Every measured trial, and the roofs that are known",
        "Rates of all timed trials over the intensity of their problem, both on scales of powers "
        "of ten.",
        [("", roof_chart.roof(known))],
        table,
        note="The trials' rates are in the table of the fastest trials.",
    )
    return Section("roofline", "Roofline", text, (), [figure])


def resources(studies: Sequence[Study], measure: Measure) -> Section:
    """What kernels need of a GPU, or of a compiler, against their speed."""
    timed = [trial for study in studies for trial in study.timed]
    known = [
        name for name in charts.RESOURCES if any(trial.detail(name) is not None for trial in timed)
    ]
    title = "Registers, occupancy and spills"
    if not known:
        return Section(
            "resources", title, ("What the kernels needed of the device was not recorded.",)
        )
    text = []
    if known == ["compile_s"]:
        text.append(
            "Registers, occupancy and spills are known of kernels for GPUs; of these it is known "
            "how long they took to compile."
        )
    variants = [
        (charts.RESOURCES[name], charts.resource(studies, measure, name)) for name in known
    ]
    ranked = [(study, trial) for study in studies for trial in study.ranked[:50]]
    header = ("study", "trial", measure.label, *(charts.RESOURCES[name] for name in known))
    rows: list[Sequence[Cell | str]] = []
    for study, trial in ranked:
        shown = measure.at(study, trial.value or 1.0)
        details = [(trial.detail(name), name) for name in known]
        rows.append(
            (
                study.name,
                f"#{trial.number} {trial.family}".strip(),
                Cell(f"{shown:,.5g}", shown),
                *(
                    Cell(_UNKNOWN) if value is None else Cell(f"{value:,.4g}", value)
                    for value, _ in details
                ),
            )
        )
    table = Table(
        "resources-table",
        "What the fastest 50 trials of each study needed",
        header,
        rows,
        header[2:],
    )
    figure = Figure(
        "resources-chart",
        "What kernels needed, against their speed",
        "A point for each timed trial: one resource across, speed or time upwards.",
        variants,
        table,
        choice="Resource",
    )
    return Section("resources", title, text, (), [figure])


def _seconds(seconds: float | None) -> Cell:
    return Cell(_UNKNOWN) if seconds is None else Cell(duration_text(seconds), seconds)
