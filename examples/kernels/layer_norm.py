"""Layer normalisation, which keeps the statistics of every row for the backward pass."""

import math

import numpy as np
from numba import prange

import autotune


def normal(X, weight, bias, eps):
    """Rows less their mean, over their standard deviation; both of these, too."""
    mean, scale = X.mean(axis=1), 1 / np.sqrt(X.var(axis=1) + eps)
    return (X - mean[:, None]) * scale[:, None] * weight + bias, mean, scale


SAID = {
    "operands": {"X": "MxN", "weight": "N", "bias": "N"},
    "out": {"Y": "MxN", "mean": "M", "scale": "M"},
    "scalars": {"eps": 1e-5},
    "reference": normal,
    "flops": "8 * M * N",
}


@autotune.kernel(**SAID, parameters={"lanes": [1, 8, 16], "threads": [1, 2, 4, 8, 16]})
def layer_norm(X, weight, bias, Y, mean, scale, eps, lanes, threads):
    """Sums are kept in so many lanes, which a processor adds up side by side."""
    width = X.shape[1]
    for i in prange(X.shape[0]):
        x, y = X[i], Y[i]
        sums = np.zeros(lanes)
        for j in range(0, width - lanes + 1, lanes):
            for lane in range(lanes):
                sums[lane] += x[j + lane]
        centre = sums.sum()
        for j in range(width - width % lanes, width):
            centre += x[j]
        centre /= width
        sums[:] = 0
        for j in range(0, width - lanes + 1, lanes):
            for lane in range(lanes):
                sums[lane] += (x[j + lane] - centre) ** 2
        squares = sums.sum()
        for j in range(width - width % lanes, width):
            squares += (x[j] - centre) ** 2
        factor = 1 / math.sqrt(squares / width + eps)
        mean[i], scale[i] = centre, factor
        for j in range(width):
            y[j] = (x[j] - centre) * factor * weight[j] + bias[j]


on_gpu = autotune.kernel(
    source="""
    // A block normalises a row: a sum for the mean, and another for the squares around it.
    __device__ T summed(T sum) {
      __shared__ T parts[WARPS];
      for (int far = 16; far > 0; far /= 2) sum += __shfl_xor_sync(0xffffffff, sum, far);
      __syncthreads();  // the sum before has been read
      if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
      __syncthreads();
      sum = 0;
      for (int warp = 0; warp < WARPS; ++warp) sum += parts[warp];
      return sum;
    }
    __global__ void layer_norm(const T* X, const T* weight, const T* bias, T* Y, T* mean, T* scale,
                               T eps, int M, int N) {
      const T* x = X + (long long)blockIdx.x * N;
      T* y = Y + (long long)blockIdx.x * N;
      T mine = 0;
      for (int j = threadIdx.x; j < N; j += 32 * WARPS) mine += x[j];
      T centre = summed(mine) / N;
      mine = 0;
      for (int j = threadIdx.x; j < N; j += 32 * WARPS) mine += (x[j] - centre) * (x[j] - centre);
      T factor = 1 / sqrt(summed(mine) / N + eps);
      if (threadIdx.x == 0) {
        mean[blockIdx.x] = centre;
        scale[blockIdx.x] = factor;
      }
      for (int j = threadIdx.x; j < N; j += 32 * WARPS)
        y[j] = (x[j] - centre) * factor * weight[j] + bias[j];
    }
    """,
    **SAID,
    parameters={"WARPS": [1, 2, 4, 8, 16]},
    grid=["M"],
    block=["32 * WARPS"],
)


def operands(rng):
    """Those of a call."""
    return rng.normal(size=(130, 515)), rng.random(515), rng.random(515)


if __name__ == "__main__":
    for each in layer_norm(*operands(np.random.default_rng(0))):
        print(each)
