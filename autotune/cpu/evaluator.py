"""The CPU evaluator: modules compiled on all cores, then measured by one worker."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autotune.core.errors import InputError, OutOfTimeError
from autotune.core.file_lock import Turns
from autotune.core.measurement import Measurement, Outcome
from autotune.core.processors import usable_processors
from autotune.cpu.baseline import BRIEF_SPIN
from autotune.cpu.compiling import Compiled, compile_worker, is_compiled
from autotune.cpu.direct import write_call
from autotune.cpu.energy import energy_observer
from autotune.cpu.harness import CasedProgram, host_cases, measurement_worker, shrunk
from autotune.cpu.kernel import CpuProgram, write_program
from autotune.families.gpu.planning import Planner
from autotune.measuring.backend import (
    Prepared,
    Processes,
    WorkerBackend,
    compile_details,
    judge_compile_failure,
)
from autotune.measuring.effort import Effort, Stage
from autotune.measuring.evaluator import Evaluator
from autotune.measuring.failure import Failure
from autotune.measuring.messages import Reply
from autotune.measuring.sharing import SharedWorker, WorkerPool
from autotune.operations.cases import hard_cases, small_case, special_cases
from autotune.operations.problem import MatrixOperation

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from autotune.core.configuration import Candidate, Configuration
    from autotune.core.deadline import Deadline
    from autotune.core.device import DeviceLimits
    from autotune.families.family import KernelFamily
    from autotune.measuring.backend import Backend
    from autotune.measuring.effort import Report, Work
    from autotune.operations.problem import Problem

MIN_BATCH = 4
"""Candidates compiled together at least, so that programs shared and uneven times even out."""


class CpuEvaluator(Evaluator):
    """Evaluates candidates of CPU families for one problem (see `Evaluator`).

    Args:
        work: the task; its device's `max_threads` caps kernels and baseline alike.
        beside: an evaluator whose processes this one may use, and whose baseline if it is for the
            same problem; it is not closed before this one.
    """

    def __init__(self, work: Work, beside: Evaluator | None = None) -> None:
        effort = work.effort or Effort()
        backend = CpuBackend(work, effort, None if beside is None else beside.backend)
        super().__init__(work.problem, work.families, work.device, backend, effort, work.seed)


class CpuBackend(WorkerBackend):
    """Compiles modules and measures them; see `CpuEvaluator`."""

    compiles_ahead = False  # a compiler running beside a measurement would disturb it

    def __init__(self, work: Work, effort: Effort, beside: Backend | None) -> None:
        usable = work.device.limits.names()["max_threads"]
        threads = min(work.problem.threads or usable, usable)
        # Nothing is measured meanwhile, so that kernels of one thread are compiled on all cores.
        workers = work.workers or usable_processors()
        environment = {"NUMBA_NUM_THREADS": str(threads)}

        def make(key: object) -> Processes:
            return Processes(
                key,
                SharedWorker(
                    measurement_worker,
                    work.programs,
                    effort,
                    threads,
                    work.seed,
                    environment={**environment, **BRIEF_SPIN},
                    watched=True,
                    replies=Reply,
                ),
                WorkerPool(
                    compile_worker,
                    count=workers,
                    environment=environment,
                    watched=True,
                    replies=Compiled,
                    renewed=True,
                ),
            )

        key = (work.programs.folder, effort, threads, workers, work.seed)
        super().__init__(key, make, beside)
        self.batch = max(MIN_BATCH, workers)
        self.turns = Turns("cpu")
        self.observes = frozenset({"joules"} if energy_observer() else ())
        self._problem = work.problem
        self._limits = work.device.limits
        self._families = work.families
        self._programs = work.programs
        self._timeout_s = effort.compile_timeout_s
        self._compiled: dict[Candidate, _Compile] = {}
        self._callers: set[Path] = set()

    @property
    def subject(self) -> Problem:
        """The problem."""
        return self._problem

    def is_ready(self, candidate: Candidate) -> bool:
        """True if a candidate has been compiled."""
        return candidate in self._compiled

    def prepare(self, candidates: Sequence[Candidate], run: Deadline, report: Report) -> None:
        """Compile what has not been compiled, each distinct module once, on all cores."""
        programs = {
            candidate: write_program(
                self._families[candidate.family],
                candidate.configuration,
                self._problem,
                self._programs,
            )
            for candidate in candidates
            if candidate not in self._compiled
        }
        done = {compiled.program.path: compiled for compiled in self._compiled.values()}
        paths = list({program.path for program in programs.values()} - set(done))
        # What calls them is compiled here too, and not while a candidate is measured.
        callers = {write_call(program, self._programs) for program in programs.values()}
        paths += callers - self._callers
        # Operands and references are made while compilers work.
        self.processes.worker.begin(self._problem, run)
        # A compiler's process is not started for what is in the file cache.
        replies: dict[Path, Compiled | Failure | None] = {
            path: Compiled(0.0) for path in paths if is_compiled(path)
        }
        missing = [path for path in paths if path not in replies]
        answers: list[Compiled | Failure | None] = self.compilers.run(
            missing,
            self._timeout_s,
            run,
            lambda answered: report(Stage("compiling", answered, len(missing))),
        )
        replies.update(zip(missing, answers, strict=True))
        self._callers |= {path for path in callers if replies.get(path) is not None}
        for candidate, program in programs.items():
            if program.path in done:
                self._compiled[candidate] = replace(done[program.path], program=program)
            elif (reply := replies[program.path]) is not None:
                self._compiled[candidate] = _Compile(program, reply)
        if None in answers:
            raise OutOfTimeError("the run was over before all candidates were compiled")

    def prepared(
        self, candidate: Candidate, run: Deadline, report: Report
    ) -> Prepared | Measurement:
        """A compiled candidate, or why it did not compile."""
        compiled = self._compiled[candidate]
        if isinstance(compiled.reply, Failure):
            return judge_compile_failure(compiled.reply)
        if compiled.reply.error:
            return Measurement(Outcome.COMPILE_FAILED, reason=compiled.reply.error)
        details = compile_details(compiled.reply.seconds, compiled.program.path.stem)
        family = self._families[candidate.family]
        program = cased(
            compiled.program, family, candidate.configuration, self._problem, self._limits
        )
        return Prepared(program, details)


@dataclass(frozen=True, slots=True)
class _Compile:
    """A candidate's program and how compiling it went."""

    program: CpuProgram
    reply: Compiled | Failure


def cased(
    program: CpuProgram,
    family: KernelFamily,
    configuration: Configuration,
    problem: Problem,
    limits: DeviceLimits,
) -> CasedProgram:
    """A program with the cases that its configuration is valid at.

    Matrix products serve all sizes, whatever they are meant for.
    """
    cases = host_cases(problem)
    if isinstance(problem.defined, MatrixOperation):
        cases += hard_cases(problem, family.accuracy)
        return CasedProgram(program, cases, shrinks=True)
    planner = Planner(family, configuration, problem.dtype, limits)

    def valid(shape: tuple[int, ...]) -> bool:
        try:
            return planner.valid(problem.with_sizes(*shape))
        except InputError:  # there are no such operands
            return False

    allowed = tuple(case for case in cases if valid(case.sizes) and not case.special)
    if not allowed and (small := small_case(problem, valid)) is not None:
        allowed = (small,)
    allowed += special_cases(problem, allowed)
    return CasedProgram(program, allowed, shrinks=valid(shrunk(problem)))
