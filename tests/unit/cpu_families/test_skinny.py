"""The `skinny` family: right for every layout and side, and its bits depend on no thread."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from cpu_machines import AVX2, AVX512, NEON, SINGLE, effective_restrictions
from gemm_calls import GemmCall, drawn, multiply
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.core.configuration import Configuration
from autotune.core.limits import CpuLimits
from autotune.families.modules import load_module
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import render
from autotune.operations.problem import Gemm
from autotune.targets.families import load_families

FAMILY = load_families(target="cpu", operation="gemm")["skinny"]
LIMITS = {"avx512": AVX512, "avx2": AVX2, "single": SINGLE, "neon": NEON}


@dataclass(frozen=True, slots=True)
class Program:
    """What is compiled in. LLVM splits vectors that this processor does not have."""

    layout: str
    side: str
    vector: int = 512
    ty: int = 8
    vectors: int = 2
    dtype: str = "float32"
    threads: int = 1
    schedule: str = "static"

    def __str__(self) -> str:
        return "-".join(map(str, dataclasses.astuple(self)))

    def write(self, programs: ProgramCache) -> Path:
        """The emitted module."""
        names = ("vector", "side", "ty", "vectors", "threads", "schedule")
        compiled = {name: getattr(self, name) for name in names}
        runtime = {p.name: p.values[0] for p in FAMILY.parameters if p.runtime}
        configuration = Configuration({**compiled, **runtime})
        source = render(FAMILY, configuration, dtype=self.dtype, layout=self.layout)
        return programs.write(source, FAMILY.name)


# Every layout and side is a program of its own; widths, tiles and types take turns.
PROGRAMS = (
    Program("nn", "rows"),
    Program("nn", "columns", 256, 4, 2, "float64"),
    Program("nt", "rows", 128, 8, 4, "float64"),
    Program("nt", "columns", 512, 4, 4),
    Program("tn", "rows", 128, 4, 2),
    Program("tn", "columns", 512, 8, 2, "float64"),
    Program("tt", "rows", 256, 8, 2),
    Program("tt", "columns", 128, 4, 2, "float64"),
)
SHARED = (
    Program("nn", "rows", 256, 4, 2, threads=3, schedule="guided"),
    Program("nn", "columns", 256, 4, 2, threads=2),
)

Compile = Callable[[Program], ModuleType]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> ProgramCache:
    """Where this module's sources are, and what Numba compiled from them."""
    return ProgramCache(tmp_path_factory.mktemp("programs"))


@pytest.fixture(scope="module")
def compiled(programs: ProgramCache) -> Compile:
    """Compile a program, once for this module."""
    return lambda program: load_module(program.write(programs))


FEW, LONG = st.integers(1, 19), st.integers(1, 300)


@st.composite
def calls(draw: st.DrawFn, side: str | None = None) -> GemmCall:
    few, long = draw(FEW), draw(LONG)
    if side is None:
        side = draw(st.sampled_from(("rows", "columns")))
    return GemmCall(
        m=few if side == "rows" else long,
        n=draw(st.integers(1, 300)),
        k=long if side == "rows" else few,
        alpha=draw(st.sampled_from((1.0, -1.5, 0.0))),
        beta=draw(st.sampled_from((0.0, 1.0, 0.5))),
        padding_a=draw(st.integers(0, 9)),
        padding_b=draw(st.integers(0, 9)),
        padding_c=draw(st.sampled_from((0, 5))),
    )


# Far smaller than anybody would tune, so that small matrices have edges of every kind.
RUNTIME = st.tuples(st.integers(1, 9), st.integers(1, 300), st.integers(1, 5), st.integers(0, 3))


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("program", [*PROGRAMS, *SHARED], ids=str)
@settings(max_examples=40)
@given(data=st.data())
def test_every_product_is_right(program: Program, data: st.DataObject, compiled: Compile) -> None:
    # Shapes that it is for, and their opposites.
    call = data.draw(calls())
    runtime = data.draw(RUNTIME)
    multiply(compiled(program), program.layout, *drawn(call, program.dtype), call, runtime)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_sizes_as_they_are_tuned(program: Program, compiled: Compile) -> None:
    for few, n, long in (
        (1, 1100, 515),
        (5, 257, 1030),
        (16, 2049, 65),
        (8, 3, 700),
        (1, 3000, 1),
    ):
        m, k = (few, long) if program.side == "rows" else (long, few)
        call = GemmCall(m, n, k, alpha=0.5, beta=2.0)
        operands = drawn(call, program.dtype)
        multiply(compiled(program), program.layout, *operands, call, (8, 512, 1, 0))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("program", SHARED, ids=str)
@settings(max_examples=25)
@given(data=st.data())
def test_threads_agree_with_one_to_the_bit(
    program: Program, data: st.DataObject, compiled: Compile
) -> None:
    # Segments and chunks decide who computes what. Only sn and parts change the order of sums.
    call = data.draw(calls(program.side))
    step, _, _, _ = data.draw(RUNTIME)
    operands = drawn(call, program.dtype)
    alone = dataclasses.replace(program, threads=1, schedule="static")
    expected = multiply(compiled(alone), program.layout, *operands, call, (step, 4096, 1, 0))
    for segment, chunk in ((40, 0), (100, 1), (17, 2)):
        runtime = (step, segment, 1, chunk)
        result = multiply(compiled(program), program.layout, *operands, call, runtime)
        np.testing.assert_array_equal(result, expected)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("program", SHARED, ids=str)
def test_parts_are_added_in_their_order(program: Program, compiled: Compile) -> None:
    call = GemmCall(3, 5000, 70, beta=0.5) if program.side == "rows" else GemmCall(70, 5000, 3)
    operands = drawn(call, program.dtype)
    results = [
        multiply(compiled(program), program.layout, *operands, call, (8, segment, 5, chunk))
        for segment, chunk in ((4096, 0), (16, 1), (40, 0)) * 7
    ]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_nan_and_infinity_stay_where_they_belong(program: Program, compiled: Compile) -> None:
    m, k = (5, 70) if program.side == "rows" else (70, 5)
    call = GemmCall(m, 37, k, padding_a=3, padding_b=3)
    a, b = np.ones((m, 37), program.dtype), np.ones((37, k), program.dtype)
    a[m - 1, 36], b[36, k - 1], b[35, 0] = np.nan, np.inf, -np.inf
    multiply(compiled(program), program.layout, a, b, call, (2, 32, 1, 0))


def test_a_kernel_may_be_called_from_several_threads(compiled: Compile) -> None:
    program = PROGRAMS[0]
    module = compiled(program)

    def check(number: int) -> None:
        call = GemmCall(1 + number, 100, 50 + number)
        operands = drawn(call, program.dtype)
        multiply(module, program.layout, *operands, call, (8, 32, 1, 0))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(check, range(16)))


SECOND_PROCESS = """
import sys
from pathlib import Path
import numpy as np
from autotune.families.modules import load_module

gemm = load_module(Path(sys.argv[1])).gemm
assert sum(gemm.stats.cache_hits.values()) == 1, "compiled again"
rng = np.random.default_rng(0)
for m, n, k in ((1, 1, 1), (5, 7, 9), (150, 131, 3), (64, 700, 16)):
    a, b = rng.random((m, n)).astype(sys.argv[2]), rng.random((n, k)).astype(sys.argv[2])
    c = np.full((m, k), np.nan, sys.argv[2])
    gemm(m, n, k, 1.0, a.ctypes.data, n, b.ctypes.data, k, 0.0, c.ctypes.data, k, 8, 64, 3, 0)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4)
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("program", [PROGRAMS[0], PROGRAMS[1], SHARED[1]], ids=str)
def test_a_second_process_computes_the_same_from_the_file_cache(
    program: Program, programs: ProgramCache, compiled: Compile
) -> None:
    # What is cached has been optimised once more, as a whole, than what the first process runs.
    # With every allocation a mapping of its own, using what was freed is a crash.
    compiled(program)
    done = subprocess.run(
        [sys.executable, "-c", SECOND_PROCESS, str(program.write(programs)), program.dtype],
        env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "4096"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


SHAPES = (
    (1, 1, 1),
    (8, 8, 8),
    (64, 64, 64),
    (1, 4096, 4096),
    (4096, 4096, 1),
    (16, 4096, 4096),
    (300, 20, 3),
    (1, 1 << 20, 1),
    (1000, 513, 777),
    (2, 65536, 20000),
    (4096, 4096, 4096),
)


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_problem_has_a_space_of_searchable_size(dtype: str, limits: CpuLimits) -> None:
    for m, n, k in SHAPES:
        problem = Gemm(m, n, k, dtype=dtype)
        # Few rows times few columns are another family's, on one thread.
        is_small = 1 < k <= limits.vector_bits // 8 // problem.itemsize and m <= min(2 * k, 8)
        assert (not is_small) <= FAMILY.space(problem, limits).size <= 50_000


def test_every_restriction_restricts_something() -> None:
    problems = [Gemm(*sizes) for sizes in SHAPES]
    wanted = {restriction.text for restriction in FAMILY.restrictions}
    assert effective_restrictions(FAMILY, problems, LIMITS.values()) == wanted


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_the_side_is_the_shorter_one(limits: CpuLimits) -> None:
    assert FAMILY.default(Gemm(4, 4096, 4096), limits)["side"] == "rows"
    assert FAMILY.default(Gemm(4096, 4096, 4), limits)["side"] == "columns"
    shared = FAMILY.default(Gemm(4096, 4096, 4), limits)["threads"]
    assert shared == limits.max_threads


def test_every_thread_has_a_segment_or_there_are_fewer_threads() -> None:
    """A segment may have all 695 rows; four threads have a quarter of them each."""
    four = Configuration({**FAMILY.presets["columns_panels"].configuration, "threads": 4})
    limits = dataclasses.replace(AVX512, max_threads=4)
    for rows, fits in ((695, True), (8, False)):
        problem = Gemm(rows, 2**22 // rows, 1)
        assert (FAMILY.space(problem, limits).rejection(four) is None) == fits
