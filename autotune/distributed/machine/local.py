"""The kernel that multiplies within a GPU, as it is sent between processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.core.configuration import Candidate
    from autotune.core.limits import GpuLimits
    from autotune.families.gpu.launch import Binary


@dataclass(frozen=True, slots=True)
class LocalKernel:
    """A kernel for the part of a product that one GPU has.

    Attributes:
        candidate: a family of target cuda, and a configuration of it.
        digest: the family's.
        dtype: element type.
        limits: of the GPUs, which are all alike.
        binary: what it was compiled to; None compiles it.
    """

    candidate: Candidate
    digest: str
    dtype: str
    limits: GpuLimits
    binary: Binary | None
