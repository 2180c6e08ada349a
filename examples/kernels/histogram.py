"""Histogram of bytes, whose contention depends on the data: it is tuned on those of a call."""

import numpy as np
from numba import prange

import autotune

SAID = {
    "operands": {"values": "uint8[N]"},
    "out": {"counts": "int32[256]"},
    "reference": lambda values: np.bincount(values, minlength=256),
    "inputs": lambda rng, N: {"values": rng.integers(0, 256, N)},
    "flops": "N",
}


@autotune.kernel(**SAID, parameters={"lanes": [1, 2, 4, 8], "threads": [1, 2, 4, 8, 16]})
def histogram(values, counts, lanes, threads):
    """Neighbours count in bins of their own, so that no count waits for the one before."""
    each = (len(values) + threads - 1) // threads
    bins = np.zeros((threads, lanes, 256), np.int32)
    for thread in prange(threads):
        part, own = values[thread * each : (thread + 1) * each], bins[thread]
        for i in range(0, len(part) - lanes + 1, lanes):
            for lane in range(lanes):
                own[lane, part[i + lane]] += 1
        for i in range(len(part) - len(part) % lanes, len(part)):
            own[0, part[i]] += 1
    counts[:] = 0
    for thread in range(threads):
        for lane in range(lanes):
            for value in range(256):
                counts[value] += bins[thread, lane, value]


on_gpu = autotune.kernel(
    source="""
    // Threads count in one of COPIES histograms in shared memory, and blocks add theirs up.
    __global__ void histogram(const unsigned char* values, int* counts, int N) {
      __shared__ int bins[COPIES][256];
      for (int i = threadIdx.x; i < COPIES * 256; i += THREADS) bins[i / 256][i % 256] = 0;
      __syncthreads();
      for (int i = blockIdx.x * THREADS + threadIdx.x; i < N; i += BLOCKS * THREADS)
        atomicAdd(&bins[threadIdx.x % COPIES][values[i]], 1);
      __syncthreads();
      for (int value = threadIdx.x; value < 256; value += THREADS) {
        int count = 0;
        for (int copy = 0; copy < COPIES; ++copy) count += bins[copy][value];
        if (count > 0) atomicAdd(&counts[value], count);
      }
    }
    __global__ void cleared(const unsigned char* values, int* counts, int N) {
      counts[threadIdx.x] = 0;
    }
    """,
    name="histogram",
    **SAID,
    parameters={"THREADS": [128, 256, 512], "BLOCKS": [1, 33, 132, 528], "COPIES": [1, 4, 8, 16]},
    grid=["BLOCKS"],
    block=["THREADS"],
    launch={"before": [{"kernel": "cleared", "grid": ["1"], "block": ["256"]}]},
)


def operands(rng):
    """Those of a call: few values are frequent."""
    return (rng.geometric(0.05, 100_000).clip(0, 255).astype(np.uint8),)


if __name__ == "__main__":
    given = operands(np.random.default_rng(0))
    histogram.tune(*given)
    print(histogram(*given))
