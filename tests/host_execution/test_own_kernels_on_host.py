"""CUDA C++ of one's own, executed on the host: arguments in an order of the kernel's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from host_execution import NEEDS_COMPILER, HostProgram
from operation_examples import entry_values
from own_kernels import DOTS, FLAT, dots

from autotune.families.rendering import render
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.operations.cases import cases_of, special_cases
from autotune.operations.verification import Check
from autotune.targets.families import catalog

pytestmark = NEEDS_COMPILER


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("source", [DOTS, FLAT], ids=["padded", "packed"])
def test_a_source_computes_its_formula(source: str, dtype: str, tmp_path: Path) -> None:
    kernel = dots(source, cache=tmp_path)
    family = catalog("cuda", "dots", [kernel.folder])["dots"]
    limits = find_gpu("h200").limits
    configuration = {"THREADS": 32, "ROWS": 2, "USE_BETA": True}
    program = HostProgram(render(family, configuration, dtype=dtype).text, tmp_path)
    problem = kernel.problem(M=64, N=64, dtype=dtype)
    rng = np.random.default_rng(5)
    cases = cases_of(problem)[:12]
    for case in (*cases, *special_cases(problem, cases)):
        check = Check(case, problem, rng)
        strides = [operand.strides[0] // operand.itemsize for operand in check.operands]
        assert (strides[0] > case.sizes[1]) == (source is DOTS and case.padding > 0)
        known = family.values(configuration, check.problem, limits)
        assert family.launch is not None
        grid = [int(each.evaluate(known)) for each in family.launch.grid]
        block = [int(each.evaluate(known)) for each in family.launch.block]
        scalars = case.scalars_of(kernel.operation)
        values = entry_values(kernel.operation, case.sizes, check.operands, scalars)
        check.prepare()
        program.launch("dots", grid, block, values)
        verdict = check.judge("ieee")
        assert verdict.right, verdict.reason
