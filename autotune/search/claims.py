"""Rows of a space as a study has them: flat points, visited rows, and claims to rows.

There is one worker per configuration, over Optuna storage only.

A worker *claims* a row by writing it as an attribute of its own trial, then reads all trials
again. If nobody else holds the row, it is the worker's. Otherwise it gives way and chooses again.
This is safe on storage whose writes and reads have one order that all workers agree on (a
journal under its lock, a relational database): of two workers that both wrote the same row, the
one that wrote later reads after both writes, sees the earlier claim and gives way. Neither needs
to know of the other beforehand, and a worker that dies holds nothing but its own trial, which is
reclaimed with it.

Two workers that see each other must not both give way for ever: the trial with the lower number
waits a moment for the other to move on. That only decides who is lucky, never whether it is safe.
"""

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Self, TypeVar

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState

from autotune.core.configuration import Candidate, Configuration, Value
from autotune.core.errors import SpaceError
from autotune.core.printable import shown
from autotune.core.processors import status_of
from autotune.search.internals import end_as_failed, write_note
from autotune.space import SearchSpace, SpaceUnion

PointT = TypeVar("PointT", Configuration, Candidate)
"""Points of a space: configurations, or a union's candidates."""

FAMILY = "family"
"""The parameter that chooses among a union's spaces."""


class StudySpace:
    """One `SearchSpace`, or a `SpaceUnion`, under the names a study stores.

    A plain space keeps its parameters' names. A union has `family` and each family's parameters
    as `block.sm`; they are conditional: a point has the chosen family's parameters only. A *row*
    is the position of a valid point in the canonical order; *params* is a point by flat names.

    Attributes:
        space: what was given.
        choices: the values of every name, in declared order; `family` comes first.
    """

    def __init__(self, space: SearchSpace | SpaceUnion) -> None:
        self.space = space
        self.choices: dict[str, tuple[Value, ...]] = {}
        self._names: dict[Value, tuple[str, ...]] = {}
        if isinstance(space, SearchSpace):
            self.choices = {p.name: p.values for p in space.parameters}
        else:
            # A family with no valid configuration is not worth a proposal.
            families = [name for name, member in space.spaces.items() if member.size]
            self.choices[FAMILY] = tuple(families or space.spaces)
            for family in self.choices[FAMILY]:
                values = {
                    f"{family}.{p.name}": p.values for p in space.spaces[str(family)].parameters
                }
                self.choices.update(values)
                self._names[family] = tuple(values)
        self.distributions: dict[str, BaseDistribution] = {
            name: CategoricalDistribution(values) for name, values in self.choices.items()
        }

    @property
    def size(self) -> int:
        """Number of valid points."""
        return self.space.size

    @property
    def digest(self) -> str:
        """The digest a study of this space carries."""
        return self.space.digest

    def stages(self) -> Sequence[Callable[[Mapping[str, Value]], Sequence[str]]]:
        """Names to decide together, in turn; each stage sees what was decided before."""
        if isinstance(self.space, SearchSpace):
            return [lambda decided: tuple(self.choices)]
        return [lambda decided: (FAMILY,), lambda decided: self._names[decided[FAMILY]]]

    def suggest(self, value: Callable[[str], Value]) -> dict[str, Value]:
        """Collect one point: `value(name)` is asked for the names that apply, in order."""
        params: dict[str, Value] = {}
        for stage in self.stages():
            for name in stage(params):
                params[name] = value(name)
        return params

    def point(self, row: int) -> Candidate | Configuration:
        """The valid point at `row`."""
        return self.space[row]

    def params(self, row: int) -> dict[str, Value]:
        """The valid point at `row` by flat names."""
        if isinstance(self.space, SearchSpace):
            return dict(self.space[row])
        return self.space.flatten(self.space[row])

    def row(self, params: Mapping[str, Value]) -> int | None:
        """The row of a complete point; None when it is incomplete or not valid."""
        with suppress(SpaceError):
            match self._unflatten(params), self.space:
                case Candidate() as candidate, SpaceUnion() as union:
                    return union.find(candidate)
                case Mapping() as configuration, SearchSpace() as space:
                    return space.find(configuration)
        return None

    def row_of(self, point: Candidate | Mapping[str, Value]) -> int:
        """The row of a valid point.

        Raises:
            SpaceError: the point is not valid, or belongs to another kind of space.
        """
        if isinstance(self.space, SearchSpace):
            if isinstance(point, Candidate):
                raise SpaceError(f"this space takes configurations, not candidates: got {point}")
            return self.space.index(point)
        if not isinstance(point, Candidate):
            raise SpaceError(
                f"this space takes candidates (family, configuration): got {shown(point)}"
            )
        return self.space.index(point)

    def nearest(self, params: Mapping[str, Value], excluded: Container[int]) -> int | None:
        """The row nearest to a point, which may be invalid; None when all rows are excluded."""
        if isinstance(self.space, SearchSpace):
            return self.space.nearest(params, excluded)
        point = self._unflatten(params)
        assert isinstance(point, Candidate)
        return self.space.nearest(point, excluded)

    def _unflatten(self, params: Mapping[str, Value]) -> Candidate | Mapping[str, Value] | None:
        """The point that `params` names; None when the names are not those of one point."""
        if isinstance(self.space, SearchSpace):
            return params if params.keys() == self.choices.keys() else None
        names = self._names.get(params.get(FAMILY, ""), None)
        if names is None or params.keys() != {FAMILY, *names}:
            return None
        return self.space.unflatten(params)


CLAIM = "autotune:claim"
"""Trial attribute: {"row", "owner", and "proposed" when the sampler's proposal was moved}."""

OUTCOME = "outcome"
REASON = "reason"
"""Trial attributes: how a trial ended and why, as `autotune.core.measurement` has them."""

ORPHANED = "orphaned"
INTERRUPTED = "interrupted"
"""Reasons of failed trials whose configuration never ran to an end: it may be proposed again."""

LEASE_S = 90.0
"""Silence after which a worker that cannot be seen from here, as on another host, is taken for
dead."""

_PATIENCE_S = 0.5
_POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that runs a trial, identified beyond the reuse of its number.

    Attributes:
        host: the host's name.
        boot: identity of the host's running system; empty where the platform does not tell.
        namespace: the process-number namespace (containers have their own); may be empty.
        pid: process number.
        start: when the process started, in clock ticks since boot; 0 where not known.
    """

    host: str
    boot: str
    namespace: str
    pid: int
    start: int

    @classmethod
    def current(cls) -> Self:
        """This process."""
        return cls(socket.gethostname(), *_system(), os.getpid(), _start(os.getpid()))

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read what `str` wrote; None when it is something else."""
        parts = text.rsplit(":", 4)
        if len(parts) != 5 or not parts[3].isdecimal() or not parts[4].isdecimal():
            return None
        return cls(parts[0], parts[1], parts[2], int(parts[3]), int(parts[4]))

    def __str__(self) -> str:
        return f"{self.host}:{self.boot}:{self.namespace}:{self.pid}:{self.start}"

    def alive(self) -> bool | None:
        """Tell if the process is running; None when it cannot be seen from here."""
        if self.host != socket.gethostname():
            return None
        boot, namespace = _system()
        if self.boot != boot:
            return False
        if self.namespace != namespace:
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # it exists and belongs to somebody else
        return _start(self.pid) == self.start


@cache
def _system() -> tuple[str, str]:
    boot = namespace = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
        namespace = str(Path("/proc/self/ns/pid").stat().st_ino)
    return boot, namespace


def _start(pid: int) -> int:
    """The process's start in clock ticks since boot; -1 when it has ended and is a zombie."""
    status = status_of(Path(f"/proc/{pid}"))
    if not status:
        return 0
    return -1 if status[0] == "Z" else int(status[19])


class Ledger:
    """The visited rows, kept up to date from a study's trials.

    A trial that has ended never changes, so that it is read once: what a refresh costs does not
    grow with the trials of the study.

    Attributes:
        trials: every trial at the last refresh, by number.
        rows: the row of every trial that has one, by trial number.
        ended: numbers of the trials that have ended, in the order in which that was noticed.
        open: numbers of the others, ascending.
        visited: rows that must not be proposed: run, running, or claimed by another worker.
        whole: rows that were pruned only, and never run to the end, may be proposed again.
        converted: gives a trial that has ended costs for values; None where they are its values.
    """

    def __init__(self, space: StudySpace) -> None:
        self._space = space
        self._ended_rows: set[int] = set()
        self._pruned_rows: set[int] = set()
        self._orphans: Counter[int] = Counter()
        self._summed: tuple[object, ...] = ()
        self.trials: list[FrozenTrial] = []
        self.rows: dict[int, int] = {}
        self.ended: list[int] = []
        self.open: list[int] = []
        self.visited: set[int] = set()
        self.whole = False
        self.converted: Callable[[FrozenTrial], FrozenTrial] | None = None
        self._costed: dict[int, FrozenTrial] = {}

    @property
    def exhausted(self) -> bool:
        """No row is left to propose."""
        return len(self.visited) >= self._space.size

    def refresh(self, trials: Sequence[FrozenTrial], but: int | None = None) -> None:
        """Read the trials again; the claim of trial number `but` does not count as visited."""
        running: set[int] = set()
        still_open = []
        for number in [*self.open, *range(len(self.trials), len(trials))]:
            trial = trials[number]
            row = self._row(trial)
            if row is None:
                self.rows.pop(number, None)
            else:
                self.rows[number] = row
            if trial.state.is_finished():
                self.ended.append(number)
                if row is not None:
                    self._end(trial, row)
                continue
            still_open.append(number)
            if row is not None and number != but:
                running.add(row)
        self.trials, self.open = list(trials), still_open
        if self.converted is not None:
            for number in self.ended[len(self._costed) :]:
                self._costed[number] = self.converted(trials[number])
            for number, trial in self._costed.items():
                self.trials[number] = trial
        rows = len(self._ended_rows), len(self._pruned_rows), running, self.whole
        if rows != self._summed:
            self._summed = rows
            self.visited = self._ended_rows | running
            if not self.whole:
                self.visited |= self._pruned_rows

    def holders(self, row: int, but: int) -> list[int]:
        """Numbers of the other trials at `row`."""
        return [number for number, held in self.rows.items() if held == row and number != but]

    def _end(self, trial: FrozenTrial, row: int) -> None:
        if _never_ran(trial, INTERRUPTED):
            return
        if _never_ran(trial, ORPHANED):
            # The worker's death may have been this configuration's doing: one more chance.
            self._orphans[row] += 1
            if self._orphans[row] < 2:
                return
        pruned = trial.state is TrialState.PRUNED
        (self._pruned_rows if pruned else self._ended_rows).add(row)

    def _row(self, trial: FrozenTrial) -> int | None:
        row = self._space.row(trial.params) if trial.params else None
        if row is None:
            claimed = claim_of(trial).get("row")
            if isinstance(claimed, int) and 0 <= claimed < self._space.size:
                row = claimed
        return row


def claim_of(trial: FrozenTrial) -> Mapping[str, Any]:
    """The claim that a trial carries; empty when it has none."""
    claim = trial.system_attrs.get(CLAIM)
    return claim if isinstance(claim, Mapping) else {}


def claim(
    study: optuna.Study,
    trial: FrozenTrial,
    ledger: Ledger,
    row: int,
    proposed: Mapping[str, Value] | None,
) -> bool:
    """Try to take `row` for this worker's running trial; afterwards the ledger is fresh.

    `proposed` is the sampler's own proposal, recorded when it was moved to `row`. Where the row
    is not this trial's in the end, the claim has no effect once another is written.
    """
    record: dict[str, Any] = {"row": row, "owner": str(Owner.current())}
    if proposed is not None:
        record["proposed"] = dict(proposed)
    write_note(study, trial, CLAIM, record)
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        ledger.refresh(study.get_trials(deepcopy=False), but=trial.number)
        if row not in ledger.visited:
            return True
        waits = all(
            number > trial.number and not ledger.trials[number].state.is_finished()
            for number in ledger.holders(row, but=trial.number)
        )
        if not waits or time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)


def withdraw(study: optuna.Study, trial: FrozenTrial) -> None:
    """Give up whatever `trial` claims: there is nothing left for it."""
    write_note(study, trial, CLAIM, None)


def fail(study: optuna.Study, trial: optuna.Trial | FrozenTrial, reason: str) -> bool:
    """End a RUNNING trial that was not measured; False when somebody else has ended it."""
    return end_as_failed(study, trial, REASON, reason)


def orphans(study: optuna.Study, heartbeats: Mapping[str, float]) -> list[FrozenTrial]:
    """The RUNNING trials whose worker is gone; heartbeats are in seconds since the epoch."""
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    return [trial for trial in running if _orphaned(trial, heartbeats)]


def _orphaned(trial: FrozenTrial, heartbeats: Mapping[str, float]) -> bool:
    text = str(claim_of(trial).get("owner", ""))
    owner = Owner.parse(text)
    alive = owner.alive() if owner is not None else None
    if alive is not None:
        return not alive
    started = trial.datetime_start or datetime.now()
    last_seen = max(heartbeats.get(text, 0.0), started.timestamp())
    return time.time() - last_seen > LEASE_S


def _never_ran(trial: FrozenTrial, reason: str) -> bool:
    """The trial was ended for that reason, and not with a measurement."""
    attrs = trial.user_attrs
    return trial.state is TrialState.FAIL and OUTCOME not in attrs and attrs.get(REASON) == reason
