"""A compiled candidate: its binary, and grids and blocks for some sizes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.operations.problem import GEMM

if TYPE_CHECKING:
    from autotune.families.gpu.launch import LaunchPlan
    from autotune.operations.operation import Operation


@dataclass(frozen=True, slots=True)
class GpuProgram:
    """A compiled candidate for one problem; it can be sent between processes.

    Attributes:
        cubin: the binary.
        plan: grids, blocks and arguments of its launches.
        dtype: element type of the operands.
        layout: the layout the operands come in.
        kernel_layout: the layout the kernels were emitted for; operands that are stored
            otherwise are copied, transposed, before every launch. Operands that tensor maps cannot
            describe are copied too.
        support: the binary of the kernels that copy operands; empty where nothing is copied.
        defined: the operation, whose arguments the kernels take.
        out_dtype: element type of the result; None means `dtype`.
    """

    cubin: bytes
    plan: LaunchPlan
    dtype: str
    layout: str = "nn"
    kernel_layout: str = "nn"
    support: bytes = b""
    defined: Operation = GEMM
    out_dtype: str | None = None

    @property
    def digest(self) -> str:
        """Equal for programs that do the same: the same code, launched in the same way."""
        text = f"{self.plan}\0{self.dtype}\0{self.layout}\0{self.kernel_layout}"
        return hashlib.sha256(self.cubin + text.encode()).hexdigest()

    @property
    def flips(self) -> tuple[bool, bool]:
        """Flags of A and B: copied, transposed."""
        a, b = (self.layout[i] != self.kernel_layout[i] for i in (0, 1))
        return a, b

    @property
    def copies(self) -> bool:
        """Are operands copied before a launch, always or where they lie badly?"""
        return any(self.flips) or any(each.region is None for each in self.plan.maps)

    @property
    def is_product(self) -> bool:
        """Are its arguments those of a matrix product?"""
        return self.defined.arguments == GEMM.arguments
