/*
 * gemm for cuda: family pipelined, float32, layout nn.
 *
 * template: gemm/cuda/pipelined.cu.j2, digest 8e29586d5145e309
 * configuration: {"bounds": "launch", "lane_order": "z", "lanes_m": 4, "load_run": 8,
 *     "min_blocks": 1, "order": "row-serpentine", "sk": 128, "sm": 128, "sn": 16, "stages": 3,
 *     "transpose_through": "copies", "tx": 8, "ty": 8, "unaligned": "whole"}
 * launch: grid (tiles, 1, splits), block (256, 1, 1), 50688 bytes of dynamic shared memory
 *   workspace: ticket_bytes + (copy_elements + part_elements) * 4 bytes, of which the first
 *       ticket_bytes are zero
 *   before it, where realign == 1: realign_operands, grid (ceildiv(copy_elements // 4, 256), 1, 1),
 *       block (256, 1, 1)
 *   after it, where splits > 1 and last == 0: sum_splits, grid
 *       (ceildiv(M * loaded_k // 4, 64), 1, 1), block (64, sum_runs, 1)
 *   tiles = ceildiv(M, 128) * ceildiv(K, 128)
 *   sum_runs = ceildiv(splits, max(8, ceildiv(splits, 8)))
 *   loaded_m = ceildiv(M, 4) * 4
 *   loaded_n = ceildiv(N, 4) * 4
 *   loaded_k = ceildiv(K, 4) * 4
 *   ticket_bytes = last * (splits > 1) * ceildiv(tiles, 4) * 16
 *   copy_elements = realign * loaded_n * (loaded_m + loaded_k)
 *   part_elements = (splits > 1) * splits * M * loaded_k
 *    global memory --cp.async--> STAGES tiles of A and B in shared memory --> registers --> C
 *
 *               SK           A block computes SM x SK of C, a warp a part of it, a thread TY x TX
 *          +---------+       elements. Tiles of the next STAGES - 1 steps are on their way while
 *          | warp|   | SN    one is multiplied. With splits > 1 blocks share the reduction
 *    SN    +-----+---+       (split-K): parts go to the workspace, and `sum_splits`, or the last
 *  +----+  +-----+---+       block of a tile, adds them up in their order.
 *  |    |  | warp|   | SM
 *  +----+  +-----+---+       References: A. Kerr et al., "CUTLASS: Fast Linear Algebra in CUDA
 *                            C++", 2017; CUDA C++ Programming Guide, "Asynchronous data copies".
 */

using T = float;
constexpr int ITEMSIZE = 4;
static_assert(sizeof(T) == ITEMSIZE, "bytes per element");

// --- Configuration ---

// Rows of C, columns of C and reduction steps that a thread block stages.
constexpr int SM = 128;
constexpr int SK = 128;
constexpr int SN = 16;

// Rows and columns of C that a thread accumulates.
constexpr int TY = 8;
constexpr int TX = 8;

// Threads of a warp along the rows of C; the others lie along its columns.
constexpr int LANES_M = 4;

// Shared buffers: copies run STAGES - 1 tiles ahead of the products.
constexpr int STAGES = 3;

// Threads that read neighbouring elements where an operand is transposed on its way.
constexpr int LOAD_RUN = 8;

// Blocks that a multiprocessor must be able to hold.
constexpr int MIN_BLOCKS = 1;

// --- What follows from it ---

// Elements of a 16-byte access.
constexpr int VECTOR = 16 / ITEMSIZE;
constexpr int THREADS = (SM / TY) * (SK / TX);

// Warps: LANES_M x LANES_K threads, a warp tile of C each, WARPS_K of them side by side.
constexpr int LANES_K = 32 / LANES_M;
constexpr int WARP_M = LANES_M * TY;
constexpr int WARP_K = LANES_K * TX;
constexpr int WARPS_K = SK / WARP_K;
constexpr int WARPS = SM / WARP_M * WARPS_K;

// A thread's accumulators come in chunks of VECTOR, a warp's lanes lie between two of them: the
// lanes of a warp read neighbouring vectors of shared memory.
constexpr int ROW_STEP = LANES_M * VECTOR;
constexpr int COLUMN_STEP = LANES_K * VECTOR;

// A vector of padding: transposing copies then meet different banks.
constexpr int A_LD = SM + VECTOR;
constexpr int B_LD = SK + VECTOR;

static_assert(SM % TY == 0, "sm / ty must be a whole number (threads)");
static_assert(SK % TX == 0, "sk / tx must be a whole number (threads)");
static_assert(32 % LANES_M == 0, "32 / lanes_m must be a whole number (lanes_k)");
static_assert(SM % (LANES_M * TY) == 0, "sm / (lanes_m * ty) must be a whole number (warps)");
static_assert(SK % (LANES_K * TX) == 0, "sk / (lanes_k * tx) must be a whole number (warps)");
static_assert(TY % VECTOR == 0 && TX % VECTOR == 0,
              "a thread's rows and columns are read from shared memory in vectors of 16 bytes");
static_assert(WARPS * 32 == THREADS, "whole warp tiles cover the block's tile");
static_assert(LANES_M == 4 || LANES_M == 8 || !(SM % (4 * TY) == 0 && SK % (8 * TX) == 0 ||
              SM % (8 * TY) == 0 && SK % (4 * TX) == 0),
              "warps are as square as the tile allows");
static_assert(LOAD_RUN <= SN, "a tile is no deeper than its reduction steps");
static_assert(TX * TY * SN <= 2048,
              "the unrolled products of a tile stay within the instruction cache");
static_assert(THREADS >= 64, "a single warp cannot hide the latency of its own copies");
static_assert(SM * SN >= THREADS && SK * SN >= THREADS,
              "every thread copies elements of both operands");

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

// --- Asynchronous copies from global to shared memory ---

// Copies WIDTH elements, or writes zeros without reading where `inside` is false.
template <int WIDTH>
__device__ __forceinline__ void copy_async(T* to, const T* from, bool inside = true) {
  const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(to));
  constexpr int BYTES = WIDTH * sizeof(T);
  const int bytes = inside ? BYTES : 0;
  if constexpr (BYTES == 16) {  // past the L1 cache: nothing is read twice by one block
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared), "l"(from), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 :
                 : "r"(shared), "l"(from), "n"(BYTES), "r"(bytes)
                 : "memory");
  }
}

// Ends the group of copies that were issued since the last one.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" : : : "memory");
}

// Waits until at most GROUPS of the latest groups are still under way.
template <int GROUPS>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" : : "n"(GROUPS) : "memory");
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
  // Rows, back and forth: consecutive products share an operand, also at the turns.
#pragma unroll
  for (int i = 0; i < TY; ++i) {
#pragma unroll
    for (int step = 0; step < TX; ++step) {
      const int j = i % 2 ? TX - 1 - step : step;
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

// --- Loading tiles: SN reduction steps of EXTENT elements, LD apart in shared memory ---

// The same number, of which the compiler knows nothing: what follows from it is computed where it
// is needed, at the price of an instruction, not kept in registers all through the kernel.
__device__ __forceinline__ int recomputed(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// How many threads stand side by side along `positions` places of a step, so that all threads fill
// SN steps in the fewest passes; the rest of them stand in further steps.
__device__ constexpr int threads_across(int positions) {
  int best = 1, fewest = positions * SN;
  for (int across = 1; across <= positions && across <= THREADS; ++across) {
    if (positions % across != 0) continue;
    const int down = THREADS / across;
    const int passes = positions / across * ((SN + down - 1) / down);
    if (passes <= fewest) {
      best = across;
      fewest = passes;
    }
  }
  return best;
}

// Copies tiles of an operand in which the elements of one reduction step are neighbours, WIDTH of
// them at once: VECTOR, if the rows are aligned to that, or 1, or whatever the rows allow, if WIDTH
// is 0. If CHECKED, nothing is copied that lies beyond the operand's extent; otherwise tiles lie
// inside.
template <int EXTENT, int LD, int WIDTH, bool CHECKED>
struct StepLoader {
  const T* from;
  int ld;
  int step, element;  // the thread's place in the tile
  int left;           // elements of the operand from that place on
  bool wide;

  __device__ __forceinline__ StepLoader(const T* operand, int ld, int begin, int first, int extent,
                                        int thread)
      : ld(ld),
        wide(WIDTH == VECTOR || (WIDTH == 0 && rows_aligned<VECTOR>(operand, ld) &&
                                 extent % VECTOR == 0)) {
    constexpr int ACROSS = threads_across(EXTENT / VECTOR);
    constexpr int SINGLE = threads_across(EXTENT);
    step = wide ? thread / ACROSS : thread / SINGLE;
    element = wide ? thread % ACROSS * VECTOR : thread % SINGLE;
    from = operand + static_cast<long long>(begin + step) * ld + first + element;
    left = extent - first - element;
  }

  template <bool RAGGED>
  __device__ __forceinline__ void start(T (&tile)[SN][LD], int steps) const {
    if (wide) {
      copy<VECTOR, RAGGED>(tile, steps);
    } else {
      copy<1, RAGGED>(tile, steps);
    }
  }

  template <int COPIED, bool RAGGED>
  __device__ __forceinline__ void copy(T (&tile)[SN][LD], int steps) const {
    constexpr int ACROSS = threads_across(EXTENT / COPIED);
    constexpr int DOWN = THREADS / ACROSS;
    if (THREADS % ACROSS != 0 && step >= DOWN) return;
    const int stride = CHECKED ? recomputed(ld) : ld;
#pragma unroll
    for (int down = 0; down < SN; down += DOWN) {
      if (SN % DOWN != 0 && step + down >= SN) continue;
#pragma unroll
      for (int across = 0; across < EXTENT; across += ACROSS * COPIED) {
        if (CHECKED && across >= left) continue;
        copy_async<COPIED>(&tile[step + down][element + across],
                           from + static_cast<long long>(down) * stride + across,
                           !RAGGED || step + down < steps);
      }
    }
  }

  __device__ __forceinline__ void advance(int steps) { from += static_cast<long long>(steps) * ld; }
};

// Copies tiles of an operand in which consecutive reduction steps of one element are neighbours:
// LOAD_RUN threads read neighbours, and every one puts a single element in its transposed place.
// If CHECKED, nothing is copied that lies beyond the operand's extent; otherwise tiles lie inside.
template <int EXTENT, int LD, bool CHECKED>
struct TransposingLoader {
  static constexpr int DOWN = THREADS / LOAD_RUN;

  const T* from;
  int ld;
  int step, element;
  int left;

  __device__ __forceinline__ TransposingLoader(const T* operand, int ld, int begin, int first,
                                               int extent, int thread)
      : ld(ld), step(thread % LOAD_RUN), element(thread / LOAD_RUN) {
    from = operand + static_cast<long long>(first + element) * ld + begin + step;
    left = extent - first - element;
  }

  template <bool RAGGED>
  __device__ __forceinline__ void start(T (&tile)[SN][LD], int steps) const {
    const int stride = CHECKED ? recomputed(ld) : ld;
#pragma unroll
    for (int across = 0; across < SN; across += LOAD_RUN) {
#pragma unroll
      for (int down = 0; down < EXTENT; down += DOWN) {
        if (EXTENT % DOWN != 0 && element + down >= EXTENT) continue;
        if (CHECKED && down >= left) continue;
        copy_async<1>(&tile[step + across][element + down],
                      from + static_cast<long long>(down) * stride + across,
                      !RAGGED || step + across < steps);
      }
    }
  }

  __device__ __forceinline__ void advance(int steps) { from += steps; }
};

// Operands as the layout stores them: for tiles inside them whose rows are aligned, for others
// inside, and for any.
using AlignedA = TransposingLoader<SM, A_LD, false>;
using AlignedB = StepLoader<SK, B_LD, VECTOR, false>;
using InsideA = TransposingLoader<SM, A_LD, false>;
using InsideB = StepLoader<SK, B_LD, 1, false>;
using AnyA = TransposingLoader<SM, A_LD, true>;
using AnyB = StepLoader<SK, B_LD, 0, true>;

// --- Products of tiles ---

struct Tiles {
  T a[STAGES][SN][A_LD];
  T b[STAGES][SN][B_LD];
};
static_assert(sizeof(Tiles) == 50688, "shared memory as predicted");
extern __shared__ __align__(16) unsigned char shared_memory[];

// Where a thread's accumulators start in a tile of C.
struct Place {
  int row, column;
};

__device__ __forceinline__ Place place_of(int thread) {
  const int warp = thread / 32;
  const int lane = thread % 32;
  // Lanes in pairs along M, the pairs along K.
  const int lane_m = lane / (2 * LANES_K) * 2 + lane % 2;
  const int lane_k = lane / 2 % LANES_K;
  return {warp / WARPS_K * WARP_M + lane_m * VECTOR, warp % WARPS_K * WARP_K + lane_k * VECTOR};
}

// One reduction step of a thread's rows of A and columns of B, from its first ones on.
__device__ __forceinline__ void read_fragments(T (&a_frag)[TY], T (&b_frag)[TX], const T* own_as,
                                               const T* own_bs) {
#pragma unroll
  for (int i = 0; i < TY; i += VECTOR) {
    const Vector<VECTOR> chunk = *reinterpret_cast<const Vector<VECTOR>*>(own_as + row_of(i));
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) a_frag[i + v] = chunk.element[v];
  }
#pragma unroll
  for (int j = 0; j < TX; j += VECTOR) {
    const Vector<VECTOR> chunk = *reinterpret_cast<const Vector<VECTOR>*>(own_bs + column_of(j));
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) b_frag[j + v] = chunk.element[v];
  }
}

// acc += A B over `steps` reduction steps, at least one, of what the loaders `a` and `b` copy.
template <typename A, typename B>
__device__ __forceinline__ void multiply_tiles(T (&acc)[TY][TX], A a, B b, int steps,
                                               Place place) {
  Tiles& tiles = *reinterpret_cast<Tiles*>(shared_memory);
  const int count = (steps + SN - 1) / SN;
  const int ragged = steps - (count - 1) * SN;
  a.template start<true>(tiles.a[0], ragged);
  b.template start<true>(tiles.b[0], ragged);
  a.advance(ragged);
  b.advance(ragged);
  commit_copies();
#pragma unroll
  for (int stage = 1; stage < STAGES - 1; ++stage) {
    if (stage < count) {
      a.template start<false>(tiles.a[stage], SN);
      b.template start<false>(tiles.b[stage], SN);
      a.advance(SN);
      b.advance(SN);
    }
    commit_copies();
  }
  wait_for_copies<STAGES - 2>();
  __syncthreads();

  // Fragments of the next reduction step are read while the current one is multiplied.
  T a_frag[2][TY], b_frag[2][TX];
  read_fragments(a_frag[0], b_frag[0], &tiles.a[0][0][place.row], &tiles.b[0][0][place.column]);
  int stage = 0;
  int filled = STAGES - 1;
  for (int tile = 0; tile < count; ++tile) {
    const bool more = tile + STAGES - 1 < count;
    const T* own_as = &tiles.a[stage][0][place.row];
    const T* own_bs = &tiles.b[stage][0][place.column];
    // All of it is unrolled: TY * TX * SN products, whose number is asserted above.
#pragma unroll
    for (int n = 0; n < SN; ++n) {
      // What copies ask of the memory is spread over the steps.
      if (n == 0 && more) {
        a.template start<false>(tiles.a[filled], SN);
        a.advance(SN);
      }
      if (n == SN / 2 && more) {
        b.template start<false>(tiles.b[filled], SN);
        b.advance(SN);
      }
      if (n + 1 < SN) {
        read_fragments(a_frag[(n + 1) % 2], b_frag[(n + 1) % 2], own_as + (n + 1) * A_LD,
                       own_bs + (n + 1) * B_LD);
      } else {  // the first step of the next tile; after the last tile nobody looks at it
        commit_copies();
        wait_for_copies<STAGES - 2>();
        __syncthreads();
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        filled = filled + 1 == STAGES ? 0 : filled + 1;
        read_fragments(a_frag[0], b_frag[0], &tiles.a[stage][0][place.row],
                       &tiles.b[stage][0][place.column]);
      }
      multiply(acc, a_frag[n % 2], b_frag[n % 2]);
    }
  }
}

// The operands of C = A B: A is m x n, B is n x k.
struct Product {
  int m, n, k;
  const T* a;
  int lda;
  const T* b;
  int ldb;
};

// acc += A B over `steps` reduction steps from `begin` on, for a thread's place in the tile of C
// that starts at (row, column).
__device__ __forceinline__ void accumulate(T (&acc)[TY][TX], const Product& product, int row,
                                           int column, int begin, int steps, Place place) {
  if (steps <= 0) return;
  const auto [m, n, k, a, lda, b, ldb] = product;
  const int thread = threadIdx.x;
  const bool inside = row + SM <= m && column + SK <= k;
  if (inside && rows_aligned<VECTOR>(b, ldb)) {
    multiply_tiles(acc, AlignedA(a, lda, begin, row, m, thread),
                   AlignedB(b, ldb, begin, column, k, thread), steps, place);
  } else if (inside) {
    multiply_tiles(acc, InsideA(a, lda, begin, row, m, thread),
                   InsideB(b, ldb, begin, column, k, thread), steps, place);
  } else {
    multiply_tiles(acc, AnyA(a, lda, begin, row, m, thread),
                   AnyB(b, ldb, begin, column, k, thread), steps, place);
  }
}

// --- Tiles of C ---

// Where a tile of C starts.
struct Tile {
  int row, column;
};

// Tiles are numbered down `group` of them before the next column of tiles, so that those computed
// at the same time read the same rows of A and columns of B from the level-2 cache.
__device__ __forceinline__ Tile tile_at(unsigned number, int m, int k, unsigned group) {
  const unsigned columns = (k + SK - 1) / SK;
  const unsigned band = number / (group * columns);
  const unsigned within = number - band * (group * columns);
  unsigned row = band * group;
  unsigned column = within;
  if (group > 1) {
    const unsigned rows = (m + SM - 1) / SM;
    const unsigned height = min(group, rows - row);
    column = within / height;
    row += within - column * height;
  }
  return {static_cast<int>(row) * SM, static_cast<int>(column) * SK};
}

// --- Storing tiles ---

// Rows of every thread's that are in shared memory at a time.
constexpr int TOGETHER = 4;

// What a warp has there: rows of its part of the tile, each behind room for a vector, so that there
// is something to be read before the first one.
constexpr int LINES = LANES_M * TOGETHER;
constexpr int LINE = VECTOR + WARP_K;
static_assert(WARPS * LINES * LINE * sizeof(T) <= sizeof(Tiles), "every warp's lines fit");

// How many elements there are before `to` in its vector of memory.
__device__ __forceinline__ int shift_of(const T* to) {
  return reinterpret_cast<unsigned long long>(to) % sizeof(Vector<VECTOR>) / sizeof(T);
}

// The vector of which `own` has the last elements, and `before` the first `shift`.
__device__ __forceinline__ Vector<VECTOR> shifted(const Vector<VECTOR>& before,
                                                  const Vector<VECTOR>& own, int shift) {
  T element[2 * VECTOR];
#pragma unroll
  for (int v = 0; v < VECTOR; ++v) {
    element[v] = before.element[v];
    element[VECTOR + v] = own.element[v];
  }
#pragma unroll
  for (int by = VECTOR / 2; by > 0; by /= 2) {
#pragma unroll
    for (int v = 2 * VECTOR - 1; v >= by; --v) {
      element[v] = shift & by ? element[v - by] : element[v];
    }
  }
  Vector<VECTOR> found;
#pragma unroll
  for (int v = 0; v < VECTOR; ++v) found.element[v] = element[VECTOR + v];
  return found;
}

// Stores rows of C that are no whole vectors: each warp its part of the tile, through shared memory,
// so that neighbouring threads store neighbouring vectors of memory wherever rows begin in it.
__device__ __forceinline__ void store_through_shared(const T (&acc)[TY][TX], const Output& output,
                                                     Tile tile, Place place, int m, int k) {
  using Lines = T[LINES][LINE];
  const int lane = threadIdx.x % 32;
  Lines& lines = reinterpret_cast<Lines*>(shared_memory)[threadIdx.x / 32];
  const int first_row = tile.row + place.row / WARP_M * WARP_M;
  const int first_column = tile.column + place.column / WARP_K * WARP_K;
  const int columns = min(WARP_K, k - first_column);
  __syncthreads();  // all have read their operands from there
#pragma unroll
  for (int i = 0; i < TY; i += TOGETHER) {
    // Lines are TOGETHER rows of the first threads, then those of the threads below.
    const auto row_of_line = [&](int line) {
      return first_row + row_of(i) + line / TOGETHER * VECTOR + line % TOGETHER;
    };
    __syncwarp();  // what is overwritten has been stored
#pragma unroll
    for (int j = 0; j < TX; j += VECTOR) {
#pragma unroll
      for (int row = 0; row < TOGETHER; ++row) {
        T* const line = lines[place.row % WARP_M / VECTOR * TOGETHER + row];
        Vector<VECTOR> chunk;
#pragma unroll
        for (int v = 0; v < VECTOR; ++v) chunk.element[v] = output.alpha * acc[i + row][j + v];
        *reinterpret_cast<Vector<VECTOR>*>(line + VECTOR + place.column % WARP_K + column_of(j)) =
            chunk;
      }
    }
    __syncwarp();
    // Vectors that lie in the row as a whole.
#pragma unroll 1
    for (int index = lane; index < LINES * (WARP_K / VECTOR); index += 32) {
      const int line = index / (WARP_K / VECTOR);
      const int row = row_of_line(line);
      T* const to = output.at(row, first_column);
      const int shift = shift_of(to);
      const int column = index % (WARP_K / VECTOR) * VECTOR - shift;
      if (row < m && column >= 0 && column + VECTOR <= columns) {
        const auto* both = reinterpret_cast<const Vector<VECTOR>*>(&lines[line][column + shift]);
        const Vector<VECTOR> product = shifted(both[0], both[1], shift);
        Vector<VECTOR>* chunk = reinterpret_cast<Vector<VECTOR>*>(to + column);
        Vector<VECTOR> value = {};
        if (output.beta != T(0)) value = *chunk;
#pragma unroll
        for (int v = 0; v < VECTOR; ++v) {
          value.element[v] = output.finished(product.element[v], value.element[v]);
        }
        *chunk = value;
      }
    }
    // What a row has of the vector that it begins in, and of the one that it ends in.
#pragma unroll 1
    for (int index = lane; index < LINES * 2 * VECTOR; index += 32) {
      const int line = index / (2 * VECTOR);
      const int row = row_of_line(line);
      T* const to = output.at(row, first_column);
      const int shift = shift_of(to);
      const bool end = index / VECTOR % 2 != 0;
      const int chunk = end ? (columns + shift) / VECTOR * VECTOR : 0;
      const int column = chunk + index % VECTOR - shift;
      const bool wanted = end ? chunk > 0 || shift == 0 : shift > 0;
      if (row < m && wanted && column >= 0 && column < columns) {
        to[column] = output.finished(lines[line][VECTOR + column], to[column]);
      }
    }
  }
}

// Stores the tile of the m x k matrix C that starts at `tile`.
__device__ __forceinline__ void store_tile(const T (&acc)[TY][TX], const Output& output, Tile tile,
                                           Place place, int m, int k) {
  if (rows_aligned<VECTOR>(output.c, output.ldc) && k % VECTOR == 0) {
    store(acc, output, tile.row + place.row, 0, m, tile.column + place.column, 0, k);
  } else {
    store_through_shared(acc, output, tile, place, m, k);
  }
}

// --- Parts of a reduction ---

// Elements from row to row of a part with k columns: whole vectors.
__device__ __forceinline__ int part_stride(int k) { return (k + VECTOR - 1) / VECTOR * VECTOR; }

// Parts are added up in runs, and then these: RUN at least, and no more than RUNS of them.
constexpr int RUN = 8;
constexpr int RUNS = 8;

__device__ __forceinline__ int run_length(int count) {
  return max(RUN, (count + RUNS - 1) / RUNS);
}

// sum[i] += the vectors `offset[i]` of the parts [first, last), each of `size` vectors.
template <int COUNT>
__device__ __forceinline__ void add_run(Vector<VECTOR> (&sum)[COUNT],
                                        const unsigned (&offset)[COUNT], const T* parts,
                                        long long size, int first, int last) {
#pragma unroll 8 / COUNT
  for (int part = first; part < last; ++part) {
    const Vector<VECTOR>* vectors = reinterpret_cast<const Vector<VECTOR>*>(parts) + part * size;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const Vector<VECTOR> value = vectors[offset[i]];
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) sum[i].element[v] += value.element[v];
    }
  }
}

// Stores the sums of VECTOR elements of C from (row, column) on, as far as its k columns go.
__device__ __forceinline__ void store_vector(const Vector<VECTOR>& sum, const Output& output,
                                             int row, int column, int k) {
  T* to = output.at(row, column);
  if (column + VECTOR <= k && rows_aligned<VECTOR>(output.c, output.ldc)) {
    Vector<VECTOR>* chunk = reinterpret_cast<Vector<VECTOR>*>(to);
    Vector<VECTOR> value = {};
    if (output.beta != T(0)) value = *chunk;
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      value.element[v] = output.value(sum.element[v], value.element[v]);
    }
    *chunk = value;
  } else {
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      if (column + v < k) to[v] = output.value(sum.element[v], to[v]);
    }
  }
}

// Threads along x of a block that adds up parts.
constexpr int SUM_THREADS = 64;

// Adds up `count` parts and stores their sum. Along x, threads have a vector of C each, and along y
// a run of the parts.
__device__ __forceinline__ void add_up(const T* parts, int count, const Output& output, int m,
                                       int k) {
  __shared__ Vector<VECTOR> of_run[RUNS][SUM_THREADS];
  const unsigned across = part_stride(k) / VECTOR;
  const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
  const int row = index / across;
  const int column = index % across * VECTOR;
  const int first = threadIdx.y * run_length(count);
  Vector<VECTOR> sum[1] = {};
  if (row < m) {
    add_run<1>(sum, {index}, parts, static_cast<long long>(m) * across, first,
               min(first + run_length(count), count));
  }
  if (blockDim.y > 1) {
    of_run[threadIdx.y][threadIdx.x] = sum[0];
    __syncthreads();
    for (int run = 1; run < blockDim.y; ++run) {
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) {
        sum[0].element[v] += of_run[run][threadIdx.x].element[v];
      }
    }
  }
  if (row < m && threadIdx.y == 0) store_vector(sum[0], output, row, column, k);
}

// The same for one tile of C, which starts at (first_row, first_column), by the threads of a block.
__device__ __forceinline__ void add_up_tile(const T* parts, int count, const Output& output,
                                            int first_row, int first_column, int m, int k) {
  constexpr int BATCH = 2;  // vectors that a thread adds up at a time
  constexpr int VECTORS = SM * (SK / VECTOR);
  const unsigned across = part_stride(k) / VECTOR;
  for (int index = threadIdx.x; index < VECTORS; index += BATCH * THREADS) {
    int row[BATCH], column[BATCH];
    unsigned offset[BATCH];
    bool inside[BATCH];
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      const int vector = index + i * THREADS;
      row[i] = first_row + vector / (SK / VECTOR);
      column[i] = first_column + vector % (SK / VECTOR) * VECTOR;
      inside[i] = vector < VECTORS && row[i] < m && column[i] < k;
      offset[i] = inside[i] ? row[i] * across + column[i] / VECTOR : 0;
    }
    Vector<VECTOR> total[BATCH] = {};
    for (int first = 0; first < count; first += run_length(count)) {
      Vector<VECTOR> sum[BATCH] = {};
      add_run<BATCH>(sum, offset, parts, static_cast<long long>(m) * across, first,
                     min(first + run_length(count), count));
#pragma unroll
      for (int i = 0; i < BATCH; ++i) {
#pragma unroll
        for (int v = 0; v < VECTOR; ++v) total[i].element[v] += sum[i].element[v];
      }
    }
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      if (inside[i]) store_vector(total[i], output, row[i], column[i], k);
    }
  }
}

// Whether the calling block is the last of `count` blocks to come here; it may then read what the
// others wrote before they came. The ticket is zero before the first and after the last of them.
__device__ __forceinline__ bool last_to_come(unsigned* ticket, unsigned count) {
  __threadfence();
  __syncthreads();
  const bool last = threadIdx.x == 0 && atomicInc(ticket, count - 1) == count - 1;
  const bool found = __syncthreads_or(last);
  __threadfence();
  return found;
}

// --- Copies with aligned rows ---

// The smallest multiple of VECTOR that is not less.
__device__ __forceinline__ int whole_vectors(int size) {
  return (size + VECTOR - 1) / VECTOR * VECTOR;
}

// Elements of the copy of a rows x columns operand: whole vectors in both directions.
__device__ __forceinline__ long long copy_size(int rows, int columns) {
  return static_cast<long long>(whole_vectors(rows)) * whole_vectors(columns);
}

// Vector `index` of the copy of an operand, with zeros where the operand has no elements.
__device__ __forceinline__ void realign_vector(const T* operand, int ld, int rows, int columns,
                                               T* copy, unsigned index) {
  const unsigned across = whole_vectors(columns) / VECTOR;
  const int row = index / across;
  const int column = index % across * VECTOR;
  Vector<VECTOR> value;
#pragma unroll
  for (int v = 0; v < VECTOR; ++v) {
    const bool inside = row < rows && column + v < columns;
    value.element[v] = inside ? operand[static_cast<long long>(row) * ld + column + v] : T(0);
  }
  reinterpret_cast<Vector<VECTOR>*>(copy)[index] = value;
}

// What the workspace holds: a ticket for each tile of C if a tile's last block adds up its parts,
// copies of operands if they are realigned, parts of the reduction if it is split.
struct Workspace {
  unsigned* tickets;
  T* b;
  T* parts;
};

__device__ __forceinline__ Workspace divided(T* workspace, int m, int n, int k, int last,
                                             int realign) {
  Workspace held;
  held.tickets = reinterpret_cast<unsigned*>(workspace);
  if (last) {
    const int tiles = ((m + SM - 1) / SM) * ((k + SK - 1) / SK);
    workspace += (tiles + 3) / 4 * VECTOR;
  }
  held.b = workspace;
  if (realign) workspace += copy_size(n, k);
  held.parts = workspace;
  return held;
}

// Copies operands that are read in vectors, as they are stored; a thread for each vector.
extern "C" __global__ void __launch_bounds__(256) realign_operands(
    int m, int n, int k, float alpha, const float* __restrict__ a, int lda,
    const float* __restrict__ b, int ldb, float beta, float* __restrict__ c, int ldc,
    float* __restrict__ workspace, int group, int splits, int last, int realign) {
  const Workspace held = divided(workspace, m, n, k, last && splits > 1, realign);
  const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index < copy_size(n, k) / VECTOR) {
    realign_vector(b, ldb, n, k, held.b, index);
  }
}

// C = alpha * A B + beta * C, or a part of A B: a block of THREADS threads for each tile of C and
// each part, which is blockIdx.z.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) gemm(
    int m, int n, int k, float alpha, const float* __restrict__ a, int lda,
    const float* __restrict__ b, int ldb, float beta, float* __restrict__ c, int ldc,
    float* __restrict__ workspace, int group, int splits, int last, int realign) {
  const Tile tile = tile_at(blockIdx.x, m, k, group);
  const Place place = place_of(threadIdx.x);
  const Workspace held = divided(workspace, m, n, k, last && splits > 1, realign);
  Product product = {m, n, k, a, lda, b, ldb};
  if (realign) {
    product.b = held.b;
    product.ldb = whole_vectors(k);
    product.k = whole_vectors(k);
  }

  // The block's part of the reduction: whole tiles, of which the first parts may have one more.
  const bool split = splits > 1;
  const int part = blockIdx.z;
  int begin = 0;
  int end = product.n;
  if (split) {
    const unsigned tiles = (product.n + SN - 1) / SN;
    const int each = tiles / static_cast<unsigned>(splits);
    const int more = tiles - each * splits;
    begin = (each * part + min(part, more)) * SN;
    end = min(begin + (each + (part < more)) * SN, product.n);
  }

  T acc[TY][TX] = {};
  accumulate(acc, product, tile.row, tile.column, begin, end - begin, place);
  // One store for both: C and a part differ in nothing that the compiler sees.
  const int part_ld = part_stride(k);
  T* to = split ? held.parts + part * static_cast<long long>(m) * part_ld : c;
  const Output output = {split ? T(1) : alpha, split ? T(0) : beta, to, split ? part_ld : ldc};
  store_tile(acc, output, tile, place, m, split ? part_ld : k);
  if (split && last && last_to_come(held.tickets + blockIdx.x, splits)) {
    const Output whole = {alpha, beta, c, ldc};
    add_up_tile(held.parts, splits, whole, tile.row, tile.column, m, k);
  }
}

// C = alpha * (sum of the parts) + beta * C: SUM_THREADS threads along x, one along y for each run.
constexpr int SUM_BLOCK = SUM_THREADS * RUNS;

extern "C" __global__ void __launch_bounds__(SUM_BLOCK) sum_splits(
    int m, int n, int k, float alpha, const float* __restrict__ a, int lda,
    const float* __restrict__ b, int ldb, float beta, float* __restrict__ c, int ldc,
    float* __restrict__ workspace, int group, int splits, int last, int realign) {
  const Workspace held = divided(workspace, m, n, k, last, realign);
  const Output whole = {alpha, beta, c, ldc};
  add_up(held.parts, splits, whole, m, k);
}
