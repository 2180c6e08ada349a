"""Kernels on the GPU that this process owns, and the vendor's library beside them."""

from __future__ import annotations

import atexit
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from autotune.core.errors import LaunchError
from autotune.core.limits import GpuLimits
from autotune.core.measurement import Measurement, Outcome
from autotune.families.gpu.launch import LaunchPlan
from autotune.gpu.driver import describe, driver, driver_errors, use, vendor
from autotune.gpu.launch.kernel import GpuKernel
from autotune.gpu.launch.program import GpuProgram
from autotune.gpu.measure.bench import CaseBench, InPlaceBench, ProblemBench
from autotune.gpu.measure.checks import DeviceCheck, MirrorCheck, check_on_device
from autotune.gpu.measure.memory import OperandSets, rotation_sets
from autotune.gpu.measure.support import Support
from autotune.gpu.measure.timing import HungError, Stopwatch
from autotune.gpu.measure.watching import GpuWatch
from autotune.gpu.vendor import BlasError, blas_name
from autotune.measuring.harness import OTHER_CONTENTS, DrawnCases, FirstRuns, device_cases
from autotune.measuring.messages import Evaluated, Vendor
from autotune.measuring.sharing import Subjects
from autotune.measuring.timing import gpu_ceiling
from autotune.measuring.trial import PATIENCE, Trials
from autotune.operations.cases import Case
from autotune.operations.problem import Gemm, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from autotune.gpu.launch.kernel import Launch
    from autotune.gpu.vendor import Blas
    from autotune.measuring.effort import Effort
    from autotune.measuring.messages import Program

Check: TypeAlias = DeviceCheck | MirrorCheck

HOPELESS = 8.0
"""Kernels that a first run of some length shows to be this much slower than the limit are timed no
further: low clocks explain no more than that."""

_HIGHEST_CLOCK = "max_sm_clock_mhz"
_RECORDED_STATE = ("sm_clock_mhz", "power_w", "throttle")


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """The device, as the worker that owns it is to know it.

    Attributes:
        vendor: name of its vendor.
        ordinal: the driver's number, as the worker sees it.
        bus: the device's, for what reads its clocks.
        limits: the device's.
    """

    vendor: str
    ordinal: int
    bus: str
    limits: GpuLimits


@dataclass(frozen=True, slots=True)
class Subject:
    """A problem that the worker keeps operands of.

    Attributes:
        problem: what is computed.
        support: binary of the evaluator's own kernels for its element type.
    """

    problem: Problem
    support: bytes


@dataclass(frozen=True, slots=True)
class PlannedProgram:
    """A program with its launches for the cases that it is verified at.

    Attributes:
        program: the program.
        plans: for those cases that its configuration is valid for.
    """

    program: GpuProgram
    plans: Mapping[Case, LaunchPlan]

    @property
    def digest(self) -> str:
        """The program's: how it is verified follows from it."""
        return self.program.digest


def measurement_worker(
    effort: Effort, settings: GpuSettings, seed: int, subject: Subject | None
) -> Subjects:
    """Entry of the worker that measures: owns the device and the operands of a problem."""
    use(settings.vendor)
    driver().enter(settings.ordinal)
    atexit.register(driver().leave)
    kept = KeptCases()

    def measuring(subject: Subject) -> Trials:
        watchers = [GpuWatch(vendor().monitor(settings.bus))]
        return Trials(GpuHarness(subject, effort, settings, seed, kept), effort, watchers=watchers)

    # Only one problem's operands are kept: how many copies of them there are depends on how much
    # of the device's memory is free.
    return Subjects(measuring, subject, weigh=lambda subject: 1, limit=1)


class KeptCases:
    """Operands and references of small products, which problems of one kind have in common.

    Special ones and hard ones are made when a program asks for them.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], DrawnCases[Check]] = {}

    def of(
        self, problem: Problem, support: bytes, make: Callable[[Case], Check]
    ) -> DrawnCases[Check]:
        """Those of the problem's kind, made if there are none yet."""
        if not isinstance(problem, Gemm):  # other operations' cases follow from their sizes
            return DrawnCases(problem, device_cases(problem), make)
        kind = (problem.with_sizes(1, 1, 1), support)
        if kind not in self._kept:
            self._kept[kind] = DrawnCases(problem, device_cases(problem), make)
        return self._kept[kind]


class GpuHarness:
    """The operands of a problem on the device; see `autotune.measuring.harness.Harness`.

    Arguments are those of `measurement_worker`, and what harnesses of one process share.
    """

    # The run after the first is a batch that was warmed up: one of those is asked for always.
    first_runs = FirstRuns(runs=3, long_runs=2, hopeless=HOPELESS)

    def __init__(
        self,
        subject: Subject,
        effort: Effort,
        settings: GpuSettings,
        seed: int,
        kept: KeptCases | None = None,
    ) -> None:
        problem, limits = subject.problem, settings.limits
        self.problem = problem
        self._ordinal = settings.ordinal
        self._monitor = vendor().monitor(settings.bus)
        clock = self._monitor.read((_HIGHEST_CLOCK,)).get(_HIGHEST_CLOCK)
        self.ceiling = gpu_ceiling(
            limits.compute_capability,
            limits.multiprocessor_count,
            problem.itemsize,
            None if clock is None else 1e6 * float(clock),
        )
        self._stopwatch = Stopwatch(PATIENCE * effort.timeout_s)
        rng = np.random.default_rng(seed)
        helpers = Support(subject.support, problem.result_dtype, limits.multiprocessor_count)

        def check(case: Case, *others: str) -> Check:
            return check_on_device(case, problem, rng, helpers, others=others)

        self._small = (kept or KeptCases()).of(problem, subject.support, check)
        self._large = check(Case(*problem.shape), *OTHER_CONTENTS)
        self._seed = seed
        count = rotation_sets(problem.traffic, limits.l2_bytes, driver().free_bytes())
        self._sets = OperandSets(self._large.slab, count)
        self._large.bases = self._sets.bases
        self._kept: dict[str, _BoundKernel] = {}
        self._libraries: dict[str, Blas] | None = None
        self._vendor_benches: dict[str, ProblemBench | InPlaceBench] = {}
        self._lost: _BoundKernel | None = None

    def now(self) -> float:
        """Seconds from a fixed point."""
        return time.monotonic()

    @contextlib.contextmanager
    def load(self, program: Program, *, keep: bool) -> Iterator[_BoundKernel]:
        """Load a program.

        Raises:
            LaunchError: the driver refuses the binary.
        """
        assert isinstance(program, PlannedProgram)
        if not keep:
            self._forget()
        loaded = self._kept.get(program.digest)
        if loaded is None:
            kernel = GpuKernel(program.program, self._ordinal)
            bench = self._bench(kernel.launch)
            loaded = _BoundKernel(kernel, program.plans, self._small, bench, self._stopwatch)
        if keep:
            self._kept[program.digest] = loaded
        try:
            yield loaded
        except Exception as error:
            if not self._survives(error):
                self._lost = loaded  # to unload it would wait until it ends
            elif not keep:
                loaded.close()
            raise
        if not keep:
            loaded.close()

    @contextlib.contextmanager
    def vendor(self, vendor: Vendor) -> Iterator[ProblemBench | InPlaceBench]:
        """One of the vendor's libraries before the problem's operands.

        Raises:
            BlasError: it does not work.
        """
        bench = self._vendor_benches.get(vendor.name)
        if bench is None:
            blas = self._working_libraries().get(vendor.name)
            if blas is None:
                raise BlasError(f"{vendor.name} does not work")
            bench = self._vendor_benches[vendor.name] = self._bench(_on_own_stream(blas))
        yield bench

    def redraw(self, seed: int) -> None:
        """Draw all operands afresh, unless they are of this seed already."""
        if seed != self._seed:
            self._seed = seed
            rng = np.random.default_rng(seed)
            for check in (*self._small.drawn.values(), self._large):
                check.redraw(rng)

    def vendors(self) -> tuple[Vendor, ...]:
        """The vendor's libraries that multiply correctly."""
        return tuple(
            Vendor(name, 1, {"library": blas.library, "version": blas.version})
            for name, blas in self._working_libraries().items()
        )

    def failure(self, error: Exception) -> Evaluated | None:
        """The driver's words, and whether the context survived it."""
        if isinstance(error, HungError):
            return Evaluated(Measurement(Outcome.TIMEOUT, reason=str(error)), lost=True)
        failures: tuple[type[Exception], ...] = (LaunchError, BlasError)
        if not isinstance(error, failures + driver_errors()):
            return None
        reason = str(error) if isinstance(error, failures) else describe(error)
        lost = not self._survives(error)
        return Evaluated(Measurement(Outcome.LAUNCH_FAILED, reason=reason), lost=lost)

    def _bench(self, launch: Launch) -> ProblemBench | InPlaceBench:
        kind = InPlaceBench if self.problem.defined.in_place else ProblemBench
        return kind(
            self._large,
            launch,
            self._stopwatch,
            self._state,
        )

    def _state(self) -> dict[str, float | int | str]:
        """Readings of the device that are recorded; numbers as numbers."""
        told = self._monitor.read(_RECORDED_STATE).items()
        return {name: float(each) if each.isdecimal() else each for name, each in told}

    def _working_libraries(self) -> Mapping[str, Blas]:
        """The libraries that multiply correctly, by their names for people."""
        if self._libraries is None:
            failures: tuple[type[Exception], ...] = (BlasError, *driver_errors())
            self._libraries = {}
            with contextlib.suppress(*failures):
                for blas in vendor().blas(self.problem, self._stopwatch.stream):
                    with contextlib.suppress(*failures):
                        bench = CaseBench(self._large, _on_own_stream(blas), self._stopwatch)
                        bench.once()
                        if bench.judge(blas.accuracy).right:
                            self._libraries[blas_name(blas)] = blas
        return self._libraries

    def _forget(self) -> None:
        """Unload those who took turns: the rounds are over."""
        for loaded in self._kept.values():
            loaded.close()
        self._kept.clear()
        for bench in self._vendor_benches.values():
            bench.close()
        self._vendor_benches.clear()

    @staticmethod
    def _survives(error: Exception) -> bool:
        """Has the context survived an error?"""
        if isinstance(error, HungError):
            return False
        try:
            driver().synchronize()
        except driver_errors():
            return False
        return True


@dataclass(frozen=True, slots=True)
class _BoundKernel:
    """A kernel before the operands of a harness."""

    kernel: GpuKernel
    plans: Mapping[Case, LaunchPlan]
    small: DrawnCases[Check]
    bench: ProblemBench | InPlaceBench
    stopwatch: Stopwatch

    @property
    def cases(self) -> Sequence[Check]:
        return self.small.of(self.plans)

    def place(self, case: Check) -> AbstractContextManager[CaseBench]:
        launch = self.kernel.launcher(self.plans[case.case])
        return contextlib.nullcontext(CaseBench(case, launch, self.stopwatch))

    def problem(self) -> AbstractContextManager[ProblemBench | InPlaceBench]:
        return contextlib.nullcontext(self.bench)

    def probe(self, best_s: float | None) -> None:
        """None: to launch a kernel costs next to nothing."""

    def close(self) -> None:
        """Unload it."""
        self.bench.close()
        self.kernel.close()


def _on_own_stream(blas: Blas) -> Launch:
    """The library's launch, which knows the stream already, called like a kernel's."""

    def launch(*arguments: Any, stream: Any) -> None:
        blas.launch(*arguments)

    return launch
