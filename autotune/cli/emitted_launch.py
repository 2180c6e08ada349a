"""How an emitted source is launched for one problem, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.core.configuration import Configuration
    from autotune.core.device import DeviceLimits
    from autotune.families.family import KernelFamily
    from autotune.families.gpu.launch import LaunchPlan
    from autotune.families.rendering import Source
    from autotune.operations.problem import Problem


def launch_of(
    family: KernelFamily,
    configuration: Configuration,
    source: Source,
    problem: Problem,
    limits: DeviceLimits,
) -> LaunchPlan | None:
    """What a call launches, all of it kernels that the source has; None on a CPU.

    Raises:
        SpaceError: the configuration cannot be launched for these sizes.
        FamilyError: the source has no such kernel.
    """
    from autotune.families.gpu.launched import check_launches
    from autotune.families.gpu.planning import planner_of

    if family.launch is None:
        return None
    plan = planner_of(family, configuration, problem.dtype, limits).plan(problem)
    kernels = family.language.kernels
    if kernels is not None:
        check_launches(family, plan, kernels(source.text))
    return plan


def launch_document(family: KernelFamily, plan: LaunchPlan) -> dict[str, Any]:
    """A plan as JSON-able values; bytes are bytes."""
    return {
        "kernels": [
            {
                "kernel": step.kernel,
                "grid": list(step.grid),
                "block": list(step.block),
                "dynamic_shared_bytes": step.shared_bytes,
                "cluster": list(step.cluster),
            }
            for step in plan.steps
        ],
        "workspace_bytes": plan.workspace_bytes,
        "zeroed_bytes": plan.zeroed_bytes,
        "tensor_maps": [
            {key: value for key, value in asdict(each).items() if (key, value) != ("region", None)}
            for each in plan.maps
        ],
        "runtime": dict(zip(family.runtime_parameters, plan.runtime, strict=True)),
    }


def launch_note(family: KernelFamily, plan: LaunchPlan, problem: Problem) -> str:
    """A plan in one line."""
    parts = []
    for step in plan.steps:
        shared = f" with {step.shared_bytes} bytes of shared memory" if step.shared_bytes else ""
        clusters = f" in clusters of {_times(step.cluster)}" if max(step.cluster) > 1 else ""
        parts.append(
            f"{step.kernel} on {_times(step.grid)} blocks of {_times(step.block)}"
            f"{clusters}{shared}"
        )
    text = f"launched for {problem.label}: {', then '.join(parts)}"
    if plan.workspace_bytes is not None:
        zeroed = f", the first {plan.zeroed_bytes} zero" if plan.zeroed_bytes else ""
        text += f"; workspace of {plan.workspace_bytes} bytes{zeroed}"
    if plan.maps:
        boxes = (
            f"{each.operand}{' of the workspace' if each.region else ''} in boxes of "
            f"{_times(each.box)}"
            for each in plan.maps
        )
        text += f"; tensor maps of {' and '.join(boxes)} elements, as stored"
    if plan.runtime:
        values = zip(family.runtime_parameters, plan.runtime, strict=True)
        text += f"; {', '.join(f'{name} = {value}' for name, value in values)} at the call"
    return text


def _times(extents: tuple[int, ...]) -> str:
    return " x ".join(map(str, extents))
