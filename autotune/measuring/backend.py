"""What a target gives its evaluator: compilers, and a process that measures and may be lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from autotune.core.measurement import Measurement, Outcome
from autotune.measuring.messages import Evaluate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.core.configuration import Candidate
    from autotune.core.deadline import Deadline
    from autotune.families.gpu.launch import Binary
    from autotune.measuring.effort import Baseline, Report
    from autotune.measuring.messages import Program, Request, Vendor
    from autotune.measuring.pool import WorkerPool
    from autotune.measuring.processes import Failure
    from autotune.measuring.sharing import SharedWorker
    from autotune.operations.problem import Problem


@dataclass(frozen=True, slots=True)
class Prepared:
    """A candidate that can be measured.

    Attributes:
        program: what it was compiled to.
        details: what is known of it by that: compile time, registers.
    """

    program: Program
    details: Mapping[str, float | int | str] = field(default_factory=dict)


def compile_details(seconds: float, program: str) -> dict[str, float | int | str]:
    """What a trial says of its compile: of which program it was, which several trials may have.

    Args:
        seconds: how long it took; 0 where the program had been compiled before, of which nothing
            is said.
        program: the source's name, with its digest.
    """
    return {"compile_s": seconds, "program": program} if seconds else {}


RENEW_ANSWERS = 512
"""Requests that a process which measures has answered before a trial finds a fresh one."""

Baselines: TypeAlias = "dict[Problem, tuple[Vendor, Baseline]]"
"""The fastest vendor library of each problem that has been measured."""


class Backend(Protocol):
    """What a target adds: it compiles candidates, and asks a process that may be lost."""

    batch: int
    """Candidates to have prepared at a time; see `Evaluator.batch`."""
    compiles_ahead: bool
    """Whether compilers work while a candidate is measured."""
    baselines: Baselines
    """Measured so far by all who share its processes."""
    observes: frozenset[str]
    """Observations beside times, such as "joules" of a call; see `Objective.needs`."""

    @property
    def start_s(self) -> float:
        """Seconds that starting for the finals takes, as far as is known."""
        ...

    def is_ready(self, candidate: Candidate) -> bool:
        """Whether a prepared candidate has been compiled."""
        ...

    def prepare(self, candidates: Sequence[Candidate], run: Deadline, report: Report) -> None:
        """Compile valid candidates that have not been compiled; see `Evaluator.prepare`."""
        ...

    def prepared(
        self, candidate: Candidate, run: Deadline, report: Report
    ) -> Prepared | Measurement:
        """What a candidate that was given to `prepare` came to, or why it is not measured."""
        ...

    def ask(self, request: Request, timeout_s: float, run: Deadline) -> Any:
        """The reply of the process that measures, or a `Failure`.

        Raises:
            OutOfTimeError: the run was over first.
        """
        ...

    def renew(self) -> None:
        """End the process that measures: the next request finds another."""
        ...

    def begin_finals(self, run: Deadline) -> None:
        """The finals come next, which a process without a past may serve better."""
        ...

    def binary(self, candidate: Candidate) -> Binary | None:
        """What a measured candidate was compiled to; None where nothing can be kept of it."""
        ...

    def close(self) -> None:
        """End every process that is not another evaluator's."""
        ...


class Processes:
    """What compiles and what measures, for one evaluator or for several in turn.

    Args:
        key: evaluators that differ in it share nothing.
        worker: what measures.
        compilers: what compiles, where that is a process of its own.

    Attributes:
        key: the same.
        worker: the same.
        compilers: the same.
        baselines: of the problems that were measured here.
    """

    def __init__(
        self, key: object, worker: SharedWorker, compilers: WorkerPool | None = None
    ) -> None:
        self.key = key
        self.worker = worker
        self.compilers = compilers
        self.baselines: Baselines = {}

    def close(self) -> None:
        """End all of them."""
        if self.compilers is not None:
            self.compilers.close()
        self.worker.close()


class WorkerBackend:
    """The part of a `Backend` that is a worker process, shared with evaluators beside this one.

    Args:
        key: see `Processes`.
        make: makes the processes, where there are none to share.
        beside: whose processes may be used; it is not closed before this one.
    """

    observes: frozenset[str] = frozenset()

    def __init__(
        self, key: object, make: Callable[[object], Processes], beside: Backend | None
    ) -> None:
        shared = beside.processes if isinstance(beside, WorkerBackend) else None
        self._owner = shared is None or shared.key != key
        self.processes = make(key) if shared is None or shared.key != key else shared
        self.baselines = self.processes.baselines
        self.start_s = 0.0

    @property
    def compilers(self) -> WorkerPool:
        """What compiles."""
        assert self.processes.compilers is not None
        return self.processes.compilers

    @property
    def subject(self) -> Any:
        """What the worker keeps operands of; see `SharedWorker`."""
        raise NotImplementedError

    def ask(self, request: Request, timeout_s: float, run: Deadline) -> Any:
        """The worker's reply, or a `Failure`."""
        worker = self.processes.worker
        if isinstance(request, Evaluate) and worker.answered >= RENEW_ANSWERS:
            self.renew()  # it keeps something of every kernel that it has loaded
        return worker.call(self.subject, request, timeout_s, run)

    def renew(self) -> None:
        """End the worker: memory may be damaged there."""
        self.processes.worker.close(grace_s=0)

    def begin_finals(self, run: Deadline) -> None:
        """Nothing: the worker that has measured goes on."""

    def binary(self, candidate: Candidate) -> Binary | None:
        """Nothing that outlives the program cache."""
        return None

    def close(self) -> None:
        """End the processes, unless they are another evaluator's."""
        if self._owner:
            self.processes.close()


def judge_compile_failure(reply: Failure) -> Measurement:
    """The measurement of a candidate whose compiler did not answer."""
    return reply.judge(Outcome.COMPILE_FAILED, "compiler")
