/*
 * gemm for cuda: family tiled, bfloat16, layout nn.
 *
 * template: gemm/cuda/tiled.cu.j2, digest 04be4cb00a0ff731
 * configuration: {"boundary": "expanded", "pad": 0, "size": "static", "tile": 16, "unroll": 16}
 * launch: grid (ceildiv(M, 16) * ceildiv(K, 16), 1, 1), block (16, 16, 1), no dynamic shared memory
 *   workspace: (squares_m + squares_k) * squares_n * 1024 * 2 bytes
 *   before it: expand_a, grid (squares_m * squares_n, 1, 1), block (32, 8, 1)
 *   before it: expand_b, grid (squares_n * squares_k, 1, 1), block (32, 8, 1)
 *   squares_m = ceildiv(M, 32)
 *   squares_n = ceildiv(N, 32)
 *   squares_k = ceildiv(K, 32)
 *                k
 *         +----+----+----+   A block computes a square of C. Its threads copy a square of A and
 *         |    | B->|    | n one of B to shared memory, an element each, multiply them, and go on
 *    n    +----+----+----+   to the next squares along the reduction: every element that is
 *  +----+ +----+----+----+   read from global memory serves a row or a column of threads.
 *  | A->| |    | C  |    | m
 *  +----+ +----+----+----+   Reference: CUDA C++ Programming Guide, "Shared memory".
 */

using T = float;
constexpr int ITEMSIZE = 4;
static_assert(sizeof(T) == ITEMSIZE, "bytes per element");

// --- Numbers as they are stored; T is what they are computed in ---

#include <cuda_bf16.h>

using Operand = __nv_bfloat16;
using Result = __nv_bfloat16;

// --- Configuration ---

// Rows and columns of a tile, and threads of a block along y and x.
constexpr int TILE = 16;

// Reduction steps of a tile that are unrolled.
constexpr int UNROLL = 16;

// Elements between the rows of a tile in shared memory.
constexpr int PAD = 0;

// Sides of the expanded copies are multiples of it, and so of every tile's.
constexpr int SQUARE = 32;

// Rows of a square that a block copies at a time.
constexpr int COPY_ROWS = 8;

// --- What follows from it ---

constexpr int THREADS = TILE * TILE;

// --- The result ---

// C = alpha * A B + beta * C, of which C is not read where beta is zero.
struct Output {
  T alpha, beta;
  Result* c;
  int ldc;

  __device__ __forceinline__ Result* at(int row, int column) const {
    return c + static_cast<long long>(row) * ldc + column;
  }

  // What becomes of an element `old` of C, where that of A B is `product`.
  __device__ __forceinline__ Result value(T product, const Result& old) const {
    T value = alpha * product;
    if (beta != T(0)) value = fma(beta, T(old), value);
    return Result(value);
  }

  __device__ __forceinline__ void store(int row, int column, T product) const {
    Result* element = at(row, column);
    *element = value(product, *element);
  }
};

// --- Expanded copies: A's comes first in the workspace, then B's ---

// The side of an expanded matrix.
__device__ __forceinline__ int expanded(int side) {
  return (side + SQUARE - 1) / SQUARE * SQUARE;
}

// A block copies one square of a matrix, with zeros for what lies beyond the matrix.
__device__ __forceinline__ void expand(const Operand* from, int ld, int rows, int columns,
                                       Operand* to) {
  const int to_ld = expanded(columns);
  const int squares_across = to_ld / SQUARE;
  const int first_row = blockIdx.x / squares_across * SQUARE;
  const int column = blockIdx.x % squares_across * SQUARE + threadIdx.x;
  for (int row = first_row + threadIdx.y; row < first_row + SQUARE; row += COPY_ROWS) {
    const bool inside = row < rows && column < columns;
    to[static_cast<long long>(row) * to_ld + column] =
        inside ? from[static_cast<long long>(row) * ld + column] : Operand(0);
  }
}

constexpr int COPY_THREADS = SQUARE * COPY_ROWS;

extern "C" __global__ void __launch_bounds__(COPY_THREADS) expand_a(
    int m, int n, int k, float alpha, const __nv_bfloat16* __restrict__ a, int lda,
    const __nv_bfloat16* __restrict__ b, int ldb, float beta, __nv_bfloat16* __restrict__ c,
    int ldc, __nv_bfloat16* __restrict__ workspace) {
  expand(a, lda, m, n, workspace);
}

extern "C" __global__ void __launch_bounds__(COPY_THREADS) expand_b(
    int m, int n, int k, float alpha, const __nv_bfloat16* __restrict__ a, int lda,
    const __nv_bfloat16* __restrict__ b, int ldb, float beta, __nv_bfloat16* __restrict__ c,
    int ldc, __nv_bfloat16* __restrict__ workspace) {
  expand(b, ldb, n, k, workspace + static_cast<long long>(expanded(m)) * expanded(n));
}

// --- The product ---

// A block of as many threads as a tile of C has elements, for each tile.
extern "C" __global__ void __launch_bounds__(THREADS) gemm(
    int m, int n, int k, float alpha, const __nv_bfloat16* __restrict__ a, int lda,
    const __nv_bfloat16* __restrict__ b, int ldb, float beta, __nv_bfloat16* __restrict__ c,
    int ldc, __nv_bfloat16* __restrict__ workspace) {
  constexpr int tile = TILE;
  constexpr int tile_ld = TILE + PAD;
  __shared__ T as[tile * tile_ld];
  __shared__ T bs[tile * tile_ld];
  const int x = threadIdx.x;
  const int y = threadIdx.y;
  const int tiles_across = (k + tile - 1) / tile;
  const int row = blockIdx.x / tiles_across * tile + y;
  const int column = blockIdx.x % tiles_across * tile + x;

  // The thread's element of the first tiles of A and B.
  const int a_ld = expanded(n);
  const int b_ld = expanded(k);
  const Operand* b_copy = workspace + static_cast<long long>(expanded(m)) * a_ld;
  const Operand* a_from = workspace + static_cast<long long>(row) * a_ld + x;
  const Operand* b_from = b_copy + static_cast<long long>(y) * b_ld + column;

  T sum = 0;
  for (int begin = 0; begin < n; begin += tile) {
    as[y * tile_ld + x] = T(*a_from);
    bs[y * tile_ld + x] = T(*b_from);
    a_from += tile;
    b_from += static_cast<long long>(tile) * b_ld;
    __syncthreads();
#pragma unroll UNROLL
    for (int step = 0; step < tile; ++step) {
      sum = fma(as[y * tile_ld + step], bs[step * tile_ld + x], sum);
    }
    __syncthreads();
  }
  const Output output = {alpha, beta, c, ldc};
  if (row < m && column < k) output.store(row, column, sum);
}
