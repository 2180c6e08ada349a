"""The `goto` family: right at every size, layout and blocking; its sums stay in registers."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import llvmlite.binding as llvm
import numpy as np
import pytest
from cpu_machines import AVX2, AVX512, NEON, SINGLE, effective_restrictions
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from autotune.core.configuration import Configuration, Value
from autotune.core.limits import CpuLimits
from autotune.families.modules import load_module
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import render
from autotune.operations.problem import Gemm
from autotune.targets.families import load_families

FAMILY = load_families(target="cpu", operation="gemm")["goto"]

LIMITS = {"avx512": AVX512, "avx2": AVX2, "single": SINGLE, "neon": NEON}


@dataclass(frozen=True, slots=True)
class Program:
    """What is compiled in. LLVM splits vectors that this processor does not have."""

    vector: int
    ty: int
    tx: int
    dtype: str = "float32"
    layout: str = "nn"
    threads: int = 1
    schedule: str = "static"

    def __str__(self) -> str:
        return "-".join(map(str, dataclasses.astuple(self)))

    def write(self, programs: ProgramCache) -> Path:
        """The emitted module."""
        names = ("vector", "ty", "tx", "threads", "schedule")
        compiled = {name: getattr(self, name) for name in names}
        runtime = {p.name: p.values[0] for p in FAMILY.parameters if p.runtime}
        source = render(
            FAMILY,
            Configuration({**compiled, **runtime}),
            dtype=self.dtype,
            layout=self.layout,
        )
        return programs.write(source, "goto")


PROGRAMS = (
    Program(512, 14, 32),
    # More rows than a vector has lanes, and not a multiple: vectors overlap packed columns.
    Program(256, 14, 4, dtype="float64", layout="tt"),
    Program(128, 6, 4, dtype="float64", layout="nt"),
    Program(128, 12, 8, layout="tn"),
    Program(256, 6, 16, threads=3, schedule="guided"),
    Program(256, 6, 16, threads=2),
)
SHARED = PROGRAMS[-1]
ALONE = dataclasses.replace(SHARED, threads=1)

Compile = Callable[[Program], ModuleType]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> ProgramCache:
    """Where this module's sources are, and what Numba compiled from them."""
    return ProgramCache(tmp_path_factory.mktemp("programs"))


@pytest.fixture(scope="module")
def compiled(programs: ProgramCache) -> Compile:
    """Compile a program, once for this module."""
    return lambda program: load_module(program.write(programs))


@dataclass(frozen=True, slots=True)
class Call:
    """Sizes, scalars and everything that is passed at the call."""

    m: int
    n: int
    k: int
    alpha: float = 1.0
    beta: float = 0.0
    sm: int = 192
    sn: int = 512
    sk: int = 2048
    pack_a: int = 1
    pack_b: int = 1
    parts: int = 1
    chunk: int = 0
    padding_a: int = 0
    padding_b: int = 0

    @property
    def runtime(self) -> tuple[int, ...]:
        return (
            self.sm,
            self.sn,
            self.sk,
            self.pack_a,
            self.pack_b,
            self.parts,
            self.chunk,
        )


def _stored(matrix: NDArray[np.floating], transposed: bool, padding: int) -> NDArray[np.floating]:
    """The matrix as a layout stores it, with columns of NaN beyond its leading dimension."""
    rows = matrix.T if transposed else matrix
    stored = np.full((rows.shape[0], rows.shape[1] + padding), np.nan, matrix.dtype)
    stored[:, : rows.shape[1]] = rows
    return stored


def _check(module: ModuleType, program: Program, call: Call) -> NDArray[np.floating]:
    """Call the entry on C within a frame of guard values; the result, found to be right."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((call.m, call.n)).astype(program.dtype)
    b = rng.standard_normal((call.n, call.k)).astype(program.dtype)
    stored_a = _stored(a, program.layout[0] == "t", call.padding_a)
    stored_b = _stored(b, program.layout[1] == "t", call.padding_b)
    frame = np.full((call.m + 2, call.k + 5), 7.0, program.dtype)
    c = frame[1:-1, 2 : call.k + 2]
    # Where beta is 0, C is not read.
    c[:] = np.nan if call.beta == 0 else rng.standard_normal(c.shape)
    before = np.zeros(c.shape) if call.beta == 0 else c.astype(np.float64)
    module.gemm(
        call.m,
        call.n,
        call.k,
        call.alpha,
        stored_a.ctypes.data,
        stored_a.shape[1],
        stored_b.ctypes.data,
        stored_b.shape[1],
        call.beta,
        c.ctypes.data,
        frame.shape[1],
        *call.runtime,
    )
    result = c.copy()
    c[:] = 7.0
    assert (frame == 7.0).all(), "wrote outside C"
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    exact = call.alpha * (a64 @ b64) + call.beta * before
    scale = abs(call.alpha) * (abs(a64) @ abs(b64)) + abs(call.beta * before)
    bound = (4 + 2 * np.sqrt(call.n)) * float(np.finfo(program.dtype).eps) * scale
    assert (np.abs(result - exact) <= bound).all(), np.abs(result - exact).max()
    return result


SIZE = st.integers(1, 70)
CALLS = st.builds(
    Call,
    m=SIZE,
    n=SIZE,
    k=SIZE,
    alpha=st.sampled_from((1.0, -1.5, 0.0)),
    beta=st.sampled_from((0.0, 1.0, 0.5)),
    # Blocks far smaller than anybody would tune, so that small matrices have edges of every kind.
    sm=SIZE,
    sn=SIZE,
    sk=SIZE,
    pack_a=st.integers(0, 1),
    pack_b=st.integers(0, 1),
    parts=st.integers(1, 5),
    chunk=st.integers(0, 3),
    padding_a=st.integers(0, 9),
    padding_b=st.integers(0, 9),
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("program", PROGRAMS, ids=str)
@settings(max_examples=30)
@given(call=CALLS)
def test_every_product_is_right(program: Program, call: Call, compiled: Compile) -> None:
    _check(compiled(program), program, call)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("program", PROGRAMS, ids=str)
@pytest.mark.parametrize("sizes", [(129, 515, 257), (300, 40, 97), (7, 1100, 33)])
def test_blocks_as_they_are_tuned(
    program: Program, sizes: tuple[int, int, int], compiled: Compile
) -> None:
    for packed in (0, 1):
        call = Call(*sizes, beta=0.5, sm=96, sn=256, sk=128, pack_a=packed, pack_b=packed)
        _check(compiled(program), program, call)


@settings(max_examples=25)
@given(call=CALLS, other=CALLS)
def test_who_computes_what_does_not_change_a_bit(
    call: Call, other: Call, compiled: Compile
) -> None:
    # Blocks, parts and chunks decide which thread gets what. Only sn changes the order of sums.
    blocks = {name: getattr(other, name) for name in ("sm", "sk", "pack_a", "pack_b")}
    other = dataclasses.replace(call, **blocks, parts=other.parts, chunk=other.chunk)
    module = compiled(SHARED)
    np.testing.assert_array_equal(_check(module, SHARED, call), _check(module, SHARED, other))


@pytest.mark.parametrize("program", [p for p in PROGRAMS if p.threads > 1], ids=str)
def test_threads_agree_with_one_to_the_bit(program: Program, compiled: Compile) -> None:
    # Several panels: a thread that did not wait for the others to pack one would use the last.
    call = Call(133, 300, 95, beta=0.5, sm=6, sn=32, sk=32, parts=2, chunk=1)
    expected = _check(compiled(ALONE), ALONE, call)
    for _ in range(20):
        np.testing.assert_array_equal(_check(compiled(program), program, call), expected)


def test_a_kernel_may_be_called_from_several_threads(compiled: Compile) -> None:
    program = PROGRAMS[0]
    module = compiled(program)
    calls = [Call(64 + i, 100, 50 + i, sm=28, sn=32, sk=32) for i in range(16)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda call: _check(module, program, call), calls))


@pytest.mark.parametrize("program", PROGRAMS[:3], ids=str)
def test_nan_and_infinity_stay_where_they_belong(program: Program, compiled: Compile) -> None:
    m, n, k = 19, 11, 40
    a, b = np.ones((m, n), program.dtype), np.ones((n, k), program.dtype)
    a[m - 1, n - 1], b[n - 1, k - 1] = np.nan, np.inf
    stored_a = _stored(a, program.layout[0] == "t", 3)
    stored_b = _stored(b, program.layout[1] == "t", 3)
    for packed in (0, 1):
        c = np.empty((m, k), program.dtype)
        compiled(program).gemm(
            m,
            n,
            k,
            1.0,
            stored_a.ctypes.data,
            stored_a.shape[1],
            stored_b.ctypes.data,
            stored_b.shape[1],
            0.0,
            c.ctypes.data,
            k,
            *Call(m, n, k, pack_a=packed, pack_b=packed).runtime,
        )
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(c, a @ b)


SECOND_PROCESS = """
import sys
from pathlib import Path
import numpy as np
from autotune.families.modules import load_module

gemm = load_module(Path(sys.argv[1])).gemm
assert sum(gemm.stats.cache_hits.values()) == 1, "compiled again"
rng = np.random.default_rng(0)
for m, n, k in ((1, 1, 1), (5, 7, 9), (64, 64, 64), (150, 131, 170)):
    for packed in (0, 1):
        a, b = rng.random((m, n), np.float32), rng.random((n, k), np.float32)
        c = np.full((m, k), np.nan, np.float32)
        gemm(m, n, k, 1.0, a.ctypes.data, n, b.ctypes.data, k, 0.0, c.ctypes.data, k,
             96, 128, 64, packed, packed, 2, 0)
        np.testing.assert_allclose(c, a @ b, rtol=1e-4)
"""


@pytest.mark.parametrize("program", [PROGRAMS[0], SHARED], ids=str)
def test_a_second_process_computes_the_same_from_the_file_cache(
    program: Program, programs: ProgramCache, compiled: Compile
) -> None:
    # What is cached has been optimised once more, as a whole, than what the first process runs.
    # With every allocation a mapping of its own, using what was freed is a crash.
    compiled(program)
    done = subprocess.run(
        [sys.executable, "-c", SECOND_PROCESS, str(program.write(programs))],
        env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "4096"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


PROCESSORS = {
    "skylake-avx512": (PROGRAMS[0], "x86_64-unknown-linux-gnu"),
    "haswell": (ALONE, "x86_64-unknown-linux-gnu"),
    "neoverse-n1": (PROGRAMS[3], "aarch64-unknown-linux-gnu"),
}


@pytest.mark.parametrize("processor", PROCESSORS)
def test_sums_stay_in_registers(processor: str, compiled: Compile) -> None:
    program, triple = PROCESSORS[processor]
    (text,) = compiled(program).multiply_tile.inspect_llvm().values()
    loops = [
        block
        for block in _blocks(_assembly(text, triple, processor))
        if _multiplications(block) >= program.ty * program.tx // (program.vector // 32)
        and re.search(rf"\s(?:j\w+|b\.\w+|cbnz)\s.*{re.escape(block.partition(':')[0])}\b", block)
    ]
    # Packed and unpacked A, for a whole tile and for a narrow one, unrolled by LLVM or not.
    assert len(loops) >= 2
    spills = re.compile(r"%[xyz]mm\d+.*\(%rsp|\(%rsp.*%[xyz]mm\d+|\b[qv]\d+\b.*\[sp")
    assert not any(spills.search(loop) for loop in loops)


def _assembly(text: str, triple: str, processor: str) -> str:
    """LLVM's text compiled for another processor."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=processor, opt=3)
    text = re.sub("target triple = .*", f'target triple = "{triple}"', text)
    text = re.sub("target datalayout = .*", f'target datalayout = "{machine.target_data}"', text)
    module = llvm.parse_assembly(text)
    module.verify()
    return machine.emit_assembly(module)


def _blocks(assembly: str) -> list[str]:
    return re.split(r"\n(?=\.LBB\w+:)", assembly)


def _multiplications(block: str) -> int:
    return len(re.findall(r"\bvfmadd|\bfmla\b", block))


SHAPES = (
    (1, 1, 1),
    (8, 8, 8),
    (64, 64, 64),
    (128, 128, 128),
    (300, 20, 30),
    (512, 512, 512),
    (1000, 513, 777),
    (4096, 4096, 4096),
    (16, 4096, 4096),
    (4096, 16, 4096),
    (4096, 4096, 16),
    (1, 4096, 1),
)


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_problem_has_a_space_of_searchable_size(dtype: str, limits: CpuLimits) -> None:
    for m, n, k in SHAPES:
        assert 1 <= FAMILY.space(Gemm(m, n, k, dtype=dtype), limits).size <= 50_000


def test_every_restriction_restricts_something() -> None:
    problems = [Gemm(*sizes) for sizes in SHAPES]
    wanted = {restriction.text for restriction in FAMILY.restrictions}
    assert effective_restrictions(FAMILY, problems, LIMITS.values()) == wanted


TILES: Mapping[tuple[str, str], tuple[int, int, int]] = {
    ("avx512", "float32"): (512, 12, 32),
    ("avx512", "float64"): (512, 12, 16),
    ("avx2", "float32"): (256, 6, 16),
    ("avx2", "float64"): (256, 6, 8),
    ("single", "float32"): (128, 6, 8),
    ("neon", "float32"): (128, 12, 8),
}


@pytest.mark.parametrize(("processor", "dtype"), TILES)
def test_the_default_tile_fills_the_registers(processor: str, dtype: str) -> None:
    limits = LIMITS[processor]
    default = FAMILY.default(Gemm(2048, 2048, 2048, dtype=dtype), limits)
    assert tuple(default[name] for name in ("vector", "ty", "tx")) == TILES[processor, dtype]
    assert default["threads"] == limits.max_threads


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_shallow_panels_are_for_few_rows(dtype: str) -> None:
    def depths(m: int, n: int) -> set[Value]:
        space = FAMILY.space(Gemm(m, n, 4096, dtype=dtype, threads=1), AVX512)
        rng = np.random.default_rng(0)
        return {space[int(row)]["sn"] for row in space.sample(min(space.size, 400), rng)}

    assert {16, 32, 48, 64} <= depths(16, 4096)
    assert min(map(int, depths(65, 4096))) == 128
    # Those that are as deep as the reduction are left out, but for what serves every problem.
    assert depths(16, 48) == {16, 32, 128, 256}
    space = FAMILY.space(Gemm(16, 4096, 4096, dtype=dtype, threads=1), AVX512)
    name = {"float32": "skinny", "float64": "skinny_double"}[dtype]
    assert FAMILY.presets[name].placed(space)["sn"] == 48
