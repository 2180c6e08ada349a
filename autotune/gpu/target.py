"""The base of targets of GPUs, whoever made the GPU and whatever the sources are in."""

from __future__ import annotations

import functools
from dataclasses import fields
from typing import TYPE_CHECKING, ClassVar

from autotune.core.errors import MissingDependencyError, OperandError, UnknownNameError
from autotune.core.limits import GpuLimits, limits_of
from autotune.gpu.driver import find_vendor, use
from autotune.serving.reports import Estimates
from autotune.serving.target import Placement, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from autotune.arrays.library import Place
    from autotune.core.configuration import Candidate, Configuration
    from autotune.core.device import Device, DeviceFingerprint
    from autotune.families.family import KernelFamily
    from autotune.families.gpu.launch import Binary
    from autotune.families.program_cache import ProgramCache
    from autotune.families.rendering import Source
    from autotune.gpu.launch.kernel import Launch
    from autotune.measuring.evaluator import Evaluator
    from autotune.operations.problem import Problem
    from autotune.serving.background import Job
    from autotune.serving.clock import Clock
    from autotune.serving.kernel import BoundKernel
    from autotune.serving.reports import HostCalls, Model, Resources
    from autotune.serving.target import Work

LIMIT_NAMES = frozenset(field.name for field in fields(GpuLimits)) - {"isa"}
"""Names of a GPU's limits in families' restrictions."""


class GpuEstimates(Estimates):
    """Estimates for GPUs of one vendor, by its compiler and by a model of their resources.

    Args:
        vendor: see `GpuTarget.vendor`.
    """

    def __init__(self, vendor: str) -> None:
        self._vendor = vendor

    def resources(
        self,
        family: KernelFamily,
        source: Source,
        configuration: Configuration,
        problem: Problem,
        device: Device,
    ) -> Resources | None:
        """The binary's numbers, beside the estimates."""
        from autotune.gpu.compiling import resources

        use(self._vendor)
        return resources(family, source, configuration, problem, device, limits_of(device))

    def model(self, family: KernelFamily, problem: Problem, device: Device) -> Model | None:
        """A model of the resources that a block needs."""
        from autotune.families.gpu.resource_model import expected_log_time

        return expected_log_time(family, problem, limits_of(device))

    def host_calls(
        self, problem: Problem, device: Device, programs: ProgramCache
    ) -> HostCalls | None:
        """Copies to the GPU and back."""
        from autotune.gpu.measure.host_call import DeviceCalls

        use(self._vendor)
        return DeviceCalls(problem, device, programs)


class GpuTarget(Target):
    """Emitted sources on a GPU. A subclass names its vendor, and says what its language is."""

    vendor: ClassVar[str]
    """Name of an `autotune.gpu.vendor.Vendor`: "module:object"."""

    changes: ClassVar[bool] = False

    @classmethod
    def is_usable(cls) -> bool:
        """Is there a GPU, and all that runs kernels on it?"""
        return find_vendor(cls.vendor).is_usable()

    @classmethod
    def placement(cls, fingerprint: DeviceFingerprint) -> Placement:
        """The GPU of that name; the first one serves where it is here."""
        return Placement(device=fingerprint.name)

    @property
    def names_devices(self) -> bool:
        """Each GPU is one."""
        return True

    def device(self, problem: Problem | None = None, name: int | str | None = None) -> Device:
        """One of the GPUs here; one named that is not here is looked up among the known ones."""
        vendor = find_vendor(self.vendor)
        try:
            return vendor.read_gpu(name)
        except (UnknownNameError, MissingDependencyError):
            if name is None or str(name).strip().isdecimal():
                raise
            return vendor.described(str(name))

    def caps(self, problem: Problem) -> tuple[Hashable, ...]:
        """None of it: all problems meet the same GPU."""
        return ()

    def evaluator(self, work: Work, beside: Evaluator | None = None) -> Evaluator:
        """Compile workers, and one process that owns the GPU."""
        from autotune.gpu.measure.evaluator import GpuEvaluator

        use(self.vendor)
        _ordinal(work.device)
        return GpuEvaluator(work, beside)

    def kernel(
        self,
        family: KernelFamily,
        candidate: Candidate,
        problem: Problem,
        device: Device,
        programs: ProgramCache,
        binary: Binary | None = None,
    ) -> BoundKernel:
        """Load the binary, or compile one; on other devices like it at the first call there."""
        from autotune.families.gpu.keeping import kept_plan
        from autotune.gpu.arrays.kernel import device_kernel
        from autotune.gpu.launch.code import make_program
        from autotune.gpu.launch.kernel import (
            keeping_launch,
            recorded_launch,
            resident_launch,
        )

        use(self.vendor)
        ordinal, limits = _ordinal(device), limits_of(device)
        program = make_program(family, candidate.configuration, problem, limits, programs, binary)
        first = resident_launch(program, ordinal)

        def load_on(other: int) -> Launch:
            if other == ordinal:
                return first
            there = find_vendor(self.vendor).read_gpu(other)
            if there.limits != device.limits:
                raise OperandError(
                    f"operands must be on a device like the kernel's, {device.fingerprint.name}, "
                    f"and are on device {other}, {there.fingerprint.name}: load the kernel with "
                    f"device={other}"
                )
            return resident_launch(program, other)

        def keep_on(b: Place, stream: int) -> tuple[Launch, int, Callable[[], None]] | None:
            address, leading, other = b
            load_on(other)
            old = binary is not None and binary.launch is not None  # its workspace is of its time
            if old or program.copies:
                return None
            plans = kept_plan(family, candidate.configuration, problem, limits, "B")
            if plans is None:
                return None
            arguments = (0, 0, address, leading, 0, 0)
            launch, free = keeping_launch(program, plans, other, arguments, stream)
            return launch, plans.bytes, free

        record_on = functools.partial(recorded_launch, program)
        return device_kernel(problem, load_on, keep_on, record_on)

    def checker(self, problem: Problem) -> BoundKernel:
        """It launches nothing."""
        from autotune.gpu.arrays.kernel import device_kernel

        use(self.vendor)
        return device_kernel(problem, lambda device: lambda *arguments, stream: None)

    def job(
        self,
        family: KernelFamily,
        candidate: Candidate,
        problem: Problem,
        device: Device,
        programs: ProgramCache,
    ) -> Job | None:
        """The compiler, in another process."""
        from autotune.gpu.launch.code import compile_job

        use(self.vendor)
        return compile_job(family, candidate.configuration, problem, limits_of(device), programs)

    def library(self, problem: Problem, tuned: Callable[[], BoundKernel]) -> BoundKernel | None:
        """The product of the library that the operands are of, if it has one."""
        from autotune.gpu.arrays.vendor import DeviceLibrary
        from autotune.operations.problem import Gemm, multiplies

        if not isinstance(problem, Gemm) or not multiplies(problem.defined):
            return None
        return DeviceLibrary(problem, tuned)

    def clock(self) -> Clock:
        """Events on the operands' stream."""
        from autotune.gpu.arrays.clock import DeviceClock

        use(self.vendor)
        return DeviceClock()


def _ordinal(device: Device) -> int:
    """The driver's number of a device that is here."""
    device.check_here()
    return int(device.state["ordinal"])
