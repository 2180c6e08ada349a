"""Kernels of the CPU before operands in memory, called and timed like NumPy's product."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import threadpoolctl

from autotune.core.errors import CompileError, InputError
from autotune.core.measurement import Measurement, Outcome
from autotune.cpu.baseline import numpy_blas, numpy_vendor
from autotune.cpu.call import NumpyKernel
from autotune.cpu.direct import direct_call
from autotune.cpu.energy import energy_observer
from autotune.cpu.identity import read_cpu
from autotune.cpu.kernel import CpuKernel, CpuProgram
from autotune.cpu.numba_start import import_numba
from autotune.measuring.harness import (
    FORMULA_PRODUCTS,
    HOST_PRODUCTS,
    OTHER_CONTENTS,
    ClockedBench,
    DrawnCases,
    FirstRuns,
    Probe,
    affordable,
)
from autotune.measuring.messages import Evaluated, Vendor
from autotune.measuring.sharing import Subjects
from autotune.measuring.timing import UNKNOWN, Ceiling, cpu_ceiling
from autotune.measuring.trial import Trials
from autotune.operations.cases import Case
from autotune.operations.poke import Poke
from autotune.operations.problem import multiplies
from autotune.operations.verification import Check

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from autotune.families.program_cache import ProgramCache
    from autotune.measuring.effort import Effort
    from autotune.measuring.messages import Program
    from autotune.operations.problem import Problem

SETTLE_S = 0.015
"""Seconds that threads of one library spin after a call, in the way of another's."""

PROBE_BEST_S = 3e-3
"""Probing pays, and does not measure the overhead of a call, when the best is slower than this."""

PROBE_SHRINK = 4
"""A candidate is first run on the problem with every size divided by this."""

KEPT_BYTES = 1 << 30
"""Memory for the operands of problems that may be measured again."""


@dataclass(frozen=True, slots=True)
class CasedProgram:
    """A program, and the sizes that it may be called at.

    Attributes:
        program: the program.
        cases: verified beside the problem itself.
        shrinks: whether it may be run on the problem with every size divided by `PROBE_SHRINK`.
    """

    program: CpuProgram
    cases: tuple[Case, ...]
    shrinks: bool

    @property
    def digest(self) -> str:
        """Equal for programs that do the same."""
        return self.program.digest


def host_cases(problem: Problem) -> tuple[Case, ...]:
    """The cases of a problem's operation that a processor is asked for in every trial."""
    return affordable(problem, HOST_PRODUCTS if multiplies(problem.defined) else FORMULA_PRODUCTS)


def shrunk(problem: Problem) -> tuple[int, ...]:
    """A problem's sizes, divided by `PROBE_SHRINK`; of an answer, which has no others, as is."""
    if not problem.defined.result.names:
        return problem.shape
    return tuple(max(1, size // PROBE_SHRINK) for size in problem.shape)


def measurement_worker(
    programs: ProgramCache, effort: Effort, threads: int, seed: int, problem: Problem
) -> Subjects:
    """Entry of the worker that measures: owns the operands of the problems it is asked about."""
    import_numba()  # now, so that it is no part of any candidate's time

    bits = read_cpu().limits.names()["vector_bits"]
    energy = energy_observer() if effort.objective.needs == "joules" else None

    def measuring(problem: Problem) -> Trials:
        ceiling = cpu_ceiling(threads, bits, problem.itemsize)
        harness = CpuHarness(problem, programs, threads, seed, ceiling)
        return Trials(harness, effort, [energy] if energy else [])

    return Subjects(measuring, problem, weigh=_operand_bytes, limit=KEPT_BYTES)


def _operand_bytes(problem: Problem) -> int:
    """About what a problem's operands take, with the references in double precision."""
    written = sum(math.prod(each.shape) for each in problem.operands if each.written)
    return (problem.traffic // problem.itemsize + 2 * written) * 16


class CpuHarness:
    """The operands of a problem in memory; see `autotune.measuring.harness.Harness`."""

    first_runs = FirstRuns()

    def __init__(
        self,
        problem: Problem,
        programs: ProgramCache,
        threads: int,
        seed: int,
        ceiling: Ceiling = UNKNOWN,
    ) -> None:
        self.problem = problem
        self.ceiling = ceiling
        self._pause_s = SETTLE_S if threads > 1 else 0.0
        self._programs = programs
        self._threads = threads
        # For the whole life of the process: NumPy is both reference and baseline here.
        self._limit = threadpoolctl.threadpool_limits(limits=threads, user_api="blas")
        self._rng = rng = np.random.default_rng(seed)

        def check(case: Case, *others: str) -> Check:
            return Check(case, problem, rng, others=others, sealed=bool(others))

        self.small = DrawnCases(problem, host_cases(problem), check)
        begun_s = self.now()
        self.large = check(Case(*problem.shape), *OTHER_CONTENTS)
        self._drawing_s = self.now() - begun_s
        self.shrunk: Check | None = None
        with contextlib.suppress(InputError):  # a reference may be of other sizes alone
            self.shrunk = check(Case(*shrunk(problem)))
        self._seed = seed
        self._kernel = functools.cache(CpuKernel)

    def now(self) -> float:
        """Seconds from a fixed point."""
        return time.monotonic()

    def load(self, program: Program, *, keep: bool) -> AbstractContextManager[_Loaded]:
        """Load a kernel, which stays loaded."""
        assert isinstance(program, CasedProgram)
        kernel = self._kernel(program.program)
        return contextlib.nullcontext(_Loaded(self, kernel, program))

    def vendor(self, vendor: Vendor) -> AbstractContextManager[ClockedBench]:
        """NumPy before the problem's operands."""
        return contextlib.nullcontext(
            self.bench(self.large, NumpyKernel(self.problem).prepared(*self.large.operands))
        )

    def bench(self, check: Check, call: Callable[[], object]) -> ClockedBench:
        """A call that is timed, once the threads of others have settled."""
        poke = Poke(check.case, check.problem, check, call, self._rng, check.change)
        in_place = self.problem.defined.in_place
        return ClockedBench(check, call, self._pause_s, poke, in_place=in_place)

    def redraw(self, seed: int) -> None:
        """Draw all operands afresh, unless they are of this seed already."""
        if seed != self._seed:
            self._seed = seed
            rng = np.random.default_rng(seed)
            for check in (*self.small.drawn.values(), self.large):
                check.redraw(rng)

    def vendors(self) -> tuple[Vendor, ...]:
        """NumPy's product of the same operands with the same cap on threads; none of an answer."""
        if not self.problem.defined.result.names:
            return ()
        about_s = 0.0
        if not multiplies(self.problem.defined):
            # Of every content what is computed and how far that may be off took a call each.
            about_s = self._drawing_s / (2 * self.large.contents)
        return (numpy_vendor(numpy_blas(), self._threads, about_s),)

    def failure(self, error: Exception) -> Evaluated | None:
        """Verdict for a module that Numba refuses; the process reports other errors."""
        if isinstance(error, CompileError):
            return Evaluated(Measurement(Outcome.COMPILE_FAILED, reason=str(error)))
        return None

    def call(self, kernel: CpuKernel, check: Check) -> Callable[[], object]:
        """A call on a check's operands as users make it, or the shortest that there is.

        What Numba does for a call of an entry takes longer than a small product, and the longer,
        the more parameters there are.
        """
        direct = direct_call(kernel, check.problem, self._programs)
        if direct is None:
            return kernel.prepared(*check.operands)
        return functools.partial(direct, *check.arguments)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A kernel before the operands of a harness."""

    harness: CpuHarness
    kernel: CpuKernel
    program: CasedProgram

    @property
    def cases(self) -> Sequence[Check]:
        return self.harness.small.of(self.program.cases)

    def place(self, case: Check) -> AbstractContextManager[ClockedBench]:
        call = functools.partial(self.kernel, *case.arguments)
        return contextlib.nullcontext(self.harness.bench(case, call))

    def problem(self) -> AbstractContextManager[ClockedBench]:
        return contextlib.nullcontext(self._bench(self.harness.large))

    def probe(self, best_s: float | None) -> Probe | None:
        small = self.harness.shrunk
        if best_s is None or best_s <= PROBE_BEST_S or small is None or not self.program.shrinks:
            return None
        return Probe(
            self._bench(small),
            self.harness.large.problem.flops / small.problem.flops,
            f"sizes divided by {PROBE_SHRINK}",
        )

    def _bench(self, check: Check) -> ClockedBench:
        return self.harness.bench(check, self.harness.call(self.kernel, check))
