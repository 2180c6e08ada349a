"""Studies: one Optuna study per problem, target and device, shared by its workers."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, Self, cast

import optuna
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from autotune.core.configuration import Value
from autotune.core.errors import CacheError, SpaceError, StudyError
from autotune.core.measurement import Measurement, Outcome
from autotune.core.objective import TIME, Objective
from autotune.search.claims import INTERRUPTED, Ledger, Owner, PointT, claim_of, fail
from autotune.search.feasible import FeasibleSampler, SpaceExhaustedError
from autotune.search.internals import deferred_interrupt, quiet
from autotune.search.living import Living
from autotune.search.model import Prior
from autotune.search.reading import (
    RUN,
    SPACE,
    SUBJECT,
    TrialRecord,
    attributes,
    measurement_of,
    trial_record,
)
from autotune.search.samplers import make_sampler
from autotune.search.stopping import Prospects
from autotune.search.storage import StudyJournal, close_storage, open_storage, storage_errors
from autotune.space import SearchSpace, SpaceUnion


@dataclass(frozen=True, slots=True)
class Proposal(Generic[PointT]):
    """A candidate to measure, in the trial of that number.

    It is `moved` where the sampler had proposed an invalid or visited point nearby.
    """

    number: int
    candidate: PointT
    moved: bool


class TuningStudy(Generic[PointT]):
    """A study as the tuner drives it: propose, measure, tell.

    Several processes may open the same study and tune together; none runs what another has run
    or is running. Use it as a context manager: leaving it gives up the proposals that were not
    told, so that they can be proposed again.

    `optuna` is the underlying study, for Optuna's own plots and dashboard.
    """

    def __init__(
        self,
        study: optuna.Study,
        sampler: FeasibleSampler,
        storage: BaseStorage,
        objective: Objective = TIME,
    ) -> None:
        self.name: str = study.study_name
        self.optuna: optuna.Study = study
        self._sampler: FeasibleSampler = sampler
        self._storage: BaseStorage = storage
        self._objective: Objective = objective
        self._prospects: Prospects = Prospects(sampler.space)
        self._running: dict[int, optuna.Trial] = {}
        self._living: Living = Living(study, sampler, self._finish)
        self._run: dict[str, Any] = {}
        with self._storing():
            sampler.refresh(study)
            self._living.reclaim()
        self._begun: int = len(sampler.ledger.trials)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def enqueue(self, candidates: Iterable[PointT]) -> int:
        """Propose known-good points first; returns how many are neither invalid nor visited."""
        ledger, first = self._sampler.ledger, self._sampler.first
        before = len(first)
        for candidate in candidates:
            try:
                row = self._sampler.space.row_of(candidate)
            except SpaceError:
                continue
            if row not in ledger.visited and row not in first:
                first.append(row)
        return len(first) - before

    def measure_whole(self) -> None:
        """Take what was abandoned for not visited from now on: a sweep times all to the end."""
        self._sampler.ledger.whole = True
        self._ledger()

    @property
    def enqueued(self) -> int:
        """Points that are still to be proposed before any of the sampler's."""
        visited = self._sampler.ledger.visited
        return sum(row not in visited for row in self._sampler.first)

    def ask(self) -> Proposal[PointT] | None:
        """The next candidate; None when every valid one has been visited or is taken."""
        with self._storing():
            self._living.begin()
            self._living.look()
            if self._sampler.ledger.exhausted:
                return None
            trial = self.optuna.ask()
            try:
                self._sampler.space.suggest(lambda name: self._suggest(trial, name))
            except SpaceExhaustedError as error:  # other workers took what was left
                fail(self.optuna, trial, str(error))
                return None
            except BaseException:  # nothing was run: the trial must not stay open
                fail(self.optuna, trial, INTERRUPTED)
                raise
            self._sampler.refresh(self.optuna)
            self._running[trial.number] = trial
            ledger = self._sampler.ledger
            return Proposal(
                number=trial.number,
                candidate=self._point(ledger.rows[trial.number]),
                moved=trial_record(ledger.trials[trial.number], None).moved,
            )

    def ask_batch(self, count: int) -> list[Proposal[PointT]]:
        """Up to `count` candidates to work on at once; fewer when no more are left."""
        proposals: list[Proposal[PointT]] = []
        while len(proposals) < count and (proposal := self.ask()) is not None:
            proposals.append(proposal)
        return proposals

    def tell(self, proposal: Proposal[PointT], measurement: Measurement) -> bool:
        """Store what came of a proposal.

        OK completes the trial and ABANDONED prunes it, both with the objective's cost as its
        value, which is the median in seconds; every other outcome fails it with its reason.

        Returns:
            True; False when another worker had taken this one for dead and ended its trial.

        Raises:
            InputError: the measurement lacks a usable median.
            StudyError: the proposal is not one of this object's, or was told before.
        """
        found = attributes(measurement)
        trial = self._running.pop(proposal.number, None)
        if trial is None:
            raise StudyError(
                f"trial {proposal.number} of study {self.name!r} is not running here: "
                "tell each proposal once, to the study that made it"
            )
        with self._storing():
            try:
                cost = self._objective.cost_of(measurement)
                if measurement.outcome is Outcome.ABANDONED and cost is not None:
                    trial.report(cost, step=1)
                for key, value in found.items():
                    trial.set_user_attr(key, value)
                self._end(trial, measurement)
            except (optuna.exceptions.UpdateFinishedTrialError, ValueError):
                frozen = self.optuna.get_trials(deepcopy=False)[proposal.number]
                if not frozen.state.is_finished():
                    raise
                return False
            return True

    def release(self, proposal: Proposal[PointT]) -> None:
        """Give up a proposal without a measurement; it may be proposed again."""
        trial = self._running.pop(proposal.number, None)
        if trial is not None:
            with self._storing():
                fail(self.optuna, trial, INTERRUPTED)

    def note_run(self, facts: Mapping[str, Any]) -> None:
        """Add JSON-able facts about this run (sampler, seed, machine, seconds) to the study."""
        if not self._run:
            self._run["started"] = datetime.now(UTC).isoformat()
        self._run |= facts
        with self._storing():
            self.optuna.set_user_attr(f"{RUN}{self._run['started']}:{Owner.current()}", self._run)

    def close(self) -> None:
        """Give up what was not told, and let go of the storage; a study without trials goes."""
        self._living.end()
        with suppress(CacheError, StudyError), self._storing():
            self._living.reclaim()  # else whoever opens it next does
        with self._storing():
            while self._running:
                _, trial = self._running.popitem()
                fail(self.optuna, trial, INTERRUPTED)
            if isinstance(self._storage, StudyJournal) and not self._sampler.ledger.trials:
                self._storage.remove_unless_shared()
            close_storage(self._storage)

    @property
    def chance(self) -> float:
        """Probability that more trials come to a gain of more than 1%, see `stopping`."""
        return self._prospects.after(self._ledger())

    @property
    def size(self) -> int:
        """Number of valid candidates in the space."""
        return self._sampler.space.size

    @property
    def visited(self) -> frozenset[int]:
        """Rows of the space that were run, or are running in some worker."""
        return frozenset(self._ledger().visited)

    @property
    def trials(self) -> list[TrialRecord[PointT]]:
        """Every trial by number, those of other workers and earlier runs too."""
        return [self._record(trial) for trial in self._ledger().trials]

    def measured(self) -> list[tuple[PointT, Measurement]]:
        """Measurements, failures too, by trial number; all workers' and earlier runs'."""
        return [
            (record.candidate, record.measurement)
            for record in self.trials
            if record.candidate is not None and record.measurement is not None
        ]

    def measured_by(self, pids: Collection[int]) -> list[tuple[PointT, Measurement]]:
        """Measurements that processes of this host have made since this study was opened."""
        here = Owner.current()
        found = []
        for trial in self._ledger().trials[self._begun :]:
            owner = Owner.parse(str(claim_of(trial).get("owner", "")))
            if owner is None or owner.pid not in pids:
                continue
            record, is_here = self._record(trial), owner.host == here.host
            if is_here and record.candidate is not None and record.measurement is not None:
                found.append((record.candidate, record.measurement))
        return found

    @property
    def best(self) -> TrialRecord[PointT] | None:
        """The OK trial with the smallest median; the earliest of equals; None before any."""
        complete = [t for t in self._ledger().trials if t.state is TrialState.COMPLETE]
        if not complete:
            return None
        return self._record(min(complete, key=lambda t: (t.values[0], t.number)))

    def _suggest(self, trial: optuna.Trial, name: str) -> Value:
        return cast("Value", trial.suggest_categorical(name, self._sampler.space.choices[name]))

    def _point(self, row: int) -> PointT:
        return cast("PointT", self._sampler.space.point(row))

    def _record(self, trial: FrozenTrial) -> TrialRecord[PointT]:
        row = self._sampler.ledger.rows.get(trial.number)
        return trial_record(trial, None if row is None else self._point(row))

    @contextmanager
    def _storing(self) -> Iterator[None]:
        """Around everything that writes: whole, silent, and failing in one line."""
        with quiet(), deferred_interrupt(), storage_errors(self.name):
            yield

    def _ledger(self) -> Ledger:
        """The visited rows, as the storage has it now."""
        with self._storing():
            self._sampler.refresh(self.optuna)
        return self._sampler.ledger

    def _finish(self, trial: FrozenTrial) -> bool:
        """End the trial of a worker that had no time to end it."""
        if (measurement := measurement_of(trial)) is None:
            return False
        with suppress(optuna.exceptions.UpdateFinishedTrialError, ValueError):
            self._end(trial.number, measurement)
        return True

    def _end(self, trial: optuna.Trial | int, measurement: Measurement) -> None:
        """End a trial whose attributes are written."""
        cost = self._objective.cost_of(measurement)
        if measurement.ok and cost is not None:
            self.optuna.tell(trial, cost)
        else:
            abandoned = measurement.outcome is Outcome.ABANDONED and cost is not None
            self.optuna.tell(trial, state=TrialState.PRUNED if abandoned else TrialState.FAIL)


@dataclass(frozen=True, slots=True)
class Subject:
    """A problem, where it runs, and on what.

    Attributes:
        operation: the operation's name.
        problem: every field of the problem.
        target: the target's name.
        device: the device's name, for people.
        fingerprint: the digest of the device's fingerprint.
        objective: the name of what trials cost by.
    """

    operation: str
    problem: Mapping[str, Any]
    target: str
    device: str
    fingerprint: str
    objective: str = "time"

    def key(self) -> dict[str, Any]:
        """Every field as JSON-able values."""
        return asdict(self)

    def differences(self, stored: object) -> list[str]:
        """Differences of a stored key: "dtype is float32 there and float64 here"."""
        there = stored if isinstance(stored, Mapping) else {}
        problem = there.get("problem")
        there = {"objective": "time", **(problem if isinstance(problem, Mapping) else {}), **there}
        here = {"operation": self.operation, **self.problem, "target": self.target}
        here["objective"] = self.objective
        found = [
            f"{name} is {there.get(name)} there and {value} here"
            for name, value in here.items()
            if there.get(name) != value
        ]
        if there.get("fingerprint") != self.fingerprint:
            other = "another " if self.device == there.get("device") else ""
            found.append(f"it is of {there.get('device')}, and this is {other}{self.device}")
        return found


def open_study(
    space: SearchSpace | SpaceUnion,
    storage: str | None,
    name: str,
    folder: Path,
    sampler: str = "auto",
    seed: int = 0,
    prior: Sequence[Prior] = (),
    subject: Subject | None = None,
    objective: Objective = TIME,
) -> TuningStudy[Any]:
    """Create a study, or continue the one of that name; its points are those of the space.

    Args:
        space: where its candidates come from.
        storage: an Optuna database URL; None for a journal file in `folder`.
        name: the study's name.
        folder: where journal files are kept; created when missing.
        sampler: a sampler's name, see `make_sampler`, as for `seed` and `prior`.
        seed: for the sampler.
        prior: what is expected before anything is measured.
        subject: what its trials are of; None where only the space matters.
        objective: what trials cost by; the subject names it.

    Raises:
        StudyError: the storage cannot be read, or the study is of another space or subject, or
            not ours.
        CacheError: the folder cannot be written.
        UnknownNameError: there is no such sampler.
        MissingDependencyError: the sampler or the database needs a package.
    """
    feasible = make_sampler(sampler, space, seed, prior)
    opened = open_storage(storage, name, folder)
    try:
        with quiet(), deferred_interrupt(), storage_errors(name):
            study = optuna.create_study(
                storage=opened, study_name=name, sampler=feasible, load_if_exists=True
            )
            _check(study, space.digest, subject)
    except BaseException:
        close_storage(opened)
        raise
    return TuningStudy(study, feasible, opened, objective)


def _check(study: optuna.Study, digest: str, subject: Subject | None) -> None:
    """Refuse a study of something else; mark a new one as ours."""
    attrs: dict[str, Any] = study.user_attrs
    stored = attrs.get(SPACE)
    begun = bool(study.get_trials(deepcopy=False))
    fault = remark = ""
    if stored is None and (attrs or begun):
        fault = "was not made by autotune"
    elif study.directions != [StudyDirection.MINIMIZE]:
        fault = "does not minimise one value"
    elif subject is not None and begun and attrs.get(SUBJECT) is None:
        fault = "holds trials and does not say of which problem and device"
        remark = "; what it holds is kept"
    elif (
        subject is not None
        and SUBJECT in attrs
        and (differences := subject.differences(attrs[SUBJECT]))
    ):
        fault = f"is of something else: {'; '.join(differences)}"
    elif stored not in (None, digest):
        fault = f"belongs to search space {stored}, this one is {digest}"
    if fault:
        raise StudyError(
            f"study {study.study_name!r} {fault}: choose another name with --study{remark}"
        )
    if stored is None:
        study.set_user_attr(SPACE, digest)
    if subject is not None and SUBJECT not in attrs:
        study.set_user_attr(SUBJECT, subject.key())
