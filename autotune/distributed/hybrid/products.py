"""The GPUs of this host, with the kernel that multiplies within each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.distributed.machine.local import LocalKernel
from autotune.distributed.machine.machine import GpuMachine
from autotune.distributed.machine.products import Products

if TYPE_CHECKING:
    from autotune.families.program_cache import ProgramCache

__all__ = ["LocalKernel", "machine_with"]


def machine_with(local: LocalKernel, devices: int, programs: ProgramCache) -> GpuMachine:
    """The first GPUs here, with a kernel that multiplies.

    Args:
        local: the kernel.
        devices: how many GPUs.
        programs: where sources are, and what was compiled from them before.
    """
    return GpuMachine(range(devices), local.dtype, Products([local], programs))
