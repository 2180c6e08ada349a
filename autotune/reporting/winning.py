"""Sections about what was found: at a glance, the winner and its ties, and the way there."""

from collections.abc import Sequence

from autotune.core.statistics import WIDE, half_width, half_width_text
from autotune.reporting import charts, facts
from autotune.reporting.layout import (
    UNKNOWN,
    Card,
    Cell,
    Figure,
    Measure,
    Section,
    Table,
    cell,
    duration_text,
    rate_text,
    time_text,
    value_text,
)
from autotune.reporting.study import Study, Trial
from autotune.store import TuningRecord

MOST_ROWS = 200
"""Rows of the table of trials, of each study."""


def overview(studies: Sequence[Study]) -> Section:
    """A card for each study, and all of them side by side where there are several."""
    tables = [_comparison(studies)] if len(studies) > 1 else []
    return Section("overview", "Overview", (), [_card(study) for study in studies], (), tables)


def winner(studies: Sequence[Study], measure: Measure) -> Section:
    """The fastest trials, what cannot be told from the fastest, and what was stored."""
    variants, rows = [], []
    for study in studies:
        tied = facts.ties(study)
        if study.ranked:
            variants.append((study.name, charts.contenders(study, measure)))
        for rank, trial in enumerate(study.ranked[:MOST_ROWS], start=1):
            rows.append(_row(study, trial, rank, trial.number in tied))
    named = len(studies) > 1
    text = [(f"{study.name}: " if named else "") + _verdict(study) for study in studies]
    figure = Figure(
        "winner-chart",
        "The fastest trials with their confidence intervals",
        f"Medians of the {charts.CONTENDERS} fastest trials and the 95 % confidence intervals of "
        "these medians, as the search measured them. Of the stored winner a ring is that number, "
        "and a diamond that of the finals, in turns with the other finalists.",
        variants,
        Table(
            "winner-table",
            f"The fastest trials, at most {MOST_ROWS} of each study",
            ("study", "rank", "trial", "configuration", "time", "95 % interval", "GFLOP/s", "tie"),
            rows,
            ("rank", "trial", "time", "GFLOP/s"),
        ),
        choice="Study",
        note="Trials whose intervals overlap the fastest one's are ties: another run might rank "
        "them otherwise.",
    )
    figures = [figure] if variants else []
    return Section("winner", "Winner and ties", text, (), [*figures, *_energies(studies, measure)])


def _energies(studies: Sequence[Study], measure: Measure) -> Sequence[Figure]:
    """The Pareto front of time and energy, where joules were observed."""
    known = [study for study in studies if len(facts.fronts(study)[0]) > 1]
    if not known:
        return ()
    rows = [
        (study.name, cell(trial.number), str(trial), _value(study, trial), cell(joules, ".4g"))
        for study in known
        for trial in facts.fronts(study)[1]
        if (joules := trial.detail("joules")) is not None
    ]
    table = Table(
        "front-table",
        "The Pareto front: trials that none beats in time and energy",
        ("study", "trial", "configuration", "time", "joules"),
        rows,
        ("trial", "time", "joules"),
    )
    figure = Figure(
        "front-chart",
        "Time and energy",
        "Trials that were timed to the end, by time and joules of a call. Those of the front are "
        "beaten by none in both.",
        [(study.name, charts.energies(study, measure)) for study in known],
        table,
        choice="Study",
    )
    return (figure,)


def _row(study: Study, trial: Trial, rank: int, is_tie: bool) -> Sequence[Cell | str]:
    interval = Cell(UNKNOWN)
    if trial.interval is not None:
        low, high = trial.interval
        interval = Cell(f"{value_text(study, low)} to {value_text(study, high)}", low)
    return (
        study.name,
        cell(rank, "d"),
        cell(trial.number),
        str(trial),
        _value(study, trial),
        interval,
        _rate(study, trial),
        ("fastest" if rank == 1 else "yes" if is_tie else "no")
        + (", stored" if trial is study.stored else ""),
    )


def _verdict(study: Study) -> str:
    ranked = study.ranked
    if study.record is not None:
        return _finals(study.record)
    if not ranked:
        return "No trial was verified and timed to the end."
    tied = len(facts.ties(study))
    others = "no other trial" if not tied else "1 other trial" if tied == 1 else f"{tied} others"
    known = "ties with " + others if ranked[0].interval else "how sure that is was not recorded"
    return f"Fastest was {ranked[0]}, {_speed(study, ranked[0])}; {known}."


def _finals(record: TuningRecord) -> str:
    low, high = (time_text(end) for end in record.interval_s)
    others = "no other finalist" if not record.ties else f"{record.ties} of the finalists"
    text = (
        f"Record {record.id}, {record.candidate}. Measured again in turns with the other "
        f"finalists it takes {time_text(record.median_s)} ({low} to {high}), "
        f"{rate_text(record.gflops)}, and ties with {others}."
    )
    if record.baseline is not None:
        text += f" {record.baseline.name} takes {time_text(record.baseline.median_s)}."
    if (held := record.sustained) is not None:
        text += f" Without a pause, at steady clocks, it takes {time_text(held.kernel.median_s)}"
        text += f", the library {time_text(held.baseline.median_s)}." if held.baseline else "."
    if record.noisy:
        text += f" Noisy: {record.caveats[-1]}."
    return text


def progress(studies: Sequence[Study], measure: Measure) -> Section:
    """The progress of each study to its best."""
    if not any(study.ranked for study in studies):
        return Section("progress", "Progress", ("No trial was verified and timed to the end.",))
    variants = [("trials", charts.progress(studies, measure, by_time=False))]
    if any(trial.ended_s is not None for study in studies for trial in study.trials):
        variants.append(("seconds", charts.progress(studies, measure, by_time=True)))
    rows = [
        (
            study.name,
            cell(trial.number),
            cell(trial.ended_s, duration_text),
            _value(study, trial),
            _rate(study, trial),
            str(trial),
        )
        for study in studies
        for trial in facts.improvements(study)
    ]
    figure = Figure(
        "progress-chart",
        "Every trial, and the best so far",
        "Points are trials in the order they were made, lines the best until then. The search "
        "times a kernel by itself, the finals in turns with others, which is often slower.",
        variants,
        Table(
            "progress-table",
            "Trials that were faster than all before them",
            ("study", "trial", "after", "time", "GFLOP/s", "configuration"),
            rows,
            ("trial", "after", "time", "GFLOP/s"),
        ),
        choice="Along",
        note=_progress_note(studies),
    )
    return Section("progress", "Progress", (), (), [figure])


def _progress_note(studies: Sequence[Study]) -> str:
    """Studies in the order of a file, and studies of which a part of the trials is drawn."""
    notes = []
    filed = [s.name for s in studies if all(trial.ended_s is None for trial in s.trials)]
    if filed:
        notes.append(f"Trials of {', '.join(filed)} are in the order of their file.")
    many = [len(study.timed) for study in studies if len(study.timed) > charts.MOST_DRAWN]
    if many:
        drawn = ", ".join(f"{charts.MOST_DRAWN:,} of {count:,} timed trials" for count in many)
        notes.append(
            f"Points are {drawn}: the fastest quarter of those drawn, the rest by lot. Lines are "
            "of all trials."
        )
    return " ".join(notes)


def _card(study: Study) -> Card:
    lines = [("problem", study.problem.label if study.problem else "not recorded")]
    lines.append(("device", study.device or "not recorded"))
    figure, unit, noise = "none", "trials OK", ""
    if (record := study.record) is not None:
        figure, unit = _figure(study, record.median_s)
        unit += " in the finals"
        lines.append(("winner", str(record.candidate)))
        known = time_text(record.median_s)
        if not record.noisy:  # an interval of disturbed times says nothing
            known += f", {half_width_text(record.spread)}"
        lines.append(("finals", f"{known}, in turns with others"))
        if study.stored is not None:
            lines.append(("search", f"{_speed(study, study.stored)}, by itself"))
        noise = record.caveats[-1] if record.noisy else ""
    elif study.ranked:
        best = study.ranked[0]
        value = best.value or 0.0
        figure, unit = _figure(study, value)
        lines += [("winner", str(best)), ("median", value_text(study, value))]
        if best.interval is not None and (spread := half_width(value, best.interval)) > WIDE:
            noise = f"the median is uncertain by {half_width_text(spread)}"
    if noise:
        lines.append(("noisy", noise))
    if record is not None and record.baseline is not None:
        words = f"{record.baseline.ratio:.2f} times the speed of {record.baseline.name}"
        if record.sustained is not None and record.sustained.ratio is not None:
            words += f", {record.sustained.ratio:.2f} times without a pause"
        lines.append(("library", words))
    counts = ", ".join(f"{count:,} {outcome}" for outcome, count in study.counts.items())
    lines.append(("trials", f"{len(study.trials):,} ({counts})" if counts else "none"))
    if study.samplers:
        lines.append(("sampler", study.samplers))
    if study.seconds is not None:
        lines.append(("took", duration_text(study.seconds)))
    return Card(study.name, figure, unit, lines, "noisy" if noise else "")


def _figure(study: Study, value: float) -> tuple[str, str]:
    rate = study.rate(value)
    text = rate_text(rate) if rate is not None else value_text(study, value)
    number, _, unit = text.partition(" ")
    return number, unit


def _comparison(studies: Sequence[Study]) -> Table:
    numeric = ("trials", "OK", "fastest", "GFLOP/s", "x library", "trials to 5 %", "took")
    header = ("study", "problem", "device", "sampler", *numeric)
    rows: list[tuple[Cell | str, ...]] = []
    for study in studies:
        baseline = None if study.record is None else study.record.baseline
        best = study.ranked[0] if study.ranked else None
        rows.append(
            (
                study.name,
                study.problem.label if study.problem else UNKNOWN,
                study.device or UNKNOWN,
                study.samplers or UNKNOWN,
                cell(len(study.trials)),
                cell(len(study.ranked)),
                Cell(UNKNOWN) if best is None else _value(study, best),
                Cell(UNKNOWN) if best is None else _rate(study, best),
                cell(None if baseline is None else baseline.ratio, ".3f"),
                cell(facts.trials_to_near(study)),
                cell(study.seconds, duration_text),
            )
        )
    # What is the same in all is in the page's head, and the table has no room to spare.
    same = [at for at in (1, 2, 3) if len({row[at] for row in rows}) == 1]
    kept = [at for at in range(len(header)) if at not in same]
    return Table(
        "comparison",
        "The studies side by side",
        [header[at] for at in kept],
        [[row[at] for at in kept] for row in rows],
        numeric,
    )


def _speed(study: Study, trial: Trial) -> str:
    value = trial.value or 0.0
    rate = study.rate(value)
    return value_text(study, value) + ("" if rate is None else f" or {rate_text(rate)}")


def _value(study: Study, trial: Trial) -> Cell:
    return cell(trial.value or 0.0, lambda value: value_text(study, value))


def _rate(study: Study, trial: Trial) -> Cell:
    return cell(study.rate(trial.value or 1.0), ",.1f")
