"""A target's part of an evaluator: compilers, and a process that measures and may be lost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from autotune.core.file_lock import Turns
from autotune.core.measurement import Measurement, Outcome
from autotune.measuring.messages import Evaluate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from autotune.core.configuration import Candidate
    from autotune.core.deadline import Deadline
    from autotune.families.gpu.launch import Binary
    from autotune.measuring.effort import Baseline, Report
    from autotune.measuring.failure import Failure
    from autotune.measuring.messages import Program, Request, Vendor
    from autotune.measuring.sharing import SharedWorker, WorkerPool
    from autotune.operations.problem import Problem

RENEW_ANSWERS = 512
"""Requests that a process which measures has answered before a trial finds a fresh one."""

Baselines: TypeAlias = "dict[Problem, tuple[Vendor, Baseline]]"
"""The fastest vendor library of each problem that has been measured."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A candidate that can be measured.

    Attributes:
        program: what it was compiled to.
        details: facts that are known by that: compile time, registers.
    """

    program: Program
    details: Mapping[str, float | int | str] = field(default_factory=dict)


def compile_details(seconds: float, program: str) -> dict[str, float | int | str]:
    """Details of a trial about its compile, which several trials may have in common.

    Args:
        seconds: how long it took; 0 where the program had been compiled before, which leaves
            nothing to tell.
        program: the source's name, with its digest.
    """
    return {"compile_s": seconds, "program": program} if seconds else {}


def judge_compile_failure(reply: Failure) -> Measurement:
    """The measurement of a candidate whose compiler did not answer."""
    return reply.judge(Outcome.COMPILE_FAILED, "compiler")


class Backend(ABC):
    """Compiles candidates, and asks a process that may be lost.

    Attributes:
        batch: candidates to have prepared at a time; see `Evaluator.batch`.
        compiles_ahead: whether compilers work while a candidate is measured.
        baselines: measured so far by all who share its processes.
        observes: observations beside times, such as "joules" of a call; see `Objective.needs`.
        holds: whether its device is one that work without a pause slows down, which finals show.
        turns: at what measures, among the runs of a user on this host.
    """

    batch: int
    compiles_ahead: bool = False
    baselines: Baselines
    observes: frozenset[str] = frozenset()
    holds: bool = False
    turns: Turns = Turns()

    @property
    def start_s(self) -> float:
        """Seconds that starting for the finals takes, as far as is known."""
        return 0.0

    @abstractmethod
    def is_ready(self, candidate: Candidate) -> bool:
        """True if a prepared candidate has been compiled."""

    def compile_ahead(self, candidates: Sequence[Candidate]) -> None:  # noqa: B027 - most cannot
        """Begin to compile valid candidates; see `Evaluator.compile_ahead`."""

    @abstractmethod
    def prepare(self, candidates: Sequence[Candidate], run: Deadline, report: Report) -> None:
        """Compile valid candidates that have not been compiled; see `Evaluator.prepare`."""

    @abstractmethod
    def prepared(
        self, candidate: Candidate, run: Deadline, report: Report
    ) -> Prepared | Measurement:
        """The program of a candidate that was given to `prepare`, or why it is not measured."""

    @abstractmethod
    def ask(self, request: Request, timeout_s: float, run: Deadline) -> Any:
        """The reply of the process that measures, or a `Failure`.

        Raises:
            OutOfTimeError: the run was over first.
        """

    @abstractmethod
    def renew(self) -> None:
        """End the process that measures: the next request finds another."""

    def begin_finals(self, run: Deadline) -> None:  # noqa: B027 - most have nothing to do
        """The finals come next, which a process without a past may serve better."""

    def binary(self, candidate: Candidate) -> Binary | None:
        """A measured candidate's binary; None where nothing outlives the program cache."""
        return None

    @abstractmethod
    def close(self) -> None:
        """End every process that is not another evaluator's."""


class Processes:
    """Processes that compile and that measure, for one evaluator or for several in turn.

    Args:
        key: evaluators that differ in it share nothing.
        worker: measures.
        compilers: compile, where that is a process of its own.

    Attributes:
        baselines: of the problems that were measured here.
        compiles: what compilers were asked for that work ahead, by the digest of the source.
    """

    def __init__(
        self, key: object, worker: SharedWorker, compilers: WorkerPool | None = None
    ) -> None:
        self.key = key
        self.worker = worker
        self.baselines: Baselines = {}
        self.compiles: dict[str, Future[Any]] = {}
        self.compilers = compilers

    def close(self) -> None:
        """End all of them."""
        if self.compilers is not None:
            self.compilers.close()
        self.worker.close()


class WorkerBackend(Backend):
    """A `Backend` with a worker process, shared with evaluators beside this one.

    Args:
        key: see `Processes`.
        make: makes the processes, where there are none to share.
        beside: whose processes may be used; it is not closed before this one.
    """

    def __init__(
        self, key: object, make: Callable[[object], Processes], beside: Backend | None
    ) -> None:
        shared = beside.processes if isinstance(beside, WorkerBackend) else None
        self._owner = shared is None or shared.key != key
        self.processes: Processes = make(key) if shared is None or shared.key != key else shared
        self.baselines = self.processes.baselines

    @property
    def compilers(self) -> WorkerPool:
        """The processes that compile; a target has given them, or compiles elsewhere."""
        if self.processes.compilers is None:
            raise AttributeError("this target has no processes that compile")
        return self.processes.compilers

    @property
    @abstractmethod
    def subject(self) -> Any:
        """The worker keeps operands of it; see `SharedWorker`."""

    def ask(self, request: Request, timeout_s: float, run: Deadline) -> Any:
        """The worker's reply, or a `Failure`."""
        worker = self.processes.worker
        if isinstance(request, Evaluate) and worker.answered >= RENEW_ANSWERS:
            self.renew()  # it keeps something of every kernel that it has loaded
        return worker.call(self.subject, request, timeout_s, run)

    def renew(self) -> None:
        """End the worker: memory may be damaged there."""
        self.processes.worker.close(grace_s=0)

    def close(self) -> None:
        """End the processes, unless they are another evaluator's."""
        if self._owner:
            self.processes.close()
