"""What a kernel launches for a problem, in a line: tiles, blocks and waves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from autotune.core.errors import SpaceError
from autotune.families.gpu.occupancy import blocks_per_multiprocessor
from autotune.families.gpu.planning import Planner

if TYPE_CHECKING:
    from autotune.core.configuration import Candidate, Value
    from autotune.core.limits import GpuLimits
    from autotune.families.family import KernelFamily
    from autotune.operations.problem import Problem


def launch_note(
    candidate: Candidate,
    problem: Problem,
    families: Mapping[str, KernelFamily],
    limits: GpuLimits,
) -> str:
    """Tiles of C, thread blocks, how many fill the device, and the kernels beside the main one.

    Args:
        candidate: valid for the problem.
        problem: what it computes.
        families: by name.
        limits: of the device.
    """
    try:
        family = families[candidate.family]
        planner = Planner(family, candidate.configuration, problem.dtype, limits)
        plan = planner.plan(problem)
        known = family.values(candidate.configuration, problem, limits)
    except SpaceError as error:
        return str(error)
    main = next(step for step in plan.steps if step.kernel == problem.operation)
    blocks = math.prod(main.grid)
    resident = blocks_per_multiprocessor(
        limits,
        threads=main.threads,
        registers=min(_number(known, "registers", 32), limits.registers_per_thread),
        shared_bytes=main.shared_bytes,
    )
    at_once = max(resident, 1) * limits.multiprocessor_count
    rows, columns = (_number(known, name, 0) for name in ("sm", "sk"))
    tiles = f"tiles {rows}x{columns}, " if rows and columns else ""
    others = [step.kernel for step in plan.steps if step is not main]
    beside = f", beside {' and '.join(others)}" if others else ""
    return f"{tiles}{blocks} blocks, {blocks / at_once:.2f} waves of {at_once}{beside}"


def _number(known: Mapping[str, Value], name: str, otherwise: int) -> int:
    value = known.get(name, otherwise)
    return int(value) if isinstance(value, (int, float)) else otherwise
