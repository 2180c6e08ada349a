"""Spaces of CUDA families for thin products and tensor maps."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from autotune.core.configuration import Configuration
from autotune.families.family import KernelFamily
from autotune.families.gpu.launch import MappedOperand
from autotune.families.gpu.planning import Planner
from autotune.families.rendering import render
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


WGMMA, TF32 = FAMILIES["wgmma"], FAMILIES["wgmma_tf32"]
H200 = find_gpu("h200").limits
LARGE = Gemm(4096, 4096, 4096, "float16", accuracy="native")


def test_every_warp_group_has_two_boxes_of_its_own() -> None:
    space = WGMMA.space(LARGE, H200)
    seen = set()
    for number in range(0, space.size, 41):
        chosen = space[number]
        stored = {
            store: WGMMA.values({**chosen, "store": store}, LARGE, H200)
            for store in ("direct", "tma")
        }
        direct, boxes = (int(stored[store]["tiles_bytes"]) for store in ("direct", "tma"))
        assert boxes - direct == chosen["consumers"] * 2 * 64 * 128
        needed = int(stored[str(chosen["store"])]["shared_bytes"])
        assert needed <= H200.shared_bytes_per_block // int(chosen["min_blocks"])
        seen.add(chosen["store"])
    assert seen == {"direct", "tma"}


def test_rows_have_lines_where_tiles_leave_room_for_all_of_them() -> None:
    seen = set()
    for preset in WGMMA.presets.values():
        chosen = preset.configuration
        values = WGMMA.values(chosen, LARGE, H200)
        lines = int(chosen["consumers"]) * 4 * 8 * (256 + 16)
        extra = int(values["shared_bytes"]) - int(values["tiles_bytes"])
        room = H200.shared_bytes_per_block // int(chosen["min_blocks"])
        if chosen["cluster_n"] == 1 and int(values["tiles_bytes"]) + lines <= room:
            assert extra == lines
        else:
            assert extra == 0
        seen.add((int(chosen["cluster_n"]) > 1, extra > 0))
    assert seen == {(True, False), (False, True), (False, False)}


def test_what_has_no_room_for_boxes_is_rejected() -> None:
    space = WGMMA.space(LARGE, H200)
    fits = Configuration({**WGMMA.presets["three"].configuration, "store": "direct"})
    assert space.rejection(fits) is None
    rejected = space.rejection(Configuration({**fits, "store": "tma"}))
    assert rejected is not None
    assert "shared memory that one block can opt in to" in str(rejected)


@pytest.mark.parametrize("preset", ["large-tma", "turns-tma"])
@pytest.mark.parametrize(("out_dtype", "columns"), [(None, 64), ("float32", 32)])
def test_the_map_of_results_has_their_type(
    preset: str, out_dtype: str | None, columns: int
) -> None:
    problem = Gemm(1000, 500, 300, "bfloat16", out_dtype=out_dtype, accuracy="native")
    planner = Planner(WGMMA, WGMMA.presets[preset].configuration, "bfloat16", H200)
    assert planner.plan(problem).maps[2:] == (MappedOperand("C", False, (64, columns), 128),)
    for splits in (1, 2):
        assert len(planner.plan(problem, (8, splits)).maps) == 3  # the kernel is the same


def test_tf32_has_it_too() -> None:
    planner = Planner(TF32, TF32.presets["large-tma"].configuration, "float32", H200)
    problem = Gemm(1000, 500, 300, layout="nt", accuracy="tf32")
    assert planner.plan(problem).maps[2] == MappedOperand("C", False, (64, 32), 128)


@pytest.mark.parametrize("store", ["direct", "tma"])
def test_sources_have_what_they_use(store: str) -> None:
    configuration = {**WGMMA.presets["large"].configuration, "store": store}
    text = render(WGMMA, configuration, dtype="float16", out_dtype="float32").text
    for word in ("c_map", "fence.proxy.async", "bulk_group", "BOX_COLUMNS", "mapped"):
        assert (word in text) == (store == "tma"), word
    half = render(WGMMA, configuration, dtype="float16").text
    assert ("stmatrix" in half) == (store == "tma")
    assert "stmatrix" not in text
