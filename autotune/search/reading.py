"""Trials and studies as they are stored: measurements as attributes, records for reports."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from math import isfinite
from pathlib import Path
from typing import Any, Generic

import optuna
from optuna.trial import FrozenTrial

from autotune.core import checks
from autotune.core.configuration import Candidate, Configuration, Value
from autotune.core.errors import InputError
from autotune.core.measurement import Measurement, Outcome
from autotune.search.claims import FAMILY, OUTCOME, REASON, PointT, claim_of
from autotune.search.internals import quiet
from autotune.search.storage import close_storage, journal_path, open_storage, storage_errors

SPACE = "autotune:space"
"""Study attribute: the digest of the space its trials come from."""

GOALS = "autotune:goals"
"""Study attribute: the directions of the values that a `Searcher` is told, by name."""

SUBJECT = "autotune:subject"
"""Study attribute: what its trials are of, as `Subject.key` has it."""

RUN = "autotune:run:"
"""Begins the study attributes that describe its runs, one each: sampler, machine, time."""

MEASUREMENT = "measurement"
"""Trial attribute: the measurement's numbers. What it costs by the objective, which is the median
where that is time, is the trial's value."""

TIMED = (Outcome.OK, Outcome.ABANDONED)
"""Outcomes that come with a median."""

_LONGEST_LINE = 1 << 16
"""Bytes of a journal's first line that are read: it says no more than a name."""


@dataclass(frozen=True, slots=True)
class TrialRecord(Generic[PointT]):
    """One trial of a study, as reports want it.

    Attributes:
        number: its number in the study.
        state: Optuna's state: RUNNING, COMPLETE, PRUNED, FAIL.
        candidate: what it runs or ran; None when it never got that far.
        measurement: what came of it; None while it runs, or when its worker was lost.
        reason: why it failed; "orphaned" or "interrupted" when it was never measured.
        moved: the sampler had proposed another point.
        started: local time.
        ended: local time; None while it runs.
        values: what Optuna was told of it.
    """

    number: int
    state: str
    candidate: PointT | None
    measurement: Measurement | None
    reason: str
    moved: bool
    started: datetime | None
    ended: datetime | None
    values: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredStudy:
    """A study as it is stored.

    Attributes:
        name: the study's name.
        subject: the key of its `Subject`; empty where it does not say.
        space: the digest of its space.
        families: names of the families of which there are valid configurations, as far as trials
            tell; none for a space of one kernel.
        runs: notes of the runs that made it, oldest first.
        trials: all of them, by number.
        goals: directions of the values that a `Searcher` was told, by name; none of other studies.
    """

    name: str
    subject: Mapping[str, Any]
    space: str
    families: tuple[str, ...]
    runs: tuple[Mapping[str, Any], ...]
    trials: tuple[TrialRecord[Candidate], ...]
    goals: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Numbers:
    """The numbers of a measurement; those that are not there are not written."""

    median_s: checks.Finite | None = None
    interval_s: tuple[checks.Finite, checks.Finite] | None = None
    repeats: checks.Integer = 0
    error: checks.Finite | None = None
    details: dict[str, Any] = field(default_factory=dict)
    samples: tuple[checks.Positive, ...] = ()


def attributes(measurement: Measurement) -> dict[str, Any]:
    """The user attributes of a measurement. `OUTCOME` comes last: then all are there.

    Raises:
        InputError: a median is missing, or not a positive finite number of seconds.
    """
    median = measurement.median_s
    if measurement.outcome in TIMED and (median is None or not 0 < median < float("inf")):
        raise InputError(
            f"outcome {measurement.outcome} needs a positive, finite median in seconds, "
            f"got {median}"
        )
    interval, error = measurement.interval_s, measurement.error
    numbers: dict[str, Any] = {
        "median_s": median,
        "interval_s": None if interval is None else list(interval),
        "repeats": measurement.repeats or None,
        "error": error if error is not None and isfinite(error) else None,
        "details": dict(measurement.details) or None,
        "samples": list(measurement.samples) or None,
    }
    numbers = {name: value for name, value in numbers.items() if value is not None}
    found = {MEASUREMENT: numbers, REASON: measurement.reason}
    return {**{k: v for k, v in found.items() if v}, OUTCOME: measurement.outcome.value}


def measurement_of(trial: FrozenTrial) -> Measurement | None:
    """A trial's measurement; None where its attributes are not as `attributes` writes them."""
    stored = trial.user_attrs
    try:
        outcome: Outcome = checks.checked(stored.get(OUTCOME), Outcome)
        numbers: _Numbers = checks.checked(stored.get(MEASUREMENT, {}), _Numbers)
    except InputError:
        return None
    median = trial.value if numbers.median_s is None else numbers.median_s
    if median is None and outcome in TIMED:
        return None
    details = numbers.details.items()
    return Measurement(
        outcome=outcome,
        median_s=median,
        interval_s=numbers.interval_s,
        repeats=numbers.repeats,
        error=numbers.error,
        reason=str(stored.get(REASON, "")),
        details={k: v for k, v in details if isinstance(v, str) or checks.is_number(v)},
        samples=numbers.samples,
    )


def trial_record(trial: FrozenTrial, candidate: PointT | None) -> TrialRecord[PointT]:
    """Read a trial back."""
    return TrialRecord(
        number=trial.number,
        state=trial.state.name,
        candidate=candidate,
        measurement=measurement_of(trial) if trial.state.is_finished() else None,
        reason=str(trial.user_attrs.get(REASON, "")),
        moved="proposed" in claim_of(trial),
        started=trial.datetime_start,
        ended=trial.datetime_complete,
        values=tuple(trial.values or ()),
    )


def read_study(name: str, storage: str | None, folder: Path) -> StoredStudy | None:
    """The study of that name; None where there is none. Nothing is proposed, claimed or written.

    It is in an Optuna database by URL, or for None in a journal file in `folder`.

    Raises:
        StudyError: the storage cannot be read.
        CacheError: the folder cannot be read.
        MissingDependencyError: the database needs a package.
    """
    if storage is None and not journal_path(folder, name).is_file():
        return None
    opened = open_storage(storage, name, folder)
    try:
        with quiet(), storage_errors(name):
            try:
                study = optuna.load_study(study_name=name, storage=opened)
            except KeyError:  # how Optuna says that there is none
                return None
            trials = study.get_trials(deepcopy=False)
            attributes = study.user_attrs
    finally:
        close_storage(opened)
    runs = (value for key, value in sorted(attributes.items()) if key.startswith(RUN))
    subject, goals = attributes.get(SUBJECT), attributes.get(GOALS)
    return StoredStudy(
        name,
        subject if isinstance(subject, Mapping) else {},
        str(attributes.get(SPACE, "")),
        _families(trials),
        tuple(run for run in runs if isinstance(run, Mapping)),
        tuple(trial_record(trial, _candidate(trial.params)) for trial in trials),
        goals if isinstance(goals, Mapping) else {},
    )


def study_names(storage: str) -> list[str]:
    """The studies in an Optuna database.

    Raises:
        StudyError: it cannot be read.
        MissingDependencyError: it needs a package.
    """
    from autotune.search.database import open_database

    opened = open_database(storage)
    try:
        with quiet():
            return optuna.get_all_study_names(opened)
    finally:
        close_storage(opened)


def journal_names(folder: Path) -> list[str]:
    """The studies in journal files, by their first lines; what is no journal is left out."""
    names = []
    for path in sorted(folder.glob("*.log")):
        with suppress(OSError, ValueError, RecursionError), path.open("rb") as file:
            begun = json.loads(file.readline(_LONGEST_LINE))
            if isinstance(begun, dict) and isinstance(name := begun.get("study_name"), str):
                names.append(name)
    return names


def _families(trials: list[FrozenTrial]) -> tuple[str, ...]:
    for trial in trials:
        choices = getattr(trial.distributions.get(FAMILY), "choices", None)
        if choices is not None:
            return tuple(map(str, choices))
    return ()


def _candidate(params: Mapping[str, Value]) -> Candidate | None:
    if not params:
        return None
    family = params.get(FAMILY)
    if family is None:
        return Candidate("", Configuration(params))
    own = f"{family}."
    values = {name.removeprefix(own): v for name, v in params.items() if name.startswith(own)}
    return Candidate(str(family), Configuration(values))
