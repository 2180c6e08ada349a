/*
 * batched_gemm for cuda: family tiles, float32, layout nn.
 *
 * template: batched_gemm/cuda/tiles.cu.j2, digest 75edc490dad928a3
 * configuration: {"batches": 4, "sk": 16, "sm": 32, "sn": 8, "tx": 2, "ty": 4, "vector": 2}
 * launch: grid (tiles * ceildiv(P, 4), 1, 1), block (8, 8, 4), 12800 bytes of dynamic shared memory
 *   tiles = ceildiv(M, 32) * ceildiv(K, 16)
 */

using T = float;
constexpr int ITEMSIZE = 4;
static_assert(sizeof(T) == ITEMSIZE, "bytes per element");

// --- Configuration ---

// Rows of C, columns of C and reduction steps of a tile.
constexpr int SM = 32;
constexpr int SK = 16;
constexpr int SN = 8;

// Rows and columns of C that a thread accumulates.
constexpr int TY = 4;
constexpr int TX = 2;

// Elements that a thread loads or stores at once.
constexpr int VECTOR = 2;

// Products whose tiles a block computes.
constexpr int BATCHES = 4;

// --- What follows from it ---

constexpr int THREADS_M = SM / TY;
constexpr int THREADS_K = SK / TX;
// Those that share a tile, and all of a block.
constexpr int THREADS_OF_TILE = THREADS_M * THREADS_K;
constexpr int THREADS = THREADS_OF_TILE * BATCHES;
constexpr int STAGED = ((SM + SK) * SN + THREADS_OF_TILE - 1) / THREADS_OF_TILE;

// From one vector of a thread's accumulators to its next: vectors are dealt out over the tile.
constexpr int ROW_STEP = THREADS_M * VECTOR;
constexpr int COLUMN_STEP = THREADS_K * VECTOR;

static_assert(SM % TY == 0, "sm / ty must be a whole number (threads_m)");
static_assert(SK % TX == 0, "sk / tx must be a whole number (threads_k)");
static_assert(VECTOR * ITEMSIZE <= 16, "one access moves at most 16 bytes");
static_assert(TY % VECTOR == 0 && TX % VECTOR == 0,
              "a thread's rows and columns are made of whole vectors");
static_assert(TX <= 2 * TY && TY <= 2 * TX, "nearly square tiles reuse what they read most");
static_assert(THREADS >= 64 && THREADS <= 512 && THREADS % 32 == 0,
              "whole warps, enough to hide latencies, and not all of a multiprocessor in step");
static_assert(STAGED <= 32, "a thread stages at most 32 elements in registers");
static_assert(TX * TY * SN <= 1024,
              "the unrolled products of a tile stay within the instruction cache");

// Two buffers: the next tiles are put into one while the other is multiplied. A's tile is
// transposed, its rows a vector longer, so that stores down a column meet different banks.
struct Tiles {
  T a[2][SN][SM + VECTOR];
  T b[2][SN][SK];
};
static_assert(sizeof(Tiles) * BATCHES == 12800, "shared memory as predicted");
extern __shared__ __align__(16) unsigned char shared_memory[];

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

// What is loaded, is loaded by the threads of one tile.
namespace loading {
constexpr int THREADS = THREADS_OF_TILE;

// --- Loading tiles through registers ---

// The same number, of which the compiler knows nothing: what follows from it is computed where it
// is needed, at the price of an instruction, not kept in registers all through the kernel.
__device__ __forceinline__ int recomputed(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// The most threads that can stand side by side, in whole rows, along `positions` places.
__device__ constexpr int threads_across(int positions) {
  int a = positions, b = THREADS;
  while (b != 0) {
    const int rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

// A tile of ROWS x COLUMNS elements of an operand; each thread takes WIDTH neighbours at once.
template <int ROWS, int COLUMNS, int WIDTH>
struct StagedTile {
  // The block's threads cover DOWN rows of ACROSS * WIDTH elements at a time.
  static constexpr int ACROSS = threads_across(COLUMNS / WIDTH);
  static constexpr int DOWN = THREADS / ACROSS;
  static constexpr int ROW_PASSES = (ROWS + DOWN - 1) / DOWN;
  static constexpr int COLUMN_PASSES = COLUMNS / (ACROSS * WIDTH);

  const T* from;
  int ld;
  int row, column;  // the thread's place in the tile
  T staged[ROW_PASSES][COLUMN_PASSES][WIDTH];

  __device__ __forceinline__ StagedTile(const T* operand, int ld, int first_row,
                                        int first_column, int thread)
      : ld(ld), row(thread / ACROSS), column(thread % ACROSS * WIDTH) {
    from = operand + static_cast<long long>(first_row + row) * ld + first_column + column;
  }

  // Reads the thread's share. A checked fetch takes zeros for what lies beyond `rows` x `columns`.
  template <bool CHECKED>
  __device__ __forceinline__ void fetch(int rows, int columns) {
    const int stride = CHECKED ? recomputed(ld) : ld;
#pragma unroll
    for (int i = 0; i < ROW_PASSES; ++i) {
      if (ROWS % DOWN != 0 && row + i * DOWN >= ROWS) continue;
#pragma unroll
      for (int j = 0; j < COLUMN_PASSES; ++j) {
        const int across = j * ACROSS * WIDTH;
        Vector<WIDTH> chunk = {};
        if (!CHECKED || (row + i * DOWN < rows && column + across < columns)) {
          chunk = *reinterpret_cast<const Vector<WIDTH>*>(
              from + static_cast<long long>(i * DOWN) * stride + across);
        }
#pragma unroll
        for (int v = 0; v < WIDTH; ++v) staged[i][j][v] = chunk.element[v];
      }
    }
  }

  // Writes the thread's share: `place(row, column)` is where an element of the tile belongs, and
  // neighbours of a row belong side by side if NEIGHBOURS.
  template <bool NEIGHBOURS, typename Place>
  __device__ __forceinline__ void put(Place place) const {
#pragma unroll
    for (int i = 0; i < ROW_PASSES; ++i) {
      if (ROWS % DOWN != 0 && row + i * DOWN >= ROWS) continue;
#pragma unroll
      for (int j = 0; j < COLUMN_PASSES; ++j) {
        const int across = column + j * ACROSS * WIDTH;
        if constexpr (NEIGHBOURS) {
          Vector<WIDTH> chunk;
#pragma unroll
          for (int v = 0; v < WIDTH; ++v) chunk.element[v] = staged[i][j][v];
          *reinterpret_cast<Vector<WIDTH>*>(place(row + i * DOWN, across)) = chunk;
        } else {
#pragma unroll
          for (int v = 0; v < WIDTH; ++v) {
            *place(row + i * DOWN, across + v) = staged[i][j][v];
          }
        }
      }
    }
  }

  __device__ __forceinline__ void advance(int down, int across) {
    from += static_cast<long long>(down) * ld + across;
  }
};
}  // namespace loading
using loading::StagedTile;

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
    return finished(alpha * product, old);
  }

  // The same, where that of alpha * A B is `value`.
  __device__ __forceinline__ T finished(T value, const T& old) const {
    if (beta != T(0)) value = fma(beta, old, value);
    return value;
  }

  __device__ __forceinline__ void store(int row, int column, T product) const {
    T* element = at(row, column);
    *element = value(product, *element);
  }
};

// --- Accumulators ---

// Row (column) of a thread's i-th (j-th) accumulator, counted from its first: chunks of VECTOR
// neighbours, ROW_STEP (COLUMN_STEP) apart.
__device__ __forceinline__ constexpr int row_of(int i) {
  return i / VECTOR * ROW_STEP + i % VECTOR;
}
__device__ __forceinline__ constexpr int column_of(int j) {
  return j / VECTOR * COLUMN_STEP + j % VECTOR;
}

// acc += a_frag * b_frag, the outer product of one reduction step.
__device__ __forceinline__ void multiply(T (&acc)[TY][TX], const T (&a_frag)[TY],
                                         const T (&b_frag)[TX]) {
#pragma unroll
  for (int i = 0; i < TY; ++i) {
#pragma unroll
    for (int j = 0; j < TX; ++j) {
      acc[i][j] = fma(a_frag[i], b_frag[j], acc[i][j]);
    }
  }
}

// Stores the accumulators in rows [first_row, m) and columns [first_column, k) of C; the thread's
// first one is at (row, column).
__device__ __forceinline__ void store(const T (&acc)[TY][TX], const Output& output, int row,
                                      int first_row, int m, int column, int first_column, int k) {
  using Chunk = Vector<VECTOR>;
  const bool vectors = rows_aligned<VECTOR>(output.c, output.ldc) && column % VECTOR == 0 &&
                       first_column % VECTOR == 0 && k % VECTOR == 0;
#pragma unroll
  for (int i = 0; i < TY; ++i) {
    const int r = row + row_of(i);
    if (r < first_row || r >= m) continue;
#pragma unroll
    for (int j = 0; j < TX; j += VECTOR) {
      const int first = column + column_of(j);
      if (vectors) {
        if (first < first_column || first >= k) continue;
        Chunk* chunk = reinterpret_cast<Chunk*>(output.at(r, first));
        T product[VECTOR];
#pragma unroll
        for (int v = 0; v < VECTOR; ++v) product[v] = output.alpha * acc[i][j + v];
        Chunk value = {};
        if (output.beta != T(0)) value = *chunk;
#pragma unroll
        for (int v = 0; v < VECTOR; ++v) {
          value.element[v] = output.finished(product[v], value.element[v]);
        }
        *chunk = value;
      } else {
#pragma unroll
        for (int v = 0; v < VECTOR; ++v) {
          if (first + v < first_column || first + v >= k) continue;
          output.store(r, first + v, acc[i][j + v]);
        }
      }
    }
  }
}

// Puts what a thread has staged of A and B into a buffer.
template <int WIDTH>
__device__ __forceinline__ void put(Tiles& tiles, int buffer, const StagedTile<SM, SN, WIDTH>& a,
                                    const StagedTile<SN, SK, WIDTH>& b) {
  a.template put<false>([&](int m, int n) { return &tiles.a[buffer][n][m]; });
  b.template put<true>([&](int n, int k) { return &tiles.b[buffer][n][k]; });
}

// acc += A B for the tiles in a buffer; the thread's accumulators start at (thread_m, thread_k).
__device__ __forceinline__ void multiply_tiles(T (&acc)[TY][TX], const Tiles& tiles, int buffer,
                                               int thread_m, int thread_k) {
#pragma unroll
  for (int n = 0; n < SN; ++n) {
    T a_frag[TY], b_frag[TX];
#pragma unroll
    for (int i = 0; i < TY; i += VECTOR) {
      const Vector<VECTOR> rows = *reinterpret_cast<const Vector<VECTOR>*>(
          &tiles.a[buffer][n][thread_m + row_of(i)]);
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) a_frag[i + v] = rows.element[v];
    }
#pragma unroll
    for (int j = 0; j < TX; j += VECTOR) {
      const Vector<VECTOR> columns = *reinterpret_cast<const Vector<VECTOR>*>(
          &tiles.b[buffer][n][thread_k + column_of(j)]);
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) b_frag[j + v] = columns.element[v];
    }
    multiply(acc, a_frag, b_frag);
  }
}

// acc += A B over `steps` reduction steps; `rows` of A's and `columns` of B's tiles exist.
template <int WIDTH>
__device__ __forceinline__ void accumulate(T (&acc)[TY][TX], Tiles& tiles,
                                           StagedTile<SM, SN, WIDTH> a,
                                           StagedTile<SN, SK, WIDTH> b, int rows, int columns,
                                           int steps, int thread_m, int thread_k) {
  a.template fetch<true>(rows, steps);
  b.template fetch<true>(steps, columns);
  put(tiles, 0, a, b);
  __syncthreads();
  int buffer = 0;
  for (int left = steps - SN; left > 0; left -= SN) {
    a.advance(0, SN);
    b.advance(SN, 0);
    a.template fetch<true>(rows, left);
    b.template fetch<true>(left, columns);
    multiply_tiles(acc, tiles, buffer, thread_m, thread_k);
    buffer ^= 1;
    put(tiles, buffer, a, b);
    __syncthreads();
  }
  multiply_tiles(acc, tiles, buffer, thread_m, thread_k);
}

extern "C" __global__ void __launch_bounds__(THREADS) batched_gemm(
    int p, int m, int n, int k, float alpha, float beta, const float* __restrict__ a,
    long long a_stride, int lda, const float* __restrict__ b, long long b_stride, int ldb,
    float* __restrict__ c, long long c_stride, int ldc) {
  Tiles& tiles = reinterpret_cast<Tiles*>(shared_memory)[threadIdx.z];
  const int tiles_across = (k + SK - 1) / SK;
  const int tiles_of_one = (m + SM - 1) / SM * tiles_across;
  const int row = blockIdx.x % tiles_of_one / tiles_across * SM;
  const int column = blockIdx.x % tiles_across * SK;
  // Beyond the last product it is computed again; nobody stores that.
  const int batch = blockIdx.x / tiles_of_one * BATCHES + threadIdx.z;
  const long long there = min(batch, p - 1);
  a += there * a_stride;
  b += there * b_stride;
  c += there * c_stride;

  const int thread = threadIdx.y * THREADS_K + threadIdx.x;
  const int thread_m = threadIdx.y * VECTOR;
  const int thread_k = threadIdx.x * VECTOR;
  T acc[TY][TX] = {};
  if (rows_aligned<VECTOR>(a, lda) && n % VECTOR == 0 && rows_aligned<VECTOR>(b, ldb) &&
      k % VECTOR == 0) {
    accumulate(acc, tiles, StagedTile<SM, SN, VECTOR>(a, lda, row, 0, thread),
               StagedTile<SN, SK, VECTOR>(b, ldb, 0, column, thread), m - row, k - column, n,
               thread_m, thread_k);
  } else {
    accumulate(acc, tiles, StagedTile<SM, SN, 1>(a, lda, row, 0, thread),
               StagedTile<SN, SK, 1>(b, ldb, 0, column, thread), m - row, k - column, n, thread_m,
               thread_k);
  }
  if (batch < p) {
    const Output output = {alpha, beta, c, ldc};
    store(acc, output, row + thread_m, row, m, column + thread_k, column, k);
  }
}
