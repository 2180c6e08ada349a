"""Sections about the runs: where the time went, what failed, how near the hardware, on what."""

from collections.abc import Sequence
from typing import Any

from autotune.core.measurement import Outcome
from autotune.reporting import charts, facts, roofline
from autotune.reporting.layout import (
    UNKNOWN,
    Cell,
    Figure,
    Measure,
    Section,
    Table,
    cell,
    duration_text,
    rate_text,
)
from autotune.reporting.study import Study

MOST_REASONS = 200
"""Rows of the table of failures, of each study."""


def times(studies: Sequence[Study]) -> Section:
    """Where the wall time of the runs went, and what each family's trials took."""
    spent = {study.name: facts.spent(study) for study in studies}
    parts = [
        (name, what, seconds, seconds / sum(own.values()))
        for name, own in spent.items()
        for what, seconds in own.items()
    ]
    rows = [{"s": name, "k": what, "v": round(seconds, 3)} for name, what, seconds, _ in parts]
    order = (*facts.SPENT.values(), facts.REST)
    figure = Figure(
        "time-chart",
        "Wall time of the runs",
        "A bar for each study, divided by what the time went into.",
        [("", charts.shares(rows, order, order, "seconds"))],
        Table(
            "time-table",
            "Wall time",
            ("study", "what", "time", "share"),
            [
                (name, what, cell(s, duration_text), cell(part, ".1%"))
                for name, what, s, part in parts
            ],
            ("time", "share"),
        ),
    )
    text = []
    if missing := [name for name, own in spent.items() if not own]:
        text.append(f"Of {', '.join(missing)} no times were kept.")
    took = [(study.name, time) for study in studies for time in facts.family_times(study)]
    columns = ("trials", "compiling", "verifying and timing", "of it timed calls")
    families = Table(
        "family-times",
        "What the trials of each family took",
        ("study", "family", *columns),
        [
            (
                name,
                time.family or UNKNOWN,
                cell(time.trials),
                cell(time.compile_s, duration_text),
                cell(time.trial_s, duration_text),
                cell(time.timed_s or None, duration_text),
            )
            for name, time in took
        ],
        columns,
    )
    if any(time.compile_s for _, time in took):
        text.append(
            "Seconds of compiling are those of all compiler processes together, which work side "
            "by side; the wall time has what was waited for."
        )
    return Section("time", "Where the time went", text, (), [figure] if rows else [], [families])


def failures(studies: Sequence[Study]) -> Section:
    """Outcomes of trials, and reasons why some were not timed to the end."""
    counts = [(study.name, *counted) for study in studies for counted in study.counts.items()]
    rows = [{"s": name, "k": outcome, "v": count} for name, outcome, count in counts]
    figure = Figure(
        "outcomes-chart",
        "Trials by outcome",
        "A bar for each study, divided by how its trials ended.",
        [("", charts.shares(rows, charts.OUTCOMES, charts.OUTCOME_COLORS, "trials"))],
        Table(
            "outcomes-table",
            "Trials by outcome",
            ("study", "outcome", "trials"),
            [(name, outcome, cell(count)) for name, outcome, count in counts],
            ("trials",),
        ),
    )
    reasons = [
        (study.name, alike.outcome, alike.reason, cell(alike.count), str(alike.example))
        for study in studies
        for alike in facts.failures(study)[:MOST_REASONS]
    ]
    if not reasons:
        words = "Every trial was verified and timed to the end." if rows else "There is no trial."
        return Section("failures", "Failures", (words,), (), [figure] if rows else [])
    table = Table(
        "reasons-table",
        "Reasons; those that differ in numbers only are counted together",
        ("study", "outcome", "reason", "trials", "for example"),
        reasons,
        ("trials",),
    )
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
    rows = [(one.name, cell(one.gflops, rate_text), cell(one.gbytes, ",.1f")) for one in found]
    limits = ("flat at", "GB/s")
    text = [
        "Across is the problem's intensity: operations of the textbook algorithm per byte of the "
        "operands, each moved once. What kernels really move is not measured, so all trials of a "
        "problem stand above each other."
    ]
    if not any(one.name.startswith("peak") for one in found):
        text.append(
            "What the device could do at most is not recorded, so the highest roof is only the "
            "fastest thing that was measured here."
        )
    figure = Figure(
        "roofline-chart",
        "Every measured trial, and the roofs that are known",
        "Rates of all timed trials over the intensity of their problem, both on scales of powers "
        "of ten.",
        [("", roofline.chart(known))],
        Table("roofline-table", "The roofs", ("roof", *limits), rows, limits),
        note="The trials' rates are in the table of the fastest trials.",
    )
    return Section("roofline", "Roofline", text, (), [figure])


def resources(studies: Sequence[Study], measure: Measure) -> Section:
    """Kernels' needs of a GPU, or of a compiler, against their speed."""
    title = "Registers, occupancy and spills"
    timed = [trial for study in studies for trial in study.timed]
    known = {
        name: label
        for name, label in charts.RESOURCES.items()
        if any(trial.detail(name) is not None for trial in timed)
    }
    if not known:
        words = "What the kernels needed of the device was not recorded."
        return Section("resources", title, (words,))
    text = []
    if list(known) == ["compile_s"]:
        text.append(
            "Registers, occupancy and spills are known of kernels for GPUs; of these it is known "
            "how long they took to compile."
        )
    rows: list[Sequence[Cell | str]] = [
        (
            study.name,
            f"#{trial.number} {trial.family}".strip(),
            cell(measure.at(study, trial.value or 1.0), ",.5g"),
            *(cell(trial.detail(name), ",.4g") for name in known),
        )
        for study in studies
        for trial in study.ranked[:50]
    ]
    columns = (measure.label, *known.values())
    figure = Figure(
        "resources-chart",
        "What kernels needed, against their speed",
        "A point for each timed trial: one resource across, speed or time upwards.",
        [(label, charts.resource(studies, measure, name)) for name, label in known.items()],
        Table(
            "resources-table",
            "What the fastest 50 trials of each study needed",
            ("study", "trial", *columns),
            rows,
            columns,
        ),
        choice="Resource",
    )
    return Section("resources", title, text, (), [figure])


def environment(studies: Sequence[Study]) -> Section:
    """Everything else that the times depend on: device, software, state, how it was searched."""
    found = [_surroundings(study) for study in studies]
    names = list(dict.fromkeys(name for own in found for name in own))
    table = Table(
        "environment-table",
        "What was recorded with each study",
        ("what", *(study.name for study in studies)),
        [[name, *(own.get(name, UNKNOWN) for own in found)] for name in names],
    )
    return Section("environment", "Environment", (), (), (), [table])


def _surroundings(study: Study) -> dict[str, str]:
    runs, record = study.runs, study.record
    version = str(runs[-1].get("version", "")) if runs else ""  # the one that measured last
    found: dict[str, Any] = {
        "source": study.source,
        "problem": study.problem.label if study.problem else "",
        "target": study.target,
        "device": study.device,
        "families": ", ".join(study.families),
        "sampler": study.samplers,
        "seed": ", ".join(dict.fromkeys(str(run["seed"]) for run in runs if "seed" in run)),
        "runs": len(runs) or "",
        "began": runs[0].get("started", "") if runs else "",
        "autotune": version or ("" if record is None else record.version),
        "space": study.space,
        "record": "" if record is None else record.id,
    }
    fingerprint = study.noted("fingerprint").get("fields")
    if fingerprint is None and record is not None:
        fingerprint = record.fingerprint.fields
    groups = {
        "device": fingerprint,
        "limit": study.noted("limits"),
        "software": study.noted("toolchain"),
        "state": study.noted("state"),
    }
    for group, values in groups.items():
        if isinstance(values, dict):
            found |= {f"{group}: {name}": value for name, value in values.items()}
    return {name: str(value) for name, value in found.items() if value not in ("", None)}
