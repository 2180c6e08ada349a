/*
 * stencil for cuda: family columns, float32, layout nn.
 *
 * template: stencil/cuda/columns.cu.j2, digest 89ecbffde33a592d
 * configuration: {"block_x": 64, "block_y": 2, "min_blocks": 1, "rows": 8, "unroll": 4,
 *     "vector": 4}
 * launch: grid (blocks, 1, 1), block (64, 2, 1), no dynamic shared memory
 *   blocks = ceildiv(N, 256) * ceildiv(M, 16)
 */

using T = float;
constexpr int ITEMSIZE = 4;
static_assert(sizeof(T) == ITEMSIZE, "bytes per element");

// --- Configuration ---

// Threads of a block along the rows and along the columns.
constexpr int BLOCK_X = 64;
constexpr int BLOCK_Y = 2;

// Rows that a thread walks down, and how many of them are unrolled.
constexpr int ROWS = 8;
constexpr int UNROLL = 4;

// Neighbouring columns of a thread.
constexpr int VECTOR = 4;

// Blocks that a multiprocessor must be able to hold.
constexpr int MIN_BLOCKS = 1;

// --- What follows from it ---

constexpr int THREADS = BLOCK_X * BLOCK_Y;
constexpr int SHARED_BYTES = 0;
constexpr int WORDS = ITEMSIZE / 4;

// Rows and columns of a block.
constexpr int HEIGHT = BLOCK_Y * ROWS;
constexpr int WIDE = BLOCK_X * VECTOR;

static_assert(VECTOR * ITEMSIZE <= 16, "one access moves at most 16 bytes");
static_assert(THREADS >= 64 && THREADS <= 1024, "a block has at least two warps");
static_assert(UNROLL <= ROWS, "more rows than a thread walks cannot be unrolled");

// --- Memory ---

// WIDTH neighbouring elements that are loaded or stored by one instruction.
template <int WIDTH>
struct alignas(WIDTH * sizeof(T)) Vector {
  T element[WIDTH];
};

// Whether every row of a matrix can be accessed WIDTH elements at a time.
template <int WIDTH, typename Element>
__device__ __forceinline__ bool rows_aligned(const Element* first, int leading_dimension) {
  return reinterpret_cast<unsigned long long>(first) % (WIDTH * sizeof(Element)) == 0 &&
         leading_dimension % WIDTH == 0;
}

// WIDTH elements of row `row`, from column `column` on; zeros where A has no such row.
template <int WIDTH>
__device__ __forceinline__ Vector<WIDTH> row_of(const T* a, int lda, int m, int row, int column) {
  if (row < 0 || row >= m) return {};
  return *reinterpret_cast<const Vector<WIDTH>*>(a + static_cast<long long>(row) * lda + column);
}

// WIDTH columns of B from `column` on, and at most ROWS rows from `first` on.
template <int WIDTH>
__device__ __forceinline__ void walk(const T* a, int lda, T* b, int ldb, int m, int n, int first,
                                     int column, T center, T side) {
  Vector<WIDTH> above = row_of<WIDTH>(a, lda, m, first - 1, column);
  Vector<WIDTH> here = row_of<WIDTH>(a, lda, m, first, column);
  Vector<WIDTH> below = row_of<WIDTH>(a, lda, m, first + 1, column);
#pragma unroll UNROLL
  for (int i = 0; i < ROWS; ++i) {
    const int row = first + i;
    if (row >= m) break;
    const Vector<WIDTH> next = row_of<WIDTH>(a, lda, i + 1 < ROWS ? m : 0, row + 2, column);
    const T* beside = a + static_cast<long long>(row) * lda + column;
    const T left = column > 0 ? beside[-1] : T(0);
    const T right = column + WIDTH < n ? beside[WIDTH] : T(0);
    Vector<WIDTH> result;
#pragma unroll
    for (int v = 0; v < WIDTH; ++v) {
      const T before = v > 0 ? here.element[v > 0 ? v - 1 : 0] : left;
      const T after = v < WIDTH - 1 ? here.element[v < WIDTH - 1 ? v + 1 : 0] : right;
      const T around = above.element[v] + below.element[v] + before + after;
      result.element[v] = fma(center, here.element[v], side * around);
    }
    *reinterpret_cast<Vector<WIDTH>*>(b + static_cast<long long>(row) * ldb + column) = result;
    above = here;
    here = below;
    below = next;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) stencil(
    int m, int n, float center, float side, const float* __restrict__ a, int lda,
    float* __restrict__ b, int ldb) {
  const int blocks_across = (n + WIDE - 1) / WIDE;
  const int first = (blockIdx.x / blocks_across * BLOCK_Y + threadIdx.y) * ROWS;
  const int left = blockIdx.x % blocks_across * WIDE;
  if (rows_aligned<VECTOR>(a, lda) && rows_aligned<VECTOR>(b, ldb)) {
    const int column = left + threadIdx.x * VECTOR;
    if (column + VECTOR <= n) {
      walk<VECTOR>(a, lda, b, ldb, m, n, first, column, center, side);
    } else {
      for (int j = column; j < n; ++j) walk<1>(a, lda, b, ldb, m, n, first, j, center, side);
    }
  } else {  // one column after the other: neighbouring threads still take neighbouring columns
    for (int j = left + threadIdx.x; j < min(left + WIDE, n); j += BLOCK_X) {
      walk<1>(a, lda, b, ldb, m, n, first, j, center, side);
    }
  }
}
