"""Spaces of the CUDA families for thin products: what is verified, launched and counted."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from autotune.core.configuration import Configuration
from autotune.families.family import KernelFamily
from autotune.families.gpu.planning import Planner
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.model.portfolio import Units, free_parameters
from autotune.operations.cases import cases_of
from autotune.operations.problem import GEMM, Gemm
from autotune.targets.families import load_families

LIMITS = find_gpu("h200").limits
FAMILIES = load_families(target="cuda", operation="gemm")
PROBLEMS = {
    "skinny": [
        Gemm(1, 4096, 4096),
        Gemm(4096, 4096, 1),
        Gemm(8, 16384, 777),
        Gemm(16, 65536, 16),
        Gemm(9001, 40, 5),
    ],
    "outer": [Gemm(4096, 1, 4096), Gemm(1000, 13, 70), Gemm(33, 32, 16384)],
}
CASES = [(name, problem) for name, problems in PROBLEMS.items() for problem in problems]


def drawn(family: KernelFamily, problem: Gemm, count: int) -> Iterator[Configuration]:
    space = family.space(problem, LIMITS)
    rng = np.random.default_rng(problem.m + problem.k)
    yield from (space[int(row)] for row in space.sample(count, rng))


@pytest.mark.parametrize(("name", "problem"), CASES, ids=[f"{n}-{p.label}" for n, p in CASES])
def test_every_program_is_verified_at_several_sizes(name: str, problem: Gemm) -> None:
    for configuration in drawn(FAMILIES[name], problem, 40):
        planner = Planner(FAMILIES[name], configuration, "float32", LIMITS)
        cases = [
            case for case in cases_of(problem) if planner.valid(problem.with_sizes(*case.sizes))
        ]
        assert len(cases) >= 4, configuration
        assert any(case.scalars_of(GEMM)["beta"] for case in cases), configuration


@pytest.mark.parametrize(("name", "problem"), CASES, ids=[f"{n}-{p.label}" for n, p in CASES])
def test_the_model_counts_the_blocks_that_are_launched(name: str, problem: Gemm) -> None:
    family = FAMILIES[name]
    assert free_parameters(family) == family.runtime_parameters
    for configuration in drawn(family, problem, 40):
        plan = Planner(family, configuration, "float32", LIMITS).plan(problem)
        unit = Units(family, configuration, "float32", LIMITS).of(configuration)
        rows, columns, steps = unit.tile
        # What tiles have in common where rows are no whole vectors is left to the kernel.
        overlap = int(family.values(configuration, problem, LIMITS).get("overlap", 0))
        if configuration.get("side") == "columns":
            tiles = math.ceil(problem.m / (rows - overlap)) * math.ceil(problem.k / columns)
        else:
            tiles = math.ceil(problem.m / rows) * math.ceil(problem.k / (columns - overlap))
        (step,) = plan.steps
        assert math.prod(step.grid) == tiles * unit.parts, configuration
        assert steps >= 1


@pytest.mark.parametrize("shape", [(1, 1, 1), (5000, 5000, 5000), (1, 1, 100000), (65, 3, 65)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_no_problem_has_an_empty_space(name: str, dtype: str, shape: tuple[int, int, int]) -> None:
    assert FAMILIES[name].space(Gemm(*shape, dtype=dtype), LIMITS).size > 0
