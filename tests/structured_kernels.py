"""Kernels of one's own with several outputs, in place, with integers, on operands of theirs."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np

import autotune

CUDA = {
    "normalised": """
__global__ void normalised(const T* X, T* Y, T* mean, T* scale, T eps, int M, int N) {
  // A thread normalises a row.
  int row = blockIdx.x * THREADS + threadIdx.x;
  if (row >= M) return;
  const T* x = X + (long long)row * N;
  T sum = 0, squares = 0;
  for (int j = 0; j < N; ++j) sum += x[j];
  T centre = sum / N;
  for (int j = 0; j < N; ++j) squares += (x[j] - centre) * (x[j] - centre);
  T factor = 1 / sqrt(squares / N + eps);
  mean[row] = centre;
  scale[row] = factor;
  for (int j = 0; j < N; ++j) Y[(long long)row * N + j] = (x[j] - centre) * factor;
}
""",
    "spmv": """
__global__ void spmv(
    const int* indptr, const int* indices, const T* values, const T* x, T* y, int M) {
  // A thread sums a row.
  int row = blockIdx.x * THREADS + threadIdx.x;
  if (row >= M) return;
  T sum = 0;
  for (int k = indptr[row]; k < indptr[row + 1]; ++k) sum += values[k] * x[indices[k]];
  y[row] = sum;
}
""",
    "quantised": """
__global__ void quantised(const T* X, signed char* Q, T* scale, int M, int N) {
  int row = blockIdx.x * THREADS + threadIdx.x;
  if (row >= M) return;
  T largest = 0;
  for (int j = 0; j < N; ++j) largest = max(largest, abs(X[row * N + j]));
  scale[row] = largest / 127;
  for (int j = 0; j < N; ++j) Q[row * N + j] = rint(X[row * N + j] * 127 / largest);
}
""",
    "decayed": """
__global__ void decayed(T* state, const T* drive, int steps, int N) {
  int i = blockIdx.x * THREADS + threadIdx.x;
  if (i < N)
    for (int step = 0; step < steps; ++step) state[i] = state[i] / 2 + drive[i];
}
""",
    "squared": """
__global__ void squared(const double2* z, double2* w, bool* far, int N) {
  int i = blockIdx.x * THREADS + threadIdx.x;
  if (i >= N) return;
  double2 a = z[i];
  w[i] = make_double2(a.x * a.x - a.y * a.y, 2 * a.x * a.y);
  far[i] = a.x * a.x + a.y * a.y > 1;
}
""",
    "largest": """
__global__ void largest(const T* x, T* most, long long* place, int N) {
  // One thread: what is tuned is elsewhere.
  if (threadIdx.x > 0) return;
  int best = 0;
  for (int i = 1; i < N; ++i) best = x[i] > x[best] ? i : best;
  *most = x[best];
  *place = best;
}
""",
}
"""Sources by name; those for the processor are functions below."""


def normal(X, eps):
    mean = X.mean(axis=1)
    scale = 1 / np.sqrt(X.var(axis=1) + eps)
    return (X - mean[:, None]) * scale[:, None], mean, scale


def normalised(X, Y, mean, scale, eps, way):
    M, N = X.shape
    for i in range(M):
        total = 0.0
        for j in range(N):
            total += X[i, j]
        centre = total / N
        squares = 0.0
        for j in range(N):
            squares += (X[i, j] - centre) ** 2
        factor = 1 / math.sqrt(squares / N + eps)
        mean[i] = centre
        scale[i] = factor
        for j in range(N):
            Y[i, j] = (X[i, j] - centre) * factor


def sparse(rng, M, N, Z):
    indptr = np.sort(rng.integers(0, Z, M + 1, endpoint=True))
    indptr[0], indptr[-1] = 0, Z
    return {"indptr": indptr, "indices": rng.integers(0, N, Z)}


def sparse_product(indptr, indices, values, x):
    rows = [slice(*pair) for pair in itertools.pairwise(indptr)]
    return np.array([values[row] @ x[indices[row]] for row in rows])


def spmv(indptr, indices, values, x, y, way):
    for i in range(y.shape[0]):
        total = 0.0
        for k in range(indptr[i], indptr[i + 1]):
            total += values[k] * x[indices[k]]
        y[i] = total


def nearest(X):
    scale = np.abs(X).max(axis=1) / 127
    return np.rint(X / scale[:, None]), scale


def quantised(X, Q, scale, way):
    for i in range(X.shape[0]):
        largest = np.abs(X[i]).max()
        scale[i] = largest / 127
        for j in range(X.shape[1]):
            Q[i, j] = np.rint(X[i, j] * 127 / largest)


def decay(state, drive, steps):
    state = state.copy()
    for _ in range(steps):
        state = state / 2 + drive
    return state


def decayed(state, drive, steps, way):
    for _ in range(steps):
        for i in range(state.shape[0]):
            state[i] = state[i] / 2 + drive[i]


def squared(z, w, far, way):
    for i in range(z.shape[0]):
        w[i] = z[i] * z[i]
        far[i] = z[i].real ** 2 + z[i].imag ** 2 > 1


def largest(x, most, place, way):
    best = 0
    for i in range(x.shape[0]):
        if x[i] > x[best]:
            best = i
    most[0] = x[best]
    place[0] = best


DESCRIBED: dict[str, dict[str, Any]] = {
    "normalised": {
        "operands": {"X": "MxN"},
        "out": {"Y": "MxN", "mean": "M", "scale": "M"},
        "scalars": {"eps": 1e-5},
        "reference": normal,
    },
    "spmv": {
        "operands": {
            "indptr": "int32[M + 1]",
            "indices": {"shape": "Z", "dtype": "int32"},
            "values": "Z",
            "x": "N",
        },
        "out": {"y": "M"},
        "inputs": sparse,
        "reference": sparse_product,
        "flops": "2 * Z",
    },
    "quantised": {
        "operands": {"X": "MxN"},
        "out": {"Q": "int8[MxN]", "scale": "M"},
        "reference": nearest,
        "tolerance": {"Q": 1},  # a half may be rounded either way
        "finite": True,
    },
    "decayed": {
        "operands": {"state": "N", "drive": "N"},
        "out": {"state": "N"},
        "scalars": {"steps": np.int32(3)},
        "reference": decay,
    },
    "squared": {
        "operands": {"z": "complex128[N]"},
        "out": {"w": "complex128[N]", "far": "bool[N]"},
        "reference": lambda z: (z * z, np.abs(z) ** 2 > 1),
        "finite": True,
    },
    "largest": {
        "operands": {"x": "N"},
        "out": {"most": (), "place": "int64[]"},
        "reference": lambda x: (x.max(), x.argmax()),
        "finite": True,
    },
}
"""What each of them takes and gives."""

FUNCTIONS = {
    each.__name__: each for each in (normalised, spmv, quantised, decayed, squared, largest)
}


def made(name: str, target: str, cache: Path | None, **changed: Any) -> autotune.OwnKernel:
    """One of the kernels.

    Args:
        name: of `DESCRIBED`.
        target: cpu or cuda.
        cache: the user's cache; None is the usual one.
        changed: further arguments of `autotune.kernel`, or others.
    """
    described = {**DESCRIBED[name], "cache": cache, "trials": 2, "timeout": 20, **changed}
    if target == "cpu":
        given = autotune.kernel(FUNCTIONS[name], parameters={"way": [1, 2]}, **described)
        assert isinstance(given, autotune.OwnKernel)
        return given
    count = 1 if name == "largest" else f"ceildiv({'N' if 'N' in _rows(name) else 'M'}, THREADS)"
    source = autotune.kernel(
        source=CUDA[name],
        **{
            "parameters": {"THREADS": [64, 128]},
            "grid": [str(count)],
            "block": ["THREADS"],
            **described,
        },
    )
    assert isinstance(source, autotune.OwnKernel)
    return source


def _rows(name: str) -> str:
    return "M" if name in ("normalised", "spmv", "quantised") else "N"


def operands(name: str, dtype: str = "float64") -> tuple[list[Any], dict[str, Any], Any]:
    """Inputs of a call, its scalars, and what it must give."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(60, 35)).astype(dtype)
    scalars: dict[str, Any] = {}
    if name == "spmv":
        drawn = sparse(rng, 50, 40, 300)
        inputs = [drawn["indptr"].astype(np.int32), drawn["indices"].astype(np.int32)]
        inputs += [rng.normal(size=300).astype(dtype), rng.normal(size=40).astype(dtype)]
    elif name == "decayed":
        inputs, scalars = [rows[0].copy(), rows[1].copy()], {"steps": 4}
    elif name == "squared":
        inputs = [(rows + 1j * rows[::-1]).astype(np.complex128)[0].copy()]
    else:
        inputs = [rows[0].copy() if name == "largest" else rows]
    given = {"normalised": {"eps": 1e-5}, "decayed": scalars}.get(name, {})
    return inputs, scalars, DESCRIBED[name]["reference"](*inputs, **given)
