"""What the page's own controls work on: the timed trials of every study and family, as numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.reporting import facts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.core.configuration import Value
    from autotune.reporting.amounts import Measure
    from autotune.reporting.study import Study, Trial
    from autotune.search.importance import Importance

MOST_EXPLORED = 10_000
"""Trials of a study that the page has for its controls."""


def explored(
    studies: Sequence[Study],
    measure: Measure,
    importance: Mapping[str, Sequence[Importance]],
) -> dict[str, Any]:
    """Studies and families to choose from, each with its parameters and its trials.

    A trial is its number, what the measure says, and for each parameter the position of its value.

    Args:
        studies: those of the page.
        measure: what its charts show.
        importance: of the parameters, by study: the two most important ones are shown first.
    """
    subjects = []
    for study in studies:
        chosen = facts.sample(study.ranked, MOST_EXPLORED)
        if study.stored is not None and study.stored not in chosen:
            chosen.append(study.stored)
        for family in dict.fromkeys(trial.family for trial in study.ranked):
            own = [trial for trial in chosen if trial.family == family]
            if own:
                found = _subject(study, family, own, measure, several=len(studies) > 1)
                shares = {each.name: each.share for each in importance[study.name]}
                subjects.append({**found, "first": _first(found["parameters"], family, shares)})
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
    winner = study.stored
    return {
        "name": ", ".join(parts) or study.name,
        "stored": winner.number if winner is not None and winner in trials else None,
        "parameters": [
            {"name": name, "values": [_text(value) for value in values[name]]} for name in varied
        ],
        "rows": rows,
    }


def _first(
    parameters: Sequence[Mapping[str, Any]], family: str, shares: Mapping[str, float]
) -> list[int]:
    """The places of the two most important parameters, in their order."""

    def share(place: int) -> float:
        name = parameters[place]["name"]
        return shares.get(f"{family}.{name}", shares.get(name, 0.0))

    return sorted(sorted(range(len(parameters)), key=share, reverse=True)[:2])


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
