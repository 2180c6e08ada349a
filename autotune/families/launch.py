"""What a candidate is launched with, for some sizes, and the binary that is launched."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from autotune.core.errors import SpaceError
from autotune.space import UndefinedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.core.configuration import Value
    from autotune.core.device import DeviceLimits
    from autotune.families.family import AuxiliaryKernel, KernelFamily, Launch
    from autotune.operations.problem import Problem
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
    """

    sizes: tuple[int, ...]
    steps: tuple[LaunchStep, ...]
    workspace_bytes: int | None = None


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


def plan_launch(
    family: KernelFamily,
    configuration: Mapping[str, Value],
    problem: Problem,
    limits: DeviceLimits,
) -> LaunchPlan:
    """What a configuration launches for a problem.

    Raises:
        SpaceError: the configuration is not one of the family's, or its launch is not whole or
            not positive for these sizes.
    """
    launch = _launch(family)
    known = family.values(configuration, problem, limits)

    def whole(expression: Expression, least: int) -> int:
        try:
            value = expression.evaluate(known)
        except UndefinedError as error:
            raise SpaceError(
                f"family {family.name!r} cannot be launched for {problem.label}: {error}"
            ) from error
        if value != int(value) or value < least:
            raise SpaceError(
                f"family {family.name!r} cannot be launched for {problem.label}: "
                f"{expression.text} must be a whole number >= {least}, is {value}"
            )
        return int(value)

    def extents(expressions: tuple[Expression, ...]) -> Extents:
        x, y, z = (whole(each, 1) for each in expressions)
        return x, y, z

    def auxiliary(kernels: tuple[AuxiliaryKernel, ...]) -> tuple[LaunchStep, ...]:
        return tuple(
            LaunchStep(each.kernel, extents(each.grid), extents(each.block))
            for each in kernels
            if each.when.holds(known)
        )

    main = LaunchStep(
        family.operation,
        extents(launch.grid),
        extents(launch.block),
        whole(launch.shared_bytes, 0),
    )
    return LaunchPlan(
        sizes=problem.shape,
        steps=(*auxiliary(launch.before), main, *auxiliary(launch.after)),
        workspace_bytes=(
            None if launch.workspace_bytes is None else whole(launch.workspace_bytes, 0)
        ),
    )


def resident_blocks(
    family: KernelFamily,
    configuration: Mapping[str, Value],
    problem: Problem,
    limits: DeviceLimits,
) -> int:
    """The least number of blocks that must fit a multiprocessor at once.

    Raises:
        SpaceError: the configuration is not one of the family's.
    """
    known = family.values(configuration, problem, limits)
    return int(_launch(family).resident_blocks.evaluate(known))


def is_valid(
    family: KernelFamily,
    configuration: Mapping[str, Value],
    problem: Problem,
    limits: DeviceLimits,
) -> bool:
    """Whether a configuration may be launched for a problem; lists no space."""
    try:
        known = family.values(configuration, problem, limits)
        plan_launch(family, configuration, problem, limits)
    except SpaceError:
        return False
    return all(restriction.expression.holds(known) for restriction in family.restrictions)


def _launch(family: KernelFamily) -> Launch:
    if family.launch is None:
        raise SpaceError(f"family {family.name!r} has no [launch]: it is not for this target")
    return family.launch
