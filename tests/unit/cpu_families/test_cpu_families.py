"""The shipped CPU families: spaces that make sense, kernels that are right at every size."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cpu_machines import AVX2, AVX512, SINGLE, effective_restrictions
from cpu_programs import FAMILIES, Program, Programs, each_of
from gemm_calls import GemmCall
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.core.limits import CpuLimits
from autotune.families.rendering import render
from autotune.operations.problem import Gemm

NAMES = (
    "loops", "unrolled", "blocked", "simd", "packed", "goto", "skinny", "unpacked", "divide",
    "strassen",
)  # fmt: skip
SIZES = ((1, 1, 1), (1, 7, 1), (5, 1, 3), (17, 33, 9), (64, 64, 64), (3, 2, 200), (65, 127, 63))

LIMITS = (AVX512, AVX2, SINGLE)


# Blocks far smaller than anybody would tune, so that small matrices have edges of every kind.
# They need not be values of the space: a compiled program takes any.
TILES = {"sm": 16, "sn": 20, "sk": 24}
ONE = {"threads": 1, "schedule": "static", "chunk": 0}
GUIDED = {"threads": 2, "schedule": "guided", "chunk": 1}
PACKED = {"ty": 3, "unroll": 4, **TILES, "shared": "grid", **ONE}
SIMD = {"vector": 128, "unroll": 2, "row": "registers", "block": 20, **ONE}
STRASSEN = {"ty": 4, "unroll": 4, "cutoff": 8, "sn": 20, "sk": 24, "threads": 1}
BY_COLUMNS = Program(
    "packed", {**PACKED, "threads": 2, "shared": "columns", "chunk": 1}, layout="nt"
)
CASES = [
    *(
        Program("loops", {"order": "".join(order), "threads": 1})
        for order in itertools.permutations("ijk")
    ),
    Program("loops", {"order": "ikj", "threads": 2}),
    Program("loops", {"order": "jik", "threads": 2}),
    Program("loops", {"order": "ikj", "threads": 1}, dtype="float64"),
    Program("unrolled", {"unroll": 4, "tx": 2, "threads": 1}),
    Program("unrolled", {"unroll": 1, "tx": 1, "threads": 1}, layout="nt"),
    Program("unrolled", {"unroll": 2, "tx": 4, "threads": 1}, dtype="float64"),
    Program("unrolled", {"unroll": 2, "tx": 2, "threads": 2}),
    Program("blocked", {"unroll": 4, **TILES, "threads": 1}),
    Program("blocked", {"unroll": 1, **TILES, "threads": 1}, dtype="float64"),
    Program("blocked", {"unroll": 2, **TILES, "threads": 2}),
    *(Program("packed", PACKED, layout=layout) for layout in ("nn", "nt", "tn", "tt")),
    Program("packed", PACKED, dtype="float64"),
    Program("packed", {**PACKED, "threads": 3, "schedule": "dynamic", "chunk": 2}, layout="tn"),
    Program("packed", {**PACKED, **GUIDED, "shared": "rows"}),
    BY_COLUMNS,
    Program("packed", {**PACKED, "threads": 3, "shared": "reduction", "chunk": 1}),
    Program("simd", SIMD),
    Program("simd", {**SIMD, "row": "memory", "block": 0}),
    Program("simd", {**SIMD, "unroll": 1}, dtype="float64"),
    Program("simd", {**SIMD, **GUIDED}),
    Program("divide", {"unroll": 4, "cutoff": 8, "threads": 1}),
    Program("divide", {"unroll": 2, "cutoff": 8, "threads": 1}, dtype="float64"),
    Program("divide", {"unroll": 1, "cutoff": 8, "threads": 2}),
    Program("strassen", STRASSEN),
    Program("strassen", STRASSEN, dtype="float64"),
    Program("strassen", {**STRASSEN, "threads": 2}),
]
EVERY_DAY = (
    Program("loops", {"order": "ikj", "threads": 1}),
    Program("packed", PACKED, layout="tt"),
    BY_COLUMNS,
    Program("simd", {**SIMD, "unroll": 1}, dtype="float64"),
    Program("divide", {"unroll": 4, "cutoff": 8, "threads": 1}),
    Program("strassen", STRASSEN),
)
"""Each is compiled once, for all tests: both types, several layouts, one thread and two."""


def test_the_families_are_those_documented() -> None:
    assert set(NAMES) <= set(FAMILIES)


@pytest.mark.slow
@each_of("case", CASES, EVERY_DAY)
def test_products_are_right_at_every_size(case: Program, programs: Programs) -> None:
    scales = ((1.0, 0.0), (-1.5, 0.5), (2.0, 1.0))
    for sizes, (alpha, beta) in itertools.product(SIZES, scales):
        programs.multiply(case, GemmCall(*sizes, alpha, beta, padding_a=3, padding_b=2))


@each_of(
    "case",
    [case for case in CASES if (case.dtype, case.layout) == ("float32", "nn")],
    EVERY_DAY,
)
def test_nan_and_infinity_are_not_lost(case: Program, programs: Programs) -> None:
    a, b = np.ones((9, 11), case.dtype), np.ones((11, 10), case.dtype)
    a[4, 10], b[5, 9] = np.nan, np.inf
    result = programs.multiply(case, GemmCall(9, 11, 10), operands=(a, b))
    assert np.isnan(result[4]).all()
    assert not np.isfinite(result[:, 9]).any()
    if FAMILIES[case.family].accuracy != "ieee" and case.configuration["threads"] == 1:
        # As its class says; two threads get too little to divide.
        others = np.delete(np.delete(result, 4, axis=0), 9, axis=1)
        assert not np.isfinite(others).all()


@each_of(
    "case",
    [
        case
        for case in CASES
        if "schedule" in case.configuration and case.configuration["threads"] != 1
    ],
    EVERY_DAY,
)
def test_results_do_not_depend_on_who_took_what(case: Program, programs: Programs) -> None:
    first, *others = (programs.multiply(case, GemmCall(65, 127, 63)) for _ in range(50))
    for other in others:
        np.testing.assert_array_equal(other, first)


@settings(max_examples=60)
@given(data=st.data())
def test_packed_blocks_tile_any_problem(data: st.DataObject, programs: Programs) -> None:
    size, padding = st.integers(1, 50), st.integers(0, 9)
    sizes = data.draw(st.tuples(size, size, size), label="m, n, k")
    tiles = data.draw(st.fixed_dictionaries(dict.fromkeys(TILES, size)), label="tiles")
    paddings = data.draw(st.tuples(padding, padding), label="paddings")
    case = Program("packed", {**PACKED, **tiles}, layout="tt")
    programs.multiply(case, GemmCall(*sizes, 1.5, -0.5, *paddings))


@settings(max_examples=40)
@given(sizes=st.tuples(*[st.integers(1, 70)] * 3), cutoff=st.integers(1, 40))
def test_strassen_peels_any_problem(
    sizes: tuple[int, int, int], cutoff: int, programs: Programs
) -> None:
    m, n, k = sizes
    case = Program("strassen", {**STRASSEN, "cutoff": cutoff})
    # Small integers: every sum and product is exact, so the algorithm shows no rounding.
    rng = np.random.default_rng(0)
    a = rng.integers(-2, 3, (m, n)).astype(np.float32)
    b = rng.integers(-2, 3, (n, k)).astype(np.float32)
    result = programs.multiply(case, GemmCall(m, n, k, 2.0), operands=(a, b))
    np.testing.assert_array_equal(result, 2 * (a @ b))


def test_a_second_process_compiles_nothing(programs: Programs) -> None:
    programs.module(BY_COLUMNS)
    path = BY_COLUMNS.write(programs.cache)
    script = (
        "import pathlib, sys\n"
        "from autotune.cpu.kernel import load_module\n"
        "stats = load_module(pathlib.Path(sys.argv[1])).gemm.stats\n"
        "print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], check=True, capture_output=True, text=True
    )
    assert done.stdout == "1 0\n"


OWN_BUFFERS = """
import sys
from pathlib import Path
import numpy as np
from autotune import Gemm
from autotune.targets.families import load_families
from autotune.core.configuration import Candidate
from autotune.families.program_cache import ProgramCache
from autotune.targets.registry import make_target

target, programs = make_target("cpu"), ProgramCache(Path(sys.argv[1]))
problem = Gemm(150, 131, 170, accuracy="strassen", threads=1)
limits = target.device(problem).limits
rng = np.random.default_rng(0)
a, b = (rng.random(shape, np.float32) for shape in (problem.a_shape, problem.b_shape))
for name in ("goto", "packed"):
    family = load_families(target="cpu")[name]
    candidate = Candidate(name, family.default(problem, limits))
    out = np.empty(problem.c_shape, np.float32)
    target.kernel(family, candidate, problem, target.device(problem), programs)(a, b, out)
    np.testing.assert_allclose(out, a @ b, rtol=1e-4)
"""


@pytest.mark.thorough
def test_buffers_live_as_long_as_their_addresses(tmp_path: Path) -> None:
    # Numba frees an array after its last mention, whoever still has its address. With every
    # allocation a mapping of its own, freed memory is gone at once and using it is a crash. What
    # a second process loads has been optimised once more than what the first one compiled.
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", OWN_BUFFERS, str(tmp_path)],
            env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "4096"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr


# Products of a large B are no products for kernels without packed panels.
EVERYWHERE = [name for name in NAMES if name != "unpacked"]


@pytest.mark.parametrize("limits", LIMITS, ids=["avx512", "avx2", "single"])
@pytest.mark.parametrize("name", EVERYWHERE)
def test_every_problem_has_a_space_of_searchable_size(name: str, limits: CpuLimits) -> None:
    for m, n, k in ((1, 1, 1), (1, 4096, 1), (1000, 513, 777), (1024, 1024, 1024)):
        for dtype in ("float32", "float64"):
            space = FAMILIES[name].space(Gemm(m, n, k, dtype=dtype), limits)
            assert 1 <= space.size <= 50_000


@pytest.mark.parametrize("name", EVERYWHERE)
def test_the_default_uses_every_thread_there_is(name: str) -> None:
    problem = Gemm(8192, 8192, 8192)
    family = FAMILIES[name]
    assert [family.default(problem, limits)["threads"] for limits in LIMITS] == [2, 8, 1]
    assert family.default(problem, AVX2) in family.space(problem, AVX2)


@pytest.mark.parametrize("name", NAMES)
def test_every_restriction_restricts_something(name: str) -> None:
    family = FAMILIES[name]
    small = ((1, 1, 1), (64, 64, 64), (300, 20, 30), (300, 200, 300))
    shapes = (*small, (1000, 513, 777), (4, 1 << 18, 4), (1, 4096, 4096), (2048, 2048, 2048))
    problems = [Gemm(*sizes, dtype="float64") for sizes in shapes]
    wanted = {restriction.text for restriction in family.restrictions}
    assert effective_restrictions(family, problems, LIMITS) == wanted


@pytest.mark.parametrize("name", NAMES)
def test_every_program_renders_for_every_layout(name: str) -> None:
    family = FAMILIES[name]
    first = {parameter.name: parameter.values[0] for parameter in family.parameters}
    chosen = [
        {**first, "threads": threads, parameter.name: value}
        for threads in (1, 2)
        for parameter in family.parameters
        for value in (parameter.values if not parameter.runtime else ())
    ]
    for configuration, layout in itertools.product(chosen, family.layouts):
        text = render(family, configuration, layout=layout).text
        assert ("prange(THREADS)" in text) == (configuration["threads"] > 1)
