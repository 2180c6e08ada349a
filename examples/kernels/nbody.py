"""Gravity between all pairs of bodies."""

import math

import numpy as np
from numba import prange

import autotune


def attraction(place, mass, soft):
    """Accelerations of all bodies, with distances softened so that none is zero."""
    apart = place[:, None, :] - place[:, :, None]
    return (mass * apart / ((apart**2).sum(axis=0) + soft) ** 1.5).sum(axis=2)


SAID = {
    "operands": {"place": "3xN", "mass": "N"},
    "out": {"pull": "3xN"},
    "scalars": {"soft": 0.01},
    "reference": attraction,
    "flops": "20 * N * N",
    "cases": ["1", "63", "130", "259"],
    "finite": True,
}


@autotune.kernel(**SAID, parameters={"bodies": [1, 4, 8, 16], "threads": [1, 2, 4, 8, 16]})
def nbody(place, mass, pull, soft, bodies, threads):
    """So many bodies at a time meet one after the other of the rest."""
    count = len(mass)
    for group in prange((count + bodies - 1) // bodies):
        first, many = group * bodies, min(bodies, count - group * bodies)
        own, sums = np.zeros((3, bodies)), np.zeros((3, bodies))
        own[:, :many] = place[:, first : first + many]
        for j in range(count):
            x, y, z, heavy = place[0, j], place[1, j], place[2, j], mass[j]
            for k in range(bodies):
                dx, dy, dz = x - own[0, k], y - own[1, k], z - own[2, k]
                square = dx * dx + dy * dy + dz * dz + soft
                factor = heavy / (square * math.sqrt(square))
                sums[0, k] += factor * dx
                sums[1, k] += factor * dy
                sums[2, k] += factor * dz
        pull[:, first : first + many] = sums[:, :many]


on_gpu = autotune.kernel(
    source="""
    // A block's threads bring bodies to shared memory, and each meets them with BODIES of its own
    // (Nyland, Harris and Prins, GPU Gems 3, chapter 31).
    __global__ void nbody(const T* place, const T* mass, T* pull, T soft, int N) {
      __shared__ T shared[4][THREADS];
      T own[BODIES][3], sums[BODIES][3] = {};
      int first = blockIdx.x * THREADS * BODIES + threadIdx.x;
      #pragma unroll
      for (int k = 0; k < BODIES; ++k)
        for (int axis = 0; axis < 3; ++axis)
          own[k][axis] = place[axis * N + min(first + k * THREADS, N - 1)];
      for (int start = 0; start < N; start += THREADS) {
        int j = start + threadIdx.x;
        for (int axis = 0; axis < 3; ++axis)
          shared[axis][threadIdx.x] = j < N ? place[axis * N + j] : T(0);
        shared[3][threadIdx.x] = j < N ? mass[j] : T(0);  // none attracts nothing
        __syncthreads();
        #pragma unroll UNROLL
        for (int i = 0; i < THREADS; ++i)
          #pragma unroll
          for (int k = 0; k < BODIES; ++k) {
            T dx = shared[0][i] - own[k][0], dy = shared[1][i] - own[k][1];
            T dz = shared[2][i] - own[k][2], square = dx * dx + dy * dy + dz * dz + soft;
            T factor = shared[3][i] / (square * sqrt(square));
            sums[k][0] += factor * dx;
            sums[k][1] += factor * dy;
            sums[k][2] += factor * dz;
          }
        __syncthreads();
      }
      #pragma unroll
      for (int k = 0; k < BODIES; ++k)
        if (first + k * THREADS < N)
          for (int axis = 0; axis < 3; ++axis)
            pull[axis * N + first + k * THREADS] = sums[k][axis];
    }
    """,
    **SAID,
    parameters={"THREADS": [64, 128, 256], "BODIES": [1, 2, 4], "UNROLL": [1, 4, 16]},
    grid=["ceildiv(N, THREADS * BODIES)"],
    block=["THREADS"],
)


def operands(rng):
    """Those of a call."""
    return rng.normal(size=(3, 300)), rng.random(300)


if __name__ == "__main__":
    print(nbody(*operands(np.random.default_rng(0))))
