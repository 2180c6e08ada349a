"""Families of register tiles, `goto`, `skinny` and `unpacked`: right at every size, to the bit."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import mmap
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from cpu_machines import AVX2, AVX512, NEON, SINGLE
from cpu_programs import FAMILIES, Program, Programs, each_of
from gemm_calls import GemmCall
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from autotune.core.configuration import Configuration, Value
from autotune.core.limits import CpuLimits
from autotune.operations.problem import Gemm

LIMITS = {"avx512": AVX512, "avx2": AVX2, "single": SINGLE, "neon": NEON}
GOTO = {"sm": 192, "sn": 512, "sk": 2048, "pack_a": 1, "pack_b": 1, "parts": 1, "chunk": 0}


def goto(
    vector: int, ty: int, tx: int, *types: str, threads: int = 1, schedule: str = "static"
) -> Program:
    compiled = {"vector": vector, "ty": ty, "tx": tx, "threads": threads, "schedule": schedule}
    return Program("goto", {**compiled, **GOTO}, *types)


def skinny(
    layout: str,
    side: str,
    *tile: int,
    dtype: str = "float32",
    threads: int = 1,
    schedule: str = "static",
) -> Program:
    vector, ty, vectors = tile
    compiled = {"vector": vector, "side": side, "ty": ty, "vectors": vectors}
    runtime = {"sn": 8, "sk": 512, "parts": 1, "chunk": 0}
    threaded = {"threads": threads, "schedule": schedule}
    return Program("skinny", {**compiled, **threaded, **runtime}, dtype, layout)


def unpacked(
    vector: int, ty: int, vectors: int, *types: str, threads: int = 1, schedule: str = "static"
) -> Program:
    compiled = {"vector": vector, "ty": ty, "vectors": vectors}
    threaded = {"threads": threads, "schedule": schedule}
    return Program("unpacked", {**compiled, **threaded, "sm": 128, "sk": 256, "chunk": 0}, *types)


GOTO_PROGRAMS = (
    goto(512, 14, 32),
    # More rows than a vector has lanes, and not a multiple: vectors overlap packed columns.
    goto(256, 14, 4, "float64", "tt"),
    goto(128, 6, 4, "float64", "nt"),
    goto(128, 12, 8, "float32", "tn"),
    goto(256, 6, 16, threads=3, schedule="guided"),
    goto(256, 6, 16, threads=2),
)
# Every layout and side is a program of its own; widths, tiles and types take turns.
SKINNY_PROGRAMS = (
    skinny("nn", "rows", 512, 8, 2),
    skinny("nn", "columns", 256, 4, 2, dtype="float64"),
    skinny("nt", "rows", 128, 8, 4, dtype="float64"),
    skinny("nt", "columns", 512, 4, 4),
    skinny("tn", "rows", 128, 4, 2),
    skinny("tn", "columns", 512, 8, 2, dtype="float64"),
    skinny("tt", "rows", 256, 8, 2),
    skinny("tt", "columns", 128, 4, 2, dtype="float64"),
    skinny("nn", "rows", 256, 4, 2, threads=3, schedule="guided"),
    skinny("nn", "columns", 256, 4, 2, threads=2),
)
UNPACKED_PROGRAMS = (
    unpacked(512, 8, 2),
    unpacked(256, 4, 4, "float64", "tt"),
    unpacked(128, 12, 1, "float64", "nt"),
    unpacked(128, 8, 3, "float32", "tn"),
    unpacked(256, 4, 2, threads=3, schedule="guided"),
    unpacked(256, 4, 2, "float32", "nt", threads=2),
)
PROGRAMS = (*GOTO_PROGRAMS, *SKINNY_PROGRAMS, *UNPACKED_PROGRAMS)
SHARED = [program for program in PROGRAMS if program.configuration["threads"] != 1]
EVERY_DAY = (
    *(GOTO_PROGRAMS[2], GOTO_PROGRAMS[4]),
    *(SKINNY_PROGRAMS[0], SKINNY_PROGRAMS[7]),
    UNPACKED_PROGRAMS[4],
)
"""Both types and sides, operands as they are and transposed, one thread and several."""


@st.composite
def calls(draw: st.DrawFn, program: Program, *, fits: bool = False) -> GemmCall:
    """Products with few rows or columns of `skinny`, which may be the side that it is not for."""
    size = st.integers(1, 300 if program.family == "skinny" else 70)
    few = st.integers(1, 19) if program.family == "skinny" else size
    m, k = draw(few), draw(size)
    rows = program.configuration["side"] == "rows" if fits else draw(st.booleans())
    return GemmCall(
        *((m, draw(size), k) if rows else (k, draw(size), m)),
        alpha=draw(st.sampled_from((1.0, -1.5, 0.0))),
        beta=draw(st.sampled_from((0.0, 1.0, 0.5))),
        padding_a=draw(st.integers(0, 9)),
        padding_b=draw(st.integers(0, 9)),
        padding_c=draw(st.sampled_from((0, 5))),
    )


# Blocks far smaller than anybody would tune, so that small matrices have edges of every kind.
SIZE, BIT, CHUNK = st.integers(1, 70), st.integers(0, 1), st.integers(0, 3)
RUNTIME = {
    "goto": st.tuples(SIZE, SIZE, SIZE, BIT, BIT, st.integers(1, 5), CHUNK),
    "skinny": st.tuples(st.integers(1, 9), st.integers(1, 300), st.integers(1, 5), CHUNK),
    "unpacked": st.tuples(SIZE, SIZE, CHUNK),
}


@pytest.mark.slow
@each_of("program", PROGRAMS, EVERY_DAY)
@settings(max_examples=40)
@given(data=st.data())
def test_every_product_is_right(program: Program, data: st.DataObject, programs: Programs) -> None:
    programs.multiply(program, data.draw(calls(program)), data.draw(RUNTIME[program.family]))


@each_of("program", [*GOTO_PROGRAMS, *SKINNY_PROGRAMS], EVERY_DAY)
def test_sizes_and_blocks_as_they_are_tuned(program: Program, programs: Programs) -> None:
    if program.family == "goto":
        for sizes in ((129, 515, 257), (300, 40, 97), (7, 1100, 33)):
            for packed in (0, 1):
                call = GemmCall(*sizes, beta=0.5)
                programs.multiply(program, call, (96, 256, 128, packed, packed, 1, 0))
        return
    few_long = ((1, 1100, 515), (5, 257, 1030), (16, 2049, 65), (8, 3, 700), (1, 3000, 1))
    for few, n, long in few_long:
        m, k = (few, long) if program.configuration["side"] == "rows" else (long, few)
        programs.multiply(program, GemmCall(m, n, k, alpha=0.5, beta=2.0))


@each_of("program", SHARED, EVERY_DAY)
@settings(max_examples=20)
@given(data=st.data())
def test_who_computes_what_does_not_change_a_bit(
    program: Program, data: st.DataObject, programs: Programs
) -> None:
    # Blocks and chunks decide which thread gets what. The order of sums is changed by `sn`, and by
    # the parts of `skinny`.
    call = data.draw(calls(program, fits=program.family == "skinny"))
    runtime, other = (list(data.draw(RUNTIME[program.family])) for _ in range(2))
    if program.family == "goto":
        other[1] = runtime[1]
    elif program.family == "skinny":
        other[0], other[2] = runtime[0], runtime[2]
    alone = program.with_values(threads=1, schedule="static")
    expected = programs.multiply(alone, call, runtime)
    np.testing.assert_array_equal(programs.multiply(program, call, other), expected)


@each_of("program", GOTO_PROGRAMS[-2:], EVERY_DAY)
def test_panels_wait_for_those_who_pack_them(program: Program, programs: Programs) -> None:
    # Several panels: a thread that did not wait for the others to pack one would use the last.
    call, runtime = GemmCall(133, 300, 95, beta=0.5), (6, 32, 32, 1, 1, 2, 1)
    alone = program.with_values(threads=1, schedule="static")
    expected = programs.multiply(alone, call, runtime)
    for _ in range(20):
        np.testing.assert_array_equal(programs.multiply(program, call, runtime), expected)


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("program", SKINNY_PROGRAMS[-2:], ids=str)
def test_parts_are_added_in_their_order(program: Program, programs: Programs) -> None:
    rows = program.configuration["side"] == "rows"
    call = GemmCall(3, 5000, 70, beta=0.5) if rows else GemmCall(70, 5000, 3)
    first, *others = (
        programs.multiply(program, call, (8, segment, 5, chunk))
        for segment, chunk in ((4096, 0), (16, 1), (40, 0)) * 7
    )
    for result in others:
        np.testing.assert_array_equal(result, first)


@each_of("program", PROGRAMS, EVERY_DAY)
def test_nan_and_infinity_stay_where_they_belong(program: Program, programs: Programs) -> None:
    m, n, k = 19, 11, 40
    if program.family == "skinny":
        m, n, k = (5, 37, 70) if program.configuration["side"] == "rows" else (70, 37, 5)
    a, b = np.ones((m, n), program.dtype), np.ones((n, k), program.dtype)
    a[m - 1, n - 1], b[n - 1, k - 1], b[n - 2, 0] = np.nan, np.inf, -np.inf
    call = GemmCall(m, n, k, padding_a=3, padding_b=3)
    programs.multiply(program, call, operands=(a, b))
    if program.family == "goto":
        unpacked = program.with_values(pack_a=0, pack_b=0)
        programs.multiply(unpacked, call, operands=(a, b))


@pytest.mark.parametrize("program", [GOTO_PROGRAMS[0], SKINNY_PROGRAMS[0]], ids=str)
def test_a_kernel_may_be_called_from_several_threads(program: Program, programs: Programs) -> None:
    programs.module(program)
    small = program.with_values(
        **({"sm": 28, "sn": 32} if program.family == "goto" else {}), sk=32
    )
    shapes = [GemmCall(1 + number, 100, 50 + number) for number in range(0, 64, 4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda call: programs.multiply(small, call), shapes))


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


@each_of("program", UNPACKED_PROGRAMS, EVERY_DAY)
def test_operands_may_end_where_memory_does(program: Program, programs: Programs) -> None:
    shapes = ((700, 16, 5), (3, 300, 5), (1, 1, 1), (70, 33, 64), (9, 2, 37))
    for (m, n, k), padding in itertools.product(shapes, (0, 3)):
        rng = np.random.default_rng(n)
        a, b = (rng.integers(-4, 5, shape).astype(program.dtype) for shape in ((m, n), (n, k)))
        held_a, held_b = (
            at_the_end(each.T if stored == "t" else each, padding)
            for each, stored in zip((a, b), program.layout, strict=True)
        )
        c = np.full((m, k), np.nan, program.dtype)
        lda, ldb = (each.strides[0] // each.itemsize for each in (held_a, held_b))
        programs.module(program).gemm(
            *(m, n, k, 1.0, held_a.ctypes.data, lda, held_b.ctypes.data, ldb, 0.0),
            *(c.ctypes.data, k, *program.runtime),
        )
        np.testing.assert_array_equal(c, a @ b)


SECOND_PROCESS = """
import sys
from pathlib import Path
import numpy as np
from autotune.families.modules import load_module

path, dtype, layout, *runtime = sys.argv[1:]
gemm = load_module(Path(path)).gemm
assert sum(gemm.stats.cache_hits.values()) == 1, "compiled again"
rng = np.random.default_rng(0)
for m, n, k in ((1, 1, 1), (5, 7, 9), (64, 64, 64), (150, 131, 170), (150, 131, 3), (64, 700, 16)):
    a, b = rng.random((m, n)).astype(dtype), rng.random((n, k)).astype(dtype)
    held = np.ascontiguousarray(b.T if layout[1] == "t" else b)
    c = np.full((m, k), np.nan, dtype)
    gemm(m, n, k, 1.0, a.ctypes.data, n, held.ctypes.data, held.shape[1], 0.0, c.ctypes.data, k,
         *map(int, runtime))
    np.testing.assert_allclose(c, a @ b, rtol=1e-4)
"""


@each_of(
    "program",
    [
        GOTO_PROGRAMS[0].with_values(sm=96, sn=128, sk=64, parts=2),
        GOTO_PROGRAMS[-1].with_values(sm=96, sn=128, sk=64, pack_a=0, pack_b=0, parts=2),
        *(
            each.with_values(sk=64, parts=3)
            for each in (*SKINNY_PROGRAMS[:2], SKINNY_PROGRAMS[-1])
        ),
        UNPACKED_PROGRAMS[-1].with_values(sm=32, sk=64),
    ],
    EVERY_DAY,
)
def test_a_second_process_computes_the_same_from_the_file_cache(
    program: Program, programs: Programs
) -> None:
    # What is cached has been optimised once more, as a whole, than what the first process runs.
    # With every allocation a mapping of its own, using what was freed is a crash.
    programs.module(program)
    path = str(program.write(programs.cache))
    arguments = [path, program.dtype, program.layout, *map(str, program.runtime)]
    done = subprocess.run(
        [sys.executable, "-c", SECOND_PROCESS, *arguments],
        env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "4096"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


PROCESSORS = {
    "skylake-avx512": (GOTO_PROGRAMS[0], "x86_64-unknown-linux-gnu"),
    "haswell": (goto(256, 6, 16), "x86_64-unknown-linux-gnu"),
    "neoverse-n1": (GOTO_PROGRAMS[3], "aarch64-unknown-linux-gnu"),
}


@pytest.mark.parametrize(
    "processor",
    [
        pytest.param(each, marks=pytest.mark.thorough if each == "neoverse-n1" else [])
        for each in PROCESSORS
    ],
)
def test_sums_stay_in_registers(processor: str, programs: Programs) -> None:
    program, triple = PROCESSORS[processor]
    (text,) = programs.module(program).multiply_tile.inspect_llvm().values()
    vector, ty, tx = (int(program.configuration[name]) for name in ("vector", "ty", "tx"))
    loops = [
        block
        for block in re.split(r"\n(?=\.LBB\w+:)", _assembly(text, triple, processor))
        if len(re.findall(r"\bvfmadd|\bfmla\b", block)) >= ty * tx // (vector // 32)
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


SHAPES = (
    (1, 1, 1), (8, 8, 8), (64, 64, 64), (9, 9, 300), (300, 20, 3), (300, 20, 30), (1000, 513, 777),
    (4096, 4096, 4096), (16, 4096, 4096), (4096, 16, 4096), (4096, 4096, 16), (1, 4096, 1),
    (1, 4096, 4096), (4096, 4096, 1), (4096, 8, 4096), (4, 1 << 18, 4), (1, 1 << 20, 1),
    (2, 65536, 20000),
)  # fmt: skip


def is_long(m: int, n: int, k: int, itemsize: int, limits: CpuLimits) -> bool:
    """Few sums over a long reduction are another family's."""
    return max(m, k) <= 8 and n >= 1 << 18


def is_small(m: int, n: int, k: int, itemsize: int, limits: CpuLimits) -> bool:
    """Few rows times few columns are another family's, on one thread."""
    return 1 < k <= limits.vector_bits // 8 // itemsize and m <= min(2 * k, 8)


def is_beyond_caches(m: int, n: int, k: int, itemsize: int, limits: CpuLimits) -> bool:
    """With many rows a B beyond the caches is other families', and with one row, too."""
    size = n * k * itemsize
    return (size > 4 * limits.l2_bytes and m > 24) or (m == 1 and size > limits.l2_bytes)


MAY_BE_EMPTY: Mapping[str, Callable[[int, int, int, int, CpuLimits], bool]] = {
    "goto": is_long,
    "skinny": is_small,
    "unpacked": is_beyond_caches,
}


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MAY_BE_EMPTY)
def test_every_problem_has_a_space_of_searchable_size(
    name: str, dtype: str, limits: CpuLimits
) -> None:
    for sizes in SHAPES:
        problem = Gemm(*sizes, dtype=dtype)
        may_be_empty = MAY_BE_EMPTY[name](*sizes, problem.itemsize, limits)
        assert (not may_be_empty) <= FAMILIES[name].space(problem, limits).size <= 50_000


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
    default = FAMILIES["goto"].default(Gemm(2048, 2048, 2048, dtype=dtype), limits)
    assert tuple(default[name] for name in ("vector", "ty", "tx")) == TILES[processor, dtype]
    assert default["threads"] == limits.max_threads


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_shallow_panels_are_for_few_rows(dtype: str) -> None:
    family = FAMILIES["goto"]

    def depths(m: int, n: int) -> set[Value]:
        space = family.space(Gemm(m, n, 4096, dtype=dtype, threads=1), AVX512)
        rng = np.random.default_rng(0)
        return {space[int(row)]["sn"] for row in space.sample(min(space.size, 400), rng)}

    assert {16, 32, 48, 64} <= depths(16, 4096)
    assert min(map(int, depths(65, 4096))) == 128
    # Those that are as deep as the reduction are left out, but for what serves every problem.
    assert depths(16, 48) == {16, 32, 128, 256}
    space = family.space(Gemm(16, 4096, 4096, dtype=dtype, threads=1), AVX512)
    name = {"float32": "skinny", "float64": "skinny_double"}[dtype]
    assert family.presets[name].placed(space)["sn"] == 48


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_the_side_is_the_shorter_one(limits: CpuLimits) -> None:
    for sizes, side in (((4, 4096, 4096), "rows"), ((4096, 4096, 4), "columns")):
        default = FAMILIES["skinny"].default(Gemm(*sizes), limits)
        assert default["side"] == side
    assert default["threads"] == limits.max_threads


def test_every_thread_has_a_segment_or_there_are_fewer_threads() -> None:
    """A segment may have all 695 rows; four threads have a quarter of them each."""
    family = FAMILIES["skinny"]
    four = Configuration({**family.presets["columns_panels"].configuration, "threads": 4})
    limits = dataclasses.replace(AVX512, max_threads=4)
    for rows, fits in ((695, True), (8, False)):
        problem = Gemm(rows, 2**22 // rows, 1)
        assert (family.space(problem, limits).rejection(four) is None) == fits
