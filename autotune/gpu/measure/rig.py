"""Kernels on the GPU that this process owns, and cuBLAS beside them."""

from __future__ import annotations

import atexit
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.core.errors import LaunchError
from autotune.core.measurement import Measurement, Outcome
from autotune.gpu.launch.launch import CudaKernel
from autotune.gpu.measure.baseline import (
    Cublas,
    CublasError,
    class_of,
    cublas_mode,
    vendor_of,
)
from autotune.gpu.measure.bench import CaseBench, ProblemBench
from autotune.gpu.measure.device_check import DeviceCheck
from autotune.gpu.measure.memory import OperandSets, rotation_sets
from autotune.gpu.measure.mirror_check import MirrorCheck, check_on_device
from autotune.gpu.measure.subject import GpuSettings, PlannedProgram, Subject
from autotune.gpu.measure.support import Support
from autotune.gpu.measure.timing import HungError, Stopwatch
from autotune.gpu.nvidia.device.nvml import GpuMonitor
from autotune.gpu.nvidia.driver.context import describe, driver_errors
from autotune.gpu.nvidia.driver.interface import driver
from autotune.measuring.messages import Evaluated, Vendor
from autotune.measuring.plan import OTHER_CONTENTS
from autotune.measuring.plausibility import gpu_ceiling
from autotune.measuring.rig import Pace
from autotune.measuring.sharing import Subjects
from autotune.measuring.trial import PATIENCE, Trials
from autotune.operations.cases import Case, cases_of
from autotune.operations.problem import Gemm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from autotune.families.gpu.launch import LaunchPlan
    from autotune.gpu.launch.launch import Launch
    from autotune.measuring.evaluator import Effort
    from autotune.measuring.messages import Program
    from autotune.operations.problem import Problem

HOPELESS = 8.0
"""Kernels that a first run of some length shows to be this much slower than the limit are timed no
further: low clocks explain no more than that."""

_HIGHEST_CLOCK = "max_sm_clock_mhz"
_RECORDED_STATE = ("sm_clock_mhz", "power_w", "throttle")


def measurement_worker(
    effort: Effort, settings: GpuSettings, seed: int, subject: Subject
) -> Subjects:
    """Entry of the worker that measures: owns the device and the operands of a problem."""
    driver().enter(settings.ordinal)
    atexit.register(driver().leave)

    kept = KeptCases()

    def measuring(subject: Subject) -> Trials:
        return Trials(CudaRig(subject, effort, settings, seed, kept), effort)

    # Only one problem's operands are kept: how many copies of them there are depends on how much
    # of the device's memory is free.
    return Subjects(measuring, subject, weigh=lambda each: 1, limit=1)


class _Checks(dict[Case, "DeviceCheck | MirrorCheck"]):
    """Operands and references of cases; special ones are made when a program asks for them."""

    def __init__(
        self, problem: Problem, make: Callable[[Case], DeviceCheck | MirrorCheck]
    ) -> None:
        super().__init__((case, make(case)) for case in cases_of(problem))
        self._make = make

    def __missing__(self, case: Case) -> DeviceCheck | MirrorCheck:
        return self.setdefault(case, self._make(case))


class KeptCases:
    """Operands and references of small products, which problems of one kind have in common."""

    def __init__(self) -> None:
        self._checks: dict[tuple[Any, ...], _Checks] = {}

    def of(
        self,
        problem: Problem,
        support: bytes,
        make: Callable[[Case], DeviceCheck | MirrorCheck],
    ) -> Mapping[Case, DeviceCheck | MirrorCheck]:
        """Those of the problem's kind, made if there are none yet."""
        if not isinstance(problem, Gemm):  # other operations' cases follow from their sizes
            return _Checks(problem, make)
        kind = (problem.with_sizes(1, 1, 1), support)
        if kind not in self._checks:
            self._checks[kind] = _Checks(problem, make)
        return self._checks[kind]


class CudaRig:
    """The operands of a problem on the device; see `autotune.measuring.rig.Rig`.

    Args:
        subject: the problem, and the kernels that judge.
        effort: how long and how exactly to measure.
        settings: of the device.
        seed: seeds the operands.
        kept: what rigs of one process share.
    """

    # The run after the first is a batch that was warmed up: one of those is asked for always.
    pace = Pace(runs=3, long_runs=2, hopeless=HOPELESS)

    def __init__(
        self,
        subject: Subject,
        effort: Effort,
        settings: GpuSettings,
        seed: int,
        kept: KeptCases | None = None,
    ) -> None:
        problem = subject.problem
        self.problem = problem
        self._interval = effort.interval
        self._ordinal = settings.ordinal
        self._monitor = GpuMonitor(settings.pci_bus_id)
        clock = self._monitor.read((_HIGHEST_CLOCK,)).get(_HIGHEST_CLOCK)
        self.ceiling = gpu_ceiling(
            settings.compute_capability,
            settings.multiprocessor_count,
            problem.itemsize,
            None if clock is None else 1e6 * float(clock),
        )
        self._stopwatch = Stopwatch(PATIENCE * effort.timeout_s)
        rng = np.random.default_rng(seed)
        helpers = Support(subject.support, problem.result_dtype, settings.multiprocessor_count)

        def check(case: Case, *others: str) -> DeviceCheck | MirrorCheck:
            return check_on_device(case, problem, rng, helpers, others=others)

        self._small = (kept or KeptCases()).of(problem, subject.support, check)
        self._large = check(Case(*problem.shape), *OTHER_CONTENTS)
        self._seed = seed
        count = rotation_sets(
            problem.traffic,
            settings.l2_bytes,
            driver().free_bytes(),
        )
        self._sets = OperandSets(self._large.slab, count)
        self._large.bases = self._sets.bases
        self._kept: dict[str, _Loaded] = {}
        self._cublas: Cublas | None = None
        self._vendor_bench: ProblemBench | None = None
        self._lost: _Loaded | None = None

    def now(self) -> float:
        """Seconds from a fixed point."""
        return time.monotonic()

    @contextlib.contextmanager
    def load(self, program: Program, *, keep: bool) -> Iterator[_Loaded]:
        """Load a program.

        Raises:
            LaunchError: the driver refuses the binary.
        """
        assert isinstance(program, PlannedProgram)
        if not keep:
            self._forget()
        loaded = self._kept.get(program.digest) or self._enter(program)
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
    def vendor(self, vendor: Vendor) -> Iterator[ProblemBench]:
        """CuBLAS before the problem's operands.

        Raises:
            CublasError: there is none that works.
        """
        if self._vendor_bench is None:
            cublas = self._vendor()
            if cublas is None:
                raise CublasError("there is no cuBLAS that works")
            self._vendor_bench = self._bench(_own_stream(cublas))
        yield self._vendor_bench

    def redraw(self, seed: int) -> None:
        """Draw all operands afresh, unless they are of this seed already."""
        if seed != self._seed:
            self._seed = seed
            rng = np.random.default_rng(seed)
            for check in (*self._small.values(), self._large):
                check.redraw(rng)

    def vendors(self) -> tuple[Vendor, ...]:
        """CuBLAS, where there is one that multiplies correctly."""
        cublas = self._vendor()
        if cublas is None:
            return ()
        version = cublas.version
        name = f"cuBLAS {version} ({cublas_mode(self.problem)})"
        return (Vendor(name, 1, {"library": "cuBLAS", "version": version}),)

    def failure(self, error: Exception) -> Evaluated | None:
        """What the driver says, and whether the context survived it."""
        if isinstance(error, HungError):
            return Evaluated(Measurement(Outcome.TIMEOUT, reason=str(error)), lost=True)
        failures: tuple[type[Exception], ...] = (LaunchError, CublasError)
        if not isinstance(error, failures + driver_errors()):
            return None
        reason = str(error) if isinstance(error, failures) else describe(error)
        lost = not self._survives(error)
        return Evaluated(Measurement(Outcome.LAUNCH_FAILED, reason=reason), lost=lost)

    def _enter(self, program: PlannedProgram) -> _Loaded:
        kernel = CudaKernel(program.program, self._ordinal)
        bench = self._bench(kernel.launch)
        return _Loaded(kernel, program.plans, self._small, bench, self._stopwatch)

    def _bench(self, launch: Launch) -> ProblemBench:
        return ProblemBench(
            self._large,
            launch,
            self._stopwatch,
            self._interval,
            lambda: {**self._monitor.read(_RECORDED_STATE)},
        )

    def _vendor(self) -> Cublas | None:
        if self._cublas is not None:
            return self._cublas
        failures: tuple[type[Exception], ...] = (CublasError, *driver_errors())
        try:
            cublas = vendor_of(self.problem, "cuda", self._stopwatch.stream)
            if cublas is None:
                return None
            bench = CaseBench(self._large, _own_stream(cublas), self._stopwatch)
            bench.once()
            verdict = bench.judge(class_of(self.problem))
        except failures:
            return None
        if verdict.right:
            self._cublas = cublas
        return self._cublas

    def _forget(self) -> None:
        """Unload those who took turns: the rounds are over."""
        for loaded in self._kept.values():
            loaded.close()
        self._kept.clear()
        if self._vendor_bench is not None:
            self._vendor_bench.close()
            self._vendor_bench = None

    @staticmethod
    def _survives(error: Exception) -> bool:
        """Whether the context survived an error."""
        if isinstance(error, HungError):
            return False
        try:
            driver().synchronize()
        except driver_errors():
            return False
        return True


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A kernel before the operands of a rig."""

    kernel: CudaKernel
    plans: Mapping[Case, LaunchPlan]
    small: Mapping[Case, DeviceCheck | MirrorCheck]
    bench: ProblemBench
    stopwatch: Stopwatch

    @property
    def cases(self) -> Sequence[Case]:
        return tuple(self.plans)

    def place(self, case: Case) -> AbstractContextManager[CaseBench]:
        launch = self.kernel.launcher(self.plans[case])
        return contextlib.nullcontext(CaseBench(self.small[case], launch, self.stopwatch))

    def problem(self) -> AbstractContextManager[ProblemBench]:
        return contextlib.nullcontext(self.bench)

    def probe(self, best_s: float | None) -> None:
        """None: to launch a kernel costs next to nothing."""

    def close(self) -> None:
        """Unload it."""
        self.bench.close()
        self.kernel.close()


def _own_stream(cublas: Cublas) -> Launch:
    """Its launch, which knows the stream already, called like a kernel's."""

    def launch(*arguments: Any, stream: Any) -> None:
        cublas.launch(*arguments)

    return launch
