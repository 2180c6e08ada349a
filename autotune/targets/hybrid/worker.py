"""What runs in the worker process that owns the GPUs: verifying, then timing."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autotune.core.errors import CompileError, LaunchError
from autotune.core.measurement import Measurement, Outcome
from autotune.families.program_cache import ProgramCache
from autotune.measuring.racing import FIRST_RUNS, Race
from autotune.measuring.rounds import Redraw, Series
from autotune.measuring.timing import time_calls, timed
from autotune.measuring.verdicts import AT_THE_END, CHANGED, IN_TURN, REPEATED, wrong_result
from autotune.operations.references import Case
from autotune.operations.verification import ProductCheck, Verdict
from autotune.targets.cuda.driver.context import describe, driver_errors
from autotune.targets.cuda.measure.baseline import CublasError
from autotune.targets.hybrid.baseline import CublasXt, OneGpu
from autotune.targets.hybrid.loading import make_plan
from autotune.targets.hybrid.messages import (
    CASES,
    Confirm,
    DescribeBaseline,
    Evaluate,
    Request,
    Setup,
    Visit,
)
from autotune.targets.hybrid.operands import GuardedBlock, PlacedCheck
from autotune.targets.hybrid.products import machine_with

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.core.grid import Span
    from autotune.targets.cuda.machine.machine import GpuMachine
    from autotune.targets.hybrid.loading import HybridProgram, Plan
    from autotune.targets.hybrid.products import LocalKernel


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What came of a candidate; `lost` says that this process must not go on."""

    measurement: Measurement
    lost: bool = False


def measurement_worker(setup: Setup) -> Callable[[Request], Evaluated | Series | str | None]:
    """Entry of the worker that measures: owns the GPUs and the operands of one problem."""
    worker = _Worker(setup)

    def handle(request: Request) -> Evaluated | Series | str | None:
        match request:
            case Evaluate():
                return worker.evaluate(request)
            case Visit():
                return worker.visit(request)
            case Redraw():
                worker.redraw(request.seed)
                return None
            case Confirm():
                return worker.confirm(request)
            case DescribeBaseline():
                return worker.describe_baseline()

    return handle


class _Worker:
    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._programs = ProgramCache(setup.programs)
        problem = setup.problem
        rng = np.random.default_rng(setup.seed)
        self._small = [ProductCheck(case, problem, rng) for case in CASES]
        large = Case(problem.m, problem.n, problem.k)
        self._large = ProductCheck(large, problem, rng, others=("normal",))
        self._seed = setup.seed
        self._machines: dict[LocalKernel, GpuMachine] = {}
        self._placed: tuple[list[tuple[Span, Span]], PlacedCheck] | None = None
        self._entered: dict[str, Plan] = {}
        self._baseline: tuple[str, Callable[[], object]] | None = None
        self._baseline_operands: list[GuardedBlock] = []

    def evaluate(self, request: Evaluate) -> Evaluated:
        """Correct first, then fast; a candidate that is far behind is not timed to the end."""
        self._leave()
        failures: tuple[type[Exception], ...] = (LaunchError, *driver_errors())
        try:
            for check in self._small:
                verdict = self._verify_small(check, request)
                if not verdict.right:
                    return _wrong(verdict)
            plan = self._plan(request.program, self._large.case)
            try:
                return self._time(plan, request)
            finally:
                plan.free()
        except CompileError as error:
            return Evaluated(Measurement(Outcome.COMPILE_FAILED, reason=str(error)))
        except failures as error:
            reason = str(error) if isinstance(error, LaunchError) else describe(error)
            return Evaluated(Measurement(Outcome.LAUNCH_FAILED, reason=reason), lost=True)

    def visit(self, request: Visit) -> Series | Evaluated:
        """Take one turn, on other operands than the turn before; its last call is checked.

        Raises:
            CublasError: there is no baseline.
        """
        placed = None
        if request.program is None:
            call = self._baseline_call()
        else:
            plan = self._enter(request.program)
            placed = self._place(plan)
            placed.turn()
            call = functools.partial(placed.call, plan)
        expected_s = timed(call)
        effort = self._setup.effort
        series = time_calls(
            call,
            expected_s=expected_s,
            budget_s=request.budget_s,
            interval=effort.interval,
            deadline_s=request.budget_s,
        )
        if placed is not None:
            verdict = placed.judge(request.accuracy, inputs=False)
            if not verdict.right:
                return _wrong(verdict, IN_TURN)
        return series

    def redraw(self, seed: int) -> None:
        """Change the problem's operands, unless they are of this seed."""
        if seed != self._seed:
            self._seed = seed
            self._large.redraw(np.random.default_rng(seed))
            if self._placed is not None:
                self._placed[1].store()

    def confirm(self, request: Confirm) -> Evaluated:
        """Verify again, one call on each content of the operands."""
        plan = self._enter(request.program)
        placed = self._place(plan)
        worst = 0.0
        for _ in range(self._large.contents):
            placed.turn()
            verdict = placed.run(plan, request.accuracy)
            if not verdict.right:
                return _wrong(verdict, AT_THE_END)
            worst = max(worst, verdict.error)
        details: dict[str, float | int | str] = {"checked_calls": self._large.contents}
        return Evaluated(Measurement(Outcome.OK, error=worst, details=details))

    def describe_baseline(self) -> str | None:
        """What the baseline is; None where there is none that multiplies correctly."""
        failures: tuple[type[Exception], ...] = (CublasError, *driver_errors())
        try:
            self._baseline_call()
        except failures:
            return None
        return None if self._baseline is None else self._baseline[0]

    def _verify_small(self, check: ProductCheck, request: Evaluate) -> Verdict:
        plan = self._plan(request.program, check.case)
        placed = self._placed_check(check, plan)
        try:
            return placed.run(plan, request.accuracy)
        finally:
            placed.free()
            plan.free()

    def _time(self, plan: Plan, request: Evaluate) -> Evaluated:
        effort = self._setup.effort
        placed = self._place(plan)
        race = Race(request.best_s, effort.abandon_ratio)
        call = functools.partial(placed.call, plan)
        deadline = time.monotonic() + effort.timeout_s / 2
        placed.prepare()
        times = [timed(call)]
        verdict = placed.judge(request.accuracy, inputs=False)
        if not verdict.right:
            return _wrong(verdict)
        worst = verdict.error
        while race.lost(times):
            if len(times) == FIRST_RUNS:
                reason = race.reason(times)
                return Evaluated(
                    Measurement(Outcome.ABANDONED, min(times), None, len(times), worst, reason)
                )
            times.append(timed(call))
        series = time_calls(
            call,
            expected_s=timed(call),
            budget_s=request.budget_s,
            interval=effort.interval,
            deadline_s=max(0.0, deadline - time.monotonic() - times[0]),
            enough=race.behind,
        )
        # A copy that overtakes a product shows now and then, not in every call.
        verdict = placed.judge(request.accuracy)
        if not verdict.right:
            return _wrong(verdict, REPEATED)
        placed.turn()
        verdict = placed.run(plan, request.accuracy)
        if not verdict.right:
            return _wrong(verdict, CHANGED)
        worst = max(worst, verdict.error)
        return Evaluated(
            Measurement(Outcome.OK, series.median_s, series.interval_s, series.calls, worst)
        )

    def _plan(self, program: HybridProgram, case: Case) -> Plan:
        if program.local not in self._machines:
            self._machines[program.local] = machine_with(
                program.local, self._setup.devices, self._programs
            )
        machine = self._machines[program.local]
        return make_plan(program, machine, self._programs, *case.sizes)

    def _place(self, plan: Plan) -> PlacedCheck:
        """The problem's own operands where a plan takes them; they stay for the next one."""
        spans = plan.blocks() if self._setup.operands == "blocks" else []
        if self._placed is None or self._placed[0] != spans:
            if self._placed is not None:
                self._placed[1].free()
            self._placed = spans, self._placed_check(self._large, plan)
        return self._placed[1]

    def _placed_check(self, check: ProductCheck, plan: Plan) -> PlacedCheck:
        operands = self._setup.operands
        spans = plan.blocks() if operands == "blocks" else []
        return PlacedCheck(check, self._setup.problem.dtype, operands, spans)

    def _enter(self, program: HybridProgram) -> Plan:
        """The plan of one that takes turns; it stays for the next."""
        digest = program.source.digest
        if digest not in self._entered:
            self._entered[digest] = self._plan(program, self._large.case)
        return self._entered[digest]

    def _leave(self) -> None:
        """Free those who took turns: the rounds are over."""
        for plan in self._entered.values():
            plan.free()
        self._entered.clear()

    def _baseline_call(self) -> Callable[[], object]:
        """One call of the baseline, which has been seen to be right.

        Raises:
            CublasError: there is none, or it is wrong.
        """
        if self._baseline is None:
            check, problem = self._large, self._setup.problem
            sizes = problem.m, problem.n, problem.k
            check.prepare()
            call: Callable[[], object]
            if self._setup.operands == "host":
                vendor = CublasXt(problem.dtype, self._setup.devices)
                name = vendor.name
                call = functools.partial(vendor.multiply, check.a, check.b, check.c)
                call()
            else:
                one = OneGpu(*sizes, problem.dtype)
                name = one.name
                for whole in (check.a, check.b, check.c):
                    rows = 0, whole.shape[0]
                    block = GuardedBlock(0, rows, whole.shape[1], problem.dtype, padding=0)
                    block.store(whole)
                    self._baseline_operands.append(block)
                operands = [each.matrix for each in self._baseline_operands]
                call = functools.partial(one.multiply, *operands)
                call()
                self._baseline_operands[-1].load(check.c)
            if not check.judge("ieee").right:
                raise CublasError(f"{name} is wrong here")
            self._baseline = name, call
        return self._baseline[1]


def _wrong(verdict: Verdict, when: str = "") -> Evaluated:
    return Evaluated(wrong_result(verdict, when), lost=verdict.damaged)
