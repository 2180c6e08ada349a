"""Transposition of a matrix, tile by tile."""

import numpy as np
from numba import prange

import autotune

SAID = {
    "operands": {"A": "MxN"},
    "out": {"B": "NxM"},
    "reference": lambda A: A.T,
    "tolerance": 0.0,
    "flops": "M * N",
}


@autotune.kernel(
    **SAID,
    parameters={"rows": [8, 16, 64], "columns": [8, 16, 64], "threads": [1, 2, 4, 8, 16]},
)
def transposition(A, B, rows, columns, threads):
    """A tile's lines of both matrices stay in the cache until they are used up."""
    height, width = A.shape
    for tile in prange((width + columns - 1) // columns):
        first, last = tile * columns, min(tile * columns + columns, width)
        for top in range(0, height, rows):
            for j in range(first, last):
                for i in range(top, min(top + rows, height)):
                    B[j, i] = A[i, j]


on_gpu = autotune.kernel(
    source="""
    // Warps read and write rows; the tile between them is turned in shared memory. One column more
    // (PAD) puts what a warp reads down a column into different banks.
    __global__ void transposition(const T* A, T* B, int M, int N) {
      __shared__ T tile[TILE][TILE + PAD];
      int row = blockIdx.y * TILE, column = blockIdx.x * TILE;
      for (int i = threadIdx.y; i < TILE; i += ROWS)
        if (row + i < M && column + threadIdx.x < N)
          tile[i][threadIdx.x] = A[(long long)(row + i) * N + column + threadIdx.x];
      __syncthreads();
      for (int i = threadIdx.y; i < TILE; i += ROWS)
        if (column + i < N && row + threadIdx.x < M)
          B[(long long)(column + i) * M + row + threadIdx.x] = tile[threadIdx.x][i];
    }
    """,
    **SAID,
    parameters={"TILE": [16, 32, 64], "ROWS": [2, 4, 8, 16], "PAD": [0, 1]},
    grid=["ceildiv(N, TILE)", "ceildiv(M, TILE)"],
    block=["TILE", "ROWS"],
)


def operands(rng):
    """Those of a call."""
    return (rng.random((300, 420)),)


if __name__ == "__main__":
    print(transposition(*operands(np.random.default_rng(0))))
