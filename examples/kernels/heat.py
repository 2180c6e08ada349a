"""Two steps in time of the heat equation on a grid in space, whose border keeps its values."""

import numpy as np
from numba import prange

import autotune


def cooled(u, rate):
    """The same: a step after the other."""
    for _ in range(2):
        v = u.copy()
        inner = u[1:-1, 1:-1, 1:-1]
        v[1:-1, 1:-1, 1:-1] = inner + rate * (
            u[:-2, 1:-1, 1:-1]
            + u[2:, 1:-1, 1:-1]
            + u[1:-1, :-2, 1:-1]
            + u[1:-1, 2:, 1:-1]
            + u[1:-1, 1:-1, :-2]
            + u[1:-1, 1:-1, 2:]
            - 6 * inner
        )
        u = v
    return u


SAID = {
    "operands": {"u": "DxHxW"},
    "out": {"v": "DxHxW"},
    "scalars": {"rate": 0.1},
    "reference": cooled,
    "flops": "18 * D * H * W",
    "cases": ["1x2x3", "5x7x33", "19x18x40", "33x34x70"],
}


def step(u, z, y, row, rate):
    """One step of a row of inner places."""
    here, north, south = u[z, y], u[z, y - 1], u[z, y + 1]
    above, below = u[z - 1, y], u[z + 1, y]
    left, right = here[:-2], here[2:]
    for x in range(len(left)):
        around = left[x] + right[x] + north[x + 1] + south[x + 1] + above[x + 1] + below[x + 1]
        row[x + 1] = here[x + 1] + rate * (around - 6 * here[x + 1])


@autotune.kernel(**SAID, parameters={"planes": [1, 4, 16], "threads": [1, 2, 4, 8, 16]})
def heat(u, v, rate, planes, threads):
    """Threads take so many planes through both steps while they are in the cache.

    The first step of the two planes beside is computed twice.
    """
    depth, height, _ = u.shape
    for group in prange((depth + planes - 1) // planes):
        first, last = group * planes, min(group * planes + planes, depth)
        above, below = max(first - 1, 0), min(last + 1, depth)
        once = u[above:below].copy()
        for z in range(max(above, 1), min(below, depth - 1)):
            for y in range(1, height - 1):
                step(u, z, y, once[z - above, y], rate)
        for z in range(first, last):
            v[z] = once[z - above]
            if 0 < z < depth - 1:
                for y in range(1, height - 1):
                    step(once, z - above, y, v[z, y], rate)


on_gpu = autotune.kernel(
    source="""
    // Two launches with the first step in the workspace, or (FUSED) one whose blocks compute the
    // first step of their places and of those around them into shared memory.
    struct Grid {
      const T* u;
      int depth, height, width;
      T rate;
      __device__ T at(int z, int y, int x) const {
        return u[((long long)z * height + y) * width + x];
      }
      __device__ T next(int z, int y, int x) const {
        T here = at(z, y, x);
        if (z == 0 || y == 0 || x == 0 || z == depth - 1 || y == height - 1 || x == width - 1)
          return here;
        T around = at(z, y, x - 1) + at(z, y, x + 1) + at(z, y - 1, x) + at(z, y + 1, x) +
                   at(z - 1, y, x) + at(z + 1, y, x);
        return here + rate * (around - 6 * here);
      }
    };
    __device__ void advance(const T* from, T* to, T rate, int D, int H, int W) {
      Grid grid{from, D, H, W, rate};
      int x = blockIdx.x * X + threadIdx.x, y = blockIdx.y * Y + threadIdx.y;
      int z = blockIdx.z * Z + threadIdx.z;
      if (x < W && y < H && z < D) to[((long long)z * H + y) * W + x] = grid.next(z, y, x);
    }
    __global__ void once(const T* u, T* v, T rate, int D, int H, int W, T* workspace) {
      advance(u, workspace, rate, D, H, W);
    }
    __global__ void heat(const T* u, T* v, T rate, int D, int H, int W, T* workspace) {
      if (!FUSED) {
        advance(workspace, v, rate, D, H, W);
        return;
      }
      __shared__ T part[(Z + 2) * (Y + 2) * (X + 2)];
      Grid grid{u, D, H, W, rate};
      int x0 = blockIdx.x * X - 1, y0 = blockIdx.y * Y - 1, z0 = blockIdx.z * Z - 1;
      int thread = (threadIdx.z * Y + threadIdx.y) * X + threadIdx.x;
      for (int i = thread; i < (Z + 2) * (Y + 2) * (X + 2); i += X * Y * Z) {
        int x = x0 + i % (X + 2), y = y0 + i / (X + 2) % (Y + 2);
        int z = z0 + i / ((X + 2) * (Y + 2));
        if (x >= 0 && y >= 0 && z >= 0 && x < W && y < H && z < D) part[i] = grid.next(z, y, x);
      }
      __syncthreads();
      int x = x0 + 1 + threadIdx.x, y = y0 + 1 + threadIdx.y, z = z0 + 1 + threadIdx.z;
      if (x >= W || y >= H || z >= D) return;
      const int row = X + 2, plane = row * (Y + 2);
      const T* here = part + (threadIdx.z + 1) * plane + (threadIdx.y + 1) * row + threadIdx.x + 1;
      bool border = z == 0 || y == 0 || x == 0 || z == D - 1 || y == H - 1 || x == W - 1;
      T around = border ? 6 * *here : here[-1] + here[1] + here[-row] + here[row] +
                                      here[-plane] + here[plane];
      v[((long long)z * H + y) * W + x] = border ? *here : *here + rate * (around - 6 * *here);
    }
    """,
    name="heat",
    **SAID,
    parameters={"X": [16, 32, 64], "Y": [2, 4, 8], "Z": [1, 2, 4], "FUSED": [0, 1]},
    restrictions=lambda X, Y, Z: 64 <= X * Y * Z <= 1024,
    grid=["ceildiv(W, X)", "ceildiv(H, Y)", "ceildiv(D, Z)"],
    block=["X", "Y", "Z"],
    launch={
        "workspace_bytes": "(1 - FUSED) * D * H * W * itemsize",
        "before": [
            {
                "kernel": "once",
                "grid": ["ceildiv(W, X)", "ceildiv(H, Y)", "ceildiv(D, Z)"],
                "block": ["X", "Y", "Z"],
                "when": "FUSED == 0",
            }
        ],
    },
)


def operands(rng):
    """Those of a call."""
    return (rng.random((20, 40, 90)),)


if __name__ == "__main__":
    print(heat(*operands(np.random.default_rng(0))))
