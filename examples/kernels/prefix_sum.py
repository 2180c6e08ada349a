"""Prefix sums: every element and all before it, added up."""

import numpy as np
from numba import prange

import autotune

SAID = {
    "operands": {"x": "N"},
    "out": {"sums": "N"},
    "reference": lambda x: np.cumsum(x),
    "flops": "N",
}


@autotune.kernel(**SAID, parameters={"threads": [1, 2, 4, 8, 16], "parts": [1, 2, 4]})
def prefix_sum(x, sums, threads, parts):
    """Threads add up their parts, which then begin where those before them end."""
    count = threads * parts
    each = (len(x) + count - 1) // count
    before = np.zeros(count + 1, x.dtype)
    if count > 1:
        for part in prange(count):
            total = before[0]
            for value in x[part * each : (part + 1) * each]:
                total += value
            before[part + 1] = total
        for part in range(count):
            before[part + 1] += before[part]
    for part in prange(count):
        total = before[part]
        for i in range(part * each, min((part + 1) * each, len(x))):
            total += x[i]
            sums[i] = total


on_gpu = autotune.kernel(
    source="""
    // Blocks add up their parts, one block the totals of these, and blocks then begin with what is
    // before them. Inside a block, warps' sums come by shuffles (Hillis and Steele).
    #define PART (THREADS * ITEMS)
    __device__ T inclusive(T sum) {
      __shared__ T totals[THREADS / 32];
      for (int far = 1; far < 32; far *= 2) {
        T other = __shfl_up_sync(0xffffffff, sum, far);
        if (threadIdx.x % 32 >= far) sum += other;
      }
      __syncthreads();  // the totals before have been read
      if (threadIdx.x % 32 == 31) totals[threadIdx.x / 32] = sum;
      __syncthreads();
      T before = 0;
      for (int warp = 0; warp < threadIdx.x / 32; ++warp) before += totals[warp];
      return before + sum;
    }
    __global__ void parts(const T* x, T* sums, int N, T* workspace) {
      T sum = 0;
      int first = blockIdx.x * PART, last = min(first + PART, N);
      for (int i = first + threadIdx.x; i < last; i += THREADS) sum += x[i];
      sum = inclusive(sum);
      if (threadIdx.x == THREADS - 1) workspace[blockIdx.x] = sum;
    }
    __global__ void totals(const T* x, T* sums, int N, T* workspace) {
      __shared__ T carried;
      if (threadIdx.x == 0) carried = 0;
      int count = (N + PART - 1) / PART;
      for (int first = 0; first < count; first += THREADS) {
        int i = first + threadIdx.x;
        T sum = inclusive(i < count ? workspace[i] : T(0)) + carried;
        __syncthreads();
        if (i < count) workspace[i] = sum;
        if (threadIdx.x == THREADS - 1) carried = sum;
        __syncthreads();
      }
    }
    __global__ void prefix_sum(const T* x, T* sums, int N, T* workspace) {
      T before = blockIdx.x > 0 ? workspace[blockIdx.x - 1] : T(0);
      int first = blockIdx.x * PART + threadIdx.x * ITEMS;
      T own[ITEMS], sum = 0;
      #pragma unroll
      for (int k = 0; k < ITEMS; ++k) own[k] = sum += first + k < N ? x[first + k] : T(0);
      before += inclusive(sum) - sum;
      #pragma unroll
      for (int k = 0; k < ITEMS; ++k)
        if (first + k < N) sums[first + k] = before + own[k];
    }
    """,
    name="prefix_sum",
    **SAID,
    parameters={"THREADS": [64, 128, 256, 512], "ITEMS": [1, 2, 4, 8]},
    grid=["ceildiv(N, THREADS * ITEMS)"],
    block=["THREADS"],
    launch={
        "workspace_bytes": "itemsize * ceildiv(N, THREADS * ITEMS)",
        "before": [
            {"kernel": "parts", "grid": ["ceildiv(N, THREADS * ITEMS)"], "block": ["THREADS"]},
            {"kernel": "totals", "grid": ["1"], "block": ["THREADS"]},
        ],
    },
    finite=True,  # what is before a thread is its sum less its own
)


def operands(rng):
    """Those of a call."""
    return (rng.random(50_000),)


if __name__ == "__main__":
    print(prefix_sum(*operands(np.random.default_rng(0))))
