"""The targets `cuda` and `numba-cuda`: emitted sources on an NVIDIA GPU."""

from __future__ import annotations

import logging
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, ClassVar

from autotune.core import session
from autotune.core.device import SETTINGS, Device
from autotune.core.errors import InputError, MissingDependencyError, OperandError, UnknownNameError
from autotune.core.limits import CudaLimits
from autotune.gpu.nvidia.device import presence
from autotune.gpu.nvidia.device.known_gpus import find_gpu
from autotune.serving.numba_settings import numba_settings
from autotune.serving.reports import Found
from autotune.serving.target import Placement, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from autotune.core.check import Check
    from autotune.core.configuration import Candidate, Configuration
    from autotune.core.device import DeviceFingerprint
    from autotune.exporting.exportable import Exportable, Exported
    from autotune.families.family import KernelFamily
    from autotune.families.gpu.launch import Binary
    from autotune.families.languages import Language
    from autotune.families.program_cache import ProgramCache
    from autotune.families.rendering import Source
    from autotune.gpu.arrays.kernel import Launch
    from autotune.gpu.nvidia.device.known_gpus import KnownGpu
    from autotune.measuring.evaluator import Evaluator
    from autotune.operations.problem import Problem
    from autotune.serving.background import Job
    from autotune.serving.clock import Clock
    from autotune.serving.kernel import BoundKernel, Kernel, Request
    from autotune.serving.reports import HostCalls, Model, Resources
    from autotune.serving.target import Work

_log = logging.getLogger(__name__)


class CudaTarget(Target):
    """Emitted CUDA C++ on an NVIDIA GPU."""

    name: ClassVar[str] = "cuda"
    changes: ClassVar[bool] = False

    @classmethod
    def language(cls) -> Language:
        """CUDA C++."""
        from autotune.families.gpu import cuda_source
        from autotune.families.gpu.cuda_kernels import kernels_of
        from autotune.families.gpu.cuda_layout import laid_out
        from autotune.families.languages import Language

        return Language(
            limits=_LIMITS,
            check=cuda_source.check,
            names=cuda_source.names,
            reserved=cuda_source.reserved,
            suffix=".cu",
            own_operations=True,
            epilogue=cuda_source.epilogue,
            lay_out=laid_out,
            headers=True,
            kernels=kernels_of,
            launched=True,
            mapped=True,
        )

    @classmethod
    def is_usable(cls) -> bool:
        """Where there is a GPU; a warning says, once, why one that is here is not used."""
        if not presence.can_run():
            _warn_of_unused_gpu()
            return False
        return True

    @classmethod
    def placement(cls, fingerprint: DeviceFingerprint) -> Placement:
        """The GPU of that name; the first one serves where it is here."""
        return Placement(device=fingerprint.name)

    @classmethod
    def found(cls) -> Found | None:
        """The GPUs that are here."""
        seen = presence.look()
        return Found(
            "GPUs",
            tuple(asdict(gpu) | {"usable": seen.usable} for gpu in seen.gpus),
            tuple(map(str, seen.gpus)),
            seen.missing or "",
        )

    @property
    def names_devices(self) -> bool:
        """Each GPU is one."""
        return True

    def device(self, problem: Problem | None = None, name: int | str | None = None) -> Device:
        """One of the GPUs here; one named that is not here is looked up among the known ones."""
        from autotune.gpu.nvidia.device.identity import read_gpu

        try:
            return read_gpu(name)
        except (UnknownNameError, MissingDependencyError):
            if name is None or str(name).strip().isdecimal():
                raise
            return _described(find_gpu(str(name)))

    def caps(self, problem: Problem) -> tuple[Hashable, ...]:
        """None of it: all problems meet the same GPU."""
        return ()

    def evaluator(self, work: Work, beside: Evaluator | None = None) -> Evaluator:
        """Compile workers, and one process that owns the GPU."""
        from autotune.gpu.measure.evaluator import CudaEvaluator

        _ordinal(work.device)
        return CudaEvaluator(
            work.problem,
            work.families,
            work.device,
            work.programs,
            effort=work.effort,
            workers=work.workers,
            seed=work.seed,
            beside=beside if isinstance(beside, CudaEvaluator) else None,
        )

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
        from autotune.gpu.arrays.kernel import device_kernel
        from autotune.gpu.launch.loading import make_program
        from autotune.gpu.launch.resident import resident_launch
        from autotune.gpu.nvidia.device.identity import read_gpu

        ordinal = _ordinal(device)
        program = make_program(
            family, candidate.configuration, problem, _cuda_limits(device), programs, binary
        )
        first = resident_launch(program, ordinal)

        def load_on(other: int) -> Launch:
            if other == ordinal:
                return first
            there = read_gpu(other)
            if there.limits != device.limits:
                raise OperandError(
                    f"operands must be on a device like the kernel's, {device.fingerprint.name}, "
                    f"and are on device {other}, {there.fingerprint.name}: load the kernel with "
                    f"device={other}"
                )
            return resident_launch(program, other)

        return device_kernel(problem, load_on)

    def job(
        self,
        family: KernelFamily,
        candidate: Candidate,
        problem: Problem,
        device: Device,
        programs: ProgramCache,
    ) -> Job | None:
        """The compiler, in another process."""
        from autotune.gpu.launch.ahead import compile_job

        limits = _cuda_limits(device)
        return compile_job(family, candidate.configuration, problem, limits, programs)

    def load(self, request: Request) -> Kernel:
        """The record's kernel, or the default."""
        from autotune.serving.loading import load_kernel

        return load_kernel(self, request)

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

        return DeviceClock()

    def export(self, exportable: Exportable, form: str) -> Exported:
        """Source, binary, and a launcher for the driver's API."""
        from autotune.gpu.exporting import export

        return export(exportable, form)

    def resources(
        self,
        family: KernelFamily,
        source: Source,
        configuration: Configuration,
        problem: Problem,
        device: Device,
    ) -> Resources | None:
        """What the binary says, beside what was estimated."""
        from autotune.gpu.nvidia.compile.resources import resources

        return resources(family, source, configuration, problem, device)

    def model(self, family: KernelFamily, problem: Problem, device: Device) -> Model | None:
        """A model of the resources that a block needs."""
        from autotune.families.gpu.resource_model import expected_log_time

        return expected_log_time(family, problem, _cuda_limits(device))

    def host_calls(
        self, problem: Problem, device: Device, programs: ProgramCache
    ) -> HostCalls | None:
        """Copies to the GPU and back."""
        from autotune.gpu.measure.host_call import DeviceCalls

        return DeviceCalls(problem, device, programs)

    @classmethod
    def described_devices(cls) -> Sequence[str]:
        """The known GPUs."""
        from autotune.gpu.nvidia.device.known_gpus import known_gpus

        return tuple(known_gpus())

    @classmethod
    def examine(cls) -> Iterator[Check]:
        """The GPUs, their driver, and what compiles and runs kernels."""
        from autotune.gpu.examining import examine

        return examine()


class NumbaCudaTarget(CudaTarget):
    """Emitted Numba source on an NVIDIA GPU: another compiler, the same device and launches."""

    name: ClassVar[str] = "numba-cuda"

    @classmethod
    def language(cls) -> Language:
        """Python for Numba-CUDA; its templates share a signature of their own."""
        from autotune.families.languages import Language
        from autotune.families.python_source import check_module

        return Language(
            limits=_LIMITS,
            check=check_module,
            launched=True,
            runtime=False,
            settings=numba_settings,
        )

    def device(self, problem: Problem | None = None, name: int | str | None = None) -> Device:
        """As for CUDA, with this target's compiler beside the other."""
        from autotune.gpu.nvidia.compile.numba_compiler import toolchain

        device = super().device(problem, name)
        if not device.toolchain:  # it is not here
            return device
        settings = {SETTINGS: said} if (said := numba_settings()) else {}
        return replace(device, toolchain={**device.toolchain, **toolchain(), **settings})

    def evaluator(self, work: Work, beside: Evaluator | None = None) -> Evaluator:
        """As for CUDA.

        Raises:
            MissingDependencyError: Numba-CUDA, NVVM or nvJitLink is missing.
        """
        from autotune.gpu.nvidia.compile.numba_compiler import check_numba

        check_numba()
        return super().evaluator(work, beside)

    @classmethod
    def examine(cls) -> Iterator[Check]:
        """This target's compiler; the rest is that of target cuda."""
        from autotune.gpu.examining import examine_numba

        return examine_numba()


_LIMITS = frozenset(each.name for each in fields(CudaLimits))


@session.cached()
def _warn_of_unused_gpu() -> None:
    told = presence.unused()
    if told is not None:
        _log.warning("%s", told)


def _described(gpu: KnownGpu) -> Device:
    """A GPU that is not here, as far as a description goes."""
    from autotune.gpu.nvidia.device.identity import gpu_fingerprint

    fingerprint = gpu_fingerprint(gpu.name, gpu.limits, gpu.memory_bytes, ecc=False)
    return Device(fingerprint, gpu.limits, toolchain={}, state={}, described=True)


def _ordinal(device: Device) -> int:
    """The driver's number of a device that is here."""
    device.check_here()
    return int(device.state["ordinal"])


def _cuda_limits(device: Device) -> CudaLimits:
    if not isinstance(device.limits, CudaLimits):
        raise InputError(f"the device must be a GPU, got {device.fingerprint.name}")
    return device.limits
