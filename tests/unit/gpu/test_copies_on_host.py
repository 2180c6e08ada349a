"""Kernels that copy operands and store rows of C, run on the host."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from checked_library import checked_library, needs_compiler

from autotune.families.rendering import render
from autotune.gpu.launch.code import support_source
from autotune.targets.families import load_families

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = needs_compiler

HOST = """
#define __device__ static
#define __global__
#define __launch_bounds__(threads)
struct Place { unsigned x, y; };
static Place blockIdx, threadIdx, gridDim;
typedef WORD_TYPE WORD;
"""
CALL = """
extern "C" void copy(unsigned blocks, const WORD* from, long long stride, long long rows,
                     long long columns, WORD* to, long long apart)
{
    gridDim = {blocks, 1};
    for (unsigned block = 0; block < blocks; ++block) {
        for (unsigned thread = 0; thread < COPY_THREADS; ++thread) {
            blockIdx = {block, 0};
            threadIdx = {thread, 0};
            copy_rows(from, stride, rows, columns, to, apart);
        }
    }
}
"""
WORDS = {"bfloat16": np.uint16, "float32": np.uint32, "float64": np.uint64}


def library(dtype: str, folder: Path) -> Any:
    text = support_source(dtype).text
    own = text[text.index("// What a thread copies at a time") :]
    word = {2: "unsigned short", 4: "unsigned", 8: "unsigned long long"}[WORDS[dtype]().itemsize]
    return checked_library(HOST.replace("WORD_TYPE", word) + own + CALL, folder)


@pytest.mark.parametrize("dtype", WORDS)
def test_copies_are_what_was_there(dtype: str, tmp_path: Path) -> None:
    """Wherever rows begin, however long they are; zeros fill the last unit, and nothing else is
    written."""
    copying = library(dtype, tmp_path)
    rng = np.random.default_rng(7)
    word = WORDS[dtype]
    chunk = 16 // word().itemsize
    unit = max(4 // word().itemsize, 1)
    for _ in range(80):
        rows, columns = int(rng.integers(1, 40)), int(2 ** rng.uniform(0, 10.5))
        stride = columns + int(rng.integers(0, 5))
        apart = -(-columns // chunk) * chunk + chunk * int(rng.integers(0, 2))
        offset = int(rng.integers(0, 9))
        flat = rng.integers(1, 60000, offset + rows * stride).astype(word)
        lines = np.lib.stride_tricks.as_strided(
            flat[offset:], (rows, columns), (stride * flat.itemsize, flat.itemsize)
        )
        room = np.full(rows * apart + 2 * chunk, 7, word)
        first = -(room.ctypes.data // flat.itemsize) % chunk
        copy = room[first : first + rows * apart].reshape(rows, apart)
        copying.copy(
            ctypes.c_uint(int(rng.integers(1, 4))),
            ctypes.c_void_p(flat.ctypes.data + offset * flat.itemsize),
            ctypes.c_longlong(stride),
            ctypes.c_longlong(rows),
            ctypes.c_longlong(columns),
            ctypes.c_void_p(copy.ctypes.data),
            ctypes.c_longlong(apart),
        )
        whole = -(-columns // unit) * unit
        assert (copy[:, :columns] == lines).all()
        assert (copy[:, columns:whole] == 0).all()
        assert (copy[:, whole:] == 7).all()


BLOCKS = (2, 4, 8, 24)
"""Of 8 columns that a warp stores: less than a run of a row has, as many, and several runs."""

WARP = """
#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>
#define __device__
#define __forceinline__ inline
using std::fma;
using std::min;
struct Index { unsigned x; };
static thread_local Index threadIdx;
static std::barrier<> warp(32);
static void __syncwarp() { warp.arrive_and_wait(); }
using T = TYPE;

// The upper half of a float.
struct Half {
  std::uint16_t bits;
  Half() = default;
  explicit Half(float value) {
    std::uint32_t whole;
    std::memcpy(&whole, &value, 4);
    bits = whole >> 16;
  }
  explicit operator float() const {
    const std::uint32_t whole = std::uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &whole, 4);
    return value;
  }
};
using Result = RESULT;
using Operand = Result;
"""

STORE = """
template <int BLOCKS>
void one(Lines& lines, const T* sums, const Output& output, int row, int column, int m, int k) {
  const int lane = threadIdx.x % 32;
  store_lines<BLOCKS>(lines, output, row, column, m, k, [&](int j, int v) {
    return sums[lane / 4 * 8 * BLOCKS + 8 * j + lane % 4 * 2 + v];
  });
}

extern "C" void run(int blocks, const T* sums, Result* c, int ldc, int row, int column, int m,
                    int k, T alpha, T beta) {
  static Lines lines;
  std::vector<std::thread> threads;
  for (unsigned lane = 0; lane < 32; ++lane) {
    threads.emplace_back([=] {
      threadIdx = {32 + lane};
      const Output output = {alpha, beta, c, ldc};
      if (blocks == 2) one<2>(lines, sums, output, row, column, m, k);
      if (blocks == 4) one<4>(lines, sums, output, row, column, m, k);
      if (blocks == 8) one<8>(lines, sums, output, row, column, m, k);
      if (blocks == 24) one<24>(lines, sums, output, row, column, m, k);
    });
  }
  for (std::thread& each : threads) each.join();
}
"""


def between(text: str, start: str, end: str) -> str:
    first = text.index(start)
    return text[first : text.index(end, first)]


SECTIONS = {
    "wgmma": ("// --- Copies by tensor maps", "// The tiles as they arrive"),
    "mma_tf32": ("// --- Tiles in shared memory", "__device__ __forceinline__ void store_tile"),
    "dmma": ("// --- Tiles in shared memory", "__device__ __forceinline__ void store_tile"),
}
"""What follows, in a family's source, on what it stores with."""


def storing_library(name: str, dtype: str, folder: Path) -> Any:
    family = load_families(target="cuda", operation="gemm")[name]
    text = render(family, family.presets["large"].configuration, dtype=dtype, layout="nn").text
    after_result, after_lines = SECTIONS[name]
    memory = text[text.index("// --- Memory ---") : text.index("// --- The result ---")]
    own = [
        memory.partition("// --- Asynchronous copies ---")[0],
        between(text, "// --- The result ---", after_result),
        between(text, "// Elements of C that a thread stores", after_lines),
    ]
    number = "double" if dtype == "float64" else "float"
    host = WARP.replace("TYPE", number).replace("RESULT", "Half" if name == "wgmma" else "T")
    return checked_library("\n".join([host, *own, STORE]), folder)


def halves(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return (values.view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("wgmma", "bfloat16"),
        pytest.param("mma_tf32", "float32", marks=pytest.mark.thorough),
        ("dmma", "float64"),
    ],
)
def test_lines_are_stored_wherever_they_begin(name: str, dtype: str, tmp_path: Path) -> None:
    """Within the rows and columns of C, and nowhere else; C is read where beta is not zero."""
    storing = storing_library(name, dtype, tmp_path)
    number, sum_type = ctypes.c_float, np.float32
    if dtype == "float64":
        number, sum_type = ctypes.c_double, np.float64
    rng = np.random.default_rng(11)
    for _ in range(150):
        blocks = int(rng.choice(BLOCKS))
        m, k = int(rng.integers(1, 20)), int(rng.integers(1, 260))
        row, column = int(rng.integers(0, m + 3)), int(rng.integers(0, k + 9)) // 8 * 8
        ldc, offset = k + int(rng.integers(0, 9)), int(rng.integers(0, 9))
        alpha, beta = rng.choice([1.0, 2.0]), rng.choice([0.0, 1.0])
        sums = rng.integers(-8, 8, (8, 8 * blocks)).astype(sum_type)
        old = rng.integers(-8, 8, (m, k)).astype(sum_type)
        flat = np.full(offset + m * ldc + 64, 3.0, sum_type)
        wanted = flat[offset : offset + m * ldc].reshape(m, ldc)
        wanted[:, :k] = old
        given = halves(flat) if name == "wgmma" else flat.copy()
        rows, columns = max(0, min(8, m - row)), max(0, min(8 * blocks, k - column))
        wanted[row : row + rows, column : column + columns] = (
            alpha * sums[:rows, :columns] + beta * old[row : row + rows, column : column + columns]
        )
        storing.run(
            blocks,
            ctypes.c_void_p(sums.ctypes.data),
            ctypes.c_void_p(given.ctypes.data + offset * given.itemsize),
            *map(ctypes.c_int, (ldc, row, column, m, k)),
            number(alpha),
            number(beta),
        )
        assert (given == (halves(flat) if name == "wgmma" else flat)).all()
