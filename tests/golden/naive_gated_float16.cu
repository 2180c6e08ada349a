/*
 * gated for cuda: family naive, float16, layout nn.
 *
 * template: gemm/cuda/naive.cu.j2, digest 679693ba7375a3de
 * configuration: {"block_x": 32, "block_y": 8, "x_along": "columns"}
 * launch: grid (blocks, 1, 1), block (32, 8, 1), no dynamic shared memory
 *   blocks = ceildiv(M, 8) * ceildiv(K, 32)
 *             k               C[i][j] = sum over p of A[i][p] * B[p][j]
 *         +-----j--+
 *         | B   |  |  n       A thread walks along row i of A and down column j of B, both in
 *    n    +-----|--+          global memory. Threads of a warp are neighbours in a row of C: they
 *  +----+ +-----|--+          read the same element of A and neighbours of B (coalesced), or the
 *  i----> |-----x  |  m       other way round.
 *  | A  | |  C     |
 *  +----+ +--------+          Reference: CUDA C++ Programming Guide, "Matrix multiplication".
 */

using T = float;
constexpr int ITEMSIZE = 4;
static_assert(sizeof(T) == ITEMSIZE, "bytes per element");

// --- Numbers as they are stored; T is what they are computed in ---

#include <cuda_fp16.h>

using Operand = __half;
using Result = __half;

// --- Configuration ---

// Threads of a block along x, where neighbours are in one warp, and along y.
constexpr int BLOCK_X = 32;
constexpr int BLOCK_Y = 8;

// --- What follows from it ---

constexpr int THREADS = BLOCK_X * BLOCK_Y;

// Rows and columns of C that a thread block computes.
constexpr int ROWS = BLOCK_Y;
constexpr int COLUMNS = BLOCK_X;

// --- The result ---

// What the operation has no argument for.
constexpr T alpha = 1;
constexpr T beta = 0;

// NaN where an argument is NaN.
__device__ __forceinline__ T minimum(T a, T b) { return a < b || a != a ? a : b; }

// What follows the product: scale * tanh(value + shift_of_row) - minimum(residual, 0.5).
struct Epilogue {
  const Operand* shift_of_row_;
  int ldshift_of_row_;
  const Operand* residual_;
  int ldresidual_;
  T scale_;

  __device__ __forceinline__ T operator()(T value, int row, int column) const {
    return scale_ * tanh(value + T(shift_of_row_[static_cast<long long>(row) * ldshift_of_row_]))
           - minimum(T(residual_[static_cast<long long>(row) * ldresidual_ + column]), T(0.5));
  }
};

// C = alpha * A B + beta * C, of which C is not read where beta is zero; and what follows.
struct Output {
  T alpha, beta;
  Result* c;
  int ldc;
  Epilogue epilogue;

  __device__ __forceinline__ Result* at(int row, int column) const {
    return c + static_cast<long long>(row) * ldc + column;
  }

  // What becomes of an element `old` of C, where that of A B is `product`.
  __device__ __forceinline__ Result value(T product, const Result& old, int row,
                                          int column) const {
    T value = alpha * product;
    if (beta != T(0)) value = fma(beta, T(old), value);
    value = epilogue(value, row, column);
    return Result(value);
  }

  __device__ __forceinline__ void store(int row, int column, T product) const {
    Result* element = at(row, column);
    *element = value(product, *element, row, column);
  }
};

// A block of BLOCK_X x BLOCK_Y threads for every ROWS x COLUMNS elements of C.
extern "C" __global__ void __launch_bounds__(THREADS) gated(
    int m, int n, int k, float scale_, const __half* __restrict__ a, int lda,
    const __half* __restrict__ b, int ldb, const __half* __restrict__ shift_of_row_,
    int ldshift_of_row_, const __half* __restrict__ residual_, int ldresidual_,
    __half* __restrict__ c, int ldc) {
  const int blocks_across = (k + COLUMNS - 1) / COLUMNS;
  // Neighbours read the same element of A, and B side by side.
  const int row = blockIdx.x / blocks_across * ROWS + threadIdx.y;
  const int column = blockIdx.x % blocks_across * COLUMNS + threadIdx.x;
  if (row >= m || column >= k) return;

  const Operand* a_row = a + static_cast<long long>(row) * lda;
  const Operand* b_column = b + column;
  T sum = 0;
  for (int step = 0; step < n; ++step) {
    sum = fma(T(a_row[step]), T(*b_column), sum);
    b_column += ldb;
  }
  const Epilogue epilogue = {shift_of_row_, ldshift_of_row_, residual_, ldresidual_, scale_};
  const Output output = {alpha, beta, c, ldc, epilogue};
  output.store(row, column, sum);
}
