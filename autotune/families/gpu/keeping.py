"""Launch plans for an operand that stays as it is: what is made of it need be made once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autotune.families.gpu.planning import planner_of
from autotune.operations.parts import parsed

if TYPE_CHECKING:
    from autotune.core.configuration import Configuration
    from autotune.core.device import DeviceLimits
    from autotune.families.family import KernelFamily
    from autotune.families.gpu.launch import LaunchPlan, LaunchStep
    from autotune.operations.problem import Problem
    from autotune.space import Expression


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """The launches, in one workspace.

    Attributes:
        keep: makes what is kept of the operand; sizes that are not the operand's are 0.
        call: all else, at every call.
        bytes: how much of the workspace, from its start on, is kept.
    """

    keep: LaunchPlan
    call: LaunchPlan
    bytes: int


def kept_plan(
    family: KernelFamily,
    configuration: Configuration,
    problem: Problem,
    limits: DeviceLimits,
    operand: str,
) -> KeptPlan | None:
    """The launches for an operand that stays as it is; None where nothing is kept of it.

    Args:
        family: the configuration's family.
        configuration: which kernel.
        problem: what it computes.
        limits: of the device.
        operand: its name.

    Raises:
        SpaceError: as `Planner.plan` does.
    """
    plan = planner_of(family, configuration, problem.dtype, limits).plan(problem)
    keeps, kernels = family.launch and family.launch.keeps, [each.kernel for each in plan.steps]
    if not keeps or keeps.operand != operand or keeps.kernel not in kernels:
        return None
    at = kernels.index(keeps.kernel)
    values, where = family.values(configuration, problem, limits), f"what {family.name!r} keeps"

    def step(grid: tuple[Expression, ...]) -> LaunchStep:
        x, y, z = (family.whole(each, values, 1, where) for each in grid)
        return replace(plan.steps[at], grid=(x, y, z))

    defined = problem.defined
    (shape,) = (each.shape for each in defined.operands if each.name == operand)
    own = {name for text in shape for name in parsed(text).names}
    sizes = zip(defined.sizes, plan.sizes, strict=True)
    return KeptPlan(
        replace(
            plan,
            sizes=tuple(size if name in own else 0 for name, size in sizes),
            steps=(step(keeps.grid),),
        ),
        replace(plan, steps=(*plan.steps[:at], step(keeps.rest), *plan.steps[at + 1 :])),
        family.whole(keeps.bytes, values, 0, where),
    )
