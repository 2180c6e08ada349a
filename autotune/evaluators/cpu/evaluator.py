"""The CPU evaluator: compile workers, one measurement worker, and what their ends mean."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from autotune.evaluators.base import Baseline, Effort, Finals
from autotune.evaluators.cpu.baseline import Blas, baseline_details, baseline_name
from autotune.evaluators.cpu.kernel import CpuProgram, write_program
from autotune.evaluators.cpu.timing import Series
from autotune.evaluators.cpu.worker import (
    Compiled,
    DescribeBlas,
    Evaluate,
    Evaluated,
    Request,
    Visit,
    compile_worker,
    measurement_worker,
)
from autotune.evaluators.processes import Failure, FailureKind, WorkerPool, WorkerProcess
from autotune.measurement import Measurement, Outcome
from autotune.statistics import median, median_interval

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from autotune.configuration import Candidate
    from autotune.device import Device
    from autotune.family import KernelFamily
    from autotune.problem import Gemm
    from autotune.program_cache import ProgramCache
    from autotune.space import SearchSpace

FINALS_ROUNDS = 15
"""Rounds that `Effort.finals_s` is divided into: enough for a 95% interval that is not merely
the smallest and the largest."""

MIN_ROUNDS = 3
"""Rounds made however long they take."""

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
        workers: compile workers; None takes one per thread of the device.
        seed: seeds the operands.
    """

    def __init__(
        self,
        problem: Gemm,
        families: Mapping[str, KernelFamily],
        device: Device,
        programs: ProgramCache,
        *,
        effort: Effort | None = None,
        workers: int | None = None,
        seed: int = 0,
    ) -> None:
        self.device = device
        self._problem = problem
        self._families = families
        self._programs = programs
        self._effort = effort or Effort()
        usable = device.limits.names()["max_threads"]
        self._threads = min(problem.threads or usable, usable)
        environment = {"NUMBA_NUM_THREADS": str(self._threads)}
        count = workers or usable
        self.batch = max(MIN_BATCH, count)
        self._compilers = WorkerPool(compile_worker, count=count, environment=environment)
        self._worker = WorkerProcess(
            measurement_worker,
            problem,
            self._effort,
            self._threads,
            seed,
            environment=environment,
        )
        self._spaces: dict[str, SearchSpace] = {}
        self._prepared: dict[Candidate, _Prepared] = {}
        self._baseline: Baseline | None = None

    @property
    def compiles_ahead(self) -> bool:
        """False: a compiler running beside a measurement would disturb it."""
        return False

    def is_ready(self, candidate: Candidate) -> bool:
        """Whether a candidate has been compiled."""
        return candidate in self._prepared

    def prepare(self, candidates: Sequence[Candidate]) -> None:
        """Compile what has not been compiled, each distinct module once, on all cores."""
        programs = {
            candidate: self._write(candidate)
            for candidate in candidates
            if candidate not in self._prepared and self._rejection(candidate) is None
        }
        done = {prepared.program.path: prepared for prepared in self._prepared.values()}
        paths = list({program.path for program in programs.values()} - set(done))
        replies = dict(
            zip(paths, self._compilers.run(paths, self._effort.compile_timeout_s), strict=True)
        )
        for candidate, program in programs.items():
            if program.path in done:
                self._prepared[candidate] = replace(done[program.path], program=program)
            else:
                self._prepared[candidate] = _judge_compile(program, replies[program.path])

    def evaluate(self, candidate: Candidate, best_s: float | None) -> Measurement:
        """Compile if need be, verify, then time; see `Evaluator.evaluate`."""
        return self._evaluate(candidate, best_s, self._effort.budget_s)

    def finals(self, candidates: Sequence[Candidate]) -> Finals:
        """Verify again, then time in rounds: every candidate, then NumPy, and again.

        A median is over the medians of the rounds, whose times are independent as those of
        consecutive calls are not.
        """
        self.prepare(candidates)
        measurements = [self._evaluate(each, None, SECOND_LOOK_S) for each in candidates]
        ratios: list[float | None] = [None] * len(candidates)
        baseline = self.baseline()
        alive = [position for position, each in enumerate(measurements) if each.ok]
        if not alive:
            return Finals(tuple(measurements), tuple(ratios), baseline)
        programs = [self._prepared[candidates[position]].program for position in alive]
        *turns, numpy_turns = self._interleave([*programs, None])
        for position, own in zip(alive, turns, strict=True):
            if isinstance(own, Failure):
                measurements[position] = _judge_failure(own)
                continue
            medians = [turn.median_s for turn in own]
            measurements[position] = replace(
                measurements[position],
                median_s=median(medians),
                interval_s=median_interval(medians),
                repeats=sum(turn.calls for turn in own),
            )
            if not isinstance(numpy_turns, Failure):
                pairs = zip(numpy_turns, own, strict=True)
                ratios[position] = median(
                    [theirs.median_s / ours.median_s for theirs, ours in pairs]
                )
        if baseline is not None and not isinstance(numpy_turns, Failure):
            medians = [turn.median_s for turn in numpy_turns]
            baseline = replace(
                baseline, median_s=median(medians), interval_s=median_interval(medians)
            )
        return Finals(tuple(measurements), tuple(ratios), baseline)

    def baseline(self) -> Baseline | None:
        """NumPy's product of the same operands with the same cap on threads, measured once."""
        if self._baseline is None:
            blas = self._ask(DescribeBlas())
            turn = self._ask(Visit(None, self._effort.budget_s))
            if not isinstance(blas, Blas) or not isinstance(turn, Series):
                return None
            self._baseline = Baseline(
                name=baseline_name(blas, self._threads),
                median_s=turn.median_s,
                interval_s=turn.interval_s,
                threads=self._threads,
                details=baseline_details(blas),
            )
        return self._baseline

    def binary(self, candidate: Candidate) -> None:
        """Nothing: Numba keeps what it compiled in its own file cache."""

    def close(self) -> None:
        """End every worker."""
        self._compilers.close()
        self._worker.close()

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
        rejection = self._rejection(candidate)
        if rejection is not None:
            return Measurement(Outcome.REJECTED, reason=rejection)
        self.prepare([candidate])
        prepared = self._prepared[candidate]
        if prepared.failure is not None:
            return prepared.failure
        accuracy = self._families[candidate.family].accuracy
        reply = self._ask(Evaluate(prepared.program, accuracy, best_s, budget_s))
        if not isinstance(reply, Evaluated):
            return _judge_failure(reply)
        if reply.damaged:
            self._worker.close(grace_s=0)
        details = {**reply.measurement.details, "compile_s": prepared.compile_s}
        return replace(reply.measurement, details=details)

    def _interleave(self, programs: Sequence[CpuProgram | None]) -> list[list[Series] | Failure]:
        """Rounds of one turn each; None is NumPy. A program that fails is out of the rest."""
        turns: list[list[Series] | Failure] = [[] for _ in programs]
        turn_s = self._effort.finals_s / FINALS_ROUNDS / len(programs)
        spent_s = 0.0
        rounds = 0
        while spent_s < self._effort.finals_s or rounds < MIN_ROUNDS:
            rounds += 1
            for position, program in enumerate(programs):
                so_far = turns[position]
                if isinstance(so_far, Failure):
                    spent_s += turn_s  # so that the rounds end even if all fail
                    continue
                reply = self._ask(Visit(program, turn_s))
                if isinstance(reply, Series):
                    so_far.append(reply)
                    spent_s += max(turn_s, reply.median_s * reply.calls)
                else:
                    turns[position] = reply
        return turns

    def _ask(self, request: Request) -> Any:
        return self._worker.call(request, self._effort.timeout_s)

    def _write(self, candidate: Candidate) -> CpuProgram:
        family = self._families[candidate.family]
        return write_program(family, candidate.configuration, self._problem, self._programs)

    def _rejection(self, candidate: Candidate) -> str | None:
        """Why a candidate is not valid here, or None."""
        family = self._families[candidate.family]
        if candidate.family not in self._spaces:
            self._spaces[candidate.family] = family.space(self._problem, self.device.limits)
        rejection = self._spaces[candidate.family].rejection(candidate.configuration)
        return None if rejection is None else str(rejection)


def _judge_compile(program: CpuProgram, reply: Compiled | Failure) -> _Prepared:
    if isinstance(reply, Compiled):
        failure = None
        if reply.error:
            failure = Measurement(Outcome.COMPILE_FAILED, reason=reply.error)
        return _Prepared(program, reply.seconds, failure)
    timed_out = reply.kind is FailureKind.TIMED_OUT
    outcome = Outcome.TIMEOUT if timed_out else Outcome.COMPILE_FAILED
    return _Prepared(program, 0.0, Measurement(outcome, reason=f"compiler: {reply.reason}"))


def _judge_failure(reply: Failure) -> Measurement:
    timed_out = reply.kind is FailureKind.TIMED_OUT
    outcome = Outcome.TIMEOUT if timed_out else Outcome.LAUNCH_FAILED
    return Measurement(outcome, reason=reply.reason)
