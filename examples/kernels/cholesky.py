"""Cholesky factors of many small matrices, in place: the lower triangle becomes the factor."""

import math

import numpy as np
from numba import prange

import autotune


def factors(A):
    """The same; what is above the diagonal stays."""
    return np.tril(np.linalg.cholesky(np.tril(A) + np.tril(A, -1).swapaxes(1, 2))) + np.triu(A, 1)


def definite(rng, B, N):
    """Positive definite matrices."""
    drawn = rng.normal(size=(B, N, N))
    return {"A": drawn @ drawn.swapaxes(1, 2) / N + np.eye(N)}


SAID = {
    "operands": {"A": "BxNxN"},
    "out": {"A": "BxNxN"},
    "inputs": definite,
    "reference": factors,
    "flops": "B * ceildiv(N * N * N, 3)",
    "cases": ["1x1", "5x7", "33x16", "3x45"],
}


@autotune.kernel(**SAID, parameters={"right": [False, True], "threads": [1, 2, 4, 8, 16]})
def cholesky(A, right, threads):
    """Columns are subtracted from all to their right at once, or each gets those to its left."""
    size = A.shape[1]
    for b in prange(A.shape[0]):
        a = A[b]
        for j in range(size):
            if not right:
                for i in range(j, size):
                    for k in range(j):
                        a[i, j] -= a[i, k] * a[j, k]
            a[j, j] = math.sqrt(a[j, j])
            for i in range(j + 1, size):
                a[i, j] /= a[j, j]
                if right:
                    for k in range(j + 1, i + 1):
                        a[i, k] -= a[i, j] * a[k, j]


on_gpu = autotune.kernel(
    source="""
    // A block factors a matrix, in shared memory if SHARED says so.
    extern __shared__ T dynamic[];
    __global__ void cholesky(T* A, int B, int N) {
      T* a = A + (long long)blockIdx.x * N * N;
      T* own = SHARED ? dynamic : a;
      if (SHARED)
        for (int i = threadIdx.x; i < N * N; i += THREADS) own[i] = a[i];
      __syncthreads();
      for (int j = 0; j < N; ++j) {
        T pivot = sqrt(own[j * N + j]);
        __syncthreads();  // all have read it
        for (int i = j + threadIdx.x; i < N; i += THREADS)
          own[i * N + j] = i == j ? pivot : own[i * N + j] / pivot;
        __syncthreads();
        // Threads go along rows of what is left, below and right of the pivot.
        int rest = N - j - 1;
        for (int place = threadIdx.x; place < rest * rest; place += THREADS) {
          int i = j + 1 + place / rest, k = j + 1 + place % rest;
          if (k <= i) own[i * N + k] -= own[i * N + j] * own[k * N + j];
        }
        __syncthreads();
      }
      if (SHARED)
        for (int i = threadIdx.x; i < N * N; i += THREADS) a[i] = own[i];
    }
    """,
    **SAID,
    parameters={"THREADS": [32, 64, 128, 256], "SHARED": [0, 1]},
    restrictions={"SHARED == 0 or N * N * itemsize <= 49152": "a matrix fits"},
    grid=["B"],
    block=["THREADS"],
    shared_bytes="SHARED * N * N * itemsize",
)


def operands(rng):
    """Those of a call."""
    return (definite(rng, 40, 32)["A"],)


if __name__ == "__main__":
    print(cholesky(*operands(np.random.default_rng(0))))
