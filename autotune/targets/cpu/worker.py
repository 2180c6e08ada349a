"""What runs in the worker processes: compiling modules, and measuring kernels."""

from __future__ import annotations

import functools
import importlib
import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import threadpoolctl

from autotune.core.errors import CompileError
from autotune.core.measurement import Measurement, Outcome
from autotune.families.modules import load_module
from autotune.measuring.racing import FIRST_RUNS, Race
from autotune.measuring.rounds import Redraw, Series
from autotune.measuring.sharing import Subjects
from autotune.measuring.timing import time_calls, timed
from autotune.measuring.verdicts import AT_THE_END, CHANGED, IN_TURN, REPEATED, wrong_result
from autotune.operations.cases import Case, small_cases
from autotune.operations.verification import Check, Verdict
from autotune.targets.cpu.baseline import Blas, numpy_blas
from autotune.targets.cpu.call import NumpyKernel
from autotune.targets.cpu.direct import direct_call
from autotune.targets.cpu.kernel import CpuKernel
from autotune.targets.cpu.messages import (
    Confirm,
    DescribeBlas,
    Evaluate,
    Evaluated,
    Request,
    Visit,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from autotune.families.program_cache import ProgramCache
    from autotune.measuring.evaluator import Effort
    from autotune.operations.problem import Problem

SETTLE_S = 0.015
"""How long the threads of one library go on spinning after a call, in the way of another's."""

PROBE_SHRINK = 4
"""A candidate is first run on the problem with every size divided by this."""

PROBE_RATIO = 8.0
"""A probe that is this much slower than the best, flop for flop, settles the matter: small
operands fit the caches better, so large ones would be no faster."""

PROBE_BEST_S = 3e-3
"""Probing pays, and does not measure the overhead of a call, when the best is slower than this."""

KEPT_BYTES = 1 << 30
"""Memory for the operands of problems that may be measured again."""

BRIEF_S = 0.05
"""Calls longer than this are not warmed up: what the call before left behind is gone in less."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A module in Numba's file cache.

    Attributes:
        seconds: processor time spent; next to none when it was there before.
        error: the compiler's reason, when it refused.
    """

    seconds: float
    error: str = ""


def compile_worker() -> Callable[[Path], Compiled]:
    """Entry of a worker that compiles the modules it is given the paths of."""
    _import_compiler()
    return compile_module


def compile_module(path: Path) -> Compiled:
    """Import a module, which fills Numba's file cache beside it."""
    start = time.process_time()
    error = ""
    try:
        load_module(path)
    except CompileError as refused:
        error = str(refused)
    return Compiled(time.process_time() - start, error)


def measurement_worker(
    programs: ProgramCache, effort: Effort, threads: int, seed: int, problem: Problem
) -> Subjects:
    """Entry of the worker that measures: owns the operands of the problems it is asked about."""
    _import_compiler()

    def measuring(problem: Problem) -> Callable[[Request], Evaluated | Series | Blas | None]:
        return _MeasurementWorker(problem, programs, effort, threads, seed).handle

    return Subjects(measuring, problem, weigh=_operand_bytes, limit=KEPT_BYTES)


def _operand_bytes(problem: Problem) -> int:
    """About what a problem's operands take, with the references in double precision."""
    output = next(each for each in problem.operands if each.written)
    return (problem.traffic // problem.itemsize + 2 * math.prod(output.shape)) * 16


class _MeasurementWorker:
    def __init__(
        self, problem: Problem, programs: ProgramCache, effort: Effort, threads: int, seed: int
    ) -> None:
        self._problem = problem
        self._programs = programs
        self._effort = effort
        self._threads = threads
        # For the whole life of the process: NumPy is both reference and baseline here.
        self._limit = threadpoolctl.threadpool_limits(limits=threads, user_api="blas")
        rng = np.random.default_rng(seed)

        self._small = [Check(case, problem, rng) for case in small_cases(problem)]
        self._large = Check(Case(*problem.shape), problem, rng, others=("normal",), sealed=True)
        shrunk = (max(1, size // PROBE_SHRINK) for size in problem.shape)
        self._probe = Check(Case(*shrunk), problem, rng)
        self._seed = seed
        self._kernel = functools.cache(CpuKernel)
        self._numpy = _numpy_call(self._large, problem)

    def handle(self, request: Request) -> Evaluated | Series | Blas | None:
        """Do what is asked."""
        match request:
            case Evaluate():
                return self.evaluate(request)
            case Visit():
                return self.visit(request)
            case Redraw():
                self.redraw(request.seed)
                return None
            case Confirm():
                return self.confirm(request)
            case DescribeBlas():
                return numpy_blas()

    def evaluate(self, request: Evaluate) -> Evaluated:
        """Correct first, then fast; a kernel that is far behind is not timed to the end."""
        deadline = time.monotonic() + self._effort.timeout_s / 2
        race = Race(request.best_s, self._effort.abandon_ratio)
        try:
            kernel = self._kernel(request.program)
        except CompileError as error:
            return Evaluated(Measurement(Outcome.COMPILE_FAILED, reason=str(error)))
        worst = 0.0
        for check in self._small:
            verdict = check.run(kernel, request.accuracy)
            if not verdict.right:
                return _wrong(verdict)
            worst = max(worst, verdict.error)
        if request.best_s is not None and request.best_s > PROBE_BEST_S:
            verdict = self._probe.run(kernel, request.accuracy)
            if not verdict.right:
                return _wrong(verdict)
            worst = max(worst, verdict.error)
            if abandoned := self._hopeless(kernel, request.best_s):
                return Evaluated(replace(abandoned, error=worst))
        check = self._large
        call = self._call(kernel, check)
        check.prepare()
        first_s = timed(call)
        verdict = check.judge(request.accuracy)
        if not verdict.right:
            return _wrong(verdict)
        worst = max(worst, verdict.error)
        if abandoned := self._abandoned(race, call, first_s):
            return Evaluated(replace(abandoned, error=worst))
        warm_s = timed(call) if first_s < BRIEF_S else first_s
        series = time_calls(
            call,
            expected_s=warm_s,
            budget_s=request.budget_s,
            interval=self._effort.interval,
            deadline_s=max(0.0, deadline - time.monotonic() - first_s),
            enough=race.behind,
        )
        # A race between threads shows now and then, not in every call.
        verdict = check.judge_again(request.accuracy)
        if not verdict.right:
            return _wrong(verdict, REPEATED)
        check.turn()
        check.prepare()
        call()
        verdict = check.judge(request.accuracy)
        if not verdict.right:
            return _wrong(verdict, CHANGED)
        worst = max(worst, verdict.error)
        return Evaluated(
            Measurement(Outcome.OK, series.median_s, series.interval_s, series.calls, worst)
        )

    def visit(self, request: Visit) -> Series | Evaluated:
        """Take one turn, on other operands than the turn before; its last call is checked.

        The threads of whoever ran before are left to settle first.
        """
        self._large.turn()
        if request.program is None:
            call = self._numpy
        else:
            call = self._call(self._kernel(request.program), self._large)
        if self._threads > 1:
            time.sleep(SETTLE_S)
        first_s = timed(call)
        if first_s >= max(BRIEF_S, request.budget_s):
            series = Series(first_s, (first_s, first_s), 1)
        else:
            series = time_calls(
                call,
                expected_s=first_s,
                budget_s=request.budget_s,
                interval=self._effort.interval,
                deadline_s=request.budget_s,
            )
        if request.program is not None:
            verdict = self._large.judge_again(request.accuracy)
            if not verdict.right:
                return _wrong(verdict, IN_TURN)
        return series

    def redraw(self, seed: int) -> None:
        """Change all operands, unless they are of this seed."""
        if seed != self._seed:
            self._seed = seed
            rng = np.random.default_rng(seed)
            for check in (*self._small, self._large):
                check.redraw(rng)

    def confirm(self, request: Confirm) -> Evaluated:
        """Verify again, every size and then as many calls as there is time for."""
        kernel = self._kernel(request.program)
        worst, calls = 0.0, 0
        for check in self._small:
            verdict = check.run(kernel, request.accuracy)
            if not verdict.right:
                return _wrong(verdict, AT_THE_END)
            worst = max(worst, verdict.error)
        check = self._large
        call = self._call(kernel, check)
        for part in range(1, check.contents + 1):
            check.turn()
            until = time.monotonic() + request.budget_s / check.contents
            while calls < part or time.monotonic() < until:
                check.prepare()
                call()
                calls += 1
                verdict = check.judge_again(request.accuracy)
                if not verdict.right:
                    return _wrong(verdict, AT_THE_END)
                worst = max(worst, verdict.error)
        return Evaluated(Measurement(Outcome.OK, error=worst, details={"checked_calls": calls}))

    def _call(self, kernel: CpuKernel, check: Check) -> Callable[[], object]:
        """A call on a check's operands as users make it, or the shortest that there is.

        What Numba does for a call of an entry takes longer than a small product, and the longer,
        the more parameters there are.
        """
        direct = direct_call(kernel, check.problem, self._programs)
        if direct is None:
            return kernel.prepared(*check.operands)
        return functools.partial(direct, *check.arguments)

    def _hopeless(self, kernel: CpuKernel, best_s: float) -> Measurement | None:
        """Whether runs on shrunken sizes show that one on the full ones is not worth it."""
        call = self._call(kernel, self._probe)
        times_larger = self._problem.flops / self._probe.problem.flops
        estimates = []
        # A run that something else interrupts is as slow as a hopeless one.
        for _ in range(FIRST_RUNS):
            estimates.append(timed(call) * times_larger)
            if estimates[-1] <= PROBE_RATIO * best_s:
                return None
        estimate_s = min(estimates)
        return Measurement(
            Outcome.ABANDONED,
            estimate_s,
            repeats=len(estimates),
            reason=f"about {estimate_s / best_s:.0f} times the best, judged by sizes divided by "
            f"{PROBE_SHRINK} (limit {PROBE_RATIO:g})",
        )

    def _abandoned(
        self, race: Race, call: Callable[[], object], first_s: float
    ) -> Measurement | None:
        times = [first_s]
        # The first run met cold caches and sleeping threads; that explains no long run.
        runs = FIRST_RUNS if first_s < self._effort.budget_s else 1
        while race.lost(times):
            if len(times) == runs:
                return Measurement(
                    Outcome.ABANDONED, min(times), repeats=runs, reason=race.reason(times)
                )
            times.append(timed(call))
        return None


def _import_compiler() -> None:
    """Import Numba when the worker starts, so that it is no part of any candidate's time."""
    importlib.import_module("numba")


def _numpy_call(check: Check, problem: Problem) -> Callable[[], object]:
    return NumpyKernel(problem).prepared(*check.operands)


def _wrong(verdict: Verdict, when: str = "") -> Evaluated:
    return Evaluated(wrong_result(verdict, when), damaged=verdict.damaged)
