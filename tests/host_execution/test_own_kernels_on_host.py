"""CUDA C++ of one's own, executed on the host: arguments, launches and results of every case."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from example_kernels import LIMITS, SOURCES, valid
from example_kernels import source as example
from host_execution import NEEDS_COMPILER, HostProgram, guarded
from operation_examples import entry_values
from own_kernels import DOTS, FLAT, dots

from autotune.families.family import KernelFamily
from autotune.families.rendering import render
from autotune.operations.cases import cases_of, special_cases
from autotune.operations.verification import Check
from autotune.targets.families import catalog

pytestmark = NEEDS_COMPILER

MOST = 100_000
"""Bytes of a case: a thread of a GPU is a fiber here."""


def run(
    program: HostProgram, family: KernelFamily, values: Mapping[str, Any], check: Check
) -> None:
    """Launch all kernels of a family on the operands of a check.

    Args:
        program: what a configuration compiles to.
        family: whose it is.
        values: of that configuration, sizes and limits.
        check: has the operands.
    """
    operation, launch = check.problem.defined, family.launch
    assert launch is not None
    scalars = check.case.scalars_of(operation)
    arguments = entry_values(operation, check.case.sizes, check.operands, scalars)
    if launch.workspace_bytes is not None:
        size = max(8, int(launch.workspace_bytes.evaluate(values)))
        arguments.append(guarded((1, -(-size // 8)), -(-size // 8), "float64"))
    for step in (*launch.before, launch, *launch.after):
        if step is launch or step.when.evaluate(values):
            grid = [int(each.evaluate(values)) for each in step.grid]
            block = [int(each.evaluate(values)) for each in step.block]
            shared = int(step.shared_bytes.evaluate(values))
            name = getattr(step, "kernel", operation.name)
            program.launch(name, grid, block, arguments, shared_bytes=shared)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("source", [DOTS, FLAT], ids=["padded", "packed"])
def test_a_source_computes_its_formula(source: str, dtype: str, tmp_path: Path) -> None:
    own = dots(source, cache=tmp_path)
    family = catalog("cuda", "dots", [own.folder])["dots"]
    configuration = {"THREADS": 32, "ROWS": 2, "USE_BETA": True}
    program = HostProgram(render(family, configuration, dtype=dtype).text, tmp_path)
    problem = own.problem(M=64, N=64, dtype=dtype)
    rng = np.random.default_rng(5)
    cases = cases_of(problem)[:12]
    for case in (*cases, *special_cases(problem, cases)):
        check = Check(case, problem, rng)
        strides = [operand.strides[0] // operand.itemsize for operand in check.operands]
        assert (strides[0] > case.sizes[1]) == (source is DOTS and case.padding > 0)
        check.prepare()
        run(program, family, family.values(configuration, check.problem, LIMITS), check)
        verdict = check.judge("ieee")
        assert verdict.right, verdict.reason


@pytest.mark.sampled(12)
@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("path", SOURCES)
def test_an_example_is_right_in_every_case(path: str, number: int, tmp_path: Path) -> None:
    own = example(path)
    family = catalog("cuda", own.name, [own.folder])[own.name]
    rng = np.random.default_rng(7 + number)
    problem = own.problem(**dict.fromkeys(own.operation.sizes, 7))
    cases = cases_of(problem)
    few = [
        case
        for case in (*cases, *special_cases(problem, cases))
        if sum(array.nbytes for array in problem.with_sizes(*case.sizes).operands) <= MOST
    ]
    case = few[number % len(few)]
    dtype = family.dtypes[number % min(2, len(family.dtypes))]
    check = Check(case, own.operation.at(case.sizes, dtype=dtype), rng)
    values = valid(family, check.problem, rng)
    chosen = {each.name: values[each.name] for each in family.parameters}
    program = HostProgram(render(family, chosen, dtype=dtype).text, tmp_path)
    check.prepare()
    run(program, family, values, check)
    verdict = check.judge("ieee")
    assert verdict.right, f"{chosen}: {verdict.reason}"
