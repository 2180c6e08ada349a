"""What the page's own controls work on: the timed trials of every study and family, as numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.reporting import facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.core.configuration import Value
    from autotune.reporting.amounts import Measure
    from autotune.reporting.study import Study, Trial

MOST_EXPLORED = 10_000
"""Trials of a study that the page has for its controls."""


def explored(studies: Sequence[Study], measure: Measure) -> dict[str, Any]:
    """Studies and families to choose from, each with its parameters and its trials.

    A trial is its number, what the measure says, and for each parameter the position of its value.
    """
    subjects = []
    for study in studies:
        chosen = facts.sample(study.ranked, MOST_EXPLORED)
        for family in dict.fromkeys(trial.family for trial in study.ranked):
            own = [trial for trial in chosen if trial.family == family]
            if own:
                subjects.append(_subject(study, family, own, measure, several=len(studies) > 1))
    return {"label": measure.label, "more": measure.is_rate, "subjects": subjects}


def _subject(
    study: Study, family: str, trials: Sequence[Trial], measure: Measure, *, several: bool
) -> dict[str, Any]:
    names = list(dict.fromkeys(name for trial in trials for name in trial.configuration))
    values = {name: _values(trials, name) for name in names}
    # What is the same in all trials says nothing.
    varied = [name for name in names if len(values[name]) > 1]
    places = {
        name: {(type(value), value): place for place, value in enumerate(values[name])}
        for name in varied
    }
    rows = []
    for trial in trials:
        held = trial.configuration
        row = [trial.number, measure.at(study, trial.value or 1.0)]
        row += [
            places[name][type(held[name]), held[name]] if name in held else -1 for name in varied
        ]
        rows.append(row)
    parts = [study.name] * several + [family] * bool(family)
    return {
        "name": ", ".join(parts) or study.name,
        "parameters": [
            {"name": name, "values": [_text(value) for value in values[name]]} for name in varied
        ],
        "rows": rows,
    }


def _values(trials: Sequence[Trial], name: str) -> list[Value]:
    """A parameter's values: numbers by size, then text."""
    found = {
        (type(value), value): value
        for trial in trials
        if (value := trial.configuration.get(name)) is not None
    }
    return sorted(
        found.values(),
        key=lambda value: (isinstance(value, str), value if not isinstance(value, str) else 0,
                           str(value)),
    )  # fmt: skip


def _text(value: Value) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
