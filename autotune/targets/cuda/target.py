"""The targets `cuda` and `numba-cuda`: emitted sources on an NVIDIA GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from autotune.core.device import Device
from autotune.core.errors import InputError, MissingDependencyError, OperandError, UnknownNameError
from autotune.core.limits import CudaLimits
from autotune.targets.cuda.device.known_gpus import find_gpu

if TYPE_CHECKING:
    from autotune.core.configuration import Candidate
    from autotune.families.family import KernelFamily
    from autotune.families.launch import Binary
    from autotune.families.program_cache import ProgramCache
    from autotune.measuring.evaluator import Effort, Evaluator
    from autotune.operations.problem import Problem
    from autotune.targets.cuda.arrays.kernel import Launch
    from autotune.targets.cuda.device.known_gpus import KnownGpu

from autotune.targets.base import BoundKernel


class CudaTarget:
    """Emitted CUDA C++ on an NVIDIA GPU."""

    name: ClassVar[str] = "cuda"

    def default_family(self, device: Device) -> str:
        """Tiles fed by asynchronous copies, where the device has those."""
        return "pipelined" if _cuda_limits(device).compute_capability >= 80 else "block"

    def device(self, problem: Problem | None = None, name: int | str | None = None) -> Device:
        """One of the GPUs here; one named that is not here is looked up among the known ones."""
        from autotune.targets.cuda.device.identity import read_gpu

        try:
            return read_gpu(name)
        except (UnknownNameError, MissingDependencyError):
            if name is None or str(name).strip().isdecimal():
                raise
            return _described(find_gpu(str(name)))

    def evaluator(
        self,
        problem: Problem,
        families: Mapping[str, KernelFamily],
        device: Device,
        programs: ProgramCache,
        *,
        effort: Effort | None,
        workers: int | None,
        seed: int,
        beside: Evaluator | None = None,
    ) -> Evaluator:
        """Compile workers, and one process that owns the GPU."""
        from autotune.targets.cuda.measure.evaluator import CudaEvaluator

        _ordinal(device)
        return CudaEvaluator(
            problem,
            families,
            device,
            programs,
            effort=effort,
            workers=workers,
            seed=seed,
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
        from autotune.targets.cuda.arrays.kernel import device_kernel
        from autotune.targets.cuda.device.identity import read_gpu
        from autotune.targets.cuda.launch.launch import CudaKernel
        from autotune.targets.cuda.launch.loading import make_program

        ordinal = _ordinal(device)
        program = make_program(
            family, candidate.configuration, problem, _cuda_limits(device), programs, binary
        )
        first = CudaKernel(program, ordinal)

        def load_on(other: int) -> Launch:
            if other == ordinal:
                return first.launch
            there = read_gpu(other)
            if there.limits != device.limits:
                raise OperandError(
                    f"operands must be on a device like the kernel's, {device.fingerprint.name}, "
                    f"and are on device {other}, {there.fingerprint.name}: load the kernel with "
                    f"device={other}"
                )
            return CudaKernel(program, other).launch

        return device_kernel(problem, load_on)


class NumbaCudaTarget(CudaTarget):
    """Emitted Numba source on an NVIDIA GPU: another compiler, the same device and launches."""

    name: ClassVar[str] = "numba-cuda"

    def default_family(self, device: Device) -> str:
        """Tiles of several elements per thread."""
        return "block"

    def device(self, problem: Problem | None = None, name: int | str | None = None) -> Device:
        """As for CUDA, with this target's compiler beside the other."""
        from autotune.targets.cuda.compile.numba_compiler import toolchain

        device = super().device(problem, name)
        if not device.toolchain:  # it is not here
            return device
        return replace(device, toolchain={**device.toolchain, **toolchain()})

    def evaluator(
        self,
        problem: Problem,
        families: Mapping[str, KernelFamily],
        device: Device,
        programs: ProgramCache,
        *,
        effort: Effort | None,
        workers: int | None,
        seed: int,
        beside: Evaluator | None = None,
    ) -> Evaluator:
        """As for CUDA.

        Raises:
            MissingDependencyError: Numba-CUDA, NVVM or nvJitLink is missing.
        """
        from autotune.targets.cuda.compile.numba_compiler import check_numba

        check_numba()
        return super().evaluator(
            problem,
            families,
            device,
            programs,
            effort=effort,
            workers=workers,
            seed=seed,
            beside=beside,
        )


def _described(gpu: KnownGpu) -> Device:
    """A GPU that is not here, as far as a description goes."""
    from autotune.targets.cuda.device.identity import gpu_fingerprint

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
