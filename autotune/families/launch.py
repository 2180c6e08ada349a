"""What a candidate is launched with, for some sizes, and the binary that is launched."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from autotune.core.errors import SpaceError

if TYPE_CHECKING:
    from autotune.families.bound import Point
    from autotune.families.family import AuxiliaryKernel, KernelFamily, Launch
    from autotune.space import Expression

Extents: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class LaunchStep:
    """One kernel of the source and what it is launched with.

    Attributes:
        kernel: its name.
        grid: thread blocks along x, y and z.
        block: threads per block along x, y and z.
        shared_bytes: dynamic shared memory of one block.
    """

    kernel: str
    grid: Extents
    block: Extents
    shared_bytes: int = 0

    @property
    def threads(self) -> int:
        """Threads per block."""
        return math.prod(self.block)


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
    """

    sizes: tuple[int, ...]
    steps: tuple[LaunchStep, ...]
    workspace_bytes: int | None = None
    runtime: tuple[int, ...] = ()
    zeroed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Binary:
    """A compiled candidate: all it takes to run it without a compiler.

    Attributes:
        content: the binary.
        architecture: what it runs on: "sm_90".
        launch: what it is launched with, for one problem's sizes; None says that its family's
            expressions are to be evaluated.
        support: the binary of the kernel that copies, transposed, operands whose layout it does
            not read; empty where nothing is copied.
    """

    content: bytes
    architecture: str
    launch: LaunchPlan | None
    support: bytes = b""


def kernel_layout(family: KernelFamily, layout: str) -> str:
    """The layout that a family's kernels are emitted for when operands come in `layout`."""
    return layout if layout in family.layouts else "nn"


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

    def auxiliary(kernels: tuple[AuxiliaryKernel, ...]) -> tuple[LaunchStep, ...]:
        return tuple(
            LaunchStep(each.kernel, extents(each.grid), extents(each.block))
            for each in kernels
            if each.when.holds(point.known)
        )

    main = LaunchStep(
        family.operation,
        extents(launch.grid),
        extents(launch.block),
        whole(launch.shared_bytes, 0),
    )
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
    )


def resident_blocks(point: Point) -> int:
    """The least number of blocks that must fit a multiprocessor at once."""
    return int(_launch(point.bound.family).resident_blocks.evaluate(point.known))


def _launch(family: KernelFamily) -> Launch:
    if family.launch is None:
        raise SpaceError(f"family {family.name!r} has no [launch]: it is not for this target")
    return family.launch
