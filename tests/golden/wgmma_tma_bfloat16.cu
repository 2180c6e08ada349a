/*
 * gemm for cuda: family wgmma, bfloat16, layout nn.
 *
 * template: gemm/cuda/wgmma.cu.j2, digest 1dd62649fe8025c7
 * configuration: {"cluster_k": 1, "cluster_m": 2, "cluster_n": 1, "consumers": 2, "min_blocks": 1,
 *     "ping_pong": 0, "sk": 128, "sm": 128, "stages": 4, "store": "tma"}
 * launch: grid (blocks, 1, 1), block (384, 1, 1), clusters of (2, 1, 1), 181312 bytes of dynamic
 *     shared memory
 *   workspace: part_bytes bytes
 *   a_map: boxes of 128 rows and 64 columns of A as stored, swizzled in 128 bytes
 *   b_map: boxes of 64 rows and 64 columns of B as stored, swizzled in 128 bytes
 *   c_map: boxes of 64 rows of 128 bytes of C as stored, swizzled in 128 bytes
 *   after it, where splits > 1: sum_splits, grid (ceildiv(M * (part_columns // 4), 128), 1, 1),
 *       block (128, 1, 1)
 *   tiles = ceildiv(M, 256) * ceildiv(K, 128)
 *   waiting = tiles * splits * 2
 *   blocks = min(multiprocessor_count // 2 * 2, waiting)
 *   part_columns = ceildiv(K, 4) * 4
 *   part_bytes = (splits > 1) * splits * M * part_columns * 4
 *
 *    global memory --TMA--> ring of STAGES tiles in shared memory --wgmma--> registers --> C
 *                           arrived[s]: full   freed[s]: empty
 *
 *    producer warp group    waits for an empty stage, has the next tiles of A and B copied there
 *    consumer warp groups   wait for a full stage, multiply; PING_PONG: a tile of C each, in turns
 *
 *               SK          Blocks are persistent: they take tiles of C in turns. With splits > 1
 *          +---------+      a tile comes in parts of the reduction (split-K), which go to the
 *          |    B    | SN   workspace, where `sum_splits` adds them up in their order. Blocks of
 *    SN    +---------+      a cluster share tiles (multicast), or the reduction of a tile.
 *  +----+  +---------+
 *  | A  |  |    C    | SM   References: PTX ISA, "wgmma", "mbarrier", "cp.async.bulk.tensor";
 *  +----+  +---------+      NVIDIA CUTLASS 3, warp-specialised persistent kernels.
 */

using T = float;
constexpr int ITEMSIZE = 4;
static_assert(sizeof(T) == ITEMSIZE, "bytes per element");

// --- Numbers as they are stored; T is what they are computed in ---

#include <cuda_bf16.h>

using Operand = __nv_bfloat16;
using Result = __nv_bfloat16;

// --- Configuration ---

// Rows and columns of C of a tile.
constexpr int SM = 128;
constexpr int SK = 128;

// Warp groups of a block that multiply; one more, the producer, has tiles copied.
constexpr int CONSUMERS = 2;

// Whether two consumers take tiles in turns, so that one stores its sums while the other multiplies.
constexpr int PING_PONG = 0;

// Tiles of A and B that are in shared memory or on their way.
constexpr int STAGES = 4;

// Blocks of a cluster along the rows and the columns of C: the first share tiles of B, the others
// tiles of A.
constexpr int CLUSTER_M = 2;
constexpr int CLUSTER_K = 1;

// Blocks of a cluster along the reduction: each multiplies a part of it, and adds up the sums of all
// in its share of the rows of C.
constexpr int CLUSTER_N = 1;

// Blocks that a multiprocessor must be able to hold.
constexpr int MIN_BLOCKS = 1;

// --- What follows from it ---

// Bytes of a row of a tile in shared memory, and reduction steps of a tile.
constexpr int ROW_BYTES = 128;
constexpr int SN = ROW_BYTES / sizeof(Operand);

constexpr int WARP_GROUP = 128;  // threads
constexpr int THREADS = WARP_GROUP * (CONSUMERS + 1);
constexpr int CLUSTER = CLUSTER_M * CLUSTER_K * CLUSTER_N;
constexpr bool MULTICAST = CLUSTER_M * CLUSTER_K > 1;

// Warp groups that share a tile, and their rows of it.
constexpr int SHARING = PING_PONG ? 1 : CONSUMERS;
constexpr int GROUP_ROWS = SM / SHARING;

// Sums of a thread, its registers, and those of a producer's thread: with several consumers it gives
// some of its own to them.
constexpr int ACCUMULATORS = GROUP_ROWS * SK / WARP_GROUP;
constexpr int CONSUMER_REGISTERS = 232;
constexpr int PRODUCER_REGISTERS = 40;

static_assert(CLUSTER <= 8, "hardware limit on the thread blocks of a cluster");
static_assert(PING_PONG == 0 || CONSUMERS == 2, "two warp groups take turns");
static_assert(SM % (64 * SHARING) == 0 && GROUP_ROWS <= 128,
              "a warp group multiplies 64 or 128 rows of a tile");
static_assert(ACCUMULATORS + 32 <= CONSUMER_REGISTERS,
              "sums and addresses fit the registers of a warp group that multiplies");
static_assert(CONSUMERS < 3 || SK <= 192,
              "the sums of an instruction fit the registers that threads begin with");
static_assert(MIN_BLOCKS == 1 || CONSUMERS == 1,
              "registers of several warp groups that multiply fill a multiprocessor");
static_assert(CLUSTER_M * CLUSTER_K <= 2,
              "clusters of more blocks leave multiprocessors without one");
static_assert(CLUSTER_N == 1 || CLUSTER_M * CLUSTER_K == 1,
              "blocks share tiles of operands or a reduction");
static_assert(CLUSTER_N == 1 || SM * (SK + 8) * 4 <= STAGES * (SM + SK) * ROW_BYTES,
              "the sums of a tile fit where its operands were");
static_assert(SM % (64 * CLUSTER_K) == 0 && SK % (64 * CLUSTER_M) == 0,
              "blocks of a cluster copy equal shares of what they share, in slabs of 64");

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
    return finished(alpha * product, old);
  }

  // The same, where that of alpha * A B is `value`.
  __device__ __forceinline__ Result finished(T value, const Result& old) const {
    if (beta != T(0)) value = fma(beta, T(old), value);
    return Result(value);
  }

  __device__ __forceinline__ void store(int row, int column, T product) const {
    Result* element = at(row, column);
    *element = value(product, *element);
  }
};

// --- Copies by tensor maps, and barriers that know when they have arrived ---

// What hardware is told of a matrix in global memory; cuTensorMapEncodeTiled writes it.
struct alignas(64) TensorMap {
  unsigned long long words[16];
};

__device__ __forceinline__ unsigned shared_address(const void* place) {
  return static_cast<unsigned>(__cvta_generic_to_shared(place));
}

// A barrier in shared memory. Its phases are numbered from 0 on; one is over when all that are to
// arrive have arrived, and all bytes that were announced are there.
struct Barrier {
  unsigned long long state;

  __device__ __forceinline__ void init(unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 :
                 : "r"(shared_address(this)), "r"(arrivals)
                 : "memory");
  }

  // Arrives, and announces bytes of this phase.
  __device__ __forceinline__ void expect(unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :
                 : "r"(shared_address(this)), "r"(bytes)
                 : "memory");
  }

  // Arrives at this barrier of a block of the cluster.
  __device__ __forceinline__ void arrive_at(unsigned block) {
    asm volatile(
        "{\n"
        ".reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
        "}\n"
        :
        : "r"(shared_address(this)), "r"(block)
        : "memory");
  }

  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
                 :
                 : "r"(shared_address(this))
                 : "memory");
  }

  // Waits until the last phase of this parity is over; that before the first one is.
  __device__ __forceinline__ void wait(unsigned parity) const {
    unsigned over;
    do {
      asm volatile(
          "{\n"
          ".reg .pred over;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
          "selp.u32 %0, 1, 0, over;\n"
          "}\n"
          : "=r"(over)
          : "r"(shared_address(this)), "r"(parity)
          : "memory");
    } while (!over);
  }
};

// Makes barriers that were initialised known to hardware that copies, and to other blocks of a cluster.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
}

// Waits for all threads of the cluster.
__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" : : : "memory");
}

// Has the map of a matrix fetched, before its first use.
__device__ __forceinline__ void prefetch(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" : : "l"(&map) : "memory");
}

// Copies the box of a matrix that starts at a row and a column of it, as stored, to shared memory.
// The barrier counts its bytes; what lies beyond the matrix is zero.
__device__ __forceinline__ void copy_box(void* to, const TensorMap& map, int row, int column,
                                         Barrier& arrived) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, { %3, %4 }], [%2];"
      :
      : "r"(shared_address(to)), "l"(&map), "r"(shared_address(&arrived)), "r"(column), "r"(row)
      : "memory");
}

// The same to several blocks of the cluster, a bit for each: to the same place in all of them,
// whose barriers count the bytes.
__device__ __forceinline__ void copy_box(void* to, const TensorMap& map, int row, int column,
                                         Barrier& arrived, unsigned short blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, { %3, %4 }], [%2], %5;"
      :
      : "r"(shared_address(to)), "l"(&map), "r"(shared_address(&arrived)), "r"(column), "r"(row),
        "h"(blocks)
      : "memory");
}

// --- Copies out of shared memory ---

// Makes what this thread has stored in shared memory known to hardware that copies.
__device__ __forceinline__ void publish_box() {
  asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}

// Begins to copy a box from shared memory to a matrix, where it starts at a row and a column. What
// lies beyond the matrix is not stored.
__device__ __forceinline__ void store_box(const void* from, const TensorMap& map, int row,
                                          int column) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, { %2, %3 }], [%1];\n"
      "cp.async.bulk.commit_group;"
      :
      : "l"(&map), "r"(shared_address(from)), "r"(column), "r"(row)
      : "memory");
}

// Waits until all that this thread has begun to copy has been read from shared memory.
__device__ __forceinline__ void await_reads() {
  asm volatile("cp.async.bulk.wait_group.read 0;" : : : "memory");
}

// Waits until all that this thread has begun to copy is there.
__device__ __forceinline__ void await_stores() {
  asm volatile("cp.async.bulk.wait_group 0;" : : : "memory");
}

// --- Products of tiles in shared memory ---

// Rows of C and reduction steps of an instruction; its columns are SK.
constexpr int STEP_M = 64;
constexpr int STEP_N = 16;

// Bytes of 8 rows, after which the swizzle repeats.
constexpr int PATTERN_BYTES = 8 * ROW_BYTES;

// Whether the rows of a matrix as stored lie along the outputs, not along the reduction ("MN-major").
constexpr bool A_ALONG_OUTPUTS = false;
constexpr bool B_ALONG_OUTPUTS = true;

// From the operand of an instruction to that of the next reduction steps, in bytes: where rows lie
// along the reduction, further on in the row, else as many rows further down.
constexpr int A_STEP_BYTES = A_ALONG_OUTPUTS ? STEP_N * ROW_BYTES : STEP_N * ROW_BYTES / SN;
constexpr int B_STEP_BYTES = B_ALONG_OUTPUTS ? STEP_N * ROW_BYTES : STEP_N * ROW_BYTES / SN;

// The matrix descriptor of an operand in shared memory: bits 0 to 13, where it is; 16 to 29,
// from 64 outputs to the next 64 where rows lie along the outputs; 32 to 45, from a pattern of 8
// rows to the next; all in units of 16 bytes. Bits 62 and 63: the swizzle is that of 128 bytes.
__device__ __forceinline__ unsigned long long matrix_descriptor(const void* place) {
  constexpr unsigned long long SLAB = SN * ROW_BYTES / 16;
  constexpr unsigned long long PATTERN = PATTERN_BYTES / 16;
  constexpr unsigned long long SWIZZLE_128 = 1;
  return (shared_address(place) & 0x3FFFF) >> 4 | SLAB << 16 | PATTERN << 32 | SWIZZLE_128 << 62;
}

// sums += A B of STEP_N reduction steps; it is only begun. Called by all threads of a warp group.
__device__ __forceinline__ void multiply_async(float (&sums)[SK / 2], unsigned long long a,
                                               unsigned long long b) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.eq.u32 add, 1, 1;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, %64, %65, add, 1, 1, 0, 1;\n"
      "}\n"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]),
        "+f"(sums[4]), "+f"(sums[5]), "+f"(sums[6]), "+f"(sums[7]),
        "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]), "+f"(sums[11]),
        "+f"(sums[12]), "+f"(sums[13]), "+f"(sums[14]), "+f"(sums[15]),
        "+f"(sums[16]), "+f"(sums[17]), "+f"(sums[18]), "+f"(sums[19]),
        "+f"(sums[20]), "+f"(sums[21]), "+f"(sums[22]), "+f"(sums[23]),
        "+f"(sums[24]), "+f"(sums[25]), "+f"(sums[26]), "+f"(sums[27]),
        "+f"(sums[28]), "+f"(sums[29]), "+f"(sums[30]), "+f"(sums[31]),
        "+f"(sums[32]), "+f"(sums[33]), "+f"(sums[34]), "+f"(sums[35]),
        "+f"(sums[36]), "+f"(sums[37]), "+f"(sums[38]), "+f"(sums[39]),
        "+f"(sums[40]), "+f"(sums[41]), "+f"(sums[42]), "+f"(sums[43]),
        "+f"(sums[44]), "+f"(sums[45]), "+f"(sums[46]), "+f"(sums[47]),
        "+f"(sums[48]), "+f"(sums[49]), "+f"(sums[50]), "+f"(sums[51]),
        "+f"(sums[52]), "+f"(sums[53]), "+f"(sums[54]), "+f"(sums[55]),
        "+f"(sums[56]), "+f"(sums[57]), "+f"(sums[58]), "+f"(sums[59]),
        "+f"(sums[60]), "+f"(sums[61]), "+f"(sums[62]), "+f"(sums[63])
      : "l"(a), "l"(b));
}

// Between writing sums, or operands of instructions to come, and these.
__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
}

// Ends the group of products that were begun since the last one.
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
}

// Waits until at most GROUPS of the latest groups are still under way.
template <int GROUPS>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(GROUPS) : "memory");
}

// Keeps the compiler from moving what reads or writes sums across this place.
template <int TILES>
__device__ __forceinline__ void pin(float (&sums)[TILES][SK / 2]) {
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
    for (int i = 0; i < SK / 2; ++i) asm volatile("" : "+f"(sums[tile][i]) : : "memory");
  }
}

// Gives registers back, or waits for some; called by whole warp groups.
template <int REGISTERS>
__device__ __forceinline__ void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(REGISTERS));
}

template <int REGISTERS>
__device__ __forceinline__ void acquire_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(REGISTERS));
}

// Says that the block's barriers are initialised, and does not wait for those who are to know it.
__device__ __forceinline__ void announce_barriers() {
  asm volatile("bar.arrive 0, %0;" : : "n"(THREADS) : "memory");
}

__device__ __forceinline__ void await_barriers() {
  asm volatile("bar.sync 0, %0;" : : "n"(THREADS) : "memory");
}

// --- Turns of two consumers (PING_PONG), by named barriers ---

__device__ __forceinline__ void await_turn(int consumer) {
  asm volatile("bar.sync %0, %1;" : : "r"(consumer + 1), "n"(2 * WARP_GROUP) : "memory");
}

__device__ __forceinline__ void pass_turn(int consumer) {
  asm volatile("bar.arrive %0, %1;" : : "r"(consumer + 1), "n"(2 * WARP_GROUP) : "memory");
}

// --- Tiles of C ---

// What is multiplied at a time: reduction tiles [begin, begin + steps) of the tile of C that starts
// at (row, column); the part of the reduction, of those in the workspace, that they belong to.
struct Work {
  int row, column;
  int begin, steps;
  int part;
};

// The order of tiles: clusters take them in turns. They are numbered down `group` of them before
// the next column, so that those computed at the same time read the same rows of A and columns of
// B from the level-2 cache; then the next part of the reduction comes.
struct Order {
  unsigned rows, columns;  // of a cluster's tiles
  unsigned steps, splits, group;

  __device__ __forceinline__ Order(int m, int n, int k, int splits, int group)
      : rows((m + SM * CLUSTER_M - 1) / (SM * CLUSTER_M)),
        columns((k + SK * CLUSTER_K - 1) / (SK * CLUSTER_K)),
        steps((n + SN - 1) / SN),
        splits(splits),
        group(group) {}

  __device__ __forceinline__ unsigned count() const { return rows * columns * splits; }

  // Of the block that is number `member` of its cluster.
  __device__ __forceinline__ Work at(unsigned number, unsigned member) const {
    // A block's first copies wait for this: nothing is divided by 1.
    const unsigned split = splits > 1 ? number / (rows * columns) : 0;
    const unsigned tile = number - split * (rows * columns);
    const unsigned band = tile / (group * columns);
    const unsigned within = tile - band * (group * columns);
    const unsigned height = min(group, rows - band * group);
    const unsigned column = within / height;
    const unsigned row = band * group + within - column * height;
    // The first parts may have a reduction tile more.
    const unsigned parts = splits * CLUSTER_N;
    const unsigned part = CLUSTER_N > 1 ? split * CLUSTER_N + member : split;
    const unsigned least = CLUSTER_N > 1 || splits > 1 ? steps / parts : steps;
    const unsigned more = steps - least * parts;
    const unsigned m_member = MULTICAST ? member % CLUSTER_M : 0;
    const unsigned k_member = MULTICAST ? member / CLUSTER_M : 0;
    return {static_cast<int>((row * CLUSTER_M + m_member) * SM),
            static_cast<int>((column * CLUSTER_K + k_member) * SK),
            static_cast<int>(least * part + min(part, more)),
            static_cast<int>(least + (part < more)), static_cast<int>(split)};
  }
};

// --- Buffers ---

// A box of C, as hardware copies it: 64 rows of ROW_BYTES, permuted as tiles are. Of 8 rows, from
// 1024 bytes to the next, each has its chunks of 16 bytes in another order: those below each other
// are in different banks.
constexpr int BOX_COLUMNS = ROW_BYTES / sizeof(Result);
constexpr int CHUNK = 16 / sizeof(Result);

struct Box {
  Result element[STEP_M * BOX_COLUMNS];

  __device__ __forceinline__ Result* at(int row, int column) {
    return element + row * BOX_COLUMNS + (column / CHUNK ^ row % 8) * CHUNK + column % CHUNK;
  }
};

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

// The tiles as they arrive; for each stage, whether it has arrived and whether it is free again.
struct Shared {
  Operand a[STAGES][SM * SN];
  Operand b[STAGES][SK * SN];
  Box boxes[CONSUMERS][2];  // of C, of each warp group that multiplies
  Lines lines[WARP_GROUP / 32 * CONSUMERS];  // of C, of each warp that multiplies
  Barrier arrived[STAGES];
  Barrier freed[STAGES];
};
static_assert(sizeof(Shared) == 181312, "shared memory as predicted");
extern __shared__ __align__(1024) unsigned char shared_memory[];

// A place in the ring of stages, and the parity of its round.
struct Ring {
  unsigned stage, parity;

  __device__ __forceinline__ void advance() {
    if (++stage == STAGES) {
      stage = 0;
      parity ^= 1;
    }
  }

  __device__ __forceinline__ void advance(unsigned steps) {
    stage += steps;
    parity ^= stage / STAGES & 1;
    stage %= STAGES;
  }
};

// Copies EXTENT rows or columns of C's worth of a tile, from `output` on, at reduction step n: one box
// where the rows of the matrix lie along the outputs' next dimension, else slabs of 64 outputs.
// SHARED: to all `blocks` of the cluster, a bit for each.
template <bool SLABS, int EXTENT, bool SHARED>
__device__ __forceinline__ void copy_tile(Operand* to, const TensorMap& map, int output, int n,
                                          Barrier& arrived, unsigned short blocks) {
  constexpr int BOX = SLABS ? 64 : EXTENT;
#pragma unroll
  for (int first = 0; first < EXTENT; first += BOX) {
    const int row = SLABS ? n : output;
    const int column = SLABS ? output + first : n;
    if constexpr (SHARED) {
      copy_box(to + first * SN, map, row, column, arrived, blocks);
    } else {
      copy_box(to + first * SN, map, row, column, arrived);
    }
  }
}

// The producer: has the tiles copied of which a block's products are, as their stages become free.
// A block copies its share of a tile, to all who need it: the blocks with the same rows of A, or
// with the same columns of B. Called by one thread.
__device__ __forceinline__ void copy_tiles(Shared& shared, const TensorMap& a_map,
                                           const TensorMap& b_map, const Order& order,
                                           unsigned cluster, unsigned clusters,
                                           unsigned member) {
  constexpr int TILE_BYTES = (SM + SK) * ROW_BYTES;
  constexpr int A_SHARE = SM / CLUSTER_K;
  constexpr int B_SHARE = SK / CLUSTER_M;
  const int a_first = CLUSTER_K > 1 ? member / CLUSTER_M * A_SHARE : 0;
  const int b_first = CLUSTER_M > 1 ? member % CLUSTER_M * B_SHARE : 0;
  const unsigned short a_blocks = CLUSTER_M == 1 ? 0b11 : 0b101 << member % CLUSTER_M;
  const unsigned short b_blocks = CLUSTER_K == 1 ? 0b11 : 0b11 << member / CLUSTER_M * CLUSTER_M;
  Ring ring = {0, 0};
  for (unsigned number = cluster; number < order.count(); number += clusters) {
    const Work work = order.at(number, member);
    for (int step = 0; step < work.steps; ++step) {
      const int n = (work.begin + step) * SN;
      Barrier& arrived = shared.arrived[ring.stage];
      shared.freed[ring.stage].wait(ring.parity ^ 1);
      arrived.expect(TILE_BYTES);
      copy_tile<A_ALONG_OUTPUTS, A_SHARE, (CLUSTER_K > 1)>(
          shared.a[ring.stage] + a_first * SN, a_map, work.row + a_first, n, arrived, a_blocks);
      copy_tile<B_ALONG_OUTPUTS, B_SHARE, (CLUSTER_M > 1)>(
          shared.b[ring.stage] + b_first * SN, b_map, work.column + b_first, n, arrived, b_blocks);
      ring.advance();
    }
  }
}

// Says that a consumer needs what is in a stage no more, to all blocks that copy to it.
__device__ __forceinline__ void free_stage(Shared& shared, unsigned stage) {
  const unsigned thread = threadIdx.x % WARP_GROUP;
  if constexpr (MULTICAST) {
    if (thread < CLUSTER) shared.freed[stage].arrive_at(thread);
  } else {
    if (thread == 0) shared.freed[stage].arrive();
  }
}

// Instructions that cover a warp group's rows of C.
constexpr int GROUP_TILES = GROUP_ROWS / STEP_M;

// sums = the products of a warp group's rows of A with the columns of B, over `steps` reduction
// tiles. Products of a tile are under way while those of the next one are begun.
__device__ __forceinline__ void multiply_tiles(float (&sums)[GROUP_TILES][SK / 2], Shared& shared,
                                               Ring& ring, int first_row, int steps) {
#pragma unroll
  for (int tile = 0; tile < GROUP_TILES; ++tile) {
#pragma unroll
    for (int i = 0; i < SK / 2; ++i) sums[tile][i] = 0;
  }
  pin(sums);
  unsigned before = 0;
  for (int step = 0; step < steps; ++step) {
    shared.arrived[ring.stage].wait(ring.parity);
    const unsigned long long b = matrix_descriptor(shared.b[ring.stage]);
    begin_products();
#pragma unroll
    for (int tile = 0; tile < GROUP_TILES; ++tile) {
      const unsigned long long a =
          matrix_descriptor(shared.a[ring.stage] + (first_row + tile * STEP_M) * SN);
#pragma unroll
      for (int part = 0; part < SN / STEP_N; ++part) {
        multiply_async(sums[tile], a + part * (A_STEP_BYTES / 16), b + part * (B_STEP_BYTES / 16));
      }
    }
    commit_products();
    wait_for_products<1>();
    if (step > 0) free_stage(shared, before);
    before = ring.stage;
    ring.advance();
  }
  wait_for_products<0>();
  pin(sums);
  if (steps > 0) free_stage(shared, before);
}

// --- Storing ---

// Calls `store(row, column, first, second)` for every two neighbours in a row of C among a thread's
// sums, where they are within m rows and k columns: of 64 rows a warp has 16, and a thread two of
// them, 8 apart (PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16": matrix D).
template <typename Store>
__device__ __forceinline__ void for_pairs(const float (&sums)[GROUP_TILES][SK / 2], int first_row,
                                          int first_column, int m, int k, Store store) {
  const int warp = threadIdx.x % WARP_GROUP / 32;
  const int lane = threadIdx.x % 32;
  const int own_row = first_row + warp * 16 + lane / 4;
  const int own_column = first_column + lane % 4 * 2;
#pragma unroll
  for (int tile = 0; tile < GROUP_TILES; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = own_row + tile * STEP_M + half * 8;
      if (row >= m) continue;
#pragma unroll
      for (int j = 0; j < SK / 8; ++j) {
        const int column = own_column + j * 8;
        if (column < k) {
          store(row, column, sums[tile][4 * j + 2 * half], sums[tile][4 * j + 2 * half + 1]);
        }
      }
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

// Stores a warp's sums of a tile, where the rows of C begin anywhere.
__device__ __forceinline__ void store_anywhere(const float (&sums)[GROUP_TILES][SK / 2],
                                               Lines& lines, const Output& output, int first_row,
                                               int first_column, int m, int k) {
  const int warp = threadIdx.x % WARP_GROUP / 32;
#pragma unroll
  for (int tile = 0; tile < GROUP_TILES; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + tile * STEP_M + warp * 16 + half * 8;
      store_lines<SK / 8>(lines, output, row, first_column, m, k,
                          [&](int j, int v) { return sums[tile][4 * j + 2 * half + v]; });
    }
  }
}

// Stores a thread's sums of a tile that is within the columns of C, whose rows are aligned for 4.
// Two neighbours in a row of C are 4 bytes: a thread exchanges such pairs with the one beside it,
// after which an even one has 4 of the first 8 columns, and an odd one 4 of the next 8.
__device__ __forceinline__ void store_fours(const float (&sums)[GROUP_TILES][SK / 2],
                                            const Output& output, int first_row, int first_column,
                                            int m) {
  const int warp = threadIdx.x % WARP_GROUP / 32;
  const int lane = threadIdx.x % 32;
  const int odd = lane % 2;
  const int own_column = first_column + lane % 4 * 2;
  const int four_column = first_column + odd * 8 + lane % 4 / 2 * 4;
#pragma unroll
  for (int tile = 0; tile < GROUP_TILES; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + tile * STEP_M + warp * 16 + lane / 4 + half * 8;
      const int inner_row = min(row, m - 1);  // all take part, those beyond C with its last row
#pragma unroll
      for (int j = 0; j < SK / 8; j += 2) {
        Vector<2, Result> pairs[2] = {};
#pragma unroll
        for (int eight = 0; eight < 2; ++eight) {
          const int column = own_column + (j + eight) * 8;
          Vector<2, Result>& pair = pairs[eight];
          if (output.beta != T(0)) {
            pair = *reinterpret_cast<const Vector<2, Result>*>(output.at(inner_row, column));
          }
#pragma unroll
          for (int v = 0; v < 2; ++v) {
            pair.element[v] = output.value(sums[tile][4 * (j + eight) + 2 * half + v],
                                           pair.element[v]);
          }
        }
        const Vector<2, Result> kept = odd ? pairs[1] : pairs[0];
        const Vector<2, Result> given = odd ? pairs[0] : pairs[1];
        const unsigned bits =
            __shfl_xor_sync(0xffffffffu, reinterpret_cast<const unsigned&>(given), 1);
        const Vector<2, Result> taken = reinterpret_cast<const Vector<2, Result>&>(bits);
        const Vector<2, Result> first = odd ? taken : kept;
        const Vector<2, Result> second = odd ? kept : taken;
        if (row < m) {
          *reinterpret_cast<Vector<4, Result>*>(output.at(row, four_column + j * 8)) = {
              first.element[0], first.element[1], second.element[0], second.element[1]};
        }
      }
    }
  }
}

using Pair = Vector<2, Result>;

// What C becomes at (row, column) and beside it, where A B has `first` and `second`; zero beyond C.
__device__ __forceinline__ Pair pair_at(const Output& output, int row, int column, int m, int k,
                                        float first, float second) {
  Pair pair = {};
  if (row < m && column + 1 < k) {
    if (output.beta != T(0)) pair = *reinterpret_cast<const Pair*>(output.at(row, column));
    pair.element[0] = output.value(first, pair.element[0]);
    pair.element[1] = output.value(second, pair.element[1]);
  } else if (row < m && column < k) {
    pair.element[0] = output.value(first, *output.at(row, column));
  }
  return pair;
}

// Stores four blocks of 8 rows and 8 columns, each thread of a warp the two neighbours of each that
// it has of products. Eight threads say where the rows of the first block are, eight where those of
// the second are, and so on.
__device__ __forceinline__ void store_blocks(Result* row, const Pair (&blocks)[4]) {
  const unsigned* bits = reinterpret_cast<const unsigned*>(blocks);
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], { %1, %2, %3, %4 };"
               :
               : "r"(shared_address(row)), "r"(bits[0]), "r"(bits[1]), "r"(bits[2]), "r"(bits[3])
               : "memory");
}

// Puts together the box of C that starts at (row, column), of a thread's sums from `first` on: of a
// warp's 16 rows two blocks down and two across at a time.
__device__ __forceinline__ void fill_box(Box& box, const float (&sums)[SK / 2], int first,
                                         const Output& output, int row, int column, int m, int k) {
  const int lane = threadIdx.x % 32;
  const int warp_row = threadIdx.x % WARP_GROUP / 32 * 16;
#pragma unroll
  for (int eight = 0; eight < BOX_COLUMNS / 8; eight += 2) {
    Pair blocks[4];
#pragma unroll
    for (int across = 0; across < 2; ++across) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int sum = first + 4 * (eight + across) + 2 * half;
        const int box_row = warp_row + half * 8 + lane / 4;
        const int box_column = (eight + across) * 8 + lane % 4 * 2;
        blocks[2 * across + half] = pair_at(output, row + box_row, column + box_column, m, k,
                                            sums[sum], sums[sum + 1]);
      }
    }
    store_blocks(box.at(warp_row + lane % 16, (eight + lane / 16) * 8), blocks);
  }
}

// Waits for all threads of a warp group, at a named barrier of its own.
__device__ __forceinline__ void sync_group(int consumer) {
  asm volatile("bar.sync %0, %1;"
               :
               : "r"(consumer + (PING_PONG ? 3 : 1)), "n"(WARP_GROUP)
               : "memory");
}

// Stores a warp group's sums of a tile. It has places for two boxes, of which number `next` is
// free: while hardware copies a box to C, the next one is put together. One thread begins all
// copies, since only who has begun some can wait for them.
__device__ __forceinline__ void store_boxes(const float (&sums)[GROUP_TILES][SK / 2],
                                            Box (&boxes)[2], int& next, const TensorMap& c_map,
                                            const Output& output, int consumer, int first_row,
                                            int first_column, int m, int k) {
#pragma unroll
  for (int tile = 0; tile < GROUP_TILES; ++tile) {
#pragma unroll
    for (int across = 0; across < SK; across += BOX_COLUMNS) {
      const int row = first_row + tile * STEP_M;
      const int column = first_column + across;
      Box& box = boxes[next];
      fill_box(box, sums[tile], across / 2, output, row, column, m, k);
      publish_box();
      await_reads();  // of the box before: when all have met, its place is free
      sync_group(consumer);
      if (threadIdx.x % WARP_GROUP == 0) store_box(&box, c_map, row, column);
      next ^= 1;
    }
  }
}

// Parts of the reduction lie one after the other in the workspace, in rows of whole vectors of 4.
__device__ __forceinline__ int part_stride(int k) { return (k + 3) / 4 * 4; }

// --- The kernels ---

// C = alpha * A B + beta * C, or parts of A B: blocks of THREADS threads, as many as the device
// holds or fewer.
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, MIN_BLOCKS) gemm(
    int m, int n, int k, float alpha, const __nv_bfloat16* __restrict__ a, int lda,
    const __nv_bfloat16* __restrict__ b, int ldb, float beta, __nv_bfloat16* __restrict__ c,
    int ldc, __nv_bfloat16* __restrict__ workspace, int group, int splits,
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
    const __grid_constant__ TensorMap c_map) {
  Shared& shared = *reinterpret_cast<Shared*>(shared_memory);
  const Order order(m, n, k, splits, group);
  const unsigned member = blockIdx.x % CLUSTER;
  const unsigned cluster = blockIdx.x / CLUSTER;
  const unsigned clusters = gridDim.x / CLUSTER;
  // Whether there is a tensor map of C: its rows begin and end at whole 16 bytes. Of a chunk that
  // C ends in, hardware would write all.
  const bool mapped = rows_aligned<CHUNK>(c, ldc) && k % CHUNK == 0;
  if (threadIdx.x == 0) {
    prefetch(a_map);
    prefetch(b_map);
    if (mapped) prefetch(c_map);
    for (int stage = 0; stage < STAGES; ++stage) {
      shared.arrived[stage].init(1);
      shared.freed[stage].init(SHARING * (MULTICAST ? CLUSTER : 1));
    }
    publish_barriers();
  }
  if constexpr (MULTICAST) sync_cluster();

  // The same number for all threads of a warp, as the compiler is to know.
  const int warp_group = __shfl_sync(0xffffffffu, threadIdx.x / WARP_GROUP, 0);
  if (warp_group == 0) {
    if constexpr (!MULTICAST) announce_barriers();
    if constexpr (CONSUMERS > 1) release_registers<PRODUCER_REGISTERS>();
    if (threadIdx.x == 0) copy_tiles(shared, a_map, b_map, order, cluster, clusters, member);
    __syncwarp();
    if constexpr (CLUSTER_N > 1) sync_cluster();  // as consumers do
  } else {
    if constexpr (!MULTICAST) await_barriers();
    if constexpr (CONSUMERS > 1) acquire_registers<CONSUMER_REGISTERS>();
    const int consumer = warp_group - 1;
    const int first_row = SHARING == 1 ? 0 : consumer * GROUP_ROWS;
    const Output output = {alpha, beta, c, ldc};
    const bool fours = rows_aligned<4>(c, ldc);
    Ring ring = {0, 0};
    int next_box = 0;
    if (PING_PONG && consumer == 1) pass_turn(0);  // the second one lets the first begin
    int turn = 0;
    for (unsigned number = cluster; number < order.count(); number += clusters, turn ^= 1) {
      const Work work = order.at(number, member);
      if (PING_PONG && turn != consumer) {
        ring.advance(work.steps);
        continue;
      }
      float sums[GROUP_TILES][SK / 2];
      if constexpr (PING_PONG) await_turn(consumer);
      multiply_tiles(sums, shared, ring, first_row, work.steps);
      if constexpr (PING_PONG) pass_turn(1 - consumer);
      if (splits > 1) {
        const int ld = part_stride(k);
        T* part = reinterpret_cast<T*>(workspace) + work.part * (static_cast<long long>(m) * ld);
        for_pairs(sums, work.row + first_row, work.column, m, k,
                  [=](int row, int column, T first, T second) {
                    T* to = part + static_cast<long long>(row) * ld + column;
                    *reinterpret_cast<Vector<2>*>(to) = {first, second};
                  });
      } else if (mapped) {
        store_boxes(sums, shared.boxes[consumer], next_box, c_map, output, consumer,
                    work.row + first_row, work.column, m, k);
      } else if (fours && work.column + SK <= k) {
        store_fours(sums, output, work.row + first_row, work.column, m);
      } else {
        store_anywhere(sums, shared.lines[threadIdx.x / 32 - WARP_GROUP / 32], output,
                       work.row + first_row, work.column, m, k);
      }
    }
    await_stores();  // before its shared memory is another block's
  }
  if constexpr (CLUSTER > 1) sync_cluster();  // what is still sent to a block finds it there
}

// C = alpha * (sum of the parts) + beta * C: a thread for every four neighbours in a row of C.
constexpr int SUM_THREADS = 128;

extern "C" __global__ void __launch_bounds__(SUM_THREADS) sum_splits(
    int m, int n, int k, float alpha, const __nv_bfloat16* __restrict__ a, int lda,
    const __nv_bfloat16* __restrict__ b, int ldb, float beta, __nv_bfloat16* __restrict__ c,
    int ldc, __nv_bfloat16* __restrict__ workspace, int group, int splits,
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
    const __grid_constant__ TensorMap c_map) {
  const unsigned across = part_stride(k) / 4;
  const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
  const int row = index / across;
  const int column = index % across * 4;
  if (row >= m) return;
  const Vector<4>* parts = reinterpret_cast<const Vector<4>*>(workspace);
  Vector<4> sum = {};
#pragma unroll 4
  for (int part = 0; part < splits; ++part) {
    const Vector<4> value = parts[part * (static_cast<long long>(m) * across) + index];
#pragma unroll
    for (int v = 0; v < 4; ++v) sum.element[v] += value.element[v];
  }
  const Output output = {alpha, beta, c, ldc};
  const bool aligned = rows_aligned<2>(c, ldc);
#pragma unroll
  for (int v = 0; v < 4; v += 2) {
    if (column + v < k) {
      store_pair(output, aligned, row, column + v, k, sum.element[v], sum.element[v + 1]);
    }
  }
}
