"""The `unpacked` family: right at every size, with and without threads, to the bit."""

from __future__ import annotations

import ctypes
import dataclasses
import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from cpu_machines import AVX2, AVX512, NEON, SINGLE, effective_restrictions
from gemm_calls import GemmCall, drawn, multiply
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from autotune.core.configuration import Configuration
from autotune.core.limits import CpuLimits
from autotune.families.modules import load_module
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import render
from autotune.operations.problem import Gemm
from autotune.targets.families import load_families

FAMILY = load_families(target="cpu", operation="gemm")["unpacked"]
LIMITS = {"avx512": AVX512, "avx2": AVX2, "single": SINGLE, "neon": NEON}


@dataclass(frozen=True, slots=True)
class Program:
    """What is compiled in. LLVM splits vectors that this processor does not have."""

    vector: int
    ty: int
    vectors: int
    dtype: str = "float32"
    layout: str = "nn"
    threads: int = 1
    schedule: str = "static"

    def __str__(self) -> str:
        return "-".join(map(str, dataclasses.astuple(self)))

    def write(self, programs: ProgramCache) -> Path:
        """The emitted module."""
        names = ("vector", "ty", "vectors", "threads", "schedule")
        compiled = {name: getattr(self, name) for name in names}
        runtime = {p.name: p.values[0] for p in FAMILY.parameters if p.runtime}
        configuration = Configuration({**compiled, **runtime})
        source = render(FAMILY, configuration, dtype=self.dtype, layout=self.layout)
        return programs.write(source, FAMILY.name)


PROGRAMS = (
    Program(512, 8, 2),
    Program(256, 4, 4, dtype="float64", layout="tt"),
    Program(128, 12, 1, dtype="float64", layout="nt"),
    Program(128, 8, 3, layout="tn"),
    Program(256, 4, 2, threads=3, schedule="guided"),
    Program(256, 4, 2, layout="nt", threads=2),
)
SHARED = PROGRAMS[-2:]

Compile = Callable[[Program], ModuleType]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> ProgramCache:
    """Where this module's sources are, and what Numba compiled from them."""
    return ProgramCache(tmp_path_factory.mktemp("programs"))


@pytest.fixture(scope="module")
def compiled(programs: ProgramCache) -> Compile:
    """Compile a program, once for this module."""
    return lambda program: load_module(program.write(programs))


SIZE = st.integers(1, 70)
CALLS = st.builds(
    GemmCall,
    m=SIZE,
    n=SIZE,
    k=SIZE,
    alpha=st.sampled_from((1.0, -1.5, 0.0)),
    beta=st.sampled_from((0.0, 1.0, 0.5)),
    padding_a=st.integers(0, 9),
    padding_b=st.integers(0, 9),
)
# Blocks far smaller than anybody would tune, so that small matrices have edges of every kind.
RUNTIME = st.tuples(SIZE, SIZE, st.integers(0, 3))


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("program", PROGRAMS, ids=str)
@settings(max_examples=40)
@given(call=CALLS, runtime=RUNTIME)
def test_every_product_is_right(
    program: Program, call: GemmCall, runtime: tuple[int, ...], compiled: Compile
) -> None:
    multiply(compiled(program), program.layout, *drawn(call, program.dtype), call, runtime)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("program", SHARED, ids=str)
@settings(max_examples=20)
@given(call=CALLS, runtime=RUNTIME)
def test_blocks_and_threads_do_not_change_a_bit(
    program: Program, call: GemmCall, runtime: tuple[int, ...], compiled: Compile
) -> None:
    alone = compiled(dataclasses.replace(program, threads=1, schedule="static"))
    operands = drawn(call, program.dtype)
    expected = multiply(alone, program.layout, *operands, call, (512, 4096, 0))
    result = multiply(compiled(program), program.layout, *operands, call, runtime)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_nan_and_infinity_stay_where_they_belong(program: Program, compiled: Compile) -> None:
    a, b = np.ones((19, 11), program.dtype), np.ones((11, 40), program.dtype)
    a[18, 10], b[10, 39], b[9, 0] = np.nan, np.inf, -np.inf
    call = GemmCall(19, 11, 40, padding_a=3, padding_b=3)
    multiply(compiled(program), program.layout, a, b, call, (8, 64, 0))


def at_the_end(matrix: NDArray[Any], padding: int) -> NDArray[Any]:
    """A copy whose last element is the last one before memory that nobody may touch."""
    rows, columns = matrix.shape
    ld, item = columns + padding, matrix.itemsize
    used = ((rows - 1) * ld + columns) * item
    pages = -(-used // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = np.frombuffer(mmap.mmap(-1, pages + mmap.PAGESIZE), np.uint8)
    behind = ctypes.c_void_p(memory.ctypes.data + pages)
    assert ctypes.CDLL(None).mprotect(behind, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    flat = memory[pages - used : pages].view(matrix.dtype)
    flat.fill(np.nan)
    copied = np.lib.stride_tricks.as_strided(flat, matrix.shape, (ld * item, item))
    copied[...] = matrix
    return copied


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
@pytest.mark.parametrize("sizes", [(700, 16, 5), (3, 300, 5), (1, 1, 1), (70, 33, 64), (9, 2, 37)])
@pytest.mark.parametrize("padding", [0, 3])
def test_operands_may_end_where_memory_does(
    program: Program, sizes: tuple[int, int, int], padding: int, compiled: Compile
) -> None:
    m, n, k = sizes
    rng = np.random.default_rng(n)
    a, b = (rng.integers(-4, 5, shape).astype(program.dtype) for shape in ((m, n), (n, k)))
    held_a, held_b = (
        at_the_end(each.T if stored == "t" else each, padding)
        for each, stored in zip((a, b), program.layout, strict=True)
    )
    c = np.full((m, k), np.nan, program.dtype)
    lda, ldb = (each.strides[0] // each.itemsize for each in (held_a, held_b))
    compiled(program).gemm(
        *(m, n, k, 1.0, held_a.ctypes.data, lda, held_b.ctypes.data, ldb, 0.0),
        *(c.ctypes.data, k, 128, 256, 0),
    )
    np.testing.assert_array_equal(c, a @ b)


SECOND_PROCESS = """
import sys
from pathlib import Path
import numpy as np
from autotune.families.modules import load_module

gemm = load_module(Path(sys.argv[1])).gemm
assert sum(gemm.stats.cache_hits.values()) == 1, "compiled again"
rng = np.random.default_rng(0)
for m, n, k in ((1, 1, 1), (5, 7, 9), (64, 64, 64), (150, 31, 170)):
    a, b = rng.random((m, n), np.float32), rng.random((k, n), np.float32)
    c = np.full((m, k), np.nan, np.float32)
    gemm(m, n, k, 1.0, a.ctypes.data, n, b.ctypes.data, n, 0.0, c.ctypes.data, k, 32, 64, 0)
    np.testing.assert_allclose(c, a @ b.T, rtol=1e-4)
"""


def test_a_second_process_computes_the_same_from_the_file_cache(
    programs: ProgramCache, compiled: Compile
) -> None:
    # What is cached has been optimised once more, as a whole, than what the first process runs.
    # With every allocation a mapping of its own, using what was freed is a crash.
    program = SHARED[1]
    compiled(program)
    done = subprocess.run(
        [sys.executable, "-c", SECOND_PROCESS, str(program.write(programs))],
        env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "4096"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


SHAPES = (
    (1, 1, 1),
    (8, 8, 8),
    (64, 64, 64),
    (9, 9, 300),
    (4096, 8, 4096),
    (4096, 4096, 1),
    (300, 20, 30),
    (1000, 513, 777),
    (4, 1 << 18, 4),
    (1, 4096, 4096),
)


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_problem_has_a_space_of_searchable_size(dtype: str, limits: CpuLimits) -> None:
    for m, n, k in SHAPES:
        problem = Gemm(m, n, k, dtype=dtype)
        # With many rows a B beyond the caches is other families'.
        is_large = n * k * problem.itemsize > 4 * limits.l2_bytes and m > 24
        is_a_row = m == 1 and n * k * problem.itemsize > limits.l2_bytes
        assert (not (is_large or is_a_row)) <= FAMILY.space(problem, limits).size <= 50_000


def test_every_restriction_restricts_something() -> None:
    problems = [Gemm(*sizes) for sizes in SHAPES]
    wanted = {restriction.text for restriction in FAMILY.restrictions}
    assert effective_restrictions(FAMILY, problems, LIMITS.values()) == wanted
