"""The CPU evaluator: compile workers, one measurement worker, and what their ends mean."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from autotune.core.deadline import Deadline
from autotune.core.errors import OutOfTimeError
from autotune.core.measurement import Measurement, Outcome
from autotune.measuring.evaluator import Baseline, Effort, Finals, Report, Stage, silent
from autotune.measuring.processes import PREPARE_TIMEOUT_S, Failure, FailureKind, WorkerPool
from autotune.measuring.rounds import (
    CONFIRM_SHARE,
    Redraw,
    Series,
    faster,
    hold_rounds,
    judge_failure,
)
from autotune.measuring.sharing import SharedWorker
from autotune.measuring.validity import Validity
from autotune.targets.cpu.baseline import Blas, baseline_details, baseline_name
from autotune.targets.cpu.direct import write_call
from autotune.targets.cpu.kernel import CpuProgram, write_program
from autotune.targets.cpu.messages import (
    Confirm,
    DescribeBlas,
    Evaluate,
    Evaluated,
    Request,
    Visit,
)
from autotune.targets.cpu.thread_limits import affinity_count
from autotune.targets.cpu.worker import Compiled, compile_worker, measurement_worker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from autotune.core.configuration import Candidate
    from autotune.core.device import Device
    from autotune.families.family import KernelFamily
    from autotune.families.program_cache import ProgramCache
    from autotune.operations.problem import Problem

MIN_BATCH = 4
"""Candidates compiled together at least, so that programs shared and uneven times even out."""

SECOND_LOOK_S = 0.05
"""Seconds of timed calls when a finalist is verified again; the rounds time it."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A candidate's program and how compiling it went."""

    program: CpuProgram
    compile_s: float
    failure: Measurement | None


class _Processes:
    """The processes of one evaluator, or of several for problems in turn.

    Args:
        key: folder of programs, effort, threads, compile workers and seed: evaluators that differ
            in these share nothing.
        programs: where emitted modules go.
    """

    def __init__(self, key: tuple[Path, Effort, int, int, int], programs: ProgramCache) -> None:
        _, effort, threads, count, seed = self.key = key
        environment = {"NUMBA_NUM_THREADS": str(threads)}
        self.compilers = WorkerPool(
            compile_worker, count=count, environment=environment, watched=True
        )
        self.worker = SharedWorker(
            measurement_worker,
            programs,
            effort,
            threads,
            seed,
            environment=environment,
            watched=True,
        )
        self.baselines: dict[Problem, Baseline] = {}

    def close(self) -> None:
        """End every process."""
        self.compilers.close()
        self.worker.close()


class CpuEvaluator:
    """Evaluates candidates of CPU families for one problem (see `Evaluator`).

    `prepare` blocks until everything is compiled: a compiler running beside a measurement would
    disturb it.

    Args:
        problem: what is computed.
        families: by name; candidates name them.
        device: as `read_cpu` gives it; its `max_threads` caps kernels and baseline alike.
        programs: where emitted modules go.
        effort: how long and how exactly to measure.
        workers: compile workers; None takes one for each processor of this process.
        seed: seeds the operands.
        beside: an evaluator whose processes this one may use, and whose baseline if it is for the
            same problem; it is not closed before this one.
    """

    def __init__(
        self,
        problem: Problem,
        families: Mapping[str, KernelFamily],
        device: Device,
        programs: ProgramCache,
        *,
        effort: Effort | None = None,
        workers: int | None = None,
        seed: int = 0,
        beside: CpuEvaluator | None = None,
    ) -> None:
        self.device = device
        self.deadline = Deadline()
        self.report: Report = silent
        self._problem = problem
        self._families = families
        self._programs = programs
        self._effort = effort or Effort()
        usable = device.limits.names()["max_threads"]
        self._threads = min(problem.threads or usable, usable)
        # Nothing is measured meanwhile, so that kernels of one thread are compiled on all cores.
        count = workers or affinity_count()
        self.batch = max(MIN_BATCH, count)
        key = (programs.folder, self._effort, self._threads, count, seed)
        shares = beside is not None and beside._processes.key == key
        self._owner = not shares
        self._processes: _Processes = (
            beside._processes if beside and shares else _Processes(key, programs)
        )
        self._fresh = itertools.count(seed + 1)
        self._validity = Validity(families, problem, device.limits)
        self._prepared: dict[Candidate, _Prepared] = {}
        self._callers: set[Path] = set()
        self._baseline = self._processes.baselines.get(problem)

    @property
    def compiles_ahead(self) -> bool:
        """False: a compiler running beside a measurement would disturb it."""
        return False

    def is_ready(self, candidate: Candidate) -> bool:
        """Whether a candidate has been compiled."""
        return candidate in self._prepared

    @property
    def finals_s(self) -> float:
        """The rounds: the worker that has measured goes on."""
        return self._effort.finals_s

    def prepare(self, candidates: Sequence[Candidate]) -> None:
        """Compile what has not been compiled, each distinct module once, on all cores."""
        programs = {
            candidate: self._write(candidate)
            for candidate in candidates
            if candidate not in self._prepared and self._validity.rejection(candidate) is None
        }
        done = {prepared.program.path: prepared for prepared in self._prepared.values()}
        paths = list({program.path for program in programs.values()} - set(done))
        # What calls them is compiled here too, and not while a candidate is measured.
        callers = {write_call(program, self._programs) for program in programs.values()}
        paths += callers - self._callers
        # Operands and references are made while compilers work.
        self._processes.worker.begin(self._problem, self.deadline)
        replies = dict(zip(paths, self._compile(paths), strict=True))
        self._callers |= {path for path in callers if replies.get(path) is not None}
        for candidate, program in programs.items():
            if program.path in done:
                self._prepared[candidate] = replace(done[program.path], program=program)
            elif (reply := replies[program.path]) is not None:
                self._prepared[candidate] = _judge_compile(program, reply)
        if None in replies.values():
            raise OutOfTimeError("the run was over before all candidates were compiled")

    def evaluate(self, candidate: Candidate, best_s: float | None) -> Measurement:
        """Compile if need be, verify, then time; see `Evaluator.evaluate`."""
        return self._evaluate(candidate, best_s, self._effort.budget_s)

    def finals(self, candidates: Sequence[Candidate]) -> Finals:
        """Verify, time in rounds (every candidate, then NumPy, and again), and verify again.

        A median is over the medians of the rounds, whose times are independent as those of
        consecutive calls are not.
        """
        self.prepare(candidates)
        measurements = [self._evaluate(each, None, SECOND_LOOK_S) for each in candidates]
        visits = {
            position: functools.partial(self._visit, each)
            for position, each in enumerate(candidates)
            if measurements[position].ok
        }
        of_numpy = functools.partial(self._visit, None)
        seed = next(self._fresh)
        return hold_rounds(
            measurements,
            visits,
            self.baseline(),
            of_numpy,
            self._effort.finals_s,
            lambda position: self._confirm(candidates[position], seed),
            deadline=self.deadline,
            report=self.report,
        )

    def baseline(self) -> Baseline | None:
        """NumPy's product of the same operands with the same cap on threads, measured once."""
        if self._baseline is None:
            blas = self._ask(DescribeBlas())
            turn = self._visit(None, self._effort.budget_s)
            if not isinstance(blas, Blas) or not isinstance(turn, Series):
                return None
            self._baseline = Baseline(
                name=baseline_name(blas, self._threads),
                median_s=turn.median_s,
                interval_s=turn.interval_s,
                threads=self._threads,
                details=baseline_details(blas),
            )
            self._processes.baselines[self._problem] = self._baseline
        return self._baseline

    def check_baseline(self) -> Baseline | None:
        """NumPy once more; see `Evaluator.check_baseline`."""
        if self._baseline is not None:
            self._baseline = faster(self._baseline, self._visit(None, SECOND_LOOK_S))
            self._processes.baselines[self._problem] = self._baseline
        return self._baseline

    def binary(self, candidate: Candidate) -> None:
        """Nothing: Numba keeps what it compiled in its own file cache."""

    def close(self) -> None:
        """End every worker, unless they are another evaluator's."""
        if self._owner:
            self._processes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _evaluate(
        self, candidate: Candidate, best_s: float | None, budget_s: float
    ) -> Measurement:
        rejection = self._validity.rejection(candidate)
        if rejection is not None:
            return Measurement(Outcome.REJECTED, reason=rejection)
        self.prepare([candidate])
        prepared = self._prepared[candidate]
        if prepared.failure is not None:
            return prepared.failure
        program, accuracy = self._program_of(candidate)
        measurement = self._measure(Evaluate(program, accuracy, best_s, budget_s))
        details = {**measurement.details, "compile_s": prepared.compile_s}
        return replace(measurement, details=details)

    def _visit(self, candidate: Candidate | None, budget_s: float) -> Series | Failure:
        """One turn of a candidate, or of NumPy where there is none."""
        if candidate is None:
            request = Visit(None, "ieee", budget_s)
        else:
            request = Visit(*self._program_of(candidate), budget_s)
        reply: Series | Evaluated | Failure = self._ask(request)
        if isinstance(reply, Evaluated):
            return Failure(FailureKind.WRONG, reply.measurement.reason)
        return reply

    def _confirm(self, candidate: Candidate, seed: int) -> Measurement:
        """What calls on fresh operands, all of them checked, say of a finalist."""
        redrawn = self._ask(Redraw(seed), PREPARE_TIMEOUT_S)
        if isinstance(redrawn, Failure):
            return judge_failure(redrawn)
        budget_s = CONFIRM_SHARE * self._effort.finals_s
        return self._measure(Confirm(*self._program_of(candidate), budget_s))

    def _program_of(self, candidate: Candidate) -> tuple[CpuProgram, str]:
        """What a prepared candidate was compiled to, and the accuracy class it promises."""
        return self._prepared[candidate].program, self._families[candidate.family].accuracy

    def _measure(self, request: Evaluate | Confirm) -> Measurement:
        reply: Evaluated | Failure = self._ask(request)
        return judge_failure(reply) if isinstance(reply, Failure) else reply.measurement

    def _ask(self, request: Request, timeout_s: float | None = None) -> Any:
        limit_s = timeout_s or self._effort.timeout_s
        worker = self._processes.worker
        reply = worker.call(self._problem, request, limit_s, self.deadline)
        if isinstance(reply, Evaluated) and reply.damaged:
            worker.close(grace_s=0)
        return reply

    def _compile(self, paths: Sequence[Path]) -> list[Compiled | Failure | None]:
        """What compiling modules came to; None for those that there was no time for."""
        return self._processes.compilers.run(
            paths,
            self._effort.compile_timeout_s,
            self.deadline,
            lambda answered: self.report(Stage("compiling", answered, len(paths))),
        )

    def _write(self, candidate: Candidate) -> CpuProgram:
        family = self._families[candidate.family]
        return write_program(family, candidate.configuration, self._problem, self._programs)


def _judge_compile(program: CpuProgram, reply: Compiled | Failure) -> _Prepared:
    if isinstance(reply, Compiled):
        failure = None
        if reply.error:
            failure = Measurement(Outcome.COMPILE_FAILED, reason=reply.error)
        return _Prepared(program, reply.seconds, failure)
    timed_out = reply.kind is FailureKind.TIMED_OUT
    outcome = Outcome.TIMEOUT if timed_out else Outcome.COMPILE_FAILED
    return _Prepared(program, 0.0, Measurement(outcome, reason=f"compiler: {reply.reason}"))
