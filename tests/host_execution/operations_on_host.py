"""Kernels of any operation's families, run on the host and compared with the formula."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from host_execution import HostProgram, guarded
from operation_examples import entry_values

from autotune.core.configuration import Value
from autotune.core.limits import GpuLimits
from autotune.families.family import KernelFamily
from autotune.operations.accuracy import Tolerance
from autotune.operations.cases import Case
from autotune.operations.contents import Drawn
from autotune.operations.operation import Operation

_MISALIGNED = (0, 0, 1, 3)
"""Elements that operands are off a 16-byte boundary, by turns."""


def relative_error(
    program: HostProgram,
    family: KernelFamily,
    configuration: Mapping[str, Value],
    case: Case,
    operation: Operation,
    dtype: str,
    limits: GpuLimits,
    number: int,
    rng: np.random.Generator,
) -> float:
    """The largest error of one call, relative to what is allowed.

    Args:
        program: what `configuration` compiles to.
        family: whose program it is.
        configuration: a valid one.
        case: the call.
        operation: what is computed.
        dtype: element type.
        limits: the device it would run on.
        number: which of several ways operands lie in: with even ones their rows are aligned, and
            every operand has a leading dimension of its own.
        rng: draws the operands.
    """
    problem = operation.at(case.sizes, dtype=dtype)
    drawn = Drawn.of(case, problem, rng)
    off = _MISALIGNED[number // 2 % 4]
    operands = [
        _lying(each.shape, dtype, 16 * place if number % 2 == 0 else number + place, off)
        for place, each in enumerate(problem.operands)
    ]
    for each, array in zip(operation.operands, operands, strict=True):
        if not each.written:
            array[...] = drawn.inputs[each.name]
        elif drawn.before:
            (array[...],) = drawn.before.values()
    known = family.values(configuration, problem, limits)
    values = entry_values(operation, case.sizes, operands, case.scalars_of(operation))
    launch = family.launch
    assert launch is not None
    if launch.workspace_bytes is not None:
        elements = max(1, int(launch.workspace_bytes.evaluate(known)) // problem.itemsize)
        workspace = guarded((1, elements), elements, dtype)
        workspace[0, : int(launch.zeroed_bytes.evaluate(known)) // problem.itemsize] = 0
        values.append(workspace)
    values += [int(configuration[name]) for name in family.runtime_parameters]
    for step in (*launch.before, launch, *launch.after):
        name = getattr(step, "kernel", operation.name)
        if step is launch or step.when.evaluate(known):
            grid = [int(each.evaluate(known)) for each in step.grid]
            block = [int(each.evaluate(known)) for each in step.block]
            shared = int(launch.shared_bytes.evaluate(known)) if step is launch else 0
            program.launch(name, grid, block, values, shared_bytes=shared)
    (written,) = (
        array for each, array in zip(operation.operands, operands, strict=True) if each.written
    )
    tolerance = Tolerance.of(family.accuracy, dtype, case.sizes)
    return drawn.reference.error(written, tolerance)


def _lying(shape: tuple[int, ...], dtype: str, padding: int, misaligned: int) -> np.ndarray:
    """An array of NaNs of 1 to 3 dimensions with guarded memory around it, its rows padded."""
    rows = int(np.prod(shape[:-1]))
    flat = guarded((rows, shape[-1]), shape[-1] + padding, dtype, misaligned=misaligned)
    if len(shape) == 1:
        return np.asarray(flat[0])
    strides = [flat.strides[1], flat.strides[0]]
    if len(shape) == 3:
        strides.append(shape[1] * flat.strides[0])
    return np.lib.stride_tricks.as_strided(flat, shape, strides[::-1])
