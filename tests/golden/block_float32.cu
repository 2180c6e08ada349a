/*
 * gemm for cuda: family block, float32, layout nn.
 *
 * template: gemm/cuda/block.cu.j2, digest b50822deb324174c
 * configuration: {"fragment_buffers": 2, "group": 8, "interleaved": 1, "min_blocks": 1, "pad": 4,
 *     "sk": 128, "sm": 128, "sn": 8, "stages": 2, "swizzle": 0, "transposed": 1, "tx": 8, "ty": 8,
 *     "vector": 4}
 * launch: grid (blocks, 1, 1), block (16, 16, 1), 16640 bytes of dynamic shared memory
 *   blocks = ceildiv(M, 128) * ceildiv(K, 128)
 *               SK             A block computes SM x SK of C from tiles of A (SM x SN) and B
 *          +----+-TX-+--+      (SN x SK) in shared memory; a thread computes TY x TX of it in
 *          |    |    |  | SN   registers: TY + TX elements that it reads from shared memory serve
 *    SN    +----+----+--+      TY * TX products. With two buffers the next tiles are fetched
 *  +----+  +----+----+--+      while one is multiplied.
 *  TY   |->|    |    |  | SM
 *  +----+  +----+----+--+      Reference: R. Nath, S. Tomov, J. Dongarra, "An Improved MAGMA GEMM
 *  |    |  |    |    |  |      for Fermi GPUs", IJHPCA 24(4), 2010.
 *  +----+  +----+----+--+
 */

using T = float;
constexpr int ITEMSIZE = 4;
static_assert(sizeof(T) == ITEMSIZE, "bytes per element");

// --- Configuration ---

// Rows of C, columns of C and reduction steps that a thread block stages.
constexpr int SM = 128;
constexpr int SK = 128;
constexpr int SN = 8;

// Rows and columns of C that a thread accumulates.
constexpr int TY = 8;
constexpr int TX = 8;

// Elements that a thread loads or stores at once.
constexpr int VECTOR = 4;

// Whether A's tile is transposed on its way into shared memory, elements between its rows there,
// and whether transposed rows are permuted instead: threads that store a column then meet different
// banks.
constexpr int TRANSPOSED = 1;
constexpr int PAD = 4;
constexpr int SWIZZLE = 0;

// Shared buffers: with two, the next tile is fetched while one is multiplied.
constexpr int STAGES = 2;

// Register buffers of fragments: with two, the next step is read while one is multiplied.
constexpr int FRAGMENT_BUFFERS = 2;

// Tiles of C that blocks take downwards before they move to the next column.
constexpr int GROUP = 8;

// Registers that a thread may have, so that a multiprocessor can hold 1 of these blocks. Launch
// bounds could cap them in coarse steps only, and they exclude a cap of its own.
constexpr int REGISTER_CAP = 152;

// --- What follows from it ---

constexpr int THREADS_M = SM / TY;
constexpr int THREADS_K = SK / TX;
constexpr int THREADS = THREADS_M * THREADS_K;

// From one chunk of VECTOR accumulators of a thread to its next: those of all threads lie between.
constexpr int ROW_STEP = THREADS_M * VECTOR;
constexpr int COLUMN_STEP = THREADS_K * VECTOR;

// A's tile in shared memory: reduction steps x rows.
constexpr int A_ROWS = SN;
constexpr int A_LD = SM + PAD;

static_assert(SM % TY == 0, "sm / ty must be a whole number (threads_m)");
static_assert(SK % TX == 0, "sk / tx must be a whole number (threads_k)");
static_assert(VECTOR * ITEMSIZE <= 16, "one access moves at most 16 bytes");
static_assert(TY % VECTOR == 0 && TX % VECTOR == 0,
              "a thread's rows and columns are made of whole vectors");
static_assert(TX <= 2 * TY && TY <= 2 * TX, "nearly square tiles reuse what they read most");
static_assert((SM + SK) * SN <= 32 * THREADS, "a thread stages at most 32 elements in registers");
static_assert(PAD % VECTOR == 0, "padded rows keep vectors aligned");
static_assert(SWIZZLE == 0 || TRANSPOSED == 1 && PAD == 0 && SM % 32 == 0,
              "a transposed tile is permuted in groups of 32 rows, instead of padded");
static_assert(THREADS >= 64, "a single warp cannot hide the latency of its own loads");
static_assert(SM * SN % (THREADS * VECTOR) == 0 && SK * SN % (THREADS * VECTOR) == 0,
              "every thread loads the same number of vectors");
static_assert(TX * TY * SN <= 2048,
              "the unrolled products of a tile stay within the instruction cache");

struct Tiles {
  T a[STAGES][A_ROWS][A_LD];
  T b[STAGES][SN][SK];
};
static_assert(sizeof(Tiles) == 16640, "shared memory as predicted");
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

// --- Tiles of C ---

// A thread block's tile: where the block starts, and the part of C that it stores. A tile that
// would stick out of C is moved back inside where C is large enough; it then loads only what is
// there, and still stores only its own part.
struct Tile {
  int row, column;
  int first_row, first_column;
};

// Blocks are numbered down GROUP tiles before they move on to the next column of tiles, so that
// blocks that run at the same time read the same rows of A and columns of B from L2.
__device__ __forceinline__ Tile tile_of_block(int m, int k) {
  const int columns = (k + SK - 1) / SK;
  const int block = blockIdx.x;
  const int rows = (m + SM - 1) / SM;
  const int in_group = block % (GROUP * columns);
  const int group_row = block / (GROUP * columns) * GROUP;
  const int height = min(GROUP, rows - group_row);
  const int tile_row = group_row + in_group % height;
  const int tile_column = in_group / height;
  Tile tile;
  tile.first_row = tile_row * SM;
  tile.first_column = tile_column * SK;
  tile.row = m < SM ? 0 : min(tile.first_row, m - SM);
  tile.column = k < SK ? 0 : min(tile.first_column, k - SK);
  return tile;
}

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

// --- Products of tiles ---

template <int WIDTH>
__device__ __forceinline__ void put_a(T (&as)[A_ROWS][A_LD], const StagedTile<SM, SN, WIDTH>& a) {
  a.template put<false>([&](int m, int n) { return &as[n][m]; });
}

template <int WIDTH>
__device__ __forceinline__ void put_b(T (&bs)[SN][SK], const StagedTile<SN, SK, WIDTH>& b) {
  b.template put<true>([&](int n, int k) { return &bs[n][k]; });
}

// Step `n` of a thread's rows of A and columns of B.
__device__ __forceinline__ void read_fragments(T (&a_frag)[TY], T (&b_frag)[TX],
                                               const T (&as)[A_ROWS][A_LD], const T (&bs)[SN][SK],
                                               int n, int thread_m, int thread_k) {
#pragma unroll
  for (int i = 0; i < TY; i += VECTOR) {
    const int m = thread_m + row_of(i);
    const Vector<VECTOR> chunk = *reinterpret_cast<const Vector<VECTOR>*>(&as[n][m]);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) a_frag[i + v] = chunk.element[v];
  }
#pragma unroll
  for (int j = 0; j < TX; j += VECTOR) {
    const Vector<VECTOR> chunk =
        *reinterpret_cast<const Vector<VECTOR>*>(&bs[n][thread_k + column_of(j)]);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) b_frag[j + v] = chunk.element[v];
  }
}

// acc += A B over `steps` reduction steps. `rows` of A's and `columns` of B's tile exist. The
// thread's accumulators start at row `thread_m`, column `thread_k` of the tile.
template <bool CHECKED, int WIDTH>
__device__ __forceinline__ void accumulate(T (&acc)[TY][TX], Tiles& tiles,
                                           StagedTile<SM, SN, WIDTH> a,
                                           StagedTile<SN, SK, WIDTH> b, int rows, int columns,
                                           int steps, int thread_m, int thread_k) {
  const int count = (steps + SN - 1) / SN;
  const int ragged = steps - (count - 1) * SN;
  T a_frag[FRAGMENT_BUFFERS][TY], b_frag[FRAGMENT_BUFFERS][TX];
  a.template fetch<true>(rows, ragged);
  b.template fetch<true>(ragged, columns);
  a.advance(0, ragged);
  b.advance(ragged, 0);
  put_a(tiles.a[0], a);
  put_b(tiles.b[0], b);
  __syncthreads();
  read_fragments(a_frag[0], b_frag[0], tiles.a[0], tiles.b[0], 0, thread_m, thread_k);
  int stage = 0;
  for (int tile = 1; tile <= count; ++tile) {
    const bool more = tile < count;
    if (more) {
      a.template fetch<CHECKED>(rows, SN);
      b.template fetch<CHECKED>(SN, columns);
      a.advance(0, SN);
      b.advance(SN, 0);
    }
    // All of it is unrolled: TY * TX * SN products, whose number is asserted above.
#pragma unroll
    for (int n = 0; n < SN; ++n) {
      if (n + 1 < SN) {
        read_fragments(a_frag[(n + 1) % 2], b_frag[(n + 1) % 2], tiles.a[stage], tiles.b[stage],
                       n + 1, thread_m, thread_k);
      } else if (more) {  // the first step of the next tile
        put_a(tiles.a[stage ^ 1], a);
        put_b(tiles.b[stage ^ 1], b);
        __syncthreads();
        stage ^= 1;
        read_fragments(a_frag[0], b_frag[0], tiles.a[stage], tiles.b[stage], 0, thread_m, thread_k);
      }
      multiply(acc, a_frag[n % 2], b_frag[n % 2]);
    }
  }
}

// A block of THREADS_K x THREADS_M threads for each tile of C.
extern "C" __global__ void __maxnreg__(REGISTER_CAP) gemm(
    int m, int n, int k, float alpha, const float* __restrict__ a, int lda,
    const float* __restrict__ b, int ldb, float beta, float* __restrict__ c, int ldc) {
  Tiles& tiles = *reinterpret_cast<Tiles*>(shared_memory);
  const int thread = threadIdx.y * THREADS_K + threadIdx.x;
  const int thread_m = threadIdx.y * VECTOR;
  const int thread_k = threadIdx.x * VECTOR;
  const Tile tile = tile_of_block(m, k);

  T acc[TY][TX] = {};
  const int rows = m - tile.row;
  const int columns = k - tile.column;
  const bool whole = rows >= SM && columns >= SK;
  const bool vectors = rows_aligned<VECTOR>(a, lda) && n % VECTOR == 0 &&
                       rows_aligned<VECTOR>(b, ldb) && tile.column % VECTOR == 0;
  if (whole && vectors) {
    accumulate<false>(acc, tiles, StagedTile<SM, SN, VECTOR>(a, lda, tile.row, 0, thread),
                      StagedTile<SN, SK, VECTOR>(b, ldb, 0, tile.column, thread), rows,
                      columns, n, thread_m, thread_k);
  } else {
    accumulate<true>(acc, tiles, StagedTile<SM, SN, 1>(a, lda, tile.row, 0, thread),
                     StagedTile<SN, SK, 1>(b, ldb, 0, tile.column, thread), rows, columns,
                     n, thread_m, thread_k);
  }
  const Output output = {alpha, beta, c, ldc};
  store(acc, output, tile.row + thread_m, tile.first_row, m, tile.column + thread_k,
        tile.first_column, k);
}
