"""The MPI evaluator: candidates become programs, which a set of ranks verifies and times."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from autotune.core.deadline import Deadline
from autotune.core.errors import OutOfTimeError
from autotune.core.measurement import Measurement, Outcome
from autotune.families.local import local_problem
from autotune.families.rendering import render
from autotune.measuring.evaluator import Baseline, Effort, Finals, Report, Stage, silent
from autotune.measuring.processes import (
    PREPARE_TIMEOUT_S,
    START_TIMEOUT_S,
    Failure,
    FailureKind,
    WorkerPool,
)
from autotune.measuring.rounds import Redraw, Series, faster, hold_rounds, judge_failure
from autotune.measuring.validity import Validity
from autotune.targets.cpu.baseline import Blas, baseline_details, baseline_name
from autotune.targets.cpu.messages import Evaluated
from autotune.targets.cpu.worker import Compiled, compile_worker
from autotune.targets.mpi.messages import (
    Confirm,
    DescribeBlas,
    Evaluate,
    GpuProduct,
    LocalProduct,
    MpiProgram,
    Refused,
    Request,
    Setup,
    Visit,
    VisitGpu,
    VisitNumpy,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from autotune.core.configuration import Candidate
    from autotune.core.device import Device
    from autotune.families.family import KernelFamily
    from autotune.families.program_cache import ProgramCache
    from autotune.operations.problem import Gemm
    from autotune.targets.mpi.ranks.world import Ranks

ChooseLocal: TypeAlias = Callable[["Gemm"], LocalProduct | GpuProduct]
"""The kernel that a rank multiplies its part of a problem with."""

BATCH = 4
"""Candidates whose local kernels are compiled together."""

_RENEWALS = 2.0
"""Ranks are started anew for the finals where that takes at most one part in so many of the time
that is left."""

SECOND_LOOK_S = 0.05
"""Seconds of timed calls when a finalist is verified again; the rounds time it."""


class MpiEvaluator:
    """Evaluates candidates of MPI families for one problem (see `Evaluator`).

    Args:
        problem: what is computed; its layout is "nn".
        families: by name; candidates name them.
        device: the ranks, as `device_of` gives them.
        programs: where emitted programs go.
        ranks: those that verify and time; closed with the evaluator.
        choose_local: which kernel a rank multiplies with.
        effort: how long and how exactly to measure.
        seed: seeds the operands.
    """

    def __init__(
        self,
        problem: Gemm,
        families: Mapping[str, KernelFamily],
        device: Device,
        programs: ProgramCache,
        ranks: Ranks,
        choose_local: ChooseLocal,
        *,
        effort: Effort | None = None,
        seed: int = 0,
    ) -> None:
        self.device = device
        self.deadline = Deadline()
        self.report: Report = silent
        self.batch = BATCH
        self._problem = problem
        self._families = families
        self._ranks = ranks
        self._effort = effort or Effort()
        self._choose_local = functools.cache(choose_local)
        limits = device.limits.names()
        self._cores = limits["cores"] // limits["nodes"]
        self._setup = Setup(
            problem, self._effort, programs.folder, bool(limits["distributed"]), seed
        )
        self._fresh = itertools.count(seed + 1)
        self._gpu_name = device.fingerprint.fields.get("gpu")
        self._is_set_up = False
        self._setup_s = 0.0
        self._compilers = WorkerPool(compile_worker, count=1, watched=True)
        self._programs = programs
        self._compiled: dict[str, str] = {}
        self._validity = Validity(families, problem, device.limits)
        self._baseline: Baseline | None = None

    @property
    def compiles_ahead(self) -> bool:
        """False: a compiler running beside a measurement would disturb it."""
        return False

    def is_ready(self, candidate: Candidate) -> bool:
        """Whether the kernel that ranks multiply with has been compiled."""
        local = self._local(candidate)
        return isinstance(local, GpuProduct) or local.source.digest in self._compiled

    @property
    def finals_s(self) -> float:
        """The rounds, and starting other ranks and giving them the problem."""
        return self._effort.finals_s + self._setup_s

    def prepare(self, candidates: Sequence[Candidate]) -> None:
        """Compile the local kernels that have not been compiled; the programs need none of it."""
        valid = [each for each in candidates if self._validity.rejection(each) is None]
        new = {
            local.source.digest: local
            for local in map(self._local, valid)
            if isinstance(local, LocalProduct) and local.source.digest not in self._compiled
        }
        paths = [self._programs.write(local.source, local.family) for local in new.values()]
        replies: list[Compiled | Failure | None] = self._compilers.run(
            paths,
            self._effort.compile_timeout_s,
            self.deadline,
            lambda answered: self.report(Stage("compiling", answered, len(paths))),
        )
        for digest, reply in zip(new, replies, strict=True):
            if reply is not None:
                error = reply.error if isinstance(reply, Compiled) else reply.reason
                self._compiled[digest] = error
        if None in replies:
            raise OutOfTimeError("the run was over before all local kernels were compiled")

    def evaluate(self, candidate: Candidate, best_s: float | None) -> Measurement:
        """Have the ranks verify and time a candidate; see `Evaluator.evaluate`."""
        return self._evaluate(candidate, best_s, self._effort.budget_s)

    def finals(self, candidates: Sequence[Candidate]) -> Finals:
        """Verify, time in rounds (every candidate, then NumPy on rank 0), and verify again.

        The ranks are new ones, which have no trial behind them, where there is time to start them.
        """
        if self.deadline.remaining_s > _RENEWALS * self._setup_s:
            self._renew()
        self.prepare(candidates)
        measurements = [self._evaluate(each, None, SECOND_LOOK_S) for each in candidates]
        baseline = self.baseline()
        visits = {
            position: functools.partial(self._visit, each)
            for position, each in enumerate(candidates)
            if measurements[position].ok
        }
        threads = 1 if baseline is None else baseline.threads
        of_numpy = functools.partial(self._visit_numpy, threads)
        of_baseline = of_numpy if self._gpu_name is None else self._visit_gpu
        seed = next(self._fresh)
        return hold_rounds(
            measurements,
            visits,
            baseline,
            of_baseline,
            self._effort.finals_s,
            lambda position: self._confirm(candidates[position], seed),
            deadline=self.deadline,
            report=self.report,
        )

    def baseline(self) -> Baseline | None:
        """NumPy's product on rank 0, the other ranks asleep, with one thread or one per core.

        Whichever is faster: for small products that is one. For ranks with GPUs it is the local
        kernel on one GPU, operands in its memory.
        """
        if self._baseline is None and self._gpu_name is not None:
            turn = self._visit_gpu(self._effort.budget_s)
            if isinstance(turn, Failure):
                return None
            self._baseline = Baseline(
                name=f"one {self._gpu_name}, the same local kernel",
                median_s=turn.median_s,
                interval_s=turn.interval_s,
                threads=1,
                details={"gpu": str(self._gpu_name)},
            )
        if self._baseline is None:
            blas = self._ask(DescribeBlas())
            if not isinstance(blas, Blas):
                return None
            for threads in dict.fromkeys((1, self._cores)):
                turn = self._ask(VisitNumpy(threads, self._effort.budget_s))
                if not isinstance(turn, Series):
                    return None
                if self._baseline is None or turn.median_s < self._baseline.median_s:
                    self._baseline = Baseline(
                        name=baseline_name(blas, threads),
                        median_s=turn.median_s,
                        interval_s=turn.interval_s,
                        threads=threads,
                        details=baseline_details(blas),
                    )
        return self._baseline

    def check_baseline(self) -> Baseline | None:
        """The baseline once more; see `Evaluator.check_baseline`."""
        if self._baseline is not None:
            if self._gpu_name is None:
                turn = self._visit_numpy(self._baseline.threads, SECOND_LOOK_S)
            else:
                turn = self._visit_gpu(SECOND_LOOK_S)
            self._baseline = faster(self._baseline, turn)
        return self._baseline

    def binary(self, candidate: Candidate) -> None:
        """Nothing: programs are text, and Numba keeps what it compiled in its own file cache."""

    def close(self) -> None:
        """End the ranks and the compiler."""
        self._compilers.close()
        self._ranks.close()

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
        local = self._local(candidate)
        error = self._compiled[local.source.digest] if isinstance(local, LocalProduct) else ""
        if error:
            return Measurement(Outcome.COMPILE_FAILED, reason=f"local kernel: {error}")
        return self._measure(Evaluate(*self._program(candidate), best_s, budget_s))

    def _visit(self, candidate: Candidate, budget_s: float) -> Series | Failure:
        reply: Series | Evaluated | Failure = self._ask(Visit(*self._program(candidate), budget_s))
        if isinstance(reply, Evaluated):
            return Failure(FailureKind.WRONG, reply.measurement.reason)
        return reply

    def _confirm(self, candidate: Candidate, seed: int) -> Measurement:
        """What calls on fresh operands say of a finalist."""
        redrawn = self._ask(Redraw(seed), PREPARE_TIMEOUT_S)
        if isinstance(redrawn, Failure):
            return judge_failure(redrawn)
        return self._measure(Confirm(*self._program(candidate)))

    def _measure(self, request: Evaluate | Confirm) -> Measurement:
        reply: Evaluated | Failure = self._ask(request)
        return judge_failure(reply) if isinstance(reply, Failure) else reply.measurement

    def _visit_numpy(self, threads: int, budget_s: float) -> Series | Failure:
        reply: Series | Failure = self._ask(VisitNumpy(threads, budget_s))
        return reply

    def _visit_gpu(self, budget_s: float) -> Series | Failure:
        local = self._choose_local(replace(self._problem, threads=None))
        assert isinstance(local, GpuProduct)
        reply: Series | Failure = self._ask(VisitGpu(local, budget_s))
        return reply

    def _ask(self, request: Request, timeout_s: float | None = None) -> Any:
        if not self._is_set_up:
            # Operands and references of a large problem take their time.
            begun_s = self.deadline.elapsed_s
            reply = self._ranks.call(self._setup, START_TIMEOUT_S, self.deadline)
            if isinstance(reply, Failure):
                return reply
            self._is_set_up = True
            self._setup_s = self.deadline.elapsed_s - begun_s
        try:
            limit_s = timeout_s or self._effort.timeout_s
            reply = self._ranks.call(request, limit_s, self.deadline)
        except OutOfTimeError:
            self._is_set_up = False
            raise
        if isinstance(reply, Failure):
            self._is_set_up = False
        elif isinstance(reply, Evaluated) and reply.damaged:
            self._renew()
        if isinstance(reply, Refused):
            return Failure(FailureKind.RAISED, reply.reason)
        return reply

    def _renew(self) -> None:
        self._ranks.renew()
        self._is_set_up = False

    def _local(self, candidate: Candidate) -> LocalProduct | GpuProduct:
        family, limits = self._families[candidate.family], self.device.limits
        return self._choose_local(
            local_problem(family, candidate.configuration, self._problem, limits)
        )

    def _program(self, candidate: Candidate) -> tuple[MpiProgram, str]:
        """A candidate's program, and the accuracy class that it promises."""
        family = self._families[candidate.family]
        source = render(family, candidate.configuration, dtype=self._problem.dtype)
        return MpiProgram(source, family.name, self._local(candidate)), family.accuracy
