"""The example operations' CUDA kernels, executed on the host against float64."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from host_execution import AVAILABLE, HostProgram, guarded
from operation_examples import LARGE, entry_values, example, family_of

from autotune.core.configuration import Value
from autotune.core.limits import CudaLimits
from autotune.families.family import KernelFamily
from autotune.families.rendering import render
from autotune.operations.cases import cases_of
from autotune.operations.operation import Operation
from autotune.operations.references import Case, Drawn, Tolerance
from autotune.targets.cuda.device.known_gpus import find_gpu

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not AVAILABLE, reason="emitted CUDA C++ is compiled by g++ here"),
]

CONFIGURATIONS = 3
MISALIGNED = (0, 0, 1, 3)
"""Elements that operands are off a 16-byte boundary, by turns."""
PADDING = (0, 4, 3, 1)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", LARGE)
def test_random_configurations_compute_the_formula(name: str, dtype: str, tmp_path: Path) -> None:
    family, operation = family_of(name, "cuda"), example(name)
    limits = find_gpu("h200").limits
    problem = operation.at(LARGE[name], dtype=dtype)
    space = family.space(problem, limits)
    rng = np.random.default_rng(zlib.crc32(f"{name} {dtype}".encode()))
    drawn = [space[int(row)] for row in space.sample(CONFIGURATIONS, rng)]
    cases = cases_of(problem)[: len(operation.cases)]
    for configuration in (family.default(problem, limits), *drawn):
        program = HostProgram(render(family, configuration, dtype=dtype).text, tmp_path)
        for number, case in enumerate((*cases, *cases)):  # laid out in two ways each
            error = relative_error(
                program, family, configuration, case, operation, dtype, limits, number, rng
            )
            assert error <= 1, (configuration, str(case), number)


def relative_error(
    program: HostProgram,
    family: KernelFamily,
    configuration: Mapping[str, Value],
    case: Case,
    operation: Operation,
    dtype: str,
    limits: CudaLimits,
    number: int,
    rng: np.random.Generator,
) -> float:
    """The largest error relative to what is allowed; operands lie in as many ways as there are."""
    problem = operation.at(case.sizes, dtype=dtype)
    drawn = Drawn.of(case, problem, rng)
    pad, off = PADDING[number % 4], MISALIGNED[number // 2 % 4]
    operands = [lying(each.shape, dtype, pad, off) for each in problem.operands]
    for each, array in zip(operation.operands, operands, strict=True):
        if not each.written:
            array[...] = drawn.inputs[each.name]
        elif drawn.before is not None:
            array[...] = drawn.before
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


def lying(shape: tuple[int, ...], dtype: str, padding: int, misaligned: int) -> np.ndarray:
    """An array of NaNs of 1 to 3 dimensions with guarded memory around it, its rows padded."""
    rows = int(np.prod(shape[:-1]))
    flat = guarded((rows, shape[-1]), shape[-1] + padding, dtype, misaligned=misaligned)
    if len(shape) == 1:
        return np.asarray(flat[0])
    strides = [flat.strides[1], flat.strides[0]]
    if len(shape) == 3:
        strides.append(shape[1] * flat.strides[0])
    return np.lib.stride_tricks.as_strided(flat, shape, strides[::-1])
