"""The shipped CPU families: spaces that make sense, kernels that are right at every size."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from cpu_machines import AVX2, AVX512, SINGLE
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from autotune.core.configuration import Configuration, Value
from autotune.core.limits import CpuLimits
from autotune.families.modules import load_module
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import Source, render
from autotune.operations.problem import Gemm
from autotune.targets.families import load_families

FAMILIES = load_families(target="cpu", operation="gemm")
NAMES = (
    "loops",
    "unrolled",
    "blocked",
    "simd",
    "packed",
    "goto",
    "skinny",
    "unpacked",
    "divide",
    "strassen",
)
SIZES = ((1, 1, 1), (1, 7, 1), (5, 1, 3), (17, 33, 9), (64, 64, 64), (3, 2, 200), (65, 127, 63))

LIMITS = (AVX512, AVX2, SINGLE)


@dataclass(frozen=True, slots=True)
class Case:
    """One program, and the runtime parameters to call it with."""

    family: str
    configuration: Mapping[str, Value]
    dtype: str = "float32"
    layout: str = "nn"

    def __str__(self) -> str:
        values = "-".join(str(value) for value in self.configuration.values())
        return f"{self.family}-{values}-{self.dtype}-{self.layout}"


# Blocks far smaller than anybody would tune, so that small matrices have edges of every kind.
# They need not be values of the space: a compiled program takes any.
TILES = {"sm": 16, "sn": 20, "sk": 24}
ONE = {"threads": 1, "schedule": "static", "chunk": 0}
PACKED = {"ty": 3, "unroll": 4, **TILES, "shared": "grid", **ONE}
SIMD = {"vector": 128, "unroll": 2, "row": "registers", "block": 20, **ONE}
STRASSEN = {"ty": 4, "unroll": 4, "cutoff": 8, "sn": 20, "sk": 24, "threads": 1}
CASES = [
    *(
        Case("loops", {"order": "".join(order), "threads": 1})
        for order in itertools.permutations("ijk")
    ),
    Case("loops", {"order": "ikj", "threads": 2}),
    Case("loops", {"order": "jik", "threads": 2}),
    Case("loops", {"order": "ikj", "threads": 1}, dtype="float64"),
    Case("unrolled", {"unroll": 4, "tx": 2, "threads": 1}),
    Case("unrolled", {"unroll": 1, "tx": 1, "threads": 1}, layout="nt"),
    Case("unrolled", {"unroll": 2, "tx": 4, "threads": 1}, dtype="float64"),
    Case("unrolled", {"unroll": 2, "tx": 2, "threads": 2}),
    Case("blocked", {"unroll": 4, **TILES, "threads": 1}),
    Case("blocked", {"unroll": 1, **TILES, "threads": 1}, dtype="float64"),
    Case("blocked", {"unroll": 2, **TILES, "threads": 2}),
    *(Case("packed", PACKED, layout=layout) for layout in ("nn", "nt", "tn", "tt")),
    Case("packed", PACKED, dtype="float64"),
    Case("packed", {**PACKED, "threads": 3, "schedule": "dynamic", "chunk": 2}, layout="tn"),
    Case("packed", {**PACKED, "threads": 2, "shared": "rows", "schedule": "guided", "chunk": 1}),
    Case("packed", {**PACKED, "threads": 2, "shared": "columns", "chunk": 1}, layout="nt"),
    Case("packed", {**PACKED, "threads": 3, "shared": "reduction", "chunk": 1}),
    Case("simd", SIMD),
    Case("simd", {**SIMD, "row": "memory", "block": 0}),
    Case("simd", {**SIMD, "unroll": 1}, dtype="float64"),
    Case("simd", {**SIMD, "threads": 2, "schedule": "guided", "chunk": 1}),
    Case("divide", {"unroll": 4, "cutoff": 8, "threads": 1}),
    Case("divide", {"unroll": 2, "cutoff": 8, "threads": 1}, dtype="float64"),
    Case("divide", {"unroll": 1, "cutoff": 8, "threads": 2}),
    Case("strassen", STRASSEN),
    Case("strassen", STRASSEN, dtype="float64"),
    Case("strassen", {**STRASSEN, "threads": 2}),
]

Program = Callable[[Case], ModuleType]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Compile a case's source, once for this module."""
    cache = ProgramCache(tmp_path_factory.mktemp("programs"))
    return lambda case: load_module(cache.write(_source(case), case.family))


def _source(case: Case) -> Source:
    family = FAMILIES[case.family]
    compiled = {
        parameter.name: case.configuration[parameter.name]
        if not parameter.runtime
        else parameter.values[0]
        for parameter in family.parameters
    }
    return render(family, Configuration(compiled), dtype=case.dtype, layout=case.layout)


@dataclass(frozen=True, slots=True)
class Run:
    """What a call did: the result, what it should have been, and the scale of its rounding."""

    result: NDArray[np.floating]
    exact: NDArray[np.float64]
    magnitude: NDArray[np.float64]


def _stored(matrix: NDArray[np.floating], transposed: bool, padding: int) -> NDArray[np.floating]:
    """The matrix as a layout stores it, with columns of NaN beyond its leading dimension."""
    rows = matrix.T if transposed else matrix
    padded = np.full((rows.shape[0], rows.shape[1] + padding), np.nan, matrix.dtype)
    padded[:, : rows.shape[1]] = rows
    return padded


def _multiply(
    case: Case,
    module: ModuleType,
    a: NDArray[np.floating],
    b: NDArray[np.floating],
    alpha: float = 1.0,
    beta: float = 0.0,
    paddings: tuple[int, int] = (3, 2),
) -> Run:
    """Call the entry on C within a frame of guard values, NaN where beta is 0."""
    (m, n), k = a.shape, b.shape[1]
    rng = np.random.default_rng(m * n * k)
    stored_a = _stored(a, case.layout[0] == "t", paddings[0])
    stored_b = _stored(b, case.layout[1] == "t", paddings[1])
    untouched = stored_a.copy(), stored_b.copy()
    guard = 7.0
    frame = np.full((m + 2, k + 5), guard, a.dtype)
    c = frame[1:-1, 2 : k + 2]
    c[:] = np.nan if beta == 0 else rng.standard_normal((m, k))
    before = np.zeros((m, k)) if beta == 0 else c.astype(np.float64)
    runtime = [
        case.configuration[parameter.name]
        for parameter in FAMILIES[case.family].parameters
        if parameter.runtime
    ]
    module.gemm(
        m,
        n,
        k,
        alpha,
        stored_a.ctypes.data,
        stored_a.shape[1],
        stored_b.ctypes.data,
        stored_b.shape[1],
        beta,
        c.ctypes.data,
        frame.shape[1],
        *runtime,
    )
    result = c.copy()
    c[:] = guard
    assert (frame == guard).all(), "wrote outside C"
    np.testing.assert_array_equal(stored_a, untouched[0])
    np.testing.assert_array_equal(stored_b, untouched[1])
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):  # infinities times zeros, where a test asks for them
        return Run(
            result,
            alpha * (a64 @ b64) + beta * before,
            abs(alpha) * (abs(a64) @ abs(b64)) + abs(beta * before),
        )


def _assert_close(case: Case, run: Run, n: int) -> None:
    epsilon = float(np.finfo(case.dtype).eps)
    magnitude: NDArray[np.float64] | float = run.magnitude
    if FAMILIES[case.family].accuracy == "strassen":
        # Only a bound by norm holds, and it grows with every level of the recursion.
        magnitude, epsilon = float(run.magnitude.max()), 32 * epsilon
    error = np.abs(run.result - run.exact)
    assert (error <= (4 + 2 * np.sqrt(n)) * epsilon * magnitude).all(), error.max()


def test_the_families_are_those_documented() -> None:
    assert set(NAMES) <= set(FAMILIES)


@pytest.mark.sampled(6)
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_products_are_right_at_every_size(case: Case, program: Program) -> None:
    module = program(case)
    rng = np.random.default_rng(0)
    scales = ((1.0, 0.0), (-1.5, 0.5), (2.0, 1.0))
    for (m, n, k), (alpha, beta) in itertools.product(SIZES, scales):
        a = rng.standard_normal((m, n)).astype(case.dtype)
        b = rng.standard_normal((n, k)).astype(case.dtype)
        _assert_close(case, _multiply(case, module, a, b, alpha, beta), n)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.dtype == "float32" and case.layout == "nn"],
    ids=str,
)
def test_nan_and_infinity_are_not_lost(case: Case, program: Program) -> None:
    a = np.ones((9, 11), case.dtype)
    b = np.ones((11, 10), case.dtype)
    a[4, 10] = np.nan
    b[5, 9] = np.inf
    run = _multiply(case, program(case), a, b)
    assert np.isnan(run.result[4]).all()
    assert not np.isfinite(run.result[:, 9]).any()
    if FAMILIES[case.family].accuracy == "ieee":
        np.testing.assert_array_equal(run.result, run.exact)
    elif case.configuration["threads"] == 1:  # as its class says; two get too little to divide
        assert not np.isfinite(run.result[np.isfinite(run.exact)]).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "case",
    [
        case
        for case in CASES
        if case.configuration.get("schedule", "") and case.configuration["threads"] != 1
    ],
    ids=str,
)
def test_results_do_not_depend_on_who_took_what(case: Case, program: Program) -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((65, 127)).astype(case.dtype)
    b = rng.standard_normal((127, 63)).astype(case.dtype)
    module = program(case)
    first, *others = (_multiply(case, module, a, b).result for _ in range(50))
    for other in others:
        np.testing.assert_array_equal(other, first)


@settings(max_examples=60)
@given(data=st.data())
def test_packed_blocks_tile_any_problem(data: st.DataObject, program: Program) -> None:
    size = st.integers(1, 50)
    m, n, k = data.draw(st.tuples(size, size, size), label="m, n, k")
    tiles = data.draw(st.fixed_dictionaries(dict.fromkeys(TILES, size)), label="tiles")
    layout = data.draw(st.sampled_from(("nn", "tt")), label="layout")
    paddings = data.draw(st.tuples(st.integers(0, 9), st.integers(0, 9)), label="paddings")
    case = Case("packed", {**PACKED, **tiles}, layout=layout)
    rng = np.random.default_rng(0)
    a = rng.standard_normal((m, n)).astype(np.float32)
    b = rng.standard_normal((n, k)).astype(np.float32)
    _assert_close(case, _multiply(case, program(case), a, b, 1.5, -0.5, paddings), n)


@settings(max_examples=40)
@given(sizes=st.tuples(*[st.integers(1, 70)] * 3), cutoff=st.integers(1, 40))
def test_strassen_peels_any_problem(
    sizes: tuple[int, int, int], cutoff: int, program: Program
) -> None:
    m, n, k = sizes
    case = Case("strassen", {**STRASSEN, "cutoff": cutoff})
    # Small integers: every sum and product is exact, so the algorithm shows no rounding.
    rng = np.random.default_rng(0)
    a = rng.integers(-2, 3, (m, n)).astype(np.float32)
    b = rng.integers(-2, 3, (n, k)).astype(np.float32)
    run = _multiply(case, program(case), a, b, 2.0, 0.0)
    np.testing.assert_array_equal(run.result, run.exact)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_second_process_compiles_nothing(threads: int, tmp_path: Path) -> None:
    case = Case("divide", {"unroll": 1, "cutoff": 16, "threads": threads})
    path = ProgramCache(tmp_path / "programs").write(_source(case), case.family)
    script = (
        "import pathlib, sys\n"
        "from autotune.cpu.kernel import load_module\n"
        "stats = load_module(pathlib.Path(sys.argv[1])).gemm.stats\n"
        "print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))\n"
    )
    printed = [
        subprocess.run(
            [sys.executable, "-c", script, str(path)], check=True, capture_output=True, text=True
        ).stdout
        for _ in range(2)
    ]
    assert printed == ["0 1\n", "1 0\n"]


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
    effective = set()
    small = ((1, 1, 1), (64, 64, 64), (300, 20, 30), (300, 200, 300))
    shapes = (*small, (1000, 513, 777), (4, 1 << 18, 4), (1, 4096, 4096), (2048, 2048, 2048))
    for sizes in shapes:
        for limits in LIMITS:
            space = family.space(Gemm(*sizes, dtype="float64"), limits)
            remaining = space.cartesian
            for step in space.funnel():
                if step.remaining < remaining:
                    effective.add(step.expr)
                remaining = step.remaining
    assert effective == {restriction.text for restriction in family.restrictions}


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
