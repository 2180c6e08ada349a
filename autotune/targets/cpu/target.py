"""The target `cpu`: emitted Numba source on the processor of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from autotune.core.device import Device
from autotune.core.errors import InputError
from autotune.core.limits import CpuLimits

if TYPE_CHECKING:
    from autotune.core.configuration import Candidate
    from autotune.families.family import KernelFamily
    from autotune.families.launch import Binary
    from autotune.families.program_cache import ProgramCache
    from autotune.measuring.evaluator import Effort, Evaluator
    from autotune.operations.problem import Problem

from autotune.targets.base import BoundKernel


class CpuTarget:
    """Emitted Numba source on the processor this process runs on."""

    name: ClassVar[str] = "cpu"

    def default_family(self, device: Device) -> str:
        """Tiles in vector registers."""
        return "goto"

    def device(self, problem: Problem | None = None, name: int | str | None = None) -> Device:
        """This machine's CPU; the thread limit is capped by the problem's `threads`."""
        from autotune.targets.cpu.identity import read_cpu

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
        """Compile workers and one measurement worker on this machine."""
        from autotune.targets.cpu import CpuEvaluator

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
        problem: Problem,
        device: Device,
        programs: ProgramCache,
        binary: Binary | None = None,
    ) -> BoundKernel:
        """Load the emitted module, from Numba's file cache when it was compiled before."""
        from autotune.targets.cpu.call import host_kernel

        bound = host_kernel(family, candidate.configuration, problem, device.limits, programs)
        return bound.__call__  # Python calls a method faster than an object
