"""Two-dimensional convolution: weighted sums of all windows of an image."""

import numpy as np
from numba import prange

import autotune


def convolved(image, weights):
    """The same, by a view of all windows."""
    windows = np.lib.stride_tricks.sliding_window_view(image, weights.shape)
    return np.einsum("yxij,ij->yx", windows, weights)


SAID = {
    "operands": {"image": ("H + F - 1", "W + F - 1"), "weights": "FxF"},
    "out": {"result": "HxW"},
    "reference": convolved,
    "flops": "2 * H * W * F * F",
    "cases": [
        {"H": 37, "W": 53, "F": 3},
        {"H": 64, "W": 64, "F": 5},
        {"H": 70, "W": 33, "F": 7},
        {"H": 1, "W": 1, "F": 3},
    ],
}


@autotune.kernel(
    **SAID,
    parameters={"rows": [1, 4, 16], "columns": [64, 256, 1024], "threads": [1, 2, 4, 8, 16]},
)
def convolution(image, weights, result, rows, columns, threads):
    """Threads share bands of rows; a stretch of a row stays in the first cache."""
    height, width = result.shape
    for band in prange((height + rows - 1) // rows):
        for i in range(band * rows, min(band * rows + rows, height)):
            for first in range(0, width, columns):
                sums = result[i, first : first + columns]
                sums[:] = 0
                for a in range(weights.shape[0]):
                    for b in range(weights.shape[1]):
                        weight = weights[a, b]
                        # Of slices indices are not negative: the loop is compiled to vectors.
                        part = image[i + a, first + b : first + b + len(sums)]
                        for j in range(len(sums)):
                            sums[j] += weight * part[j]


on_gpu = autotune.kernel(
    source="""
    // A block keeps its part of the image in shared memory; a thread computes COLUMNS results.
    #define WIDTH (THREADS * COLUMNS)
    __global__ void convolution(const T* image, const T* weights, T* result, int H, int W) {
      __shared__ T part[ROWS + FILTER - 1][WIDTH + FILTER - 1];
      int width = W + FILTER - 1, height = H + FILTER - 1;
      int x0 = blockIdx.x * WIDTH, y0 = blockIdx.y * ROWS;
      for (int y = threadIdx.y; y < ROWS + FILTER - 1; y += ROWS)
        for (int x = threadIdx.x; x < WIDTH + FILTER - 1; x += THREADS)
          part[y][x] = y0 + y < height && x0 + x < width
              ? image[(long long)(y0 + y) * width + x0 + x] : T(0);
      __syncthreads();
      for (int k = 0; k < COLUMNS; ++k) {
        int x = threadIdx.x + k * THREADS;
        T sum = 0;
        for (int i = 0; i < FILTER; ++i)
          for (int j = 0; j < FILTER; ++j)
            sum += part[threadIdx.y + i][x + j] * weights[i * FILTER + j];
        if (y0 + threadIdx.y < H && x0 + x < W)
          result[(long long)(y0 + threadIdx.y) * W + x0 + x] = sum;
      }
    }
    """,
    **SAID,
    parameters={
        "THREADS": [16, 32, 64],
        "ROWS": [4, 8, 16],
        "COLUMNS": [1, 2, 4],
        "FILTER": [3, 5, 7],
    },
    restrictions={
        "FILTER == F": "windows are known when the kernel is compiled",
        "itemsize * (ROWS + 6) * (THREADS * COLUMNS + 6) <= 49152": "the part fits",
    },
    grid=["ceildiv(W, THREADS * COLUMNS)", "ceildiv(H, ROWS)"],
    block=["THREADS", "ROWS"],
)


def operands(rng):
    """Those of a call."""
    return rng.random((260, 330)), rng.random((5, 5))


if __name__ == "__main__":
    print(convolution(*operands(np.random.default_rng(0))))
