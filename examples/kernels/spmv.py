"""Product of a sparse matrix in compressed rows (CSR) and a vector."""

import itertools

import numpy as np
from numba import prange

import autotune


def sparse(rng, M, N, Z):
    """Rows of random lengths, and places in them."""
    indptr = np.sort(rng.integers(0, Z, M + 1, endpoint=True))
    indptr[0], indptr[-1] = 0, Z
    return {"indptr": indptr, "indices": rng.integers(0, N, Z)}


def product(indptr, indices, values, x):
    """The same, row by row."""
    rows = [slice(*pair) for pair in itertools.pairwise(indptr)]
    return np.array([values[row] @ x[indices[row]] for row in rows])


SAID = {
    "operands": {"indptr": "int32[M + 1]", "indices": "int32[Z]", "values": "Z", "x": "N"},
    "out": {"y": "M"},
    "inputs": sparse,
    "reference": product,
    "flops": "2 * Z",
}


@autotune.kernel(**SAID, parameters={"lanes": [1, 2, 4], "threads": [1, 2, 4, 8, 16]})
def spmv(indptr, indices, values, x, y, lanes, threads):
    """A row is summed in so many lanes, whose loads do not wait for each other."""
    for i in prange(len(y)):
        first, last = indptr[i], indptr[i + 1]
        sums = np.zeros(lanes)
        for k in range(first, last - lanes + 1, lanes):
            for lane in range(lanes):
                sums[lane] += values[k + lane] * x[indices[k + lane]]
        total = sums.sum()
        for k in range(last - (last - first) % lanes, last):
            total += values[k] * x[indices[k]]
        y[i] = total


on_gpu = autotune.kernel(
    source="""
    // LANES threads sum a row, as in Bell and Garland's CSR kernels (2009).
    __global__ void spmv(const int* indptr, const int* indices, const T* values, const T* x, T* y,
                         int M) {
      int row = (blockIdx.x * THREADS + threadIdx.x) / LANES;
      T sum = 0;
      if (row < M)
        for (int k = indptr[row] + threadIdx.x % LANES; k < indptr[row + 1]; k += LANES)
          sum += values[k] * x[indices[k]];
      for (int far = LANES / 2; far > 0; far /= 2) sum += __shfl_xor_sync(0xffffffff, sum, far);
      if (row < M && threadIdx.x % LANES == 0) y[row] = sum;
    }
    """,
    **SAID,
    parameters={"THREADS": [64, 128, 256], "LANES": [1, 2, 4, 8, 16, 32]},
    grid=["ceildiv(M * LANES, THREADS)"],
    block=["THREADS"],
)


def operands(rng):
    """Those of a call."""
    made = sparse(rng, 500, 400, 6000)
    indptr, indices = made["indptr"].astype(np.int32), made["indices"].astype(np.int32)
    return indptr, indices, rng.random(6000), rng.random(400)


if __name__ == "__main__":
    given = operands(np.random.default_rng(0))
    spmv.tune(*given)  # on this sparsity pattern
    print(spmv(*given))
