/*
 * row_sum for cuda: family sums, float32, layout nn.
 *
 * template: row_sum/cuda/sums.cu.j2, digest 739d7c37ffba899a
 * configuration: {"groups": 2, "lanes": 64, "rows": 4, "splits": 1, "unroll": 2, "vector": 2}
 * launch: grid (blocks, 1, 1), block (64, 2, 1), no dynamic shared memory
 *   workspace: 0 bytes
 *   blocks = ceildiv(M, 8)
 */

using T = float;
constexpr int ITEMSIZE = 4;
static_assert(sizeof(T) == ITEMSIZE, "bytes per element");

// --- Configuration ---

// Threads that share a row, groups of rows in a block, and rows in a group.
constexpr int LANES = 64;
constexpr int GROUPS = 2;
constexpr int ROWS = 4;

// Elements that a thread loads at once, and such vectors of a row that it asks for together.
constexpr int VECTOR = 2;
constexpr int UNROLL = 2;

// Parts that the rows are split into.
constexpr int SPLITS = 1;

// --- What follows from it ---

constexpr int THREADS = LANES * GROUPS;
constexpr int WORDS = ITEMSIZE / 4;

static_assert(VECTOR * ITEMSIZE <= 16, "one access moves at most 16 bytes");
static_assert(THREADS >= 64 && THREADS % 32 == 0,
              "a block of less than two warps leaves a multiprocessor half empty");
static_assert(UNROLL * VECTOR * ROWS * WORDS <= 64,
              "more loads at once than registers can hold take turns anyway");
static_assert(UNROLL * VECTOR * ITEMSIZE <= 64 || ROWS == 1, "several rows are loads enough");

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

// --- Sums over threads ---

constexpr int WARP = 32;

// Adds VALUES values of each of the LANES threads that share threadIdx.y, in an order that is
// always the same; their i-th thread gets the i-th sum. All threads of the block must call it.
template <int VALUES>
__device__ __forceinline__ T sum_over_lanes(T (&value)[VALUES]) {
#pragma unroll
  for (int distance = (LANES < WARP ? LANES : WARP) / 2; distance > 0; distance /= 2) {
#pragma unroll
    for (int i = 0; i < VALUES; ++i) value[i] += __shfl_xor_sync(0xffffffffu, value[i], distance);
  }
  T sum = 0;
  if constexpr (LANES <= WARP) {
#pragma unroll
    for (int i = 0; i < VALUES; ++i) {
      if (threadIdx.x == i) sum = value[i];
    }
  } else {
    constexpr int WARPS = LANES > WARP ? LANES / WARP : 1;
    __shared__ T of_warp[GROUPS][WARPS][VALUES];
    if (threadIdx.x % WARP == 0) {
#pragma unroll
      for (int i = 0; i < VALUES; ++i) of_warp[threadIdx.y][threadIdx.x / WARP][i] = value[i];
    }
    __syncthreads();
    if (threadIdx.x < VALUES) {
#pragma unroll
      for (int warp = 0; warp < WARPS; ++warp) sum += of_warp[threadIdx.y][warp][threadIdx.x];
    }
  }
  return sum;
}

// STEPS vectors of each row from a column on: what is asked for together.
template <int STEPS, int WIDTH>
struct Part {
  Vector<WIDTH> of_row[ROWS][STEPS];

  __device__ __forceinline__ Part(const T* const (&row)[ROWS], int column) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      const int from = column + step * LANES * WIDTH;
#pragma unroll
      for (int i = 0; i < ROWS; ++i) {
        of_row[i][step] = *reinterpret_cast<const Vector<WIDTH>*>(row[i] + from);
      }
    }
  }

  __device__ __forceinline__ void add_to(T (&sum)[ROWS]) const {
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
#pragma unroll
      for (int v = 0; v < WIDTH; ++v) {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) sum[i] += of_row[i][step].element[v];
      }
    }
  }
};

// sum[i] += this thread's share of columns [begin, end) of row i.
template <int WIDTH>
__device__ __forceinline__ void add_columns(T (&sum)[ROWS], const T* const (&row)[ROWS],
                                            int begin, int end) {
  constexpr int STEP = LANES * WIDTH;
  const int last = end - (UNROLL - 1) * STEP - WIDTH;
  int column = begin + static_cast<int>(threadIdx.x) * WIDTH;
  if (column <= last) {  // the next part is on its way while one is added
    Part<UNROLL, WIDTH> part(row, column);
    for (column += UNROLL * STEP; column <= last; column += UNROLL * STEP) {
      const Part<UNROLL, WIDTH> next(row, column);
      part.add_to(sum);
      part = next;
    }
    part.add_to(sum);
  }
  for (; column <= end - WIDTH; column += STEP) Part<1, WIDTH>(row, column).add_to(sum);
  // Less than a vector is left, and there are more threads than elements of a vector.
  column = end - (end - begin) % WIDTH + static_cast<int>(threadIdx.x);
  if (WIDTH > 1 && column < end) Part<1, 1>(row, column).add_to(sum);
}

extern "C" __global__ void __launch_bounds__(THREADS) row_sum(
    int m, int n, const float* __restrict__ a, int lda, float* __restrict__ y,
    float* __restrict__ workspace) {
  const int first = (blockIdx.x * GROUPS + threadIdx.y) * ROWS;
  const T* row[ROWS];
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {  // below A its last row is read again; nobody stores the sum
    row[i] = a + static_cast<long long>(min(first + i, m - 1)) * lda;
  }
  // This block's part of the rows: whole vectors, so that all parts are aligned if A is.
  const int share = (n + SPLITS - 1) / SPLITS;
  const int part = (share + VECTOR - 1) / VECTOR * VECTOR;
  const int begin = min(static_cast<int>(blockIdx.y) * part, n);
  const int end = min(begin + part, n);

  T sum[ROWS] = {};
  if (rows_aligned<VECTOR>(a, lda)) {
    add_columns<VECTOR>(sum, row, begin, end);
  } else {
    add_columns<1>(sum, row, begin, end);
  }
  const T total = sum_over_lanes(sum);
  const int i = first + threadIdx.x;
  if (threadIdx.x < ROWS && i < m) {
    y[i] = total;
  }
}
