"""Data of the page's own controls: the timed trials of every study and family, as numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.core.configuration import Value
from autotune.reporting import facts
from autotune.reporting.layout import Measure
from autotune.reporting.study import Study, Trial
from autotune.search.importance import Importance

MOST_EXPLORED = 10_000
"""Trials of a study that the page has for its controls."""


def explored(
    studies: Sequence[Study], measure: Measure, importance: Mapping[str, Sequence[Importance]]
) -> dict[str, Any]:
    """Studies and families to choose from, each with its parameters and its trials.

    A trial is its number, what the measure says, and for each parameter the position of its value.
    The two parameters that matter most are shown first.
    """
    subjects = []
    for study in studies:
        chosen = facts.sample(study.ranked, MOST_EXPLORED)
        if study.stored is not None and study.stored not in chosen:
            chosen.append(study.stored)
        shares = {one.name: one.share for one in importance[study.name]}
        for family in dict.fromkeys(trial.family for trial in study.ranked):
            own = [trial for trial in chosen if trial.family == family]
            if not own:
                continue
            parts = [study.name] * (len(studies) > 1) + [family] * bool(family)
            subject = _subject(study, own, measure)
            first = _first([each["name"] for each in subject["parameters"]], family, shares)
            subjects.append({"name": ", ".join(parts) or study.name, **subject, "first": first})
    return {"label": measure.label, "more": measure.is_rate, "subjects": subjects}


def _subject(study: Study, trials: Sequence[Trial], measure: Measure) -> dict[str, Any]:
    names = dict.fromkeys(name for trial in trials for name in trial.configuration)
    # What is the same in all trials says nothing.
    values = {name: found for name in names if len(found := _values(trials, name)) > 1}
    places = {
        name: {(type(value), value): place for place, value in enumerate(found)}
        for name, found in values.items()
    }
    winner = study.stored
    return {
        "stored": winner.number if winner is not None and winner in trials else None,
        "parameters": [
            {
                "name": name,
                "values": [f"{v:.6g}" if isinstance(v, float) else str(v) for v in found],
            }
            for name, found in values.items()
        ],
        "rows": [
            [trial.number, measure.at(study, trial.value or 1.0)]
            + [places[name][type(own[name]), own[name]] if name in own else -1 for name in values]
            for trial in trials
            for own in [trial.configuration]
        ],
    }


def _first(names: Sequence[str], family: str, shares: Mapping[str, float]) -> list[int]:
    """The places of the two most important parameters, in their order."""

    def share(place: int) -> float:
        return shares.get(f"{family}.{names[place]}", shares.get(names[place], 0.0))

    return sorted(sorted(range(len(names)), key=share, reverse=True)[:2])


def _values(trials: Sequence[Trial], name: str) -> list[Value]:
    """A parameter's values: numbers by size, then text."""
    held = [trial.configuration[name] for trial in trials if name in trial.configuration]
    found = {(type(value), value): value for value in held}
    return sorted(
        found.values(), key=lambda v: (isinstance(v, str), 0 if isinstance(v, str) else v, str(v))
    )
