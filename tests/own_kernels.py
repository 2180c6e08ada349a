"""Kernels of one's own that tests define, tune, and import again in processes of their own."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit, prange

import autotune
from autotune.measuring.effort import Effort

EPSILON = 1e-6
BRIEF: dict[str, Any] = {
    "trials": 1,
    "timeout": 250.0,
    "workers": 1,
    "effort": Effort(budget_s=0.02, finals_s=0.1),
}
"""What tests tune with: little is tried, and there is time enough on a busy machine."""

DOTS = """
// Threads of a block share ROWS rows.
__global__ void __launch_bounds__(THREADS)
dots(const T* A, int lda, T beta, T* y, const T* __restrict__ x, int N, int M /*rows*/, T alpha) {
  __shared__ T part[THREADS];
  for (int r = 0; r < ROWS; ++r) {
    const int row = blockIdx.x * ROWS + r;
    if (row >= M) return;
    T sum = 0;
    for (int j = threadIdx.x; j < N; j += THREADS) sum += A[(long long)row * lda + j] * x[j];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
      if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
      __syncthreads();
    }
    if (threadIdx.x == 0) {
      const T old = USE_BETA && beta != 0 ? beta * y[row] : T(0);
      y[row] = alpha * part[0] + old;
    }
    __syncthreads();
  }
}
"""
"""A source whose kernel takes its arguments in an order of its own."""

FLAT = DOTS.replace("int lda, ", "").replace("* lda", "* N")
"""The same with rows that follow each other."""


def dots(source: str = DOTS, **options: Any) -> Any:
    """The kernel of such a source."""
    return autotune.kernel(
        source=source,
        operands={"A": "MxN", "x": "N"},
        out={"y": "M"},
        scalars={"alpha": 1.0, "beta": 0.0},
        reference="alpha * A @ x + beta * y",
        flops="2 * M * N",
        parameters={"THREADS": [32, 64], "ROWS": [1, 2, 4], "USE_BETA": [True]},
        restrictions={"ROWS // 2 < M": "rows that are not there"},
        grid=["ceildiv(M, ROWS)"],
        block=["THREADS"],
        **options,
    )


def square(value: float) -> float:
    return value * value


@njit(fastmath=True)
def damped(value: float) -> float:
    return square(value) / (1 + EPSILON * square(value))


def damp(A: Any, bias: Any, alpha: float) -> Any:
    scaled = alpha * A + bias
    return np.sqrt(square(scaled) / (1 + EPSILON * square(scaled)))


def damping(**options: Any) -> Any:
    """A kernel of threads, with helpers, constants and a parameter that is passed at the call."""

    @autotune.kernel(
        operands={"A": "MxN", "bias": "N"},
        out={"B": ("M", "N")},
        scalars={"alpha": 1.0},
        reference=damp,
        flops="7 * M * N",
        finite=True,  # as `damped` is, by its fast math
        parameters={
            "threads": [1, 2],
            "tile": {"values": [1, 8], "runtime": True, "summary": "rows of a thread's share"},
            "order": ["plain", "rooted"],
        },
        **options,
    )
    def damped_rows(A, B, bias, alpha, tile, order):
        """Every element damped."""
        rows, columns = A.shape
        for first in prange((rows + tile - 1) // tile):
            for i in range(first * tile, min(rows, first * tile + tile)):
                for j in range(columns):  # {{ braces }} are no template's
                    value = damped(alpha * A[i, j] + bias[j])
                    if order == "plain":
                        B[i, j] = math.sqrt(value)
                    else:
                        B[i, j] = sqrt(value)

    return damped_rows


def gemv(body: Callable[..., None] | None = None, **options: Any) -> Any:
    """A matrix-vector product; `body` in place of a right one."""

    def gemv(A, x, y, alpha, rows):
        for first in range(0, A.shape[0], rows):
            for i in range(first, min(first + rows, A.shape[0])):
                total = alpha * 0
                for j in range(A.shape[1]):
                    total += A[i, j] * x[j]
                y[i] = alpha * total

    return autotune.kernel(
        body or gemv,
        operands={"A": "MxN", "x": "N"},
        out={"y": "M"},
        scalars={"alpha": 1.0},
        reference="alpha * A @ x",
        flops="2 * M * N",
        parameters={"rows": [1, 2]},
        restrictions=["rows <= M"],
        **{**BRIEF, **options},
    )


if "OWN_KERNEL" in os.environ:  # a process that loads, or is interrupted
    cache = Path(os.environ["OWN_KERNEL"])
    kernel = gemv(cache=cache, trials=10**6, effort=None)
    print("ready", flush=True)
    result = kernel(np.ones((24, 16), np.float32), np.ones(16, np.float32), alpha=2.0)
    print(kernel.folder.name, result.sum())


TOTAL = """
#include <cooperative_groups.h>
// Blocks sum what is theirs, wait for each other, and the first one adds that up.
__global__ void total(const T* x, T* sum, int N, T* workspace) {
  __shared__ T part[THREADS];
  T mine = 0;
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < N; i += gridDim.x * THREADS) mine += x[i];
  part[threadIdx.x] = mine;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < THREADS; ++i) mine += part[i];
    workspace[blockIdx.x] = mine;
  }
  cooperative_groups::this_grid().sync();
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    T all = 0;
    for (int block = 0; block < gridDim.x; ++block) all += workspace[block];
    *sum = all;
  }
}
"""


def total(**changed: Any) -> Any:
    """A sum in one launch, whose blocks wait for each other and may be in clusters."""
    said: dict[str, Any] = {
        "source": TOTAL,
        "operands": {"x": "N"},
        "out": {"sum": ()},
        "reference": lambda x: x.sum(),
        "parameters": {"THREADS": [128], "BLOCKS": [1, 132, 2112, 2244], "CLUSTER": [1, 2]},
        "grid": ["BLOCKS"],
        "block": ["THREADS"],
        "launch": {
            "cooperative": True,
            "cluster": ["CLUSTER"],
            "workspace_bytes": "BLOCKS * itemsize",
        },
        "finite": True,
    }
    return autotune.kernel(**{**said, **changed})
