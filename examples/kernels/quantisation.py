"""Quantisation of rows to eight bits, with a scale for every row."""

import numpy as np
from numba import prange

import autotune


def nearest(X):
    """The same: the largest of a row becomes 127."""
    scale = np.abs(X).max(axis=1) / 127
    return np.rint(X / scale[:, None]), scale


SAID = {
    "operands": {"X": "MxN"},
    "out": {"Q": "int8[MxN]", "scale": "M"},
    "reference": nearest,
    "tolerance": {"Q": 1},  # a half may be rounded either way
    "flops": "2 * M * N",
    "finite": True,
}


@autotune.kernel(**SAID, parameters={"lanes": [1, 8, 16], "threads": [1, 2, 4, 8, 16]})
def quantisation(X, Q, scale, lanes, threads):
    """The largest is sought in so many lanes side by side."""
    width = X.shape[1]
    for i in prange(X.shape[0]):
        x = X[i]
        most = np.zeros(lanes, x.dtype)
        for j in range(0, width - lanes + 1, lanes):
            for lane in range(lanes):
                most[lane] = max(most[lane], abs(x[j + lane]))
        largest = most.max()
        for j in range(width - width % lanes, width):
            largest = max(largest, abs(x[j]))
        scale[i] = largest / 127
        factor = 127 / largest
        for j in range(width):
            Q[i, j] = np.rint(x[j] * factor)


on_gpu = autotune.kernel(
    source="""
    // WARPS warps share a row: its largest by shuffles, then all of it again from the cache.
    __global__ void quantisation(const T* X, signed char* Q, T* scale, int M, int N) {
      __shared__ T parts[WARPS];
      const T* x = X + (long long)blockIdx.x * N;
      signed char* q = Q + (long long)blockIdx.x * N;
      T largest = 0;
      for (int j = threadIdx.x; j < N; j += 32 * WARPS) largest = max(largest, abs(x[j]));
      for (int far = 16; far > 0; far /= 2)
        largest = max(largest, __shfl_xor_sync(0xffffffff, largest, far));
      if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = largest;
      __syncthreads();
      for (int warp = 0; warp < WARPS; ++warp) largest = max(largest, parts[warp]);
      if (threadIdx.x == 0) scale[blockIdx.x] = largest / 127;
      T factor = 127 / largest;
      for (int j = threadIdx.x; j < N; j += 32 * WARPS) q[j] = rint(x[j] * factor);
    }
    """,
    **SAID,
    parameters={"WARPS": [1, 2, 4, 8, 16]},
    grid=["M"],
    block=["32 * WARPS"],
)


def operands(rng):
    """Those of a call."""
    return (rng.normal(size=(130, 515)),)


if __name__ == "__main__":
    for each in quantisation(*operands(np.random.default_rng(0))):
        print(each)
