/*
 * gemm for cuda: family tiled, float32, layout nn.
 *
 * template: gemm/cuda/tiled.cu.j2, digest 04be4cb00a0ff731
 * configuration: {"boundary": "checked", "pad": 0, "size": "static", "tile": 32, "unroll": 32}
 * launch: grid (ceildiv(M, 32) * ceildiv(K, 32), 1, 1), block (32, 32, 1), no dynamic shared memory
 *   workspace: 0 bytes
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

// --- Configuration ---

// Rows and columns of a tile, and threads of a block along y and x.
constexpr int TILE = 32;

// Reduction steps of a tile that are unrolled.
constexpr int UNROLL = 32;

// Elements between the rows of a tile in shared memory.
constexpr int PAD = 0;

// --- What follows from it ---

constexpr int THREADS = TILE * TILE;

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

// --- The product ---

// A block of as many threads as a tile of C has elements, for each tile.
extern "C" __global__ void __launch_bounds__(THREADS) gemm(
    int m, int n, int k, float alpha, const float* __restrict__ a, int lda,
    const float* __restrict__ b, int ldb, float beta, float* __restrict__ c, int ldc,
    float* __restrict__ workspace) {
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
  const T* a_from = a + static_cast<long long>(row) * lda + x;
  const T* b_from = b + static_cast<long long>(y) * ldb + column;
  const int b_ld = ldb;

  T sum = 0;
  for (int begin = 0; begin < n; begin += tile) {
    as[y * tile_ld + x] = row < m && begin + x < n ? *a_from : T(0);
    bs[y * tile_ld + x] = begin + y < n && column < k ? *b_from : T(0);
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
