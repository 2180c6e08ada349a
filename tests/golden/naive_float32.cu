/*
 * gemm for cuda: family naive, float32, layout nn.
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

// C = alpha * A B + beta * C, of which C is not read where beta is zero.
struct Output {
  T alpha, beta;
  T* c;
  int ldc;

  __device__ __forceinline__ T* at(int row, int column) const {
    return c + static_cast<long long>(row) * ldc + column;
  }

  // What becomes of an element `old` of C, where that of A B is `product`.
  __device__ __forceinline__ T value(T product, const T& old) const {
    T value = alpha * product;
    if (beta != T(0)) value = fma(beta, old, value);
    return value;
  }

  __device__ __forceinline__ void store(int row, int column, T product) const {
    T* element = at(row, column);
    *element = value(product, *element);
  }
};

// A block of BLOCK_X x BLOCK_Y threads for every ROWS x COLUMNS elements of C.
extern "C" __global__ void __launch_bounds__(THREADS) gemm(
    int m, int n, int k, float alpha, const float* __restrict__ a, int lda,
    const float* __restrict__ b, int ldb, float beta, float* __restrict__ c, int ldc) {
  const int blocks_across = (k + COLUMNS - 1) / COLUMNS;
  // Neighbours read the same element of A, and B side by side.
  const int row = blockIdx.x / blocks_across * ROWS + threadIdx.y;
  const int column = blockIdx.x % blocks_across * COLUMNS + threadIdx.x;
  if (row >= m || column >= k) return;

  const T* a_row = a + static_cast<long long>(row) * lda;
  const T* b_column = b + column;
  T sum = 0;
  for (int step = 0; step < n; ++step) {
    sum = fma(a_row[step], *b_column, sum);
    b_column += ldb;
  }
  const Output output = {alpha, beta, c, ldc};
  output.store(row, column, sum);
}
