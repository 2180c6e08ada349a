"""CUDA kernels of the example operations, compiled by g++ and judged like any others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_execution import AVAILABLE, HostProgram

from autotune import find_operation
from autotune.core.limits import CudaLimits
from autotune.families.bound import Bound
from autotune.families.catalog import load_families
from autotune.families.launch import LaunchPlan, plan_or_none
from autotune.families.rendering import render
from autotune.measuring.plan import affordable
from autotune.operations.entry import Kind, operand_arguments
from autotune.operations.verification import Check
from autotune.targets.cuda.device.known_gpus import find_gpu

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not AVAILABLE, reason="emitted CUDA C++ is compiled by g++ here"),
]

FOLDER = Path(__file__).parents[2] / "examples" / "operations"
SHAPES = {
    "gemv": (1024, 1024),
    "batched_gemm": (16, 64, 64, 64),
    "gemm_bias_relu": (96, 96, 96),
    "stencil": (1024, 1024),
    "row_sum": (1024, 1024),
}
MOST_PRODUCTS = 2**22


def arguments(check: Check) -> list[Any]:
    """What an entry takes, in its order, for a check's operands and scalars."""
    problem = check.problem
    defined = problem.defined
    given: dict[str, Any] = {
        name.lower(): size for name, size in zip(defined.sizes, problem.shape, strict=True)
    }
    given |= check.case.scalars_of(defined)
    for operand, array in zip(defined.operands, check.operands, strict=True):
        steps = [stride // array.itemsize for stride in array.strides[:-1]]
        names = operand_arguments(operand.name, array.ndim, written=operand.written)
        given |= {names[0].name: array.ctypes.data}
        given |= {each.name: step for each, step in zip(names[1:], steps, strict=True)}
    assert {Kind.SIZE, Kind.ADDRESS} <= {each.kind for each in defined.arguments}
    return [given[each.name] for each in defined.arguments]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SHAPES)
def test_configurations_pass(name: str, dtype: str, tmp_path: Path) -> None:
    limits = find_gpu("h200").limits
    assert isinstance(limits, CudaLimits)
    operation = find_operation(name, [FOLDER])
    problem = operation.at(SHAPES[name], dtype=dtype)
    (family,) = load_families(target="cuda", operation=name, extra=[FOLDER]).values()
    space = family.space(problem, limits)
    chosen = [family.default(problem, limits), space[len(space) // 3]]
    for configuration in chosen:
        source = render(family, configuration, dtype=dtype)
        program = HostProgram(source.text, tmp_path)
        bound = Bound(family, configuration, problem, limits)
        passed = 0
        for case in affordable(problem, MOST_PRODUCTS):
            check = Check(case, problem, np.random.default_rng(0))
            plan = plan_or_none(bound, check.problem)
            if plan is not None:
                check.prepare()
                launch(program, plan, check)
                verdict = check.judge(family.accuracy)
                assert verdict.right, verdict.reason
                passed += 1
        assert passed, f"{configuration} is valid for no case"


def launch(program: HostProgram, plan: LaunchPlan, check: Check) -> None:
    workspace = np.zeros(plan.workspace_bytes or 0, "u1")
    given = arguments(check) + ([] if plan.workspace_bytes is None else [workspace])
    for step in plan.steps:
        program.launch(step.kernel, step.grid, step.block, given, shared_bytes=step.shared_bytes)
