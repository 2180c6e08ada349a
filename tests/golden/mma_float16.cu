/*
 * gemm for cuda: family mma, float16, layout nn.
 *
 * template: gemm/cuda/mma.cu.j2, digest a5a195b5ec3183cb
 * configuration: {"fragments": 2, "min_blocks": 1, "sk": 128, "sm": 128, "sn": 32, "stages": 4,
 *     "warp_k": 64, "warp_m": 64}
 * launch: grid (tiles, 1, splits), block (128, 1, 1), 65536 bytes of dynamic shared memory
 *   workspace: ticket_bytes + (splits > 1) * splits * M * part_stride * 4 bytes, of which the first
 *       ticket_bytes are zero
 *   after it, where splits > 1 and last == 0: sum_splits, grid
 *       (ceildiv(M * part_stride // 2, 128), 1, 1), block (128, 1, 1)
 *   tiles = ceildiv(M, 128) * ceildiv(K, 128)
 *   part_stride = ceildiv(K, 2) * 2
 *   ticket_bytes = last * (splits > 1) * ceildiv(tiles, 4) * 16
 *    global memory --cp.async--> STAGES swizzled tiles in shared memory --ldmatrix--> registers
 *                                                    registers --mma.sync--> sums --> C
 *
 *               SK            A block computes SM x SK of C, each of its warps WARP_M x WARP_K of
 *          +---------+        it by instructions of tensor cores. Chunks of 16 bytes are permuted
 *          | warp|   | SN     in shared memory, so that ldmatrix meets no bank twice. With
 *    SN    +-----+---+        splits > 1 blocks share the reduction (split-K).
 *  +----+  +-----+---+
 *  |    |  | warp|   | SM     References: PTX ISA, "Warp level matrix instructions"; A. Kerr et
 *  +----+  +-----+---+        al., "CUTLASS: Fast Linear Algebra in CUDA C++", 2017.
 */

using T = float;
constexpr int ITEMSIZE = 4;
static_assert(sizeof(T) == ITEMSIZE, "bytes per element");

// --- Numbers as they are stored; T is what they are computed in ---

#include <cuda_fp16.h>

using Operand = __half;
using Result = __half;

// --- Configuration ---

// Rows of C, columns of C and reduction steps that a thread block stages.
constexpr int SM = 128;
constexpr int SK = 128;
constexpr int SN = 32;

// Rows and columns of C that a warp accumulates.
constexpr int WARP_M = 64;
constexpr int WARP_K = 64;

// Rows of C and reduction steps of an instruction; it has 8 columns.
constexpr int MMA_M = 16;
constexpr int MMA_K = 16;

// Shared buffers: copies run STAGES - 1 tiles ahead of the products.
constexpr int STAGES = 4;

// Buffers of fragments in registers: with 2, the next ones are read while the others are multiplied.
constexpr int FRAGMENTS = 2;

// Blocks that a multiprocessor must be able to hold.
constexpr int MIN_BLOCKS = 1;

// --- What follows from it ---

// Elements of a 16-byte access.
constexpr int VECTOR = 16 / sizeof(Operand);

// Warps lie WARPS_K side by side over the tile of C.
constexpr int WARPS_K = SK / WARP_K;
constexpr int WARPS = SM / WARP_M * WARPS_K;
constexpr int THREADS = 32 * WARPS;

// A register of a fragment holds its thread's part of a block: 8 rows of A, or columns of B, and so
// many reduction steps.
constexpr int BLOCK_STEPS = 8;

// A warp's blocks of rows, of columns, and of the steps of an instruction.
constexpr int ROW_BLOCKS = WARP_M / 8;
constexpr int COLUMN_BLOCKS = WARP_K / 8;
constexpr int STEP_BLOCKS = MMA_K / BLOCK_STEPS;

// Whole-number functions of the restrictions below; quotients and remainders round down.
__device__ constexpr int modulo(int a, int b) { return (a % b + b) % b; }
__device__ constexpr int floordiv(int a, int b) { return (a - modulo(a, b)) / b; }

static_assert(SM % WARP_M == 0, "sm / warp_m must be a whole number (warps)");
static_assert(SK % WARP_K == 0, "sk / warp_k must be a whole number (warps)");
static_assert(SN % (MMA_K * FRAGMENTS) == 0, "the fragments of a tile take turns in their buffers");
static_assert(WARP_M <= 4 * WARP_K && WARP_K <= 4 * WARP_M,
              "warp tiles that are long and narrow read more than they multiply");
static_assert(floordiv(WARP_M, MMA_M) * floordiv(WARP_K, 8) * floordiv(SN, MMA_K) <= 256,
              "the unrolled products of a tile stay within the instruction cache");
static_assert(THREADS >= 64 && THREADS <= 512,
              "a single warp cannot hide the latency of its own copies, and many wait for each "
              "other");

// --- Memory ---

// WIDTH neighbouring elements that are loaded or stored by one instruction.
template <int WIDTH, typename Element = T>
struct alignas(WIDTH * sizeof(Element)) Vector {
  Element element[WIDTH];
};

// Whether every row of a matrix can be accessed WIDTH elements at a time.
template <int WIDTH, typename Element>
__device__ __forceinline__ bool rows_aligned(const Element* first, int leading_dimension) {
  return reinterpret_cast<unsigned long long>(first) % (WIDTH * sizeof(Element)) == 0 &&
         leading_dimension % WIDTH == 0;
}

// --- Asynchronous copies ---

// Copies BYTES bytes, 4, 8 or 16, or writes zeros and reads nothing where those are `outside`.
template <int BYTES>
__device__ __forceinline__ void copy_async(bool outside, void* to, const void* from) {
  const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if constexpr (BYTES == 16) {  // past the L1 cache: nothing is read twice by one block
    asm volatile(
        "{\n"
        ".reg .pred outside;\n"
        "setp.ne.s32 outside, %2, 0;\n"
        "cp.async.cg.shared.global [%0], [%1], 16, outside;\n"
        "}\n"
        :
        : "r"(shared), "l"(from), "r"(static_cast<int>(outside))
        : "memory");
  } else {
    asm volatile(
        "{\n"
        ".reg .pred outside;\n"
        "setp.ne.s32 outside, %3, 0;\n"
        "cp.async.ca.shared.global [%0], [%1], %2, outside;\n"
        "}\n"
        :
        : "r"(shared), "l"(from), "n"(BYTES), "r"(static_cast<int>(outside))
        : "memory");
  }
}

// Copies 16 bytes. Behind the first `given` of them, zeros are written and nothing is read. That is no
// predicate but a number, which takes five more instructions.
__device__ __forceinline__ void copy_async_given(int given, void* to, const void* from) {
  const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(shared), "l"(from), "r"(given)
               : "memory");
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
  Result* c;
  int ldc;

  __device__ __forceinline__ Result* at(int row, int column) const {
    return c + static_cast<long long>(row) * ldc + column;
  }

  // What becomes of an element `old` of C, where that of A B is `product`.
  __device__ __forceinline__ Result value(T product, const Result& old) const {
    T value = alpha * product;
    if (beta != T(0)) value = fma(beta, T(old), value);
    return Result(value);
  }

  __device__ __forceinline__ void store(int row, int column, T product) const {
    Result* element = at(row, column);
    *element = value(product, *element);
  }
};

// --- Tiles in shared memory ---

// Where an element of a tile with so many COLUMNS is. The 16-byte chunks of a row are permuted: what
// a warp reads at a time, RUN neighbouring chunks of each of some rows, lies in different banks.
template <int COLUMNS, int RUN>
__device__ __forceinline__ constexpr int swizzled(int row, int column) {
  constexpr int CHUNKS = COLUMNS / VECTOR;
  constexpr int PERIOD = CHUNKS < 8 ? CHUNKS : 8;  // chunks that change places; 8 fill all banks
  static_assert(CHUNKS % PERIOD == 0 && 8 % PERIOD == 0, "chunks stay within their row");
  const int turn = row / (8 / PERIOD) % (PERIOD / RUN) * RUN;
  return row * COLUMNS + (column / VECTOR ^ turn) * VECTOR + column % VECTOR;
}

// Tiles are stored as the operands are: A by its rows, B by reduction steps.
struct Tiles {
  Operand a[STAGES][SM * SN];
  Operand b[STAGES][SN * SK];
};
static_assert(sizeof(Tiles) == 65536, "shared memory as predicted");
extern __shared__ __align__(128) unsigned char shared_memory[];

// The same number, of which the compiler knows nothing: it stays in a register, and is not computed
// again wherever it is needed.
__device__ __forceinline__ int kept(int value) {
  asm("" : "+r"(value));
  return value;
}

// Where a lane finds its parts of blocks in a tile whose rows have COLUMNS elements. Blocks lie EACH
// elements apart along the rows, and down them as far as rows are permuted alike, every 8 / RUN.
template <int COLUMNS, int RUN, int EACH>
struct Blocks {
  // Chunks are permuted within so many elements; blocks further on lie as those did.
  static constexpr int REPEAT = COLUMNS < 8 * VECTOR ? COLUMNS : 8 * VECTOR;
  static constexpr int KINDS = REPEAT / EACH;
  int first[KINDS];  // bytes from the start of the tile

  // For a lane whose part of the first block is at (row, column).
  __device__ __forceinline__ Blocks(int row, int column) {
#pragma unroll
    for (int i = 0; i < KINDS; ++i) {
      const int element = swizzled<COLUMNS, RUN>(row, column + i * EACH);
      first[i] = kept(element * static_cast<int>(sizeof(Operand)));
    }
  }

  // Its part of the block `along` the rows, so many rows further `down`.
  __device__ __forceinline__ const Operand* of(const Operand* tile, int along, int down) const {
    const char* block = reinterpret_cast<const char*>(tile) + first[along % KINDS];
    return reinterpret_cast<const Operand*>(block) + along / KINDS * REPEAT + down * COLUMNS;
  }
};

using BlocksA = Blocks<SN, 1, 16>;
using BlocksB = Blocks<SK, 1, 16>;

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

// Elements of a copy where rows are not aligned to 16 bytes.
constexpr int NARROW = 2;

// Whether the rows of an operand are whole vectors of 16 bytes.
__device__ __forceinline__ bool rows_whole(const Operand* operand, int ld, int columns) {
  return rows_aligned<VECTOR>(operand, ld) && columns % VECTOR == 0;
}

// Copies tiles of ROWS x COLUMNS elements of an operand as it is stored, with zeros for what lies
// beyond its rows and columns. The next tile is SN further along the columns if STEPS_ACROSS, else
// along the rows. Rows must be whole vectors, unless ANY.
template <int ROWS, int COLUMNS, int RUN, bool STEPS_ACROSS, bool ANY>
struct TileLoader {
  const Operand* from;
  int ld;
  int row, column;    // the thread's place in the tile
  int place;          // the same as an element of the tile
  int rows, columns;  // of the operand, from that place on
  int width;          // elements of a copy; 1 where rows are no whole words

  __device__ __forceinline__ TileLoader(const Operand* operand, int ld, int first_row, int end_row,
                                        int first_column, int end_column)
      : ld(ld), width(width_of(operand, ld, end_column)) {
    constexpr int ACROSS = threads_across(COLUMNS / VECTOR);
    constexpr int NARROW_ACROSS = threads_across(COLUMNS / NARROW);
    const int thread = threadIdx.x;
    row = width != NARROW ? thread / ACROSS : thread / NARROW_ACROSS;
    column = width != NARROW ? thread % ACROSS * VECTOR : thread % NARROW_ACROSS * NARROW;
    place = kept(swizzled<COLUMNS, RUN>(row, column));
    from = operand + static_cast<long long>(first_row + row) * ld + first_column + column;
    rows = end_row - first_row - row;
    columns = end_column - first_column - column;
  }

  __device__ __forceinline__ static int width_of(const Operand* operand, int ld, int columns) {
    if (!ANY || rows_aligned<VECTOR>(operand, ld)) return VECTOR;
    return rows_aligned<NARROW>(operand, ld) && columns % NARROW == 0 ? NARROW : 1;
  }

  __device__ __forceinline__ void start(Operand* tile) const {
    if (!ANY || width == VECTOR) {
      copy<VECTOR>(tile);
    } else if (width == NARROW) {
      copy<NARROW>(tile);
    } else {
      copy_shifted(tile);
    }
  }

  template <int WIDTH>
  __device__ __forceinline__ void copy(Operand* tile) const {
    constexpr int ACROSS = threads_across(COLUMNS / WIDTH);
    constexpr int DOWN = THREADS / ACROSS;
    // Whether rows end between copies, and whether all of a thread's places are permuted alike.
    constexpr bool WHOLE = !ANY || WIDTH == NARROW;
    constexpr bool ALIKE = DOWN % (8 / RUN) == 0 &&
                           (ACROSS * WIDTH == COLUMNS || ACROSS * WIDTH % (8 * VECTOR) == 0);
    const int stride = recomputed(ld);
#pragma unroll WIDTH == NARROW ? 1 : COLUMNS
    for (int across = 0; across < COLUMNS; across += ACROSS * WIDTH) {
#pragma unroll WIDTH == NARROW ? 4 : ROWS
      for (int down = 0; down < ROWS; down += DOWN) {
        if (ROWS % DOWN != 0 && row + down >= ROWS) continue;
        const int at = ALIKE ? place + down * COLUMNS + across
                             : swizzled<COLUMNS, RUN>(row + down, column + across);
        Operand* to = tile + at;
        const Operand* here = from + static_cast<long long>(down) * stride + across;
        if constexpr (WHOLE) {
          const bool outside = across >= columns || down >= rows;
          copy_async<WIDTH * sizeof(Operand)>(outside, to, here);
        } else {
          const int given = down < rows ? min(max(columns - across, 0), WIDTH) : 0;
          copy_async_given(given * static_cast<int>(sizeof(Operand)), to, here);
        }
      }
    }
  }

  // Rows that begin or end between words, where asynchronous copies cannot: a thread's chunks of 16 bytes
  // come as words, by way of registers, and their elements move down by one where they must.
  __device__ __forceinline__ void copy_shifted(Operand* tile) const {
    constexpr int ACROSS = threads_across(COLUMNS / VECTOR);
    constexpr int DOWN = THREADS / ACROSS;
    constexpr int AT_ONCE = ROWS / DOWN < 4 ? (ROWS + DOWN - 1) / DOWN : 4;
    constexpr int WORDS = VECTOR / 2;
    const int stride = recomputed(ld);
#pragma unroll 1
    for (int across = 0; across < COLUMNS; across += ACROSS * VECTOR) {
#pragma unroll 1
      for (int first = 0; first < ROWS; first += AT_ONCE * DOWN) {
        const Operand* here = from + static_cast<long long>(first) * stride + across;
        unsigned word[AT_ONCE][WORDS + 1];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
          const int down = first + i * DOWN;
          const bool inside = row + down < ROWS && down < rows;
          const Operand* chunk = here + static_cast<long long>(i * DOWN) * stride;
          const int behind = within_word(chunk);
          const int left = inside ? columns - across + behind : 0;
#pragma unroll
          for (int w = 0; w <= WORDS; ++w) {
            word[i][w] = read_word(chunk - behind + 2 * w, w < WORDS + behind ? left - 2 * w : 0);
          }
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
          const int down = row + first + i * DOWN;
          const int behind = within_word(here + static_cast<long long>(i * DOWN) * stride);
          Vector<WORDS, unsigned> moved;
#pragma unroll
          for (int w = 0; w < WORDS; ++w) {
            moved.element[w] = __funnelshift_r(word[i][w], word[i][w + 1], 16 * behind);
          }
          Operand* to = tile + swizzled<COLUMNS, RUN>(down, column + across);
          if (down < ROWS) *reinterpret_cast<Vector<WORDS, unsigned>*>(to) = moved;
        }
      }
    }
  }

  // How many elements behind the start of a word one is, 0 or 1.
  __device__ __forceinline__ static int within_word(const Operand* element) {
    return reinterpret_cast<unsigned long long>(element) / sizeof(Operand) % 2;
  }

  // A word of the operand, where so many elements are `left` from its start on; zeros for others.
  __device__ __forceinline__ static unsigned read_word(const Operand* word, int left) {
    if (left > 1) return *reinterpret_cast<const unsigned*>(word);
    return left == 1 ? *reinterpret_cast<const unsigned short*>(word) : 0;
  }

  __device__ __forceinline__ void advance() {
    from += STEPS_ACROSS ? SN : static_cast<long long>(SN) * ld;
    (STEPS_ACROSS ? columns : rows) -= SN;
  }
};

template <bool ANY>
using LoaderA = TileLoader<SM, SN, 1, true, ANY>;
template <bool ANY>
using LoaderB = TileLoader<SN, SK, 1, false, ANY>;

// --- Products by tensor cores ---

// A lane's part of a block of 8 rows of A, or columns of B: of row (column) `lane / 4`
// two neighbouring steps, of which `lane % 4 * 2` is the first.
using Register = unsigned;

// Its part of a block of 8 x 8 elements of C: of row `lane / 4` two neighbouring columns, of which
// `lane % 4 * 2` is the first.
using Accumulators = T[ROW_BLOCKS][COLUMN_BLOCKS][2];

// Where a warp's accumulators start in a tile of C.
struct Place {
  int row, column;
};

__device__ __forceinline__ Place place_of(int warp) {
  return {warp / WARPS_K * WARP_M, warp % WARPS_K * WARP_K};
}

// The sums of 16 x 8 elements of C grow by 16 products each.
__device__ __forceinline__ void mma(T (&upper)[2],
                                    T (&lower)[2],
                                    const Register (&a_upper)[STEP_BLOCKS],
                                    const Register (&a_lower)[STEP_BLOCKS],
                                    const Register (&b)[STEP_BLOCKS]) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(upper[0]), "+f"(upper[1]), "+f"(lower[0]), "+f"(lower[1])
      : "r"(a_upper[0]), "r"(a_lower[0]), "r"(a_upper[1]), "r"(a_lower[1]), "r"(b[0]), "r"(b[1]));
}

// Four matrices of 8 x 8 elements; each lane says where a row of one is: of the first matrix those of
// lanes 0 to 7, and so on. They are turned where a row is not a row of A or column of B.
template <bool TURNED>
__device__ __forceinline__ void read_matrices(Register& first, Register& second, Register& third,
                                              Register& fourth, const Operand* row) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  if constexpr (TURNED) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(first), "=r"(second), "=r"(third), "=r"(fourth)
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(first), "=r"(second), "=r"(third), "=r"(fourth)
                 : "r"(address)
                 : "memory");
  }
}

// Where a lane finds its parts of a warp's blocks in tiles of A and of B.
// Of 16 x 16 elements a lane points at a row of one of four matrices, which lie two by two.
struct Parts {
  BlocksA a;
  BlocksB b;

  __device__ __forceinline__ explicit Parts(Place place)
      : Parts(place.row, place.column, threadIdx.x % 32) {}

  __device__ __forceinline__ Parts(int row, int column, int lane)
      : a(row + lane % 16, lane / 16 * 8), b(lane % 16, column + lane / 16 * 8) {}
};

// Blocks of a warp's rows of A and columns of B, MMA_K reduction steps of them.
struct Fragments {
  Register a[ROW_BLOCKS][STEP_BLOCKS];
  Register b[COLUMN_BLOCKS][STEP_BLOCKS];

  // Reads them from tiles of A and B, from a reduction step on.
  __device__ __forceinline__ void read(const Operand* as, const Operand* bs, const Parts& parts,
                                       int step) {
#pragma unroll
    for (int i = 0; i < ROW_BLOCKS; i += 2) {
      read_matrices<false>(a[i][0], a[i + 1][0], a[i][1], a[i + 1][1],
                           parts.a.of(as, step / MMA_K, 8 * i));
    }
#pragma unroll
    for (int j = 0; j < COLUMN_BLOCKS; j += 2) {
      read_matrices<true>(b[j][0], b[j][1], b[j + 1][0], b[j + 1][1], parts.b.of(bs, j / 2, step));
    }
  }

  // acc += A B of these steps; up and down the columns, so that neighbours share an operand.
  __device__ __forceinline__ void multiply(Accumulators& acc) const {
#pragma unroll
    for (int j = 0; j < COLUMN_BLOCKS; ++j) {
#pragma unroll
      for (int turn = 0; turn < ROW_BLOCKS; turn += MMA_M / 8) {
        const int i = j % 2 ? ROW_BLOCKS - MMA_M / 8 - turn : turn;
        mma(acc[i][j], acc[i + 1][j], a[i], a[i + 1], b[j]);
      }
    }
  }
};

// --- Products of tiles ---

// Instructions' worth of reduction steps in a tile.
constexpr int PHASES = SN / MMA_K;

// acc += A B over `count` tiles, at least one, of what the loaders `a` and `b` copy.
template <typename A, typename B>
__device__ __forceinline__ void multiply_tiles(Accumulators& acc, A a, B b, int count, Place place) {
  Tiles& tiles = *reinterpret_cast<Tiles*>(shared_memory);
#pragma unroll
  for (int stage = 0; stage < STAGES - 1; ++stage) {
    if (stage < count) {
      a.start(tiles.a[stage]);
      b.start(tiles.b[stage]);
      a.advance();
      b.advance();
    }
    commit_copies();
  }
  wait_for_copies<STAGES - 2>();
  __syncthreads();

  const Parts parts(place);
  // Fragments of the next steps are read while the current ones are multiplied.
  Fragments fragments[FRAGMENTS];
  fragments[0].read(tiles.a[0], tiles.b[0], parts, 0);
  int stage = 0;
  int filled = STAGES - 1;
  for (int tile = 0; tile < count; ++tile) {
    const bool more = tile + STAGES - 1 < count;
#pragma unroll
    for (int phase = 0; phase < PHASES; ++phase) {
      // What copies ask of the memory is spread over the steps.
      if (phase == 0 && more) {
        a.start(tiles.a[filled]);
        a.advance();
      }
      if (phase == PHASES / 2 && more) {
        b.start(tiles.b[filled]);
        b.advance();
      }
      if (phase + 1 < PHASES) {
        fragments[(phase + 1) % FRAGMENTS].read(tiles.a[stage], tiles.b[stage], parts,
                                                (phase + 1) * MMA_K);
      } else {  // the first steps of the next tile; after the last tile nobody looks at them
        commit_copies();
        wait_for_copies<STAGES - 2>();
        __syncthreads();
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        filled = filled + 1 == STAGES ? 0 : filled + 1;
        fragments[0].read(tiles.a[stage], tiles.b[stage], parts, 0);
      }
      fragments[phase % FRAGMENTS].multiply(acc);
    }
  }
}

// The operands of C = A B: A is m x n, B is n x k.
struct Product {
  int m, n, k;
  const Operand* a;
  int lda;
  const Operand* b;
  int ldb;
};

// acc += A B over the reduction steps [begin, end), for a warp's place in the tile of C that starts at
// (row, column).
__device__ __forceinline__ void accumulate(Accumulators& acc, const Product& product, int row,
                                           int column, int begin, int end, Place place) {
  if (begin >= end) return;
  const auto [m, n, k, a, lda, b, ldb] = product;
  const int count = (end - begin + SN - 1) / SN;
  if (rows_whole(a, lda, n) && rows_whole(b, ldb, k)) {
    multiply_tiles(acc, LoaderA<false>(a, lda, row, m, begin, end),
                   LoaderB<false>(b, ldb, begin, end, column, k), count, place);
  } else {
    multiply_tiles(acc, LoaderA<true>(a, lda, row, m, begin, end),
                   LoaderB<true>(b, ldb, begin, end, column, k), count, place);
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

// --- Storing pairs of elements ---

// Calls `use(row, column, first, second)` for each pair that a thread has of the tile of the m x k
// matrix C; the second may lie beyond the last column.
template <typename Use>
__device__ __forceinline__ void each_pair(const Accumulators& acc, Tile tile, Place place, int m,
                                          int k, Use use) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < ROW_BLOCKS; ++i) {
    const int row = tile.row + place.row + 8 * i + lane / 4;
    if (row >= m) continue;
#pragma unroll
    for (int j = 0; j < COLUMN_BLOCKS; ++j) {
      const int column = tile.column + place.column + 8 * j + lane % 4 * 2;
      if (column < k) use(row, column, acc[i][j][0], acc[i][j][1]);
    }
  }
}

// Stores what A B has at (row, column) and in the next of the k columns, if there is one; `together`
// if the rows of C allow that.
__device__ __forceinline__ void store_pair(const Output& output, bool together, int row, int column,
                                           int k, T first, T second) {
  if (together && column + 1 < k) {
    Vector<2, Result>* to = reinterpret_cast<Vector<2, Result>*>(output.at(row, column));
    Vector<2, Result> value = {};
    if (output.beta != T(0)) value = *to;
    value.element[0] = output.value(first, value.element[0]);
    value.element[1] = output.value(second, value.element[1]);
    *to = value;
  } else {
    output.store(row, column, first);
    if (column + 1 < k) output.store(row, column + 1, second);
  }
}

// Elements of C that a thread stores at a time, where 16 bytes begin; and of a row that a warp does.
constexpr int PACK = 16 / sizeof(Result);
constexpr int RUN = 128 / sizeof(Result);

// Parts of 8 rows of C on their way from those that have computed them to those that store them: of
// each row two runs in turns, every element where it is in its 16 bytes of memory. Rows begin 4 banks
// apart.
struct alignas(16) Lines {
  Result element[8][2 * RUN + PACK];
};

// How many elements there are before `to` in its 16 bytes.
__device__ __forceinline__ int shift_of(const Result* to) {
  return reinterpret_cast<unsigned long long>(to) % 16 / sizeof(Result);
}

// Of 8 rows from `first` on, `ld` elements apart, stores what is no whole chunk: what each row has of
// the one that it begins in, or, if `last`, of the one that it ends in. Called by whole warps.
__device__ __forceinline__ void store_edges(const Lines& lines, Result* first, int ld, int rows,
                                            int columns, bool last) {
  for (int slot = threadIdx.x % 32; slot < 8 * PACK; slot += 32) {
    const int line = slot / PACK;
    Result* const to = first + static_cast<long long>(line) * ld;
    const int shift = shift_of(to);
    const int chunk = last ? (columns + shift) / PACK * PACK : 0;
    const int place = chunk + slot % PACK - shift;
    const bool wanted = last ? chunk > 0 || shift == 0 : shift > 0;
    if (wanted && line < rows && place >= 0 && place < columns) {
      to[place] = lines.element[line][(place + shift) % (2 * RUN)];
    }
  }
}

// Stores 8 rows of BLOCKS times 8 columns of C, as far as they are within m rows and k columns, the
// first at (row, column); a thread has `at(block, v)` of one row and its two columns of each 8. They
// go through shared memory, from where a warp stores a row's neighbours together, 16 bytes a thread:
// what four threads have of a row would be written in many parts of what memory writes at once.
// Called by whole warps.
template <int BLOCKS, typename At>
__device__ __forceinline__ void store_lines(Lines& lines, const Output& output, int row, int column,
                                            int m, int k, At at) {
  constexpr int TOGETHER = RUN / 8;  // blocks of 8 columns
  const int lane = threadIdx.x % 32;
  const int rows = min(8, m - row);
  const int columns = min(8 * BLOCKS, k - column);
  if (rows <= 0 || columns <= 0) return;
  const int own_row = row + lane / 4;
  Result* const first = output.at(row, column);
  Result* const own = first + static_cast<long long>(lane / 4) * output.ldc;
  const int own_shift = shift_of(own);
#pragma unroll
  for (int run = 0; run * TOGETHER < BLOCKS; ++run) {
    if (run * RUN >= columns) continue;
    __syncwarp();  // what is overwritten has been stored
#pragma unroll
    for (int block = run * TOGETHER; block < min((run + 1) * TOGETHER, BLOCKS); ++block) {
#pragma unroll
      for (int v = 0; v < 2; ++v) {
        const int place = 8 * block + lane % 4 * 2 + v;
        if (own_row < m && place < columns) {
          lines.element[lane / 4][(place + own_shift) % (2 * RUN)] =
              output.value(at(block, v), own[place]);
        }
      }
    }
    __syncwarp();
    if (run == 0) store_edges(lines, first, output.ldc, rows, columns, false);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int line = 4 * half + lane / 8;
      Result* const to = first + static_cast<long long>(line) * output.ldc;
      const int chunk = run * RUN + lane % 8 * PACK;
      const int place = chunk - shift_of(to);
      if (line < rows && place >= 0 && place + PACK <= columns) {
        *reinterpret_cast<Vector<PACK, Result>*>(to + place) =
            *reinterpret_cast<const Vector<PACK, Result>*>(&lines.element[line][chunk % (2 * RUN)]);
      }
    }
  }
  store_edges(lines, first, output.ldc, rows, columns, true);
}

__device__ __forceinline__ void store_tile(const Accumulators& acc, const Output& output, Tile tile,
                                           Place place, int m, int k) {
  const bool together = rows_aligned<2>(output.c, output.ldc);
  if (!together) {
    static_assert(THREADS / 32 * sizeof(Lines) <= sizeof(Tiles), "every warp's lines fit");
    __syncthreads();  // all have read their operands from there
    Lines& lines = reinterpret_cast<Lines*>(shared_memory)[threadIdx.x / 32];
#pragma unroll
    for (int i = 0; i < ROW_BLOCKS; ++i) {
      store_lines<COLUMN_BLOCKS>(lines, output, tile.row + place.row + 8 * i,
                                 tile.column + place.column, m, k,
                                 [&](int j, int v) { return acc[i][j][v]; });
    }
    return;
  }
  each_pair(acc, tile, place, m, k, [&](int row, int column, T first, T second) {
    store_pair(output, together, row, column, k, first, second);
  });
}

// --- Parts of a reduction ---

// Elements from row to row of a part with k columns: whole pairs.
__device__ __forceinline__ int part_stride(int k) { return (k + 1) / 2 * 2; }

__device__ __forceinline__ void store_part(const Accumulators& acc, T* part, Tile tile, Place place,
                                           int m, int k) {
  each_pair(acc, tile, place, m, k, [&](int row, int column, T first, T second) {
    Vector<2>* to = reinterpret_cast<Vector<2>*>(
        part + static_cast<long long>(row) * part_stride(k) + column);
    *to = {first, second};
  });
}

// Adds up what `count` parts have at (row, column) and beside it, and stores the sums.
__device__ __forceinline__ void add_up_pair(const T* parts, int count, const Output& output,
                                            bool together, int row, int column, int m, int k) {
  const long long size = static_cast<long long>(m) * part_stride(k);
  const T* from = parts + static_cast<long long>(row) * part_stride(k) + column;
  T first = 0, second = 0;
#pragma unroll 8
  for (int part = 0; part < count; ++part) {
    const Vector<2> value = *reinterpret_cast<const Vector<2>*>(from + part * size);
    first += value.element[0];
    second += value.element[1];
  }
  store_pair(output, together, row, column, k, first, second);
}

// The same for one tile of C, by the threads of a block.
__device__ __forceinline__ void add_up_tile(const T* parts, int count, const Output& output,
                                            Tile tile, int m, int k) {
  const bool together = rows_aligned<2>(output.c, output.ldc);
  for (int index = threadIdx.x; index < SM * (SK / 2); index += THREADS) {
    const int row = tile.row + index / (SK / 2);
    const int column = tile.column + index % (SK / 2) * 2;
    if (row < m && column < k) {
      add_up_pair(parts, count, output, together, row, column, m, k);
    }
  }
}

// Whether the calling block is the last of `count` blocks to come here; it may then read what the
// others wrote before they came. The ticket is zero before the first and after the last of them.
__device__ __forceinline__ bool last_to_come(unsigned* ticket, unsigned count) {
  __syncthreads();
  bool last = false;
  if (threadIdx.x == 0) {
    // The barriers make this thread's fences good for the whole block.
    __threadfence();
    last = atomicInc(ticket, count - 1) == count - 1;
    __threadfence();
  }
  return __syncthreads_or(last);
}

// What the workspace holds: a ticket for each tile of C if a tile's last block adds up its parts, and
// parts of the reduction if it is split.
struct Workspace {
  unsigned* tickets;
  T* parts;
};

__device__ __forceinline__ Workspace divided(void* workspace, int m, int k, bool ticketed) {
  const int tiles = ((m + SM - 1) / SM) * ((k + SK - 1) / SK);
  const int bytes = ticketed ? (tiles + 3) / 4 * 16 : 0;
  return {static_cast<unsigned*>(workspace),
          reinterpret_cast<T*>(static_cast<char*>(workspace) + bytes)};
}

// C = alpha * A B + beta * C, or a part of A B: a block of THREADS threads for each tile of C and
// each part, which is blockIdx.z.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) gemm(
    int m, int n, int k, float alpha, const __half* __restrict__ a, int lda,
    const __half* __restrict__ b, int ldb, float beta, __half* __restrict__ c, int ldc,
    __half* __restrict__ workspace, int group, int splits, int last) {
  const Tile tile = tile_at(blockIdx.x, m, k, group);
  const Place place = place_of(threadIdx.x / 32);
  const Product product = {m, n, k, a, lda, b, ldb};

  // The block's part of the reduction: whole tiles, of which the first parts may have one more.
  const bool split = splits > 1;
  const int part = blockIdx.z;
  int begin = 0;
  int end = n;
  if (split) {
    const unsigned tiles = (n + SN - 1) / SN;
    const int each = tiles / static_cast<unsigned>(splits);
    const int more = tiles - each * splits;
    begin = (each * part + min(part, more)) * SN;
    end = min(begin + (each + (part < more)) * SN, n);
  }

  Accumulators acc = {};
  accumulate(acc, product, tile.row, tile.column, begin, end, place);
  const Output output = {alpha, beta, c, ldc};
  if (!split) {
    store_tile(acc, output, tile, place, m, k);
    return;
  }
  const Workspace held = divided(workspace, m, k, last);
  store_part(acc, held.parts + part * static_cast<long long>(m) * part_stride(k), tile, place, m, k);
  if (last && last_to_come(held.tickets + blockIdx.x, splits)) {
    add_up_tile(held.parts, splits, output, tile, m, k);
  }
}

// C = alpha * (sum of the parts) + beta * C: a thread for each pair of columns.
extern "C" __global__ void __launch_bounds__(128) sum_splits(
    int m, int n, int k, float alpha, const __half* __restrict__ a, int lda,
    const __half* __restrict__ b, int ldb, float beta, __half* __restrict__ c, int ldc,
    __half* __restrict__ workspace, int group, int splits, int last) {
  const unsigned across = part_stride(k) / 2;
  const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
  const int row = index / across;
  const int column = index % across * 2;
  if (row >= m) return;
  const Output output = {alpha, beta, c, ldc};
  const Workspace held = divided(workspace, m, k, last);
  add_up_pair(held.parts, splits, output, rows_aligned<2>(c, ldc), row, column, m, k);
}
