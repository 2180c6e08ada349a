/*
 * gemm for cuda: family naive, float32, layout nn.
 *
 * template: gemm/cuda/naive.cu.j2, digest e3d62fe64e3ef051
 * configuration: {"block_x": 32, "block_y": 8, "x_along": "columns"}
 * launch: grid (blocks, 1, 1), block (32, 8, 1), no dynamic shared memory
 *   blocks = ceildiv(M, 8) * ceildiv(K, 32)
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


// --- Configuration ---

// Threads of a block along x, where neighbours are in one warp, and along y.
constexpr int BLOCK_X = 32;
constexpr int BLOCK_Y = 8;

// --- What follows from it ---

constexpr int THREADS = BLOCK_X * BLOCK_Y;

// Rows and columns of C that a thread block computes.
constexpr int ROWS = BLOCK_Y;
constexpr int COLUMNS = BLOCK_X;


// An element of C becomes alpha * sum + beta * C; it is not read where beta is zero.
__device__ __forceinline__ void store_element(T* element, T sum, T alpha, T beta) {
  T value = alpha * sum;
  if (beta != T(0)) value = fma(beta, *element, value);
  *element = value;
}

extern "C" __global__ void __launch_bounds__(THREADS) gemm(int m, int n, int k, float alpha,
                                                           const float* __restrict__ a, int lda,
                                                           const float* __restrict__ b, int ldb,
                                                           float beta, float* __restrict__ c,
                                                           int ldc) {
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
  store_element(c + static_cast<long long>(row) * ldc + column, sum, alpha, beta);
}
