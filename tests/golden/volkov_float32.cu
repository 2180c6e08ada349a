/*
 * gemm for cuda: family volkov, float32, layout nn.
 *
 * template: gemm/cuda/volkov.cu.j2, digest 4b4d248e819b029e
 * configuration: {"sk": 64, "sm": 16, "sn": 32, "transposed": 1, "unroll": 32}
 * launch: grid (ceildiv(M, 16) * ceildiv(K, 64), 1, 1), block (64, 1, 1), no dynamic shared memory
 *          a column a thread
 *          +-+-+-+-+-+       A block stages a tile of A in shared memory; a thread reads its
 *          | |b| | | | SN    column of B straight from global memory, and keeps its column of C
 *    SN    +-+-+-+-+-+       (SM elements) in registers: every element of B serves SM products,
 *  +----+  +-+-+-+-+-+       with factors that all threads of a warp read at the same address.
 *  | A  |  | |c| | | | SM
 *  +----+  +-+-+-+-+-+       Reference: V. Volkov, J. W. Demmel, "Benchmarking GPUs to Tune Dense
 *                            Linear Algebra", SC 2008.
 */

using T = float;
constexpr int ITEMSIZE = 4;
static_assert(sizeof(T) == ITEMSIZE, "bytes per element");

// --- Configuration ---

// Rows of C, reduction steps and columns of C that a thread block takes at a time.
constexpr int SM = 16;
constexpr int SN = 32;
constexpr int SK = 64;

// Reduction steps of a tile that are unrolled.
constexpr int UNROLL = 32;

// --- What follows from it ---

// A thread for each column.
constexpr int THREADS = SK;

// Elements of A that a thread asks for at once.
constexpr int LOADS_IN_FLIGHT = 8;

// Rows of A's tile that the threads load at a time.
constexpr int LOAD_ROWS = SK / SN;

static_assert(UNROLL <= SN, "no more steps can be unrolled than a tile has");
static_assert(SM * UNROLL <= 512, "the unrolled products stay within the instruction cache");

// Where an element of A's tile is kept, which is transposed. Its rows are one element longer: the
// threads that store neighbouring steps then meet different banks.
__device__ __forceinline__ constexpr int place(int row, int step) { return step * (SM + 1) + row; }

constexpr int TILE_ELEMENTS = SN * (SM + 1);
static_assert(TILE_ELEMENTS * ITEMSIZE == 2176, "shared memory as predicted");

// acc += step `step` of A's tile * an element of B.
__device__ __forceinline__ void multiply(T (&acc)[SM], const T* as, int step, T b_element) {
#pragma unroll
  for (int row = 0; row < SM; ++row) {
    acc[row] = fma(as[place(row, step)], b_element, acc[row]);
  }
}

// --- The result ---

// C = alpha * A B + beta * C, of which C is not read where beta is zero.
struct Output {
  T alpha, beta;
  T* c;
  int ldc;

  // What becomes of an element `old` of C, where that of A B is `product`.
  __device__ __forceinline__ T value(T product, const T& old) const {
    T value = alpha * product;
    if (beta != T(0)) value = fma(beta, old, value);
    return value;
  }
};

// A block of THREADS threads for every SM x SK elements of C.
extern "C" __global__ void __launch_bounds__(THREADS) gemm(
    int m, int n, int k, float alpha, const float* __restrict__ a, int lda,
    const float* __restrict__ b, int ldb, float beta, float* __restrict__ c, int ldc) {
  __shared__ T as[TILE_ELEMENTS];
  const int tiles_across = (k + SK - 1) / SK;
  const int first_row = blockIdx.x / tiles_across * SM;
  const int column = blockIdx.x % tiles_across * SK + threadIdx.x;

  // Beyond the last column of B, its last one is read again; nobody stores what comes of it.
  const T* b_column = b + min(column, k - 1);

  // The thread's place in A's tile, and how far the last row of A is below.
  const int load_row = threadIdx.x / SN;
  const int load_step = threadIdx.x % SN;
  const T* a_row = a + static_cast<long long>(first_row + load_row) * lda;
  const int last = m - 1 - first_row - load_row;

  T acc[SM] = {};
  for (int begin = 0; begin < n; begin += SN) {
    // Beyond the last row and step of A, the last one is loaded again; it does not reach C.
    const T* a_from = a_row + min(begin + load_step, n - 1);
#pragma unroll LOADS_IN_FLIGHT
    for (int row = 0; row < SM; row += LOAD_ROWS) {
      as[place(row + load_row, load_step)] = a_from[static_cast<long long>(min(row, last)) * lda];
    }
    __syncthreads();
    // UNROLL steps of SM products each are unrolled, whose number is asserted above.
    if (begin + SN <= n) {
#pragma unroll UNROLL
      for (int step = 0; step < SN; ++step) {
        multiply(acc, as, step, *b_column);
        b_column += ldb;
      }
    } else {
#pragma unroll 1
      for (int step = 0; step < n - begin; ++step) {
        multiply(acc, as, step, *b_column);
        b_column += ldb;
      }
    }
    __syncthreads();
  }

  if (column >= k) return;
  const Output output = {alpha, beta, c, ldc};
  T* c_column = c + static_cast<long long>(first_row) * ldc + column;
#pragma unroll
  for (int row = 0; row < SM; ++row) {
    if (first_row + row < m) {
      T* element = c_column + static_cast<long long>(row) * ldc;
      *element = output.value(acc[row], *element);
    }
  }
}
