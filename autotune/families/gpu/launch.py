"""Launch plans of candidates, for some sizes, and the binary that is launched.

Records hold them as well: types say what is accepted of one that was read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from autotune.core.checks import AnyLine, Count, Identifier, Line, Whole

if TYPE_CHECKING:
    from autotune.families.family import KernelFamily

Extents: TypeAlias = tuple[Count, Count, Count]

ROW_BYTES = 16
"""Tensor maps are of matrices whose address and distance of rows are whole numbers of that, and
so are the rows of their boxes."""


@dataclass(frozen=True, slots=True)
class LaunchStep:
    """One kernel of the source and what it is launched with.

    Attributes:
        kernel: its name.
        grid: thread blocks along x, y and z.
        block: threads per block along x, y and z.
        shared_bytes: dynamic shared memory of one block.
        cluster: thread blocks of a cluster along x, y and z, which the binary says itself.
        dependent: whether it waits itself for what comes before it in the stream, and may begin
            earlier (programmatic dependent launch).
        cooperative: whether its blocks wait for each other: the driver refuses a grid that the
            device cannot hold at once.
    """

    kernel: Identifier
    grid: Extents
    block: Extents
    shared_bytes: Whole = 0
    cluster: Extents = (1, 1, 1)
    dependent: bool = False
    cooperative: bool = False

    @property
    def threads(self) -> int:
        """Threads per block."""
        return math.prod(self.block)


@dataclass(frozen=True, slots=True)
class MappedRegion:
    """A row-major matrix in the workspace.

    Attributes:
        dtype: element type.
        offset: bytes from the start of the workspace.
        rows: rows.
        columns: elements of a row.
        leading: elements from one row to the next.
    """

    dtype: Line
    offset: Whole
    rows: Count
    columns: Count
    leading: Count


@dataclass(frozen=True, slots=True)
class MappedOperand:
    """A matrix that the kernels are given as boxes too: a `TensorMap` of a family's.

    Attributes:
        operand: name of the operand, or of the region of the workspace.
        transposed: whether they take it as stored transposed.
        box: rows and columns of a box, as stored.
        swizzle: bytes of the rows within which a box is permuted in shared memory.
        rounded: what elements are rounded to on their way; empty for nothing.
        region: where it lies in the workspace; None for an operand.
    """

    operand: Line
    transposed: bool
    box: tuple[Count, Count]
    swizzle: Whole = 0
    rounded: AnyLine = ""
    region: MappedRegion | None = None


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Everything that one call launches.

    Attributes:
        sizes: the operation's, in order.
        steps: the kernels, in order.
        workspace_bytes: device memory that they are given; None means that they take no such
            argument.
        runtime: values of the parameters that are passed at the call, after all else.
        zeroed_bytes: how much of that memory, from its start on, is zero whenever a call begins;
            the kernels leave it zero.
        maps: matrices of which they are given tensor maps, after all that.
    """

    sizes: tuple[int, ...]
    steps: tuple[LaunchStep, ...]
    workspace_bytes: int | None = None
    runtime: tuple[int, ...] = ()
    zeroed_bytes: int = 0
    maps: tuple[MappedOperand, ...] = ()

    @property
    def blocks_at_once(self) -> int:
        """The blocks that must be resident at once, as they wait for each other; 0 for none."""
        return max((math.prod(each.grid) for each in self.steps if each.cooperative), default=0)


@dataclass(frozen=True, slots=True)
class Binary:
    """A compiled candidate: all it takes to run it without a compiler.

    Attributes:
        content: the binary.
        architecture: what it runs on: "sm_90", or "sm_90a" with features of that one alone.
        launch: what it is launched with, for one problem's sizes; None says that its family's
            expressions are to be evaluated.
        support: the binary of the kernels that copy operands which it cannot read where they
            lie; empty where nothing is copied.
        layout: that the kernels were emitted for; None says that it is what the family says.
    """

    content: bytes
    architecture: str
    launch: LaunchPlan | None
    support: bytes = b""
    layout: str | None = None


def kernel_layout(family: KernelFamily, layout: str) -> str:
    """The layout that a family's kernels are emitted for when operands come in `layout`."""
    return layout if layout in family.layouts else family.layouts[0]


def architecture_of(family: KernelFamily, device: str) -> str:
    """The architecture that a family's kernels are compiled for on a device of another's name.

    Args:
        family: whose kernels.
        device: the architecture of the device: "sm_90".
    """
    launch = family.launch
    own = launch is not None and launch.architecture_features
    return family.language.featured(device) if own else device
