"""Families that split operands into planes, held to their promises tile by tile."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import gemm_on_host as on_host
import numpy as np
import pytest
from gemm_on_host import FAMILIES, LIMITS, launch_kernels, maps_of, relative_error
from host_execution import ON_HOST, HostProgram, guarded

from autotune.core.configuration import Value
from autotune.families.gpu.keeping import kept_plan
from autotune.families.gpu.launch import LaunchPlan
from autotune.families.gpu.planning import planner_of
from autotune.families.rendering import render
from autotune.operations.cases import SMALL_CASES, Case, hard_cases, special_cases
from autotune.operations.problem import Gemm
from autotune.operations.verification import ProductCheck

pytestmark = ON_HOST

GROUPS = ("rounded_fp16", "split_fp16", "split_bf16", "split_fp64")  # multiplied by warp groups
WARPS = ("split_mma_fp16", "split_mma_bf16", "split_mma_fp64")
SPLIT = GROUPS + WARPS
SLOW = (("tn", "split_mma_fp64"), ("nn", "split_bf16"))
"""Of hard operands: their sizes are the same for all, and these do most for each product."""

LAYOUTS = ("nn", "nt", "tn", "tt")
SMALL: dict[str, Value] = {"sm": 64, "sk": 64, "stages": 3, "cluster_m": 1}
SMALL_WARPS: dict[str, Value] = {"sm": 64, "sk": 64, "warp_m": 32, "warp_k": 32, "stages": 3}


def judge(name: str, layout: str, case: Case, folder: Path, **changed: Value) -> str:
    """What is wrong with a kernel's result of a case, and nothing if it is right."""
    family = FAMILIES[name]
    declared = {each.name: each.default for each in family.parameters}
    small = SMALL_WARPS if name in WARPS else SMALL
    configuration = family.conform({**declared, **small, **changed})
    dtype = family.dtypes[0]
    problem = Gemm(1, 1, 1, dtype, layout=layout, accuracy=family.accuracy)

    def kernel(a: Any, b: Any, c: Any, alpha: float, beta: float) -> None:
        operands = {"a": a, "b": b, "c": c}
        call = on_host.Case(*case.sizes, dtype, layout, alpha=alpha, beta=beta)
        launch_kernels(family, configuration, call, LIMITS, operands, folder)

    check = ProductCheck(case, problem, np.random.default_rng(11))
    return check.run(kernel, family.accuracy).reason


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("layout", "name"),
    [
        pytest.param(*each, marks=[pytest.mark.thorough] if each in SLOW else [])
        for each in itertools.product(LAYOUTS, SPLIT)
    ],
)
def test_hard_operands(name: str, layout: str, folder: Path) -> None:
    problem = Gemm(1, 1, 1, FAMILIES[name].dtypes[0], layout=layout)
    cases = hard_cases(problem, FAMILIES[name].accuracy)
    assert len(cases) >= 9
    assert [r for case in cases if (r := judge(name, layout, case, folder))] == []


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", SPLIT)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_small_and_special_cases(name: str, layout: str, folder: Path) -> None:
    cases = (*SMALL_CASES, *special_cases(Gemm(1, 1, 1), SMALL_CASES))
    assert [r for case in cases if (r := judge(name, layout, case, folder))] == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", WARPS)
@pytest.mark.parametrize(
    "changed",
    [
        {"sm": 128, "sk": 128, "warp_k": 64, "stages": 2, "row_bytes": 128},
        {"sm": 32, "row_bytes": 32, "fragments": 1, "stages": 5},
        {"sm": 64, "sk": 128, "warp_m": 64, "row_bytes": 64, "group": 2},
    ],
)
@pytest.mark.parametrize("distribution", ["normal", "special"])
def test_tiles_of_warps(
    name: str, changed: dict[str, Value], distribution: str, folder: Path
) -> None:
    case = Case(150, 205, 140, distribution=distribution, padding=1, scalars={"beta": -0.5})
    assert judge(name, "nn", case, folder, **changed) == ""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize(
    "changed",
    [
        {"sm": 128, "sk": 128, "stages": 2, "cluster_m": 2},
        {"sm": 128, "sk": 64, "cluster_m": 1},
        {"sm": 64, "sk": 64, "cluster_m": 2},
    ],
)
@pytest.mark.parametrize("distribution", ["normal", "special"])
def test_tiles_and_clusters(
    name: str, changed: dict[str, Value], distribution: str, folder: Path
) -> None:
    case = Case(300, 335, 170, distribution=distribution, padding=1, scalars={"beta": -0.5})
    assert judge(name, "nn", case, folder, **changed) == ""


def test_sums_in_turns_and_in_one_buffer(folder: Path) -> None:
    # Rounds of two tiles, in turns or not, and tiles that are left.
    for buffers, n in ((1, 128), (1, 500), (2, 256), (2, 64), (2, 1000)):
        case = Case(40, n, 40, distribution="positive")
        changed: dict[str, Value] = {"buffers": buffers, "sk": 96, "row_bytes": 128}
        assert judge("split_fp16", "nt", case, folder, **changed) == ""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["split_fp16", "split_bf16"])
def test_rows_of_tiles_are_short_or_long(name: str, folder: Path) -> None:
    case = Case(140, 335, 170, padding=1, scalars={"beta": -0.5})
    for row_bytes in (64, 128):
        for promote in {each.name: each.values for each in FAMILIES[name].parameters}["promote"]:
            assert judge(name, "tn", case, folder, row_bytes=row_bytes, promote=promote) == ""


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "n"),
    [  # a block holds two, one, and less than one of its four rows at a time
        ("split_fp16", 5000),
        ("split_bf16", 9001),
        ("split_mma_fp16", 17500),
        ("split_fp64", 2500),
        ("split_mma_fp64", 8300),
    ],
)
@pytest.mark.parametrize("layout", ["nt", "tn"])
def test_rows_and_columns_are_longer_than_a_chunk(
    name: str, n: int, layout: str, folder: Path
) -> None:
    case = Case(37, n, 35, distribution="special" if n % 2 else "graded rows", padding=1)
    assert judge(name, layout, case, folder) == ""


def test_copies_arrive_late_and_early(folder: Path) -> None:
    case = on_host.Case(200, 335, 136, "float32", "tn", (1, 2, 3), (1, 1, 1), special=True)
    for name in ("split_bf16", "split_fp16"):
        family = FAMILIES[name]
        configuration = family.conform(
            {**{each.name: each.default for each in family.parameters}, **SMALL, "cluster_m": 2}
        )
        errors = [
            relative_error(
                family, configuration, case, LIMITS, np.random.default_rng(3), folder, early=early
            )
            for early in (False, True)
        ]
        assert errors[0] == errors[1] < 2.0**-19


def test_whole_numbers_have_the_same_bits_whatever_the_tiles(folder: Path) -> None:
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(2, 130, 130))
    family, results = FAMILIES["split_fp64"], []
    for changed in ({}, {"sm": 128, "sk": 128}, {"cluster_m": 2, "stages": 2}):
        declared = {each.name: each.default for each in family.parameters}
        configuration = family.conform({**declared, **SMALL, **changed})
        operands = {"a": a, "b": b, "c": np.empty_like(a)}
        call = on_host.Case(130, 130, 130, "float64")
        launch_kernels(family, configuration, call, LIMITS, operands, folder)
        results.append(operands["c"].tobytes())
    assert len(set(results)) == 1


PRODUCTS = """
extern "C" __global__ void products(int count, const double* a, const double* b, double* c) {
  for (int first = 0; first < count; first += 4) {
    unsigned residues[MODULI] = {};
    for (int i = 0; i < 4 * MODULI; ++i) {
      const int e = first + i % 4, modulus = i / 4;
      const auto of_a = residue_of<true>(digits_of(__double2ll_rn(a[e])), modulus);
      const auto of_b = residue_of<false>(digits_of(__double2ll_rn(b[e])), modulus);
      const int product = static_cast<signed char>(of_a) * static_cast<signed char>(of_b);
      residues[modulus] |= (reduced(product, modulus) & 0xFF) << 8 * (i % 4);
    }
    c[first] = number_of<0>(residues);
    c[first + 1] = number_of<1>(residues);
    c[first + 2] = number_of<2>(residues);
    c[first + 3] = number_of<3>(residues);
  }
}
"""


@pytest.mark.parametrize("moduli", [14, 15])
def test_products_of_whole_numbers_by_their_residues_are_rounded_once(
    moduli: int, folder: Path
) -> None:
    family = FAMILIES["split_fp64"]
    declared = {each.name: each.default for each in family.parameters}
    configuration = family.conform({**declared, **SMALL, "moduli": moduli})
    source = render(family, configuration, dtype="float64", layout="nn").text + PRODUCTS
    rng, room = np.random.default_rng(8), 2.0 ** (54 if moduli == 14 else 58)
    sizes = room * 2.0 ** -rng.uniform(0, 60, (2, 4000))
    a, b = np.rint(sizes * rng.choice([-1.0, 1.0], sizes.shape))
    edges = [0.0, 1.0, -1.0, 127.0, 128.0, -128.0, 255.0, 2.0**40 - 1, -(2.0**40), room, -room]
    pairs = list(itertools.product(edges, edges))
    # Products of 53 bits and so many more, which are half of the last one, or next to that.
    for more, off in itertools.product(range(12, 53), (-1, 0, 1)):
        left = int(rng.integers(2**52, 2**53)) | 1
        pairs.append((left, (2 ** (more - 1) + off) * pow(left, -1, 2**more) % 2**more))
    for place, (left, right) in enumerate(pairs):
        a[place], b[place] = left, right
    c = np.full(a.size, np.nan)
    HostProgram(source, folder).launch("products", (1, 1, 1), (1, 1, 1), [a.size, a, b, c])
    assert c.tolist() == [float(int(x) * int(y)) for x, y in zip(a, b, strict=True)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", SPLIT)
@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("sizes", [(75, 201, 70), (130, 64, 33)])
def test_b_is_split_once(
    sizes: tuple[int, int, int], layout: str, name: str, folder: Path
) -> None:
    m, n, k = sizes
    family = FAMILIES[name]
    dtype, declared = family.dtypes[0], {each.name: each.default for each in family.parameters}
    small = SMALL_WARPS if name in WARPS else SMALL
    configuration = family.conform({**declared, **small})
    problem = Gemm(m, n, k, dtype, layout=layout, accuracy=family.accuracy)
    plan = planner_of(family, configuration, dtype, LIMITS).plan(problem)
    plans = kept_plan(family, configuration, problem, LIMITS, "B")
    assert plans is not None
    assert plan.workspace_bytes is not None
    program = HostProgram(render(family, configuration, dtype=dtype, layout=layout).text, folder)

    def memory() -> Any:
        words = plan.workspace_bytes // 4
        return guarded((1, words), words, "float32").view(np.uint8)

    def run(plan: LaunchPlan, workspace: Any, a: Any, b: Any, c: Any) -> None:
        arguments: list[Any] = [*plan.sizes, 1.5]
        for each, scalar in ((a, []), (b, [-0.5]), (c, [])):
            given = each is not None
            arguments += [each, each.strides[0] // each.itemsize] if given else [0, 0]
            arguments += scalar
        call = on_host.Case(m, n, k, dtype, layout)
        maps = maps_of(family, configuration, call, LIMITS, {}, workspace)
        for step in plan.steps:
            program.launch(
                step.kernel,
                step.grid,
                step.block,
                [*arguments, workspace, *plan.runtime, *maps],
                shared_bytes=step.shared_bytes,
            )

    rng, own = np.random.default_rng(5), memory()
    b = guarded((n, k) if layout[1] == "n" else (k, n), max(n, k) + 1, dtype)
    b[...] = rng.normal(size=b.shape)
    (b if layout[1] == "n" else b.T)[n // 2, k // 3] = np.nan
    run(plans.keep, own, None, b, None)
    first = own[0, : plans.bytes].tobytes()
    # Of B itself no more than the column with the NaN is read, unless A has such rows.
    zeros = guarded(b.shape, max(n, k) + 1, dtype)
    zeros[...] = 0
    column = np.s_[:, k // 3] if layout[1] == "n" else np.s_[k // 3]
    zeros[column] = b[column]
    for special in (False, True, False):
        a = guarded((m, n), n + 3, dtype)
        a[...] = rng.normal(size=a.shape)
        if special:
            a[m // 2, 3] = np.inf
        start = rng.normal(size=(m, k)).astype(dtype)
        kept, usual = start.copy(), start.copy()
        run(plans.call, own, a, b if special else zeros, kept)
        run(plan, memory(), a, b, usual)
        assert kept.tobytes() == usual.tobytes()
        assert np.isnan(usual[:, k // 3]).all()
        assert np.isfinite(np.delete(usual, k // 3, 1)).all() != special
        assert own[0, : plans.bytes].tobytes() == first
