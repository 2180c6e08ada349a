/*
 * gemm for cuda: family wgmma, bfloat16, layout nn.
 *
 * template: gemm/cuda/wgmma.cu.j2, digest 1dd62649fe8025c7
 * configuration: {"cluster_k": 1, "cluster_m": 1, "cluster_n": 4, "consumers": 1, "min_blocks": 1,
 *     "ping_pong": 0, "sk": 64, "sm": 64, "stages": 4, "store": "direct"}
 * launch: grid (blocks, 1, 1), block (256, 1, 1), clusters of (4, 1, 1), 65600 bytes of dynamic
 *     shared memory
 *   workspace: part_bytes bytes
 *   a_map: boxes of 64 rows and 64 columns of A as stored, swizzled in 128 bytes
 *   b_map: boxes of 64 rows and 64 columns of B as stored, swizzled in 128 bytes
 *   after it, where splits > 1: sum_splits, grid (ceildiv(M * (part_columns // 4), 128), 1, 1),
 *       block (128, 1, 1)
 *   tiles = ceildiv(M, 64) * ceildiv(K, 64)
 *   waiting = tiles * splits * 4
 *   blocks = waiting
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
constexpr int SM = 64;
constexpr int SK = 64;

// Warp groups of a block that multiply; one more, the producer, has tiles copied.
constexpr int CONSUMERS = 1;

// Whether two consumers take tiles in turns, so that one stores its sums while the other multiplies.
constexpr int PING_PONG = 0;

// Tiles of A and B that are in shared memory or on their way.
constexpr int STAGES = 4;

// Blocks of a cluster along the rows and the columns of C: the first share tiles of B, the others
// tiles of A.
constexpr int CLUSTER_M = 1;
constexpr int CLUSTER_K = 1;

// Blocks of a cluster along the reduction: each multiplies a part of it, and adds up the sums of all
// in its share of the rows of C.
constexpr int CLUSTER_N = 4;

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
constexpr int CONSUMER_REGISTERS = 255;
constexpr int PRODUCER_REGISTERS = 0;

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
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
      "}, %32, %33, add, 1, 1, 0, 1;\n"
      "}\n"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]),
        "+f"(sums[4]), "+f"(sums[5]), "+f"(sums[6]), "+f"(sums[7]),
        "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]), "+f"(sums[11]),
        "+f"(sums[12]), "+f"(sums[13]), "+f"(sums[14]), "+f"(sums[15]),
        "+f"(sums[16]), "+f"(sums[17]), "+f"(sums[18]), "+f"(sums[19]),
        "+f"(sums[20]), "+f"(sums[21]), "+f"(sums[22]), "+f"(sums[23]),
        "+f"(sums[24]), "+f"(sums[25]), "+f"(sums[26]), "+f"(sums[27]),
        "+f"(sums[28]), "+f"(sums[29]), "+f"(sums[30]), "+f"(sums[31])
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

// The tiles as they arrive; for each stage, whether it has arrived and whether it is free again.
struct Shared {
  Operand a[STAGES][SM * SN];
  Operand b[STAGES][SK * SN];
  Barrier arrived[STAGES];
  Barrier freed[STAGES];
};
static_assert(sizeof(Shared) == 65600, "shared memory as predicted");

// A block's sums of a tile, where its tiles of A and B were. Rows begin 8 banks apart: what a warp
// stores at a time, 2 elements of each of 4 threads in each of 8 rows, is in every bank as often.
struct Sums {
  float element[SM][SK + 8];
};
static_assert(sizeof(Sums) <= STAGES * (SM + SK) * ROW_BYTES, "sums fit where tiles were");

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

// --- Sums of a cluster ---

constexpr int MULTIPLIERS = CONSUMERS * WARP_GROUP;  // threads

// Waits for all threads of the block that multiply.
__device__ __forceinline__ void await_multipliers() {
  asm volatile("bar.sync 1, %0;" : : "n"(MULTIPLIERS) : "memory");
}

// Where another block of the cluster has what this one has at `here` in its shared memory.
template <typename Value>
__device__ __forceinline__ const Value* in_block(const Value* here, unsigned block) {
  const Value* there;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(here), "r"(block));
  return there;
}

// Stores a thread's sums of a tile in shared memory.
__device__ __forceinline__ void keep_sums(const float (&sums)[GROUP_TILES][SK / 2], Sums& all,
                                          int first_row) {
  for_pairs(sums, first_row, 0, SM, SK, [&](int row, int column, T first, T second) {
    *reinterpret_cast<Vector<2>*>(&all.element[row][column]) = {first, second};
  });
}

// Adds up what the blocks of a cluster have of a tile, in their order, and calls
// `store(row, column, sum)` for every four neighbours in a row, where they begin within `rows` rows
// and `columns` columns. A block has every CLUSTER_N-th row.
template <typename Store>
__device__ __forceinline__ void add_up(const Sums& sums, unsigned member, int rows, int columns,
                                       Store store) {
  constexpr int ACROSS = SK / 4;
#pragma unroll 4
  for (int index = threadIdx.x - WARP_GROUP; index < SM / CLUSTER_N * ACROSS;
       index += MULTIPLIERS) {
    const int row = index / ACROSS * CLUSTER_N + member;
    const int column = index % ACROSS * 4;
    if (row >= rows || column >= columns) continue;
    Vector<4> sum = {};
#pragma unroll
    for (int block = 0; block < CLUSTER_N; ++block) {
      const Vector<4> value =
          *in_block(reinterpret_cast<const Vector<4>*>(&sums.element[row][column]), block);
#pragma unroll
      for (int v = 0; v < 4; ++v) sum.element[v] += value.element[v];
    }
    store(row, column, sum);
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
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map) {
  Shared& shared = *reinterpret_cast<Shared*>(shared_memory);
  const Order order(m, n, k, splits, group);
  const unsigned member = blockIdx.x % CLUSTER;
  const unsigned cluster = blockIdx.x / CLUSTER;
  const unsigned clusters = gridDim.x / CLUSTER;
  if (threadIdx.x == 0) {
    prefetch(a_map);
    prefetch(b_map);
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
    const bool aligned = rows_aligned<2>(c, ldc);
    Ring ring = {0, 0};
    // A cluster has one tile, and its tiles of A and B are needed no more when all have multiplied.
    const Work work = order.at(cluster, member);
    float sums[GROUP_TILES][SK / 2];
    multiply_tiles(sums, shared, ring, first_row, work.steps);
    Sums& all = *reinterpret_cast<Sums*>(shared_memory);
    await_multipliers();
    keep_sums(sums, all, first_row);
    sync_cluster();
    add_up(all, member, m - work.row, k - work.column, [&](int row, int column, Vector<4> sum) {
      row += work.row;
      column += work.column;
      if (splits > 1) {
        const int ld = part_stride(k);
        T* part = reinterpret_cast<T*>(workspace) + work.part * (static_cast<long long>(m) * ld);
        *reinterpret_cast<Vector<4>*>(part + static_cast<long long>(row) * ld + column) = sum;
      } else {
#pragma unroll
        for (int v = 0; v < 4; v += 2) {
          if (column + v < k) {
            store_pair(output, aligned, row, column + v, k, sum.element[v], sum.element[v + 1]);
          }
        }
      }
    });
  }
  if constexpr (CLUSTER > 1) sync_cluster();  // what is still sent to a block finds it there
}

// C = alpha * (sum of the parts) + beta * C: a thread for every four neighbours in a row of C.
constexpr int SUM_THREADS = 128;

extern "C" __global__ void __launch_bounds__(SUM_THREADS) sum_splits(
    int m, int n, int k, float alpha, const __nv_bfloat16* __restrict__ a, int lda,
    const __nv_bfloat16* __restrict__ b, int ldb, float beta, __nv_bfloat16* __restrict__ c,
    int ldc, __nv_bfloat16* __restrict__ workspace, int group, int splits,
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map) {
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
