"""What a candidate is launched with, for some sizes, and the binary that is launched."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from autotune.core.dtypes import DTYPES
from autotune.core.errors import SpaceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.families.family import AuxiliaryKernel, KernelFamily, Launch, TensorMap
    from autotune.families.gpu.bound import Point
    from autotune.operations.problem import Problem
    from autotune.space import Expression

Extents: TypeAlias = tuple[int, int, int]

GRID_LIMITS = (2**31, 2**16, 2**16)
"""What a grid has fewer blocks than along x, y and z (CUDA C++ Programming Guide, "Technical
Specifications per Compute Capability")."""

_NUMBERED = 2**32
"""Threads that kernels before and after the main one may have, which number them in 32 bits."""

_BOX_LIMIT = 256
"""Rows, and columns, of a box."""

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
    """

    kernel: str
    grid: Extents
    block: Extents
    shared_bytes: int = 0
    cluster: Extents = (1, 1, 1)

    @property
    def threads(self) -> int:
        """Threads per block."""
        return math.prod(self.block)

    def misfit(self, *, main: bool) -> str | None:
        """What keeps hardware from launching it, or its threads from their numbers.

        Args:
            main: whether it is the kernel itself, and not one before or after it.
        """
        if any(map(operator.ge, self.grid, GRID_LIMITS)):
            shown = " x ".join(map(str, self.grid))
            return f"a grid has fewer than 2^31 x 2^16 x 2^16 blocks, and {self.kernel} {shown}"
        if not main and self.grid[0] * self.block[0] > _NUMBERED:
            return f"{self.kernel} numbers its threads in 32 bits, and would have more"
        return None


@dataclass(frozen=True, slots=True)
class MappedOperand:
    """An operand that the kernels are given as boxes too: a `TensorMap` of a family's.

    Attributes:
        operand: its name.
        transposed: whether they take it as stored transposed.
        box: rows and columns of a box, as stored.
        swizzle: bytes of the rows within which a box is permuted in shared memory.
        rounded: what elements are rounded to on their way; empty for nothing.
    """

    operand: str
    transposed: bool
    box: tuple[int, int]
    swizzle: int = 0
    rounded: str = ""


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
        maps: operands of which they are given tensor maps, after all that.
    """

    sizes: tuple[int, ...]
    steps: tuple[LaunchStep, ...]
    workspace_bytes: int | None = None
    runtime: tuple[int, ...] = ()
    zeroed_bytes: int = 0
    maps: tuple[MappedOperand, ...] = ()


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
    """What a family's kernels are compiled for.

    Args:
        family: whose kernels.
        device: the architecture of the device: "sm_90".
    """
    launch = family.launch
    return f"{device}a" if launch is not None and launch.architecture_features else device


def plan_launch(point: Point) -> LaunchPlan:
    """What a configuration launches for a problem.

    Raises:
        SpaceError: its launch is not whole or not positive for these sizes.
    """
    family = point.bound.family
    launch = _launch(family)

    def whole(expression: Expression, least: int) -> int:
        return point.whole(expression, least, "cannot be launched")

    def extents(expressions: tuple[Expression, ...]) -> Extents:
        x, y, z = (whole(each, 1) for each in expressions)
        return x, y, z

    def checked(step: LaunchStep, *, main: bool = False) -> LaunchStep:
        if (misfit := step.misfit(main=main)) is not None:
            raise SpaceError(
                f"family {family.name!r} cannot be launched for {point.problem.label}: {misfit}"
            )
        return step

    def auxiliary(kernels: tuple[AuxiliaryKernel, ...]) -> tuple[LaunchStep, ...]:
        return tuple(
            checked(LaunchStep(each.kernel, extents(each.grid), extents(each.block)))
            for each in kernels
            if each.when.holds(point.known)
        )

    main = LaunchStep(
        family.operation,
        extents(launch.grid),
        extents(launch.block),
        whole(launch.shared_bytes, 0),
        extents(launch.cluster),
    )
    checked(main, main=True)

    def mapped() -> Iterator[MappedOperand]:
        for each, transposed in stored_maps(family, point.problem):
            if each.when.holds(point.known):
                rows, columns = (whole(size, 1) for size in each.stored_box(transposed=transposed))
                yield mapped_operand(family, point.problem, each, transposed, (rows, columns))

    workspace = None if launch.workspace_bytes is None else whole(launch.workspace_bytes, 0)
    zeroed = whole(launch.zeroed_bytes, 0)
    if zeroed > (workspace or 0) or zeroed % 4 != 0:
        raise SpaceError(
            f"family {family.name!r} cannot be launched for {point.problem.label}: "
            "zeroed_bytes must be whole words of 4 bytes within the workspace of "
            f"{workspace or 0} bytes, got {zeroed}"
        )
    return LaunchPlan(
        sizes=point.problem.shape,
        steps=(*auxiliary(launch.before), main, *auxiliary(launch.after)),
        workspace_bytes=workspace,
        runtime=point.bound.runtime,
        zeroed_bytes=zeroed,
        maps=tuple(mapped()),
    )


def stored_maps(family: KernelFamily, problem: Problem) -> Iterator[tuple[TensorMap, bool]]:
    """A family's tensor maps, each with whether the kernel takes its operand transposed."""
    launch = _launch(family)
    # Layouts are of the two factors of a product; other operands are stored as they are named.
    turned = dict(zip("AB", kernel_layout(family, problem.layout), strict=True))
    for each in launch.tensor_maps:
        yield each, turned.get(each.operand) == "t"


def mapped_operand(
    family: KernelFamily,
    problem: Problem,
    tensor_map: TensorMap,
    transposed: bool,
    box: tuple[int, int],
) -> MappedOperand:
    """What a plan says of a tensor map, of a box as the family's file has it.

    The rules are those of ``cuTensorMapEncodeTiled`` (CUDA driver API, "Tensor Map Object
    Management").

    Raises:
        SpaceError: hardware copies no such boxes.
    """
    rows, columns = box
    itemsize = DTYPES[problem.dtype].itemsize
    row_bytes = columns * itemsize
    if _is_written(family, tensor_map):
        itemsize, row_bytes = DTYPES[problem.result_dtype].itemsize, columns
        columns = row_bytes // itemsize
    longest = tensor_map.swizzle or row_bytes
    if max(rows, columns) > _BOX_LIMIT or row_bytes % ROW_BYTES or row_bytes > longest:
        raise SpaceError(
            f"family {family.name!r} cannot be launched for {problem.label}: a box of "
            f"{tensor_map.operand} must have {_BOX_LIMIT} rows and columns at most, and rows of "
            f"whole {ROW_BYTES} bytes"
            + (f" within swizzled ones of {tensor_map.swizzle}" if tensor_map.swizzle else "")
            + f"; it has {rows} rows of {row_bytes} bytes"
        )
    return MappedOperand(
        tensor_map.operand, transposed, (rows, columns), tensor_map.swizzle, tensor_map.rounded
    )


def resident_blocks(point: Point) -> int:
    """The least number of blocks that must fit a multiprocessor at once."""
    return int(_launch(point.bound.family).resident_blocks.evaluate(point.known))


def _is_written(family: KernelFamily, tensor_map: TensorMap) -> bool:
    (operand,) = (each for each in family.defined.operands if each.name == tensor_map.operand)
    return operand.written


def _launch(family: KernelFamily) -> Launch:
    if family.launch is None:
        raise SpaceError(f"family {family.name!r} has no [launch]: it is not for this target")
    return family.launch
