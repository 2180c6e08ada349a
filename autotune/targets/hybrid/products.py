"""The kernel that multiplies within a GPU, as it is sent between processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.families.catalog import load_families
from autotune.targets.cuda.machine.machine import GpuMachine
from autotune.targets.cuda.machine.products import Multiplier, Products

if TYPE_CHECKING:
    from autotune.core.configuration import Candidate
    from autotune.core.limits import CudaLimits
    from autotune.families.launch import Binary
    from autotune.families.program_cache import ProgramCache


@dataclass(frozen=True, slots=True)
class LocalKernel:
    """The kernel that multiplies within a GPU.

    Attributes:
        candidate: a family of target cuda, and a configuration of it.
        dtype: element type.
        limits: of the GPUs, which are all alike.
        binary: what it was compiled to; None compiles it.
    """

    candidate: Candidate
    dtype: str
    limits: CudaLimits
    binary: Binary | None


def machine_with(local: LocalKernel, devices: int, programs: ProgramCache) -> GpuMachine:
    """The first GPUs here, with a kernel that multiplies.

    Args:
        local: the kernel.
        devices: how many GPUs.
        programs: where sources are, and what was compiled from them before.
    """
    family = load_families(target="cuda")[local.candidate.family]
    kernel = Multiplier(family, local.candidate.configuration, local.binary)
    products = Products(local.dtype, local.limits, [kernel], programs)
    return GpuMachine(range(devices), local.dtype, products)
