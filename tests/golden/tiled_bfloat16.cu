/*
 * gemm for cuda: family tiled, bfloat16, layout nn.
 *
 * template: gemm/cuda/tiled.cu.j2, digest 881cc4d120e3ed78
 * configuration: {"boundary": "expanded", "pad": 0, "size": "static", "tile": 16, "unroll": 16}
 * launch: grid (ceildiv(M, 16) * ceildiv(K, 16), 1, 1), block (16, 16, 1), no dynamic shared memory
 *   workspace: ('expanded' == 'expanded') * (squares_m + squares_k) * squares_n * 32 ** 2 * 2 bytes
 *   before it: expand_a, grid (squares_m * squares_n, 1, 1), block (32, 8, 1)
 *   before it: expand_b, grid (squares_n * squares_k, 1, 1), block (32, 8, 1)
 *   squares_m = ceildiv(M, 32)
 *   squares_n = ceildiv(N, 32)
 *   squares_k = ceildiv(K, 32)
 */

using T = float;
constexpr int ITEMSIZE = 4;
static_assert(sizeof(T) == ITEMSIZE, "bytes per element");

// Whole-number functions of the restrictions below; quotients and remainders round down.
__device__ constexpr int minimum(int a, int b) { return a < b ? a : b; }
__device__ constexpr int maximum(int a, int b) { return a < b ? b : a; }
__device__ constexpr int modulo(int a, int b) { return (a % b + b) % b; }
__device__ constexpr int floordiv(int a, int b) { return (a - modulo(a, b)) / b; }
__device__ constexpr int ceildiv(int a, int b) { return -floordiv(-a, b); }
__device__ constexpr bool ispow2(int a) { return a > 0 && (a & (a - 1)) == 0; }

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


// An element of C becomes alpha * sum + beta * C; it is not read where beta is zero.
__device__ __forceinline__ void store_element(Result* element, T sum, T alpha, T beta) {
  T value = alpha * sum;
  if (beta != T(0)) value = fma(beta, T(*element), value);
  *element = Result(value);
}

// --- Expanded copies: A's comes first in the workspace, then B's ---

// The side of an expanded matrix.
__device__ __forceinline__ int expanded(int side) {
  return (side + SQUARE - 1) / SQUARE * SQUARE;
}

// A block copies one square of a matrix, with zeros for what lies beyond the matrix.
__device__ __forceinline__ void expand(const Operand* from, int ld, int rows, int columns, Operand* to) {
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

extern "C" __global__ void __launch_bounds__(SQUARE * COPY_ROWS) expand_a(
    int m, int n, int k, float alpha, const __nv_bfloat16* __restrict__ a, int lda,
    const __nv_bfloat16* __restrict__ b, int ldb, float beta, __nv_bfloat16* __restrict__ c,
    int ldc, __nv_bfloat16* __restrict__ workspace) {
  expand(a, lda, m, n, workspace);
}

extern "C" __global__ void __launch_bounds__(SQUARE * COPY_ROWS) expand_b(
    int m, int n, int k, float alpha, const __nv_bfloat16* __restrict__ a, int lda,
    const __nv_bfloat16* __restrict__ b, int ldb, float beta, __nv_bfloat16* __restrict__ c,
    int ldc, __nv_bfloat16* __restrict__ workspace) {
  expand(b, ldb, n, k, workspace + static_cast<long long>(expanded(m)) * expanded(n));
}

// --- The product ---

extern "C" __global__ void __launch_bounds__(THREADS) gemm(int m, int n, int k, float alpha,
                                                           const __nv_bfloat16* __restrict__ a,
                                                           int lda,
                                                           const __nv_bfloat16* __restrict__ b,
                                                           int ldb, float beta,
                                                           __nv_bfloat16* __restrict__ c, int ldc,
                                                           __nv_bfloat16* __restrict__ workspace) {
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
  if (row < m && column < k) {
    store_element(c + static_cast<long long>(row) * ldc + column, sum, alpha, beta);
  }
}
