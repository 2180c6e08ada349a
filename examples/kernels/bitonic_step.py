"""One step of a bitonic sort, in place: keys a distance of a power of two apart change places."""

import numpy as np
from numba import prange

import autotune


def stepped(keys, level, step):
    """The same: runs of 2 << level keys ascend and descend by turns."""
    places = np.arange(len(keys))
    others = places ^ (1 << step)
    inside = (others < len(keys)) & (others > places)
    low, high = places[inside], others[inside]
    result = keys.copy()
    wrong = (keys[low] > keys[high]) == ((low & (2 << level)) == 0)
    wrong &= keys[low] != keys[high]
    result[low[wrong]], result[high[wrong]] = keys[high[wrong]], keys[low[wrong]]
    return result


SAID = {
    "operands": {"keys": "int32[N]"},
    "out": {"keys": "int32[N]"},
    "scalars": {"level": np.int32(3), "step": np.int32(2)},
    "reference": stepped,
    "inputs": lambda rng, N: {"keys": rng.integers(-(2**31), 2**31, N)},
    "flops": "N",
}


@autotune.kernel(**SAID, parameters={"pairs": [64, 1024, 16384], "threads": [1, 2, 4, 8, 16]})
def bitonic_step(keys, level, step, pairs, threads):
    """Threads take so many pairs at a time; smaller and larger are chosen without a branch."""
    every = (len(keys) + (1 << step)) >> 1
    for group in prange((every + pairs - 1) // pairs):
        for pair in range(group * pairs, min(group * pairs + pairs, every)):
            low = (pair >> step << (step + 1)) + (pair & ((1 << step) - 1))
            high = low + (1 << step)
            if high < len(keys):
                small, large = min(keys[low], keys[high]), max(keys[low], keys[high])
                ascending = low & (2 << level) == 0
                keys[low] = small if ascending else large
                keys[high] = large if ascending else small


on_gpu = autotune.kernel(
    source="""
    // A thread compares ITEMS pairs, THREADS apart, so that warps read keys that lie together.
    __global__ void bitonic_step(int* keys, int level, int step, int N) {
      #pragma unroll
      for (int k = 0; k < ITEMS; ++k) {
        int pair = (blockIdx.x * ITEMS + k) * THREADS + threadIdx.x;
        int low = (pair >> step << (step + 1)) + (pair & ((1 << step) - 1));
        int high = low + (1 << step);
        if (high < N) {
          int small = min(keys[low], keys[high]), large = max(keys[low], keys[high]);
          bool ascending = (low & (2 << level)) == 0;
          keys[low] = ascending ? small : large;
          keys[high] = ascending ? large : small;
        }
      }
    }
    """,
    **SAID,
    parameters={"THREADS": [64, 128, 256, 512], "ITEMS": [1, 2, 4, 8]},
    # Of the last run only the first half may be there.
    grid=["ceildiv(N, THREADS * ITEMS)"],
    block=["THREADS"],
)


def operands(rng):
    """Those of a call."""
    return (rng.integers(-1000, 1000, 4096).astype(np.int32),)


def sort(keys):
    """Sort a power of two of keys, by all steps."""
    for level in range(len(keys).bit_length() - 1):
        for step in range(level, -1, -1):
            bitonic_step(keys, level=level, step=step)
    return keys


if __name__ == "__main__":
    print(sort(*operands(np.random.default_rng(0))))
