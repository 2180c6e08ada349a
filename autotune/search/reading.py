"""Reading what a study holds, to report on it: nothing is proposed, claimed or written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import optuna

from autotune.core.configuration import Candidate, Configuration
from autotune.search.quiet import quiet
from autotune.search.records import TrialRecord, trial_record
from autotune.search.storage import close_storage, journal_path, open_storage, storage_errors
from autotune.search.study import SPACE, SUBJECT
from autotune.search.study_space import FAMILY
from autotune.search.tuning_study import RUN

if TYPE_CHECKING:
    from pathlib import Path

    from optuna.trial import FrozenTrial

    from autotune.core.configuration import Value


_LONGEST_LINE = 1 << 16
"""Bytes of a journal's first line that are read: it says no more than a name."""


@dataclass(frozen=True, slots=True)
class StoredStudy:
    """A study as it is stored.

    Attributes:
        name: the study's name.
        subject: what its trials are of, see `Subject`; empty where it does not say.
        space: the digest of its space.
        families: names of the families of which there are valid configurations, as far as trials
            tell; none for a space of one kernel.
        runs: what was noted of the runs that made it, oldest first.
        trials: all of them, by number.
    """

    name: str
    subject: Mapping[str, Any]
    space: str
    families: tuple[str, ...]
    runs: tuple[Mapping[str, Any], ...]
    trials: tuple[TrialRecord[Candidate], ...]


def read_study(name: str, storage: str | None, folder: Path) -> StoredStudy | None:
    """The study of that name; None where there is none.

    Args:
        name: the study's name.
        storage: an Optuna database URL; None for a journal file in `folder`.
        folder: where journal files are kept.

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
    subject = attributes.get(SUBJECT)
    return StoredStudy(
        name,
        subject if isinstance(subject, Mapping) else {},
        str(attributes.get(SPACE, "")),
        _families(trials),
        tuple(run for run in runs if isinstance(run, Mapping)),
        tuple(trial_record(trial, _candidate(trial.params)) for trial in trials),
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
