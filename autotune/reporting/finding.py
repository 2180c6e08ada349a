"""Finding studies by what users call them: a name, a record's id, or a file."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from autotune.core.configuration import Candidate, Configuration
from autotune.core.errors import AutotuneError, InputError, UnknownNameError
from autotune.core.measurement import Measurement, Outcome
from autotune.core.paths import CacheLocations
from autotune.core.printable import printable, shown
from autotune.core.suggestions import did_you_mean
from autotune.operations.problem import Problem
from autotune.reporting.study import FAILED, UNFINISHED, Study, Trial
from autotune.research import Entry, open_recording
from autotune.research.space import OUTSIDE
from autotune.search import TrialRecord
from autotune.search.claims import INTERRUPTED
from autotune.search.reading import StoredStudy, journal_names, read_study, study_names
from autotune.store import StoredMeasurement, TuningCache, TuningRecord
from autotune.targets.families import find_operation

MOST_TRIALS = 500_000
"""Trials of a file that a report is made of."""

_ID = re.compile("[0-9a-f]{4,12}")


@dataclass(frozen=True, slots=True)
class Finder:
    """Finds studies in a cache, and in an Optuna database by URL or the journals in a folder.

    `extra_families` are folders with families of the user's own; `journals` is None for the
    journals beside the cache.
    """

    place: CacheLocations
    storage: str | None = None
    extra_families: tuple[Path, ...] = ()
    journals: Path | None = None

    def find_all(self, given: Sequence[str]) -> list[Study]:
        """Several studies, each under a name of its own.

        Raises:
            InputError: as `find`.
        """
        if self.storage is not None:
            from autotune.search.database import check_there

            check_there(self.storage)
        found = [self.find(one) for one in dict.fromkeys(given)]
        names = [study.name for study in found]
        return [
            replace(study, name=f"{study.name} ({printable(one)})")
            if names.count(study.name) > 1
            else study
            for study, one in zip(found, dict.fromkeys(given), strict=True)
        ]

    def find(self, given: str) -> Study:
        """The study of that name, in that recorded file, or behind the record of that id.

        The name of an operation, as of a kernel of one's own, is its newest record's.

        Raises:
            UnknownNameError: there is none; the message has a near name.
            InputError: a file cannot be read, or is none that is known.
            CacheError: the cache cannot be read.
        """
        if is_file(given):
            return self._recorded(Path(given))
        study = self._study(given)
        if study is not None:
            return study
        record = self._of_id(given) or next(iter(self._cache.records(operation=given)), None)
        if record is not None and (behind := self._behind(record)) is not None:
            return behind
        names = self._names()
        where = f" or {self.journals}" if self.journals else ""
        if self.storage is not None:
            where = f" or {self.storage.partition('://')[0]} storage"
        raise UnknownNameError(
            f"{shown(given)} must be a study or record in {self.place.database}{where}, or a file "
            f"of measurements, and is neither{did_you_mean(given, names)}"
            f"{'' if names else ': tune or sweep first'}"
        )

    def _study(self, name: str) -> Study | None:
        stored = read_study(name, self.storage, self.journals or self.place.studies)
        if stored is not None:
            return self._of_study(stored)
        rows = self._cache.measurements(study=name)
        return self._of_measurements(name, rows) if rows else None

    def _of_study(self, stored: StoredStudy) -> Study:
        told = bool(stored.goals)
        values = (value for record in stored.trials for value in record.values)
        if told and ([*stored.goals.values()] != ["minimize"] or min(values, default=1.0) <= 0):
            raise InputError(
                "a report is of one positive value that is to be small, and study "
                f"{shown(stored.name)} is of others: see `best` and `front` of its Searcher"
            )
        begun = next((trial.started for trial in stored.trials if trial.started), None)
        trials: list[Trial] = []
        for record in stored.trials:
            # A run gives proposals up when its time is over: those were no trials.
            given_up = record.measurement is None and record.reason == INTERRUPTED
            if record.candidate is not None and not given_up:
                trials.append(_study_trial(len(trials) + 1, record, record.candidate, begun, told))
        subject = stored.subject
        return Study(
            name=printable(stored.name),
            trials=trials,
            unit="" if told else "s",
            source="Optuna study" + (" in a database" if self.storage else " in a journal"),
            device=str(subject.get("device", "")),
            target=str(subject.get("target", "")),
            problem=self._problem(subject),
            families=stored.families,
            space=stored.space,
            runs=stored.runs,
            record=self._record(subject, trials, stored.runs),
        )

    def _of_measurements(self, name: str, rows: Sequence[StoredMeasurement]) -> Study:
        """A study of which only the cache's measurements are left."""
        first = rows[0]
        begun = datetime.fromisoformat(first.created)
        trials = [
            _trial(
                number,
                row.candidate,
                row.measurement,
                (datetime.fromisoformat(row.created) - begun).total_seconds(),
            )
            for number, row in enumerate(rows, start=1)
        ]
        subject = {
            "operation": first.operation,
            "problem": first.problem,
            "target": first.target,
            "fingerprint": first.fingerprint,
        }
        record = self._record(subject, trials, ())
        return Study(
            name=printable(name),
            trials=trials,
            source="measurements in the cache",
            device="" if record is None else record.fingerprint.name,
            target=first.target,
            problem=self._problem(subject),
            families=tuple(dict.fromkeys(trial.family for trial in trials)),
            record=record,
        )

    def _recorded(self, path: Path) -> Study:
        with open_recording(path) as recording:
            goal = recording.goal
            if unit := "s" if recording.unit and goal is None else "":
                recording = recording.in_unit(unit)
            inside = (entry for entry in recording.costs() if entry.outcome != OUTSIDE)
            entries = islice(inside, MOST_TRIALS + 1)
            trials = [_recorded_trial(number, entry) for number, entry in enumerate(entries, 1)]
        if len(trials) > MOST_TRIALS:
            raise InputError(
                f"{path}: a report is made of {MOST_TRIALS:,} trials at most, and this file has "
                "more: leave out configurations"
            )
        subject = {"operation": "gemm", **recording.subject}
        note = f", {recording.note}" if recording.note else ""
        if goal is not None:
            note += f", by {goal.name}{', of which values are reciprocals' if goal.higher else ''}"
        return Study(
            name=printable(str(subject.get("study") or recording.name)),
            trials=trials,
            unit=unit,
            source=f"{recording.format} (file{note})",
            device=recording.device,
            target=str(subject.get("target") or ""),
            problem=self._problem(subject),
            families=tuple(dict.fromkeys(trial.family for trial in trials if trial.family)),
            runs=(recording.provenance,) if recording.provenance else (),
        )

    def _of_id(self, prefix: str) -> TuningRecord | None:
        """The record whose id begins so; None where there is none."""
        ids = (id_ for id_, _ in self._cache.documents())
        known = _ID.fullmatch(prefix) and any(id_.startswith(prefix) for id_ in ids)
        return self._cache.get(prefix) if known else None

    def _behind(self, record: TuningRecord) -> Study | None:
        """The study that measured a record's winner last before the record was made."""
        rows = self._cache.measurements(
            fingerprint_digest=record.fingerprint.digest,
            problem=record.problem,
            target=record.target,
        )
        before = [
            row.study
            for row in rows
            if row.candidate == record.candidate and row.created <= record.created
        ]
        if not before:
            raise UnknownNameError(
                f"record {record.id} has no study in {self.place.database}: it was imported, or "
                "its measurements were pruned"
            )
        return self._study(before[-1])

    def _record(
        self,
        subject: Mapping[str, Any],
        trials: Sequence[Trial],
        runs: Sequence[Mapping[str, Any]],
    ) -> TuningRecord | None:
        """The record that came of a study: the one that its last run noted, where runs note it.

        Else the newest of its problem and device whose candidate it has tried.
        """
        if runs:
            ids = {id_ for id_, _ in self._cache.documents()}
            noted = next((run["record"] for run in reversed(runs) if run.get("record") in ids), "")
            return self._cache.get(str(noted)) if noted else None
        tried = {(trial.family, Configuration(trial.configuration)) for trial in trials}
        for record in self._cache.records(
            fingerprint_digest=str(subject.get("fingerprint", "")),
            operation=str(subject.get("operation", "")),
            target=str(subject.get("target", "")),
        ):
            key = (record.candidate.family, record.candidate.configuration)
            if dict(record.problem) == subject.get("problem") and key in tried:
                return record
        return None

    def _problem(self, subject: Mapping[str, Any]) -> Problem | None:
        """The problem, where its operation is known here."""
        with suppress(AutotuneError, KeyError, TypeError):
            operation = find_operation(str(subject["operation"]), self.extra_families)
            problem: Problem = operation.problem_from_key(subject["problem"])
            return problem
        return None

    def _names(self) -> list[str]:
        names = self._cache.studies()
        if self.storage is not None:
            names += study_names(self.storage)
        if self.journals is not None:
            names += journal_names(self.journals)
        return sorted({*names, *(id_ for id_, _ in self._cache.documents())})

    @property
    def _cache(self) -> TuningCache:
        return TuningCache(self.place.database)


def is_file(given: str) -> bool:
    """Tell a file from the name of a study."""
    try:
        return Path(given).is_file()
    except (OSError, ValueError):  # too long for a path, or with a null byte
        return False


def _trial(
    number: int, candidate: Candidate, measurement: Measurement, ended_s: float | None
) -> Trial:
    """A trial by what was measured of a candidate."""
    return Trial(
        number=number,
        family=candidate.family,
        configuration=candidate.configuration,
        outcome=str(measurement.outcome),
        value=measurement.median_s,
        interval=measurement.interval_s,
        repeats=measurement.repeats,
        reason=measurement.reason,
        details=measurement.details,
        ended_s=ended_s,
    )


def _study_trial(
    number: int,
    record: TrialRecord[Candidate],
    candidate: Candidate,
    begun: datetime | None,
    told: bool,
) -> Trial:
    """A trial of a study that began at `begun`; a `Searcher` is `told` what comes of it."""
    ended_s = None
    if record.ended is not None and begun is not None:
        ended_s = (record.ended - begun).total_seconds()
    if record.measurement is not None:
        return _trial(number, candidate, record.measurement, ended_s)
    reason = record.reason or "still running, or its process was lost"
    outcome, value, family = UNFINISHED, None, candidate.family
    if told and record.ended is not None and not record.reason:
        value = next(iter(record.values), None)
        outcome, reason = FAILED if value is None else str(Outcome.OK), ""
    configuration = candidate.configuration
    return Trial(number, family, configuration, outcome, value, reason=reason, ended_s=ended_s)


def _recorded_trial(number: int, entry: Entry) -> Trial:
    """A recorded configuration."""
    return Trial(
        number=number,
        family=entry.family,
        configuration=dict(entry.configuration),
        outcome=str(entry.outcome or (Outcome.OK if entry.value is not None else FAILED)),
        value=entry.value,
        interval=entry.interval,
        repeats=entry.repeats,
        reason=entry.reason,
        details={
            name: one for name, one in entry.details.items() if isinstance(one, str | int | float)
        },
    )
