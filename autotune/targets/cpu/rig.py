"""Kernels of the CPU before operands in memory, called and timed like NumPy's product."""

from __future__ import annotations

import contextlib
import functools
import importlib
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import threadpoolctl

from autotune.core.errors import CompileError
from autotune.core.measurement import Measurement, Outcome
from autotune.measuring.clocked import ClockedBench
from autotune.measuring.messages import Evaluated, Vendor
from autotune.measuring.plan import (
    FORMULA_PRODUCTS,
    HOST_PRODUCTS,
    OTHER_CONTENTS,
    affordable,
)
from autotune.measuring.rig import Pace, Probe
from autotune.measuring.sharing import Subjects
from autotune.measuring.trial import Trials
from autotune.operations.references import Case
from autotune.operations.verification import Check
from autotune.targets.cpu.baseline import numpy_blas, numpy_vendor
from autotune.targets.cpu.direct import direct_call
from autotune.targets.cpu.kernel import CpuKernel, CpuProgram

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from autotune.families.program_cache import ProgramCache
    from autotune.measuring.evaluator import Effort
    from autotune.measuring.messages import Program
    from autotune.operations.problem import Gemm

SETTLE_S = 0.015
"""How long the threads of one library go on spinning after a call, in the way of another's."""

PROBE_SHRINK = 4
"""A candidate is first run on the problem with every size divided by this."""

PROBE_BEST_S = 3e-3
"""Probing pays, and does not measure the overhead of a call, when the best is slower than this."""

KEPT_BYTES = 1 << 30
"""Memory for the operands of problems that may be measured again."""


def measurement_worker(
    programs: ProgramCache, effort: Effort, threads: int, seed: int, problem: Gemm
) -> Subjects:
    """Entry of the worker that measures: owns the operands of the problems it is asked about."""
    importlib.import_module("numba")  # now, so that it is no part of any candidate's time

    def measuring(problem: Gemm) -> Trials:
        return Trials(CpuRig(problem, programs, effort.interval, threads, seed), effort)

    return Subjects(measuring, problem, weigh=_operand_bytes, limit=KEPT_BYTES)


def _operand_bytes(problem: Gemm) -> int:
    """About what a problem's operands take, with the references in double precision."""
    m, n, k = problem.m, problem.n, problem.k
    return 2 * (m * n + n * k + 3 * m * k) * 8


class CpuRig:
    """The operands of a problem in memory; see `autotune.measuring.rig.Rig`.

    Args:
        problem: what is computed.
        programs: where emitted modules go.
        interval: relative width of the confidence interval at which a median is known.
        threads: threads that kernels and baseline may use.
        seed: seeds the operands.
    """

    pace = Pace()

    def __init__(
        self, problem: Gemm, programs: ProgramCache, interval: float, threads: int, seed: int
    ) -> None:
        self.problem = problem
        self.interval = interval
        self._pause_s = SETTLE_S if threads > 1 else 0.0
        self._programs = programs
        self._threads = threads
        # For the whole life of the process: NumPy is both reference and baseline here.
        self._limit = threadpoolctl.threadpool_limits(limits=threads, user_api="blas")
        rng = np.random.default_rng(seed)

        def check(case: Case, *others: str) -> Check:
            return Check(
                case,
                problem.dtype,
                problem.layout,
                rng,
                problem.formula,
                others=others,
                sealed=bool(others),
            )

        cases = affordable(HOST_PRODUCTS if problem.formula is None else FORMULA_PRODUCTS)
        self.small = [check(case) for case in cases]
        self.large = check(Case(problem.m, problem.n, problem.k), *OTHER_CONTENTS)
        m, n, k = (max(1, size // PROBE_SHRINK) for size in (problem.m, problem.n, problem.k))
        self.shrunk = check(Case(m, n, k))
        self._seed = seed
        self._kernel = functools.cache(CpuKernel)

    def now(self) -> float:
        """Seconds from a fixed point."""
        return time.monotonic()

    def load(self, program: Program, *, keep: bool) -> AbstractContextManager[_Loaded]:
        """Load a kernel, which stays loaded."""
        assert isinstance(program, CpuProgram)
        return contextlib.nullcontext(_Loaded(self, self._kernel(program)))

    def vendor(self, vendor: Vendor) -> AbstractContextManager[ClockedBench]:
        """NumPy before the problem's operands."""
        return contextlib.nullcontext(
            self.bench(self.large, _numpy_call(self.large, self.problem))
        )

    def bench(self, check: Check, call: Callable[[], object]) -> ClockedBench:
        """A call that is timed, once the threads of others have settled."""
        return ClockedBench(check, call, self.interval, self._pause_s)

    def redraw(self, seed: int) -> None:
        """Draw all operands afresh, unless they are of this seed already."""
        if seed != self._seed:
            self._seed = seed
            rng = np.random.default_rng(seed)
            for check in (*self.small, self.large):
                check.redraw(rng)

    def vendors(self) -> tuple[Vendor, ...]:
        """NumPy's product of the same operands with the same cap on threads."""
        return (numpy_vendor(numpy_blas(), self._threads),)

    def failure(self, error: Exception) -> Evaluated | None:
        """What Numba refuses does not compile; what else is raised, the process reports."""
        if isinstance(error, CompileError):
            return Evaluated(Measurement(Outcome.COMPILE_FAILED, reason=str(error)))
        return None

    def call(self, kernel: CpuKernel, check: Check) -> Callable[[], object]:
        """A call on a check's operands as users make it, or the shortest that there is.

        What Numba does for a call of an entry takes longer than a small product, and the longer,
        the more parameters there are.
        """
        case, operands = check.case, (check.a, check.b, check.c)
        sizes = replace(self.problem, m=case.m, n=case.n, k=case.k)
        direct = direct_call(kernel, sizes, self._programs)
        if direct is None:
            return kernel.prepared(*operands)
        return functools.partial(direct, *operands, 1.0, 0.0)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A kernel before the operands of a rig."""

    rig: CpuRig
    kernel: CpuKernel

    @property
    def cases(self) -> Sequence[Check]:
        return self.rig.small

    def place(self, case: Check) -> AbstractContextManager[ClockedBench]:
        scalars = case.case.alpha, case.case.beta
        call = functools.partial(self.kernel, case.a, case.b, case.c, *scalars)
        return contextlib.nullcontext(self.rig.bench(case, call))

    def problem(self) -> AbstractContextManager[ClockedBench]:
        return contextlib.nullcontext(self._bench(self.rig.large))

    def probe(self, best_s: float | None) -> Probe | None:
        if best_s is None or best_s <= PROBE_BEST_S:
            return None
        whole, shrunk = self.rig.large.case, self.rig.shrunk.case
        return Probe(
            self._bench(self.rig.shrunk),
            whole.m * whole.n * whole.k / (shrunk.m * shrunk.n * shrunk.k),
            f"sizes divided by {PROBE_SHRINK}",
        )

    def _bench(self, check: Check) -> ClockedBench:
        return self.rig.bench(check, self.rig.call(self.kernel, check))


def _numpy_call(check: Check, problem: Gemm) -> Callable[[], object]:
    a = check.a.T if problem.layout[0] == "t" else check.a
    b = check.b.T if problem.layout[1] == "t" else check.b
    if problem.formula is not None:
        return functools.partial(problem.formula.evaluate, a, b, None, 1.0, 0.0)
    return functools.partial(np.matmul, a, b, out=check.c)
