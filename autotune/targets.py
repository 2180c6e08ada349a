"""Targets: where kernels run. One table; each entry knows its device, evaluator and callable."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

from autotune.cuda_limits import CudaLimits
from autotune.device import CpuLimits, Device
from autotune.errors import InputError, MissingDependencyError, OperandError, UnknownNameError
from autotune.hybrid_target import HybridTarget
from autotune.known_gpus import find_gpu
from autotune.mpi_target import MpiTarget
from autotune.suggestions import must_be

if TYPE_CHECKING:
    from autotune.configuration import Candidate
    from autotune.device_kernel import Launch
    from autotune.evaluators.base import Binary, Effort, Evaluator
    from autotune.family import KernelFamily
    from autotune.known_gpus import KnownGpu
    from autotune.problem import Gemm
    from autotune.program_cache import ProgramCache

_log = logging.getLogger(__name__)

BoundKernel: TypeAlias = Callable[..., Any]
"""``kernel(a, b, out, alpha, beta, stream)``: checks operands, computes or enqueues, returns C."""


class Target(Protocol):
    """What the tuner and the runtime need of a target."""

    name: ClassVar[str]

    def default_family(self, device: Device) -> str:
        """The family whose default configuration serves a problem nothing was tuned for."""
        ...

    def device(self, problem: Gemm | None = None, name: int | str | None = None) -> Device:
        """Read the live device; with a problem, under that problem's own caps.

        Args:
            problem: what is to run there.
            name: which device, where a target has several: a number or (part of) a name, also of
                one that is not here, to work on spaces and sources without it.

        Raises:
            UnknownNameError: there is no such device; the message lists those there are.
            MissingDependencyError: a package or the device itself is missing.
        """
        ...

    def evaluator(
        self,
        problem: Gemm,
        families: Mapping[str, KernelFamily],
        device: Device,
        programs: ProgramCache,
        *,
        effort: Effort | None,
        workers: int | None,
        seed: int,
        beside: Evaluator | None = None,
    ) -> Evaluator:
        """A running evaluator for one problem; the caller closes it.

        Args:
            problem: what is computed.
            families: by name.
            device: as `device` gives it.
            programs: where sources and binaries go.
            effort: how long and how exactly to measure; None takes the default.
            workers: compile workers; None takes one for each core.
            seed: seeds the operands.
            beside: an evaluator of this target, for another problem, that stays open longer: its
                processes are used where they will do.
        """
        ...

    def kernel(
        self,
        family: KernelFamily,
        candidate: Candidate,
        problem: Gemm,
        device: Device,
        programs: ProgramCache,
        binary: Binary | None = None,
    ) -> BoundKernel:
        """The compiled kernel of a candidate.

        Args:
            family: the candidate's family.
            candidate: which kernel.
            problem: what it computes.
            device: where it runs, as `device` gives it.
            programs: where sources are, and what was compiled from them.
            binary: what the candidate was compiled to before; None compiles it.
        """
        ...


class CpuTarget:
    """Emitted Numba source on the processor this process runs on."""

    name: ClassVar[str] = "cpu"

    def default_family(self, device: Device) -> str:
        """Tiles in vector registers."""
        return "goto"

    def device(self, problem: Gemm | None = None, name: int | str | None = None) -> Device:
        """This machine's CPU; the thread limit is capped by the problem's `threads`."""
        from autotune.evaluators.cpu.identity import read_cpu

        if name is not None:
            raise InputError(f"a device names a GPU, and the target is cpu: got {name!r}")
        device = read_cpu()
        cap = getattr(problem, "threads", None)
        if cap is None or not isinstance(device.limits, CpuLimits):
            return device
        threads = min(cap, device.limits.max_threads)
        return replace(device, limits=replace(device.limits, max_threads=threads))

    def evaluator(
        self,
        problem: Gemm,
        families: Mapping[str, KernelFamily],
        device: Device,
        programs: ProgramCache,
        *,
        effort: Effort | None,
        workers: int | None,
        seed: int,
        beside: Evaluator | None = None,
    ) -> Evaluator:
        """Compile workers and one measurement worker on this machine."""
        from autotune.evaluators.cpu import CpuEvaluator

        return CpuEvaluator(
            problem,
            families,
            device,
            programs,
            effort=effort,
            workers=workers,
            seed=seed,
            beside=beside if isinstance(beside, CpuEvaluator) else None,
        )

    def kernel(
        self,
        family: KernelFamily,
        candidate: Candidate,
        problem: Gemm,
        device: Device,
        programs: ProgramCache,
        binary: Binary | None = None,
    ) -> BoundKernel:
        """Load the emitted module, from Numba's file cache when it was compiled before."""
        from autotune.host_kernel import host_kernel

        bound = host_kernel(family, candidate.configuration, problem, device.limits, programs)
        return bound.__call__  # Python calls a method faster than an object


class CudaTarget:
    """Emitted CUDA C++ on an NVIDIA GPU."""

    name: ClassVar[str] = "cuda"

    def default_family(self, device: Device) -> str:
        """Tiles fed by asynchronous copies, where the device has those."""
        return "pipelined" if _cuda_limits(device).compute_capability >= 80 else "block"

    def device(self, problem: Gemm | None = None, name: int | str | None = None) -> Device:
        """One of the GPUs here; one named that is not here is looked up among the known ones."""
        from autotune.evaluators.cuda.identity import read_gpu

        try:
            return read_gpu(name)
        except (UnknownNameError, MissingDependencyError):
            if name is None or str(name).strip().isdecimal():
                raise
            return _described(find_gpu(str(name)))

    def evaluator(
        self,
        problem: Gemm,
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
        from autotune.evaluators.cuda.evaluator import CudaEvaluator

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
        problem: Gemm,
        device: Device,
        programs: ProgramCache,
        binary: Binary | None = None,
    ) -> BoundKernel:
        """Load the binary, or compile one; on other devices like it at the first call there."""
        from autotune.device_kernel import DeviceKernel
        from autotune.evaluators.cuda.identity import read_gpu
        from autotune.evaluators.cuda.launch import CudaKernel
        from autotune.evaluators.cuda.loading import make_program

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

        return DeviceKernel(problem, load_on)


class NumbaCudaTarget(CudaTarget):
    """Emitted Numba source on an NVIDIA GPU: another compiler, the same device and launches."""

    name: ClassVar[str] = "numba-cuda"

    def default_family(self, device: Device) -> str:
        """Tiles of several elements per thread."""
        return "block"

    def device(self, problem: Gemm | None = None, name: int | str | None = None) -> Device:
        """As for CUDA, with this target's compiler beside the other."""
        from autotune.evaluators.cuda.numba_compiler import toolchain

        device = super().device(problem, name)
        if not device.toolchain:  # it is not here
            return device
        return replace(device, toolchain={**device.toolchain, **toolchain()})

    def evaluator(
        self,
        problem: Gemm,
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
        from autotune.evaluators.cuda.numba_compiler import check_numba

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
    from autotune.evaluators.cuda.identity import gpu_fingerprint

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


# Best first.
_TARGETS: Mapping[str, Callable[[], Target]] = {
    "cuda": CudaTarget,
    "numba-cuda": NumbaCudaTarget,
    "cpu": CpuTarget,
    "mpi": MpiTarget,
    "hybrid": HybridTarget,
}


def target_names() -> Sequence[str]:
    """The targets there are, best first."""
    return tuple(_TARGETS)


def make_target(name: str | Target | None) -> Target:
    """The target called `name`; None picks the best this machine has. A target is itself.

    Where None means the CPU although a GPU is here, a warning says why, once in a process.

    Raises:
        UnknownNameError: there is no such target; the message lists those there are.
    """
    if name is None:
        from autotune.evaluators.cuda.presence import can_run

        if can_run():
            return CudaTarget()
        _warn_of_unused_gpu()
        return CpuTarget()
    if not isinstance(name, str):
        return name
    if name not in _TARGETS:
        raise UnknownNameError(must_be("target", name, _TARGETS))
    return _TARGETS[name]()


@functools.cache
def _warn_of_unused_gpu() -> None:
    from autotune.evaluators.cuda.presence import unused

    told = unused()
    if told is not None:
        _log.warning("%s", told)
