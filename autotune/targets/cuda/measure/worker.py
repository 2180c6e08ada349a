"""What runs in the worker process that owns the GPU: verifying, then timing."""

from __future__ import annotations

import atexit
import functools
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from autotune.core.errors import LaunchError
from autotune.core.measurement import Measurement, Outcome
from autotune.measuring.racing import FIRST_RUNS, Race
from autotune.measuring.rounds import Redraw, Series
from autotune.measuring.sharing import Subjects
from autotune.measuring.verdicts import AT_THE_END, CHANGED, IN_TURN, REPEATED, wrong_result
from autotune.operations.cases import Case
from autotune.targets.cuda.device.nvml import GpuMonitor
from autotune.targets.cuda.driver.context import describe, driver_errors
from autotune.targets.cuda.driver.interface import driver
from autotune.targets.cuda.launch.launch import CudaKernel
from autotune.targets.cuda.measure.baseline import Cublas, CublasError, vendor_of
from autotune.targets.cuda.measure.device_check import DeviceCheck
from autotune.targets.cuda.measure.memory import OperandSets, operands, rotation_sets
from autotune.targets.cuda.measure.messages import (
    Confirm,
    DescribeBaseline,
    Evaluate,
    Evaluated,
    GpuSettings,
    Request,
    Subject,
    Visit,
    cases_of,
)
from autotune.targets.cuda.measure.mirror_check import MirrorCheck, check_on_device
from autotune.targets.cuda.measure.support import Support
from autotune.targets.cuda.measure.timing import Batch, HungError, Stopwatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.measuring.evaluator import Effort
    from autotune.operations.verification import Verdict
    from autotune.targets.cuda.launch.launch import Launch
    from autotune.targets.cuda.launch.program import CudaProgram

WARM_UP_S = 0.05
"""How long a device that has idled is kept busy before it is timed: clocks take time to rise."""

STEADY_S = 0.002
"""The same for a device that was busy until now."""

IDLE_S = 0.1
"""A device that has done nothing for so long has idled."""

HOPELESS = 8.0
"""Kernels that their first run shows to be this much slower than the limit are not timed at all:
low clocks explain no more than that."""

_WARM_SHARE = 0.1
"""Of the budget, what goes to timing with one operand set, which stays in the cache."""

_RECORDED_STATE = ("sm_clock_mhz", "power_w", "throttle")


def measurement_worker(
    effort: Effort, settings: GpuSettings, seed: int, subject: Subject
) -> Subjects:
    """Entry of the worker that measures: owns the device and the operands of a problem."""
    driver().enter(settings.ordinal)
    atexit.register(driver().leave)

    def measuring(subject: Subject) -> Callable[[Request], Evaluated | Series | str | None]:
        return _MeasurementWorker(subject, effort, settings, seed).handle

    # Only one problem's operands are kept: how many copies of them there are depends on how much
    # of the device's memory is free.
    return Subjects(measuring, subject, weigh=lambda each: 1, limit=1)


@dataclass(slots=True)
class _Contestant:
    """Something that is timed in rounds: its batch and about how long a launch takes."""

    batch: Batch
    expected_s: float
    kernel: CudaKernel | None = None

    def close(self) -> None:
        self.batch.close()
        if self.kernel is not None:
            self.kernel.close()


class _MeasurementWorker:
    _evaluated: ClassVar[int] = 0
    """By this process, for whatever problem: memory may have been damaged by any of them."""

    def __init__(self, subject: Subject, effort: Effort, settings: GpuSettings, seed: int) -> None:
        problem = subject.problem
        self._problem = problem
        self._effort = effort
        self._ordinal = settings.ordinal
        self._monitor = GpuMonitor(settings.pci_bus_id)
        self._stopwatch = Stopwatch(effort.timeout_s / 2)
        rng = np.random.default_rng(seed)
        helpers = Support(subject.support, problem.result_dtype, settings.multiprocessor_count)

        def check(case: Case, *others: str) -> DeviceCheck | MirrorCheck:
            return check_on_device(case, problem, rng, helpers, others=others)

        self._small = {case: check(case) for case in cases_of(problem)}
        self._large = check(Case(*problem.shape), "normal")
        self._seed = seed
        count = rotation_sets(
            problem.traffic,
            settings.l2_bytes,
            driver().free_bytes(),
        )
        self._sets = OperandSets(self._large.slab, count)
        self._large.bases = self._sets.bases
        self._contestants: dict[str, _Contestant] = {}
        self._cublas: Cublas | None = None
        self._lost: CudaKernel | None = None
        self._busy_at = -math.inf

    def handle(self, request: Request) -> Evaluated | Series | str | None:
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
            case DescribeBaseline():
                return self.describe_baseline()

    def evaluate(self, request: Evaluate) -> Evaluated:
        """Correct first, then fast; a kernel that is far behind is not timed to the end."""
        self._forget()
        _MeasurementWorker._evaluated += 1
        deadline = time.monotonic() + self._effort.timeout_s / 2
        failures: tuple[type[Exception], ...] = (LaunchError, *driver_errors())
        kernel = None
        lost = False
        try:
            kernel = CudaKernel(request.program, self._ordinal)
            verdict = self._verify_small(kernel, request)
            if verdict.right:
                return self._verify_and_time(kernel, request, verdict.error, deadline)
            lost = verdict.damaged
            return self._wrong(verdict)
        except HungError as error:
            lost = True
            return Evaluated(Measurement(Outcome.TIMEOUT, reason=str(error)), lost=True)
        except failures as error:
            reason = str(error) if isinstance(error, LaunchError) else describe(error)
            lost = not self._alive()
            return Evaluated(Measurement(Outcome.LAUNCH_FAILED, reason=reason), lost=lost)
        finally:
            if lost:
                self._lost = kernel  # to unload it would wait until it ends
            elif kernel is not None:
                kernel.close()
            self._busy_at = time.monotonic()

    def visit(self, request: Visit) -> Series | Evaluated:
        """Take one turn, on other operands than the turn before; its last launch is checked.

        Who comes for the first time is prepared.

        Raises:
            LaunchError: it does not run any more.
            HungError: it does not end.
            CublasError: cuBLAS refuses.
        """
        self._large.turn()
        contestant = self._contestant(request.program)
        self._warm_up(contestant.batch)
        series = contestant.batch.series(
            contestant.expected_s,
            request.budget_s,
            self._effort.interval,
            deadline_s=request.budget_s,
        )
        contestant.expected_s = series.median_s
        self._busy_at = time.monotonic()
        if request.program is not None:
            verdict = self._judge_last(contestant.batch, request.accuracy)
            if not verdict.right:
                return self._wrong(verdict, IN_TURN)
        return series

    def redraw(self, seed: int) -> None:
        """Change the problem's operands, unless they are of this seed."""
        if seed != self._seed:
            self._seed = seed
            self._large.redraw(np.random.default_rng(seed))

    def confirm(self, request: Confirm) -> Evaluated:
        """Verify again, as many launches as there is time for, and one on each content at least.

        Raises:
            LaunchError: it does not run any more.
            HungError: it does not end.
        """
        # The program as it took its turns, with whatever it may have kept in device memory.
        kernel = self._contestant(request.program).kernel
        assert kernel is not None
        check = self._large
        worst, launches = 0.0, 0
        for part in range(1, check.contents + 1):
            check.turn()
            until = time.monotonic() + request.budget_s / check.contents
            while launches < part or time.monotonic() < until:
                verdict = self._run(check, kernel.launch, request.accuracy)
                launches += 1
                if not verdict.right:
                    return self._wrong(verdict, AT_THE_END)
                worst = max(worst, verdict.error)
        details: dict[str, float | int | str] = {"checked_calls": launches}
        return Evaluated(Measurement(Outcome.OK, error=worst, details=details))

    def describe_baseline(self) -> str | None:
        """Which cuBLAS there is, once it has multiplied correctly; None where there is none."""
        cublas = self._vendor()
        return None if cublas is None else cublas.version

    def _vendor(self) -> Cublas | None:
        if self._cublas is not None:
            return self._cublas
        failures: tuple[type[Exception], ...] = (CublasError, *driver_errors())
        try:
            cublas = vendor_of(self._problem, "cuda", self._stopwatch.stream)
            if cublas is None:
                return None
            verdict = self._run(self._large, _own_stream(cublas), "ieee")
        except failures:
            return None
        if verdict.right:
            self._cublas = cublas
        return self._cublas

    def _verify_small(self, kernel: CudaKernel, request: Evaluate) -> Verdict:
        """The first verdict against it, or the one with the largest error."""
        worst: Verdict | None = None
        for case, plan in request.plans.items():
            launch = kernel.launcher(plan)
            verdict = self._run(self._small[case], launch, request.accuracy)
            if not verdict.right:
                return verdict
            if worst is None or verdict.error > worst.error:
                worst = verdict
        return worst or self._run(self._large, kernel.launch, request.accuracy)

    def _verify_and_time(
        self, kernel: CudaKernel, request: Evaluate, worst: float, deadline: float
    ) -> Evaluated:
        check = self._large
        first_s, verdict = self._run_timed(check, kernel.launch, request.accuracy)
        if not verdict.right:
            return self._wrong(verdict)
        worst = max(worst, verdict.error)
        slow = first_s >= request.budget_s
        race = Race(request.best_s, self._effort.abandon_ratio)
        if first_s > HOPELESS * race.limit_s:
            return Evaluated(_abandoned(race, [first_s], 1, worst))
        batch = Batch.of(self._rotating(kernel.launch), len(self._sets), first_s, self._stopwatch)
        try:
            if not slow:
                self._warm_up(batch)
            brief = batch.samples(1 if slow else FIRST_RUNS)
            if race.lost(brief):
                return Evaluated(_abandoned(race, brief, batch.launches, worst))
            series = batch.series(
                min(brief),
                request.budget_s,
                self._effort.interval,
                deadline_s=max(0.0, deadline - time.monotonic() - first_s),
                enough=race.behind,
            )
        finally:
            batch.close()
        details: dict[str, float | int | str] = {
            **self._monitor.read(_RECORDED_STATE),
            "operand_sets": len(self._sets),
        }
        if not slow:
            details["warm_s"] = self._warm_s(kernel.launch, series.median_s, request.budget_s)
        # A race shows now and then, not in every launch.
        for verdict in (self._judge_last(batch, request.accuracy), check.judge(request.accuracy)):
            if not verdict.right:
                return self._wrong(verdict, REPEATED)
            worst = max(worst, verdict.error)
        check.turn()
        verdict = self._run(check, kernel.launch, request.accuracy)
        if not verdict.right:
            return self._wrong(verdict, CHANGED)
        return Evaluated(
            Measurement(
                Outcome.OK,
                series.median_s,
                series.interval_s,
                series.calls,
                max(worst, verdict.error),
                details=details,
            )
        )

    def _warm_s(self, launch: Launch, expected_s: float, budget_s: float) -> float:
        """The median with one operand set, which the cache keeps as far as it fits."""
        first = operands(self._sets.layout, self._sets.bases[0])
        batch = Batch.of(
            lambda _, stream: launch(*first, stream=stream), 1, expected_s, self._stopwatch
        )
        try:
            batch.samples(1)
            series = batch.series(expected_s, _WARM_SHARE * budget_s, self._effort.interval)
        finally:
            batch.close()
        return series.median_s

    def _judge_last(self, batch: Batch, accuracy: str) -> Verdict:
        """What the last launch of a batch left in its operand set."""
        return self._large.judge_result(self._sets.bases[batch.last], accuracy)

    def _contestant(self, program: CudaProgram | None) -> _Contestant:
        key = "" if program is None else program.digest
        if key not in self._contestants:
            self._contestants[key] = self._enter(program)
        return self._contestants[key]

    def _enter(self, program: CudaProgram | None) -> _Contestant:
        kernel = None if program is None else CudaKernel(program, self._ordinal)
        if kernel is not None:
            rotating = self._rotating(kernel.launch)
        else:
            cublas = self._vendor()
            if cublas is None:
                raise CublasError("there is no cuBLAS that works")
            rotating = self._rotating(_own_stream(cublas))
        stream = self._stopwatch.stream
        for number in range(2):  # the second one is past loading the code
            first_s = self._stopwatch.once(functools.partial(rotating, number, stream))
        return _Contestant(
            Batch.of(rotating, len(self._sets), first_s, self._stopwatch), first_s, kernel
        )

    def _rotating(self, launch: Launch) -> Callable[[int, Any], None]:
        sets = [operands(self._sets.layout, base) for base in self._sets.bases]

        def launch_set(number: int, stream: Any) -> None:
            launch(*sets[number % len(sets)], stream=stream)

        return launch_set

    def _run(self, check: DeviceCheck | MirrorCheck, launch: Launch, accuracy: str) -> Verdict:
        return self._run_timed(check, launch, accuracy)[1]

    def _run_timed(
        self, check: DeviceCheck | MirrorCheck, launch: Launch, accuracy: str
    ) -> tuple[float, Verdict]:
        check.prepare()
        stream = self._stopwatch.stream
        seconds = self._stopwatch.once(lambda: launch(*check.arguments, stream=stream))
        return seconds, check.judge(accuracy)

    def _warm_up(self, batch: Batch) -> None:
        idled = time.monotonic() - self._busy_at > IDLE_S
        until = time.monotonic() + (WARM_UP_S if idled else STEADY_S)
        while True:
            batch.samples(1)
            if time.monotonic() >= until:
                return

    def _wrong(self, verdict: Verdict, when: str = "") -> Evaluated:
        return Evaluated(
            wrong_result(verdict, when),
            lost=verdict.damaged,
            blameless=verdict.damaged and self._evaluated > 1,
        )

    def _forget(self) -> None:
        """Unload those who took turns: the rounds are over."""
        for contestant in self._contestants.values():
            contestant.close()
        self._contestants.clear()

    @staticmethod
    def _alive() -> bool:
        """Whether the context survived an error."""
        try:
            driver().synchronize()
        except driver_errors():
            return False
        return True


def _abandoned(race: Race, first_s: Sequence[float], launches: int, error: float) -> Measurement:
    """Its first runs, each the mean of so many launches, settled the matter."""
    return Measurement(
        Outcome.ABANDONED,
        min(first_s),
        repeats=len(first_s) * launches,
        error=error,
        reason=race.reason(first_s),
    )


def _own_stream(cublas: Cublas) -> Launch:
    """Its launch, which knows the stream already, called like a kernel's."""

    def launch(*arguments: Any, stream: Any) -> None:
        cublas.launch(*arguments)

    return launch
