"""The kernels that copy operands, run on the host, one thread after the other."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checked_library import checked_library, needs_compiler

from autotune.gpu.launch.code import support_source

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
