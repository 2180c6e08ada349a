"""Run by pytest with the stand-in loaded: how the benchmark of all shapes places and judges."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from shape_gpu import POOL, Operands, Pool

from autotune.gpu.driver import driver
from autotune.operations.problem import Gemm

L2_BYTES = 2**18


@pytest.fixture(autouse=True)
def entered() -> Iterator[None]:
    driver().enter(0)
    yield
    driver().leave()


def matrix(address: int, rows: int, columns: int, dtype: str) -> Any:
    """A matrix in the stand-in's memory, which is the host's."""
    size = rows * columns * np.dtype(dtype).itemsize
    memory = (ctypes.c_char * size).from_address(address)
    return np.ndarray((rows, columns), dtype, memory)


def matrices(operands: Operands, problem: Gemm, number: int) -> tuple[Any, Any, Any]:
    m, n, k = problem.shape
    a, lda, b, ldb, c, ldc = operands.arguments(number)
    assert (lda, ldb, ldc) == (n, k, k)
    sizes = ((a, m, n), (b, n, k), (c, m, k))
    first, second, third = (matrix(*each, problem.dtype) for each in sizes)
    return first, second, third


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 70, 33), (37, 65, 1), (130, 41, 90), (3, 2100, 4001)])
def test_products_are_judged_by_sampled_rows(shape: tuple[int, int, int], dtype: str) -> None:
    problem = Gemm(*shape, dtype=dtype)
    operands = Operands(problem, Pool(dtype, 0), L2_BYTES)
    rng = np.random.default_rng(1)
    assert operands.count * problem.traffic > 2 * L2_BYTES
    first = matrices(operands, problem, 0)
    last = matrices(operands, problem, operands.count - 1)
    for one, other in zip(first[:2], last[:2], strict=True):
        assert (one == other).all()
    a, b, c = first
    operands.clear()
    assert operands.error(rng) > 1, "nothing was computed"
    c[:] = a.astype(np.float64) @ b
    assert operands.error(rng) <= 1
    c[-1, -1] *= 1 + 1e-3
    assert operands.error(rng) > 1
    c[-1, -1] = np.nan
    assert operands.error(rng) > 1
    operands.close()


def test_what_the_host_knows_is_what_the_device_has() -> None:
    pool = Pool("float32", 3)
    memory = driver().allocate(4 * (POOL + 1000))
    pool.fill(int(memory), POOL + 1000, POOL - 5)
    there = matrix(int(memory), 1, POOL + 1000, "float32")[0]
    index = np.array([0, 4, 5, 6, POOL - 1, POOL, POOL + 999])
    assert (there[index] == pool.values(index, POOL - 5)).all()
    memory.free()
