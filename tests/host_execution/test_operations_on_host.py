"""The example operations' CUDA kernels, executed on the host against float64."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest
from host_execution import ON_HOST, HostProgram
from operation_examples import LARGE, example, family_of
from operations_on_host import relative_error

from autotune.families.rendering import render
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.operations.cases import cases_of, special_cases

pytestmark = ON_HOST

CONFIGURATIONS = 3


@pytest.mark.sampled(2)
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
    cases = (*cases, *special_cases(problem, cases))
    for configuration in (family.default(problem, limits), *drawn):
        program = HostProgram(render(family, configuration, dtype=dtype).text, tmp_path)
        for number, case in enumerate((*cases, *cases)):  # laid out in two ways each
            error = relative_error(
                program, family, configuration, case, operation, dtype, limits, number, rng
            )
            assert error <= 1, (configuration, str(case), number)
