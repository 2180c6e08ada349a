"""Softmax of every row of a matrix."""

import math

import numpy as np
from numba import prange

import autotune


def softmax_of_rows(X):
    """The same in NumPy."""
    powers = np.exp(X - X.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


SAID = {
    "operands": {"X": "MxN"},
    "out": {"Y": "MxN"},
    "reference": softmax_of_rows,
    "flops": "4 * M * N",
}


@autotune.kernel(**SAID, parameters={"online": [False, True], "threads": [1, 2, 4, 8, 16]})
def softmax(X, Y, online, threads):
    """Either the largest first and then the sum, or both at once, as in Milakov and Gimelshein."""
    for i in prange(X.shape[0]):
        x, y = X[i], Y[i]
        largest, total = x[0], 0.0
        if online:
            for j in range(len(x)):
                if x[j] > largest:
                    total *= math.exp(largest - x[j])
                    largest = x[j]
                total += math.exp(x[j] - largest)
            for j in range(len(x)):
                y[j] = math.exp(x[j] - largest) / total
        else:
            for j in range(len(x)):
                largest = max(largest, x[j])
            for j in range(len(x)):
                y[j] = math.exp(x[j] - largest)
                total += y[j]
            for j in range(len(x)):
                y[j] /= total


on_gpu = autotune.kernel(
    source="""
    // WARPS warps of a block share a row, which is read once for the largest and the sum.
    // Every thread has both of its own elements; two pairs meet as in Milakov and Gimelshein,
    // "Online normalizer calculation for softmax" (2018).
    __device__ void meet(T& largest, T& total, T other, T sum) {
      T both = max(largest, other);
      total = total * exp(largest - both) + sum * exp(other - both);
      largest = both;
    }
    __global__ void softmax(const T* X, T* Y, int M, int N) {
      __shared__ T heights[WARPS], sums[WARPS];
      const T* x = X + (long long)blockIdx.x * N;
      T* y = Y + (long long)blockIdx.x * N;
      T largest = x[0], total = 0;
      for (int j = threadIdx.x; j < N; j += 32 * WARPS) meet(largest, total, x[j], T(1));
      for (int far = 16; far > 0; far /= 2) {
        T other = __shfl_xor_sync(0xffffffff, largest, far);
        meet(largest, total, other, __shfl_xor_sync(0xffffffff, total, far));
      }
      if (threadIdx.x % 32 == 0) {
        heights[threadIdx.x / 32] = largest;
        sums[threadIdx.x / 32] = total;
      }
      __syncthreads();
      largest = heights[0], total = sums[0];
      for (int warp = 1; warp < WARPS; ++warp) meet(largest, total, heights[warp], sums[warp]);
      for (int j = threadIdx.x; j < N; j += 32 * WARPS) y[j] = exp(x[j] - largest) / total;
    }
    """,
    **SAID,
    parameters={"WARPS": [1, 2, 4, 8, 16, 32]},
    restrictions={"WARPS == 1 or 16 * WARPS < N": "warps without an element"},
    grid=["M"],
    block=["32 * WARPS"],
    finite=True,  # infinities less infinities meet
)


def operands(rng):
    """Those of a call."""
    return (rng.normal(size=(130, 515)),)


if __name__ == "__main__":
    print(softmax(*operands(np.random.default_rng(0))))
