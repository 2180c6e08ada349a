// How emitted CUDA C++ runs on the host: what cuda_on_host.h, ptx_on_host.h and hopper_on_host.h declare.
// It is compiled once and becomes part of every program, each of which has state of its own.
//
// Every thread is a fiber. A fiber runs until it meets a barrier, exchanges a value with its warp,
// waits, or ends; then the next one runs.
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "cuda_on_host.h"

uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace host {

void fail(const char* what) {
  std::fprintf(stderr, "%s in block (%u, %u, %u), thread (%u, %u, %u)\n", what, blockIdx.x,
               blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
  std::fflush(stderr);
  std::_Exit(70);
}

struct Copy {
  char* to;
  const char* from;
  int bytes, given;  // behind those that are given come zeros
};

struct Fiber {
  ucontext_t start;
  jmp_buf place;  // where it goes on
  bool started;
  uint3 index;
  std::size_t number;                 // in its cluster
  std::size_t warp_begin, warp_end;   // numbers of its warp's first thread, and behind the last one
  unsigned exchanged;                 // of a warp's first thread: exchanges that all have come to
  uint3 block;
  unsigned rank;       // of its block
  bool finished, at_barrier;
  const char* waits_for;      // null where it can go on
  unsigned exchanges;         // with its warp, so far
  unsigned char offered[2][OFFERED_BYTES];  // in the latest exchange and the one before it
  std::vector<Copy> open;                    // copies since the last commit
  std::deque<std::vector<Copy>> committed;  // groups that nobody has waited for
  unsigned cluster_arrivals, products;      // so far
  bool fenced;                              // since products were waited for
  std::vector<std::size_t> begun;           // products, and stores in bulk, since the last commit
  std::deque<std::vector<std::size_t>> products_committed;
  std::vector<std::function<void()>> stores_begun;
  std::deque<std::vector<std::function<void()>>> stores_committed;
};

constexpr std::size_t STACK_BYTES = 128 << 10;
constexpr unsigned MOST_BLOCKS = 16;  // of a cluster
alignas(1024) unsigned char dynamic_shared[MOST_BLOCKS * SHARED_BYTES];
unsigned char* own_shared = dynamic_shared;
static jmp_buf scheduler;
static Fiber* running;
static std::vector<Fiber> fibers;
static std::size_t threads, all_threads;  // of a block, of a cluster
static unsigned cluster_blocks;
static unsigned long progress;  // of any kind
static bool backwards;  // the order of blocks, of which a kernel must not depend
static bool early;      // copies in bulk are carried out when they are begun, not when all wait for them
static void (*body)(void*);
static void* argument;

// Unlike swapcontext, these leave the mask of signals alone, which would cost a system call each time.
static void leave() {
  if (_setjmp(running->place) == 0) _longjmp(scheduler, 1);
}

static void resume() {
  if (_setjmp(scheduler) != 0) return;
  if (std::exchange(running->started, true)) _longjmp(running->place, 1);
  setcontext(&running->start);
}

// One thread of block after block.
static void enter() {
  for (;;) {
    body(argument);
    if (!running->begun.empty() || !running->products_committed.empty()) {
      fail("a thread that ends without waiting for its products");
    }
    if (!running->stores_begun.empty() || !running->stores_committed.empty()) {
      fail("a thread that ends without waiting for its stores");
    }
    running->finished = true;
    leave();
  }
}

static void perform(const std::vector<Copy>& copies) {
  for (const Copy& copy : copies) {
    std::memcpy(copy.to, copy.from, copy.given);
    std::memset(copy.to + copy.given, 0, copy.bytes - copy.given);
  }
}

// Ends a fiber's turn: it cannot go on now. Called again until it can.
static void block(const char* what) {
  running->waits_for = what;
  leave();
}

// Lets the running fiber wait until a condition holds.
template <typename Condition>
static void await(const char* what, Condition holds) {
  while (!holds()) block(what);
  ++progress;
}

// Runs a warp's threads until all of them wait, are at a barrier or have ended.
static void run_warp(std::size_t first, std::size_t last) {
  for (std::size_t t = first; t < last; ++t) fibers[t].waits_for = nullptr;
  bool going;
  do {
    going = false;
    for (std::size_t t = first; t < last; ++t) {
      running = &fibers[t];
      if (running->finished || running->at_barrier) continue;
      threadIdx = running->index;
      blockIdx = running->block;
      own_shared = dynamic_shared + running->rank * SHARED_BYTES;
      running->waits_for = nullptr;
      const unsigned long before = progress;
      resume();
      if (!running->waits_for) ++progress;
      going |= progress != before && !running->finished && !running->at_barrier;
    }
  } while (going);
}

// Opens a block's barrier when all its threads are there.
static void open_barrier(unsigned rank) {
  const auto first = fibers.begin() + rank * threads, last = first + threads;
  std::size_t ended = 0, there = 0;
  for (auto fiber = first; fiber < last; ++fiber) {
    ended += fiber->finished;
    there += fiber->at_barrier;
  }
  if (there == 0 || ended + there < threads) return;
  if (ended != 0) fail("a barrier that not all threads reach");
  for (auto fiber = first; fiber < last; ++fiber) fiber->at_barrier = false;
}

static bool copy_something();
static void start_cluster();
static void report_barriers();

// Runs all threads of a cluster to their end.
static void run_cluster() {
  for (;;) {
    const unsigned long before = progress;
    for (unsigned rank = 0; rank < cluster_blocks; ++rank) {
      for (std::size_t first = 0; first < threads; first += warpSize) {
        run_warp(rank * threads + first, rank * threads + std::min(first + warpSize, threads));
      }
      open_barrier(rank);
    }
    std::size_t finished = 0;
    for (std::size_t t = 0; t < all_threads; ++t) finished += fibers[t].finished;
    if (progress != before || (finished != all_threads && copy_something())) continue;
    if (finished == all_threads) return;
    report_barriers();
    for (std::size_t t = 0; t < all_threads; ++t) {
      const Fiber& fiber = fibers[t];
      if (!fiber.finished && (t % warpSize == 0 || fiber.waits_for != fibers[t - 1].waits_for)) {
        std::fprintf(stderr, "block %u, thread %zu and what follows wait for %s\n", fiber.rank,
                     t % threads, fiber.waits_for ? fiber.waits_for : "all threads of the block");
      }
    }
    fail("a deadlock: no thread can go on");
  }
}

void launch(const uint3& grid, const uint3& block, std::size_t shared_bytes,
                   unsigned cluster, void (*call)(void*), void* arguments) {
  threads = std::size_t(block.x) * block.y * block.z;
  cluster_blocks = cluster;
  all_threads = threads * cluster;
  if (cluster < 1 || cluster > MOST_BLOCKS || grid.x % cluster) fail("a grid of no whole clusters");
  static std::unique_ptr<char[]> stacks;
  if (fibers.size() < all_threads) {
    fibers = std::vector<Fiber>(all_threads);
    stacks.reset(new char[all_threads * STACK_BYTES]);
    for (std::size_t t = 0; t < all_threads; ++t) {
      ucontext_t& start = fibers[t].start;
      getcontext(&start);
      start.uc_stack.ss_sp = stacks.get() + t * STACK_BYTES;
      start.uc_stack.ss_size = STACK_BYTES;
      start.uc_link = nullptr;
      makecontext(&start, enter, 0);
      fibers[t].started = false;
      fibers[t].number = t;
    }
  }
  if (shared_bytes > SHARED_BYTES) fail("more shared memory than any GPU has");
  std::memset(dynamic_shared, 0xff, cluster * SHARED_BYTES);
  body = call;
  argument = arguments;
  gridDim = grid;
  blockDim = block;
  for (unsigned k = 0; k < grid.z; ++k) {
    for (unsigned j = 0; j < grid.y; ++j) {
      for (unsigned i = 0; i < grid.x; i += cluster) {
        uint3 first = {i, j, k};
        if (backwards) first = {grid.x - cluster - i, grid.y - 1 - j, grid.z - 1 - k};
        blockIdx = first;
        for (unsigned rank = 0; rank < cluster; ++rank) {
          std::memset(dynamic_shared + rank * SHARED_BYTES, 0xff, shared_bytes);
        }
        start_cluster();
        for (std::size_t t = 0; t < all_threads; ++t) {
          Fiber& fiber = fibers[t];
          const std::size_t own = t % threads;
          fiber.rank = t / threads;
          fiber.block = {first.x + fiber.rank, first.y, first.z};
          fiber.index = {unsigned(own % block.x), unsigned(own / block.x % block.y),
                         unsigned(own / block.x / block.y)};
          fiber.finished = fiber.at_barrier = fiber.fenced = false;
          fiber.warp_begin = t - own % warpSize;
          fiber.warp_end = std::min(fiber.warp_begin + warpSize, (fiber.rank + 1) * threads);
          fiber.exchanges = fiber.exchanged = fiber.cluster_arrivals = fiber.products = 0;
          fiber.open.clear();
          if (!fiber.committed.empty()) fiber.committed.clear();
        }
        run_cluster();
        for (unsigned rank = 0; rank < cluster; ++rank) {
          const unsigned char* own = dynamic_shared + rank * SHARED_BYTES;
          const auto untouched = [](unsigned char byte) { return byte == 0xff; };
          if (!std::all_of(own + shared_bytes, own + SHARED_BYTES, untouched)) {
            fail("a store behind the shared memory that was asked for");
          }
        }
      }
    }
  }
}

std::size_t number() { return running->number; }

// The number of the first thread of the running warp, and of the first one behind it.
static std::size_t warp_begin() { return running->warp_begin; }

static std::size_t warp_end() { return running->warp_end; }

unsigned offer(const void* value, std::size_t size) {
  const unsigned exchange = ++running->exchanges;
  std::memcpy(running->offered[exchange % 2], value, size);
  leave();  // until all have offered theirs, but those that cannot come
  unsigned& exchanged = fibers[warp_begin()].exchanged;
  while (exchanged < exchange &&
         std::any_of(fibers.begin() + warp_begin(), fibers.begin() + warp_end(),
                     [=](const Fiber& fiber) {
                       return fiber.exchanges < exchange && !fiber.finished && !fiber.at_barrier;
                     })) {
    block("an exchange of its warp");
  }
  exchanged = std::max(exchanged, exchange);
  return exchange;
}

const void* offered(std::size_t thread, unsigned exchange) {
  // A thread that is one exchange ahead has kept what it offered in this one.
  if (thread >= warp_end() || fibers[thread].exchanges - exchange > 1) {
    fail("an exchange that not all threads of a warp reach");
  }
  return fibers[thread].offered[exchange % 2];
}

}  // namespace host

extern "C" __attribute__((visibility("default"))) void order_blocks(bool backwards, bool early) {
  host::backwards = backwards;
  host::early = early;
}

void __syncthreads() {
  host::running->at_barrier = true;
  host::leave();
}

int __syncthreads_or(int yes) {
  static bool any;
  __syncthreads();
  any = false;
  __syncthreads();
  any |= yes != 0;
  __syncthreads();
  return any;
}

void __syncwarp() {
  const std::size_t first = host::warp_begin();
  const unsigned exchange = host::offer('\0');
  for (int lane = 0; lane < warpSize; ++lane) host::offered<char>(first + lane, exchange);
}

namespace ptx {

static char* shared(unsigned address) {
  return reinterpret_cast<char*>(host::dynamic_shared) + static_cast<int>(address);
}

static int lane() { return int(host::running->number - host::warp_begin()); }

// The number of the first thread of the running warp.
static std::size_t first_of_warp() { return host::warp_begin(); }

// --- Stores of several words ---

void st_global_v4_b32(void* to, const std::array<unsigned, 4>& words) {
  if (reinterpret_cast<std::uintptr_t>(to) % sizeof words != 0) host::fail("misaligned store");
  std::memcpy(to, words.data(), sizeof words);
}

// --- Asynchronous copies ---

static void copy(char* to, const void* from, int bytes, int given) {
  if (bytes != 4 && bytes != 8 && bytes != 16) host::fail("a size that cp.async has not");
  if (given < 0 || given > bytes) host::fail("more bytes than are copied");
  if (reinterpret_cast<std::uintptr_t>(to) % bytes != 0) host::fail("misaligned copy to shared");
  if (given && reinterpret_cast<std::uintptr_t>(from) % bytes != 0) host::fail("misaligned copy");
  host::running->open.push_back({to, static_cast<const char*>(from), bytes, given});
}

void cp_async_cg_shared_global(unsigned to, const void* from, int bytes, int given) {
  if (bytes != 16) host::fail("a copy past the L1 cache that has not 16 bytes");
  copy(shared(to), from, bytes, given);
}

void cp_async_ca_shared_global(unsigned to, const void* from, int bytes, int given) {
  copy(shared(to), from, bytes, given);
}

void cp_async_commit_group() {
  host::running->committed.push_back(std::move(host::running->open));
  host::running->open.clear();
}

void cp_async_wait_group(unsigned groups) {
  while (host::running->committed.size() > groups) {
    host::perform(host::running->committed.front());
    host::running->committed.pop_front();
  }
}

// --- Matrices out of shared memory ---

// Lane l has the address of row l % 8 of matrix l / 8, and gets of row l / 4 of each matrix the elements
// 2 (l % 4) and the next; of its transpose, if it is turned.
static void load_matrices(const std::array<unsigned*, 4>& registers, unsigned address, bool turned) {
  if (address % 16 != 0) host::fail("a row of ldmatrix that is not aligned");
  const unsigned exchange = host::offer(address);
  for (int row = 0; row < 8; ++row) {  // eight rows of 16 bytes fill all banks, or have to wait
    const auto other = host::offered<unsigned>(first_of_warp() + lane() / 8 * 8 + row, exchange);
    if (row != lane() % 8 && (other - address) / 16 % 8 == 0) {
      host::fail("rows of a matrix that share banks");
    }
  }
  for (int matrix = 0; matrix < 4; ++matrix) {
    std::uint16_t elements[2];
    for (int e = 0; e < 2; ++e) {
      int row = lane() / 4, column = lane() % 4 * 2 + e;
      if (turned) std::swap(row, column);
      const auto start = host::offered<unsigned>(first_of_warp() + 8 * matrix + row, exchange);
      std::memcpy(&elements[e], shared(start) + 2 * column, 2);
    }
    std::memcpy(registers[matrix], elements, 4);
  }
}

void ldmatrix_sync_aligned_m8n8_x4_shared_b16(const std::array<unsigned*, 4>& registers,
                                              unsigned address) {
  load_matrices(registers, address, false);
}

void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(const std::array<unsigned*, 4>& registers,
                                                    unsigned address) {
  load_matrices(registers, address, true);
}

// --- Products ---

void cvt_rna_tf32_f32(unsigned* to, float value) {
  std::memcpy(to, &value, 4);
  if ((*to & 0x7f800000) != 0x7f800000) *to = (*to + 0x1000) & 0xffffe000;
}

// A float of no more magnitude.
static float truncated(double value) {
  const float nearest = static_cast<float>(value);
  return std::fabs(static_cast<double>(nearest)) > std::fabs(value) ? std::nextafter(nearest, 0.0f)
                                                                    : nearest;
}

struct Position {
  int row, column;
};

// Elements of a fragment with PER of them in a register; `at(lane, i)` is where the i-th one lies.
template <int PER, int ROWS, int COLUMNS, typename Register, std::size_t COUNT>
static void gather(double (&matrix)[ROWS][COLUMNS], const std::array<Register, COUNT>& mine,
                   Position (*at)(int, int), double (*read)(const Register*, int)) {
  std::array<double, COUNT * PER> elements;
  for (std::size_t i = 0; i < elements.size(); ++i) elements[i] = read(mine.data(), int(i));
  const unsigned exchange = host::offer(elements);
  for (int from = 0; from < warpSize; ++from) {
    const auto theirs = host::offered<decltype(elements)>(first_of_warp() + from, exchange);
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      const Position place = at(from, int(i));
      matrix[place.row][place.column] = theirs[i];
    }
  }
}

// Of C: row l / 4, and 8 more from the third element on; columns 2 (l % 4) and the next.
static Position of_c(int lane, int i) { return {lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2}; }

static double read_double(const double* registers, int i) { return registers[i]; }

template <int M, int K, std::size_t A, std::size_t B, std::size_t C>
static void multiply_doubles(const std::array<double*, C>& d, const std::array<double, A>& a,
                             const std::array<double, B>& b, const std::array<double, C>& c,
                             Position (*of_a)(int, int), Position (*of_b)(int, int)) {
  static_assert(A * 32 == M * K && B * 32 == K * 8 && C * 32 == M * 8, "registers of the shape");
  double left[M][K], right[K][8];
  gather<1>(left, a, of_a, read_double);
  gather<1>(right, b, of_b, read_double);
  for (std::size_t i = 0; i < C; ++i) {
    const Position place = of_c(lane(), i);
    double sum = c[i];
    for (int n = 0; n < K; ++n) sum = std::fma(left[place.row][n], right[n][place.column], sum);
    *d[i] = sum;
  }
}

static Position row_is_step(int lane, int i) { return {lane % 4 + 4 * i, lane / 4}; }

void mma_sync_aligned_m8n8k4_row_col_f64_f64_f64_f64(const std::array<double*, 2>& d,
                                                     const std::array<double, 1>& a,
                                                     const std::array<double, 1>& b,
                                                     const std::array<double, 2>& c) {
  multiply_doubles<8, 4>(
      d, a, b, c, [](int lane, int) { return Position{lane / 4, lane % 4}; }, row_is_step);
}

void mma_sync_aligned_m16n8k4_row_col_f64_f64_f64_f64(const std::array<double*, 4>& d,
                                                      const std::array<double, 2>& a,
                                                      const std::array<double, 1>& b,
                                                      const std::array<double, 4>& c) {
  multiply_doubles<16, 4>(
      d, a, b, c, [](int lane, int i) { return Position{lane / 4 + (i == 1 ? 8 : 0), lane % 4}; },
      row_is_step);
}

// a0 and a2 are of row l / 4, a1 and a3 of the one 8 below; a0 and a1 of step l % 4, the others 4 later.
static Position of_a_k8(int lane, int i) {
  return {lane / 4 + (i == 1 || i == 3 ? 8 : 0), lane % 4 + (i < 2 ? 0 : 4)};
}

void mma_sync_aligned_m16n8k8_row_col_f64_f64_f64_f64(const std::array<double*, 4>& d,
                                                      const std::array<double, 4>& a,
                                                      const std::array<double, 2>& b,
                                                      const std::array<double, 4>& c) {
  multiply_doubles<16, 8>(d, a, b, c, of_a_k8, row_is_step);
}

void mma_sync_aligned_m16n8k16_row_col_f64_f64_f64_f64(const std::array<double*, 4>& d,
                                                       const std::array<double, 8>& a,
                                                       const std::array<double, 4>& b,
                                                       const std::array<double, 4>& c) {
  multiply_doubles<16, 16>(
      d, a, b, c,
      [](int lane, int i) {
        return i % 2 == 0 ? Position{lane / 4, 2 * i + lane % 4}
                          : Position{lane / 4 + 8, 2 * i - 2 + lane % 4};
      },
      row_is_step);
}

template <int K, int PER, std::size_t A, std::size_t B>
static void multiply_exactly(const std::array<float*, 4>& d, const std::array<unsigned, A>& a,
                             const std::array<unsigned, B>& b, const std::array<float, 4>& c,
                             Position (*of_a)(int, int), Position (*of_b)(int, int),
                             double (*read)(const unsigned*, int)) {
  static_assert(A * 2 == B * 4, "registers of the shape");
  double left[16][K], right[K][8];
  gather<PER>(left, a, of_a, read);
  gather<PER>(right, b, of_b, read);
  for (int i = 0; i < 4; ++i) {
    const Position place = of_c(lane(), i);
    double sum = c[i];
    for (int n = 0; n < K; ++n) sum += left[place.row][n] * right[n][place.column];
    *d[i] = truncated(sum);
  }
}

// The unit does not look at the 13 bits that TF32 has not.
static double read_tf32(const unsigned* registers, int i) {
  const unsigned bits = registers[i] & 0xffffe000;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

template <typename Element>
static double read_half(const unsigned* registers, int i) {
  Element value;
  std::memcpy(&value, reinterpret_cast<const char*>(registers) + 2 * i, 2);
  return static_cast<float>(value);
}

void mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32(const std::array<float*, 4>& d,
                                                        const std::array<unsigned, 4>& a,
                                                        const std::array<unsigned, 2>& b,
                                                        const std::array<float, 4>& c) {
  multiply_exactly<8, 1>(d, a, b, c, of_a_k8, row_is_step, read_tf32);
}

// a0, a1, a4 and a5 are of row l / 4, the others of the one 8 below; from a4 on, steps are 8 later.
static Position of_a_k16(int lane, int i) {
  return {lane / 4 + ((i < 2 || (4 <= i && i < 6)) ? 0 : 8), lane % 4 * 2 + i % 2 + (i < 4 ? 0 : 8)};
}

// b2 and b3 are of steps that are 8 later than those of b0 and b1.
static Position of_b_k16(int lane, int i) {
  return {lane % 4 * 2 + i % 2 + (i < 2 ? 0 : 8), lane / 4};
}

void mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(const std::array<float*, 4>& d,
                                                       const std::array<unsigned, 4>& a,
                                                       const std::array<unsigned, 2>& b,
                                                       const std::array<float, 4>& c) {
  multiply_exactly<16, 2>(d, a, b, c, of_a_k16, of_b_k16, read_half<__half>);
}

void mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(const std::array<float*, 4>& d,
                                                         const std::array<unsigned, 4>& a,
                                                         const std::array<unsigned, 2>& b,
                                                         const std::array<float, 4>& c) {
  multiply_exactly<16, 2>(d, a, b, c, of_a_k16, of_b_k16, read_half<__nv_bfloat16>);
}

static double read_byte(const unsigned* registers, int i) {
  return reinterpret_cast<const signed char*>(registers)[i];
}

// Registers hold four neighbouring steps each; otherwise they lie as those of 16 bits do.
static Position of_a_k32(int lane, int i) {
  return {lane / 4 + (i / 4 % 2 ? 8 : 0), lane % 4 * 4 + i % 4 + (i < 8 ? 0 : 16)};
}

static Position of_b_k32(int lane, int i) {
  return {lane % 4 * 4 + i % 4 + (i < 4 ? 0 : 16), lane / 4};
}

void mma_sync_aligned_m16n8k32_row_col_s32_s8_s8_s32(const std::array<int*, 4>& d,
                                                     const std::array<unsigned, 4>& a,
                                                     const std::array<unsigned, 2>& b,
                                                     const std::array<int, 4>& c) {
  double left[16][32], right[32][8];
  gather<4>(left, a, of_a_k32, read_byte);
  gather<4>(right, b, of_b_k32, read_byte);
  for (int i = 0; i < 4; ++i) {
    const Position place = of_c(lane(), i);
    int sum = c[i];
    for (int n = 0; n < 32; ++n) sum += left[place.row][n] * right[n][place.column];
    *d[i] = sum;
  }
}

}  // namespace ptx

namespace host {

// --- Tensor maps ---

constexpr unsigned long long MAP_MAGIC = 0x6d61702d6f6e2d68;

// What HostProgram is given in place of a map of the driver's.
struct Map {
  unsigned long long magic, address, rows, columns, row_bytes, box_rows, box_columns, item, swizzle,
      rounded, matrices, matrix_bytes;
};

static Map read_map(const void* place) {
  Map map;
  std::memcpy(&map, place, sizeof map);
  if (map.magic != MAP_MAGIC) fail("a tensor map that nobody has written");
  return map;
}

// --- Barriers in shared memory ---

constexpr std::uint64_t BARRIER_MAGIC = 0x626172206f6e2068;

struct SharedBarrier {
  unsigned expected, pending, phase;
  long bytes;  // that are still to come
};
static std::map<unsigned, SharedBarrier> barriers;  // by their addresses in the cluster

static unsigned in_cluster(unsigned address) {
  if (address >= cluster_blocks * SHARED_BYTES) fail("an address outside of shared memory");
  return address;
}

static SharedBarrier& barrier_at(unsigned address) {
  const auto found = barriers.find(in_cluster(address));
  if (found == barriers.end()) fail("a barrier that is not initialised");
  if (std::memcmp(dynamic_shared + address, &BARRIER_MAGIC, 8)) fail("a barrier was overwritten");
  return found->second;
}

static void turn(SharedBarrier& barrier) {
  ++progress;
  if (barrier.pending || barrier.bytes) return;
  ++barrier.phase;
  barrier.pending = barrier.expected;
}

static void arrive(unsigned address, long bytes) {
  SharedBarrier& barrier = barrier_at(address);
  if (barrier.pending == 0) fail("more arrivals at a barrier than it expects");
  --barrier.pending;
  barrier.bytes += bytes;
  turn(barrier);
}

static void report_barriers() {
  for (const auto& [address, barrier] : barriers) {
    std::fprintf(stderr, "block %u, barrier at %zu: phase %u, %u of %u arrivals, %ld bytes to come\n",
                 unsigned(address / SHARED_BYTES), address % SHARED_BYTES, barrier.phase,
                 barrier.pending, barrier.expected, barrier.bytes);
  }
}

// --- Copies in bulk, named barriers, products ---

struct NamedBarrier {
  unsigned arrived, count, opened;
};

// An instruction of a warp group: complete when all its threads have come.
struct Product {
  unsigned long long a, b;
  int columns, depth, item;
  bool add, a_along, b_along, done;
  float (*read)(const unsigned char*);
  unsigned issued;
  void* sums[128];  // floats, or whole numbers
  bool whole;
  std::vector<float> operands;  // as they were
};

static std::deque<std::function<void()>> copies;  // that are under way
static NamedBarrier named[MOST_BLOCKS][16];
static unsigned cluster_opened;  // how often all threads of the cluster had come
static std::map<std::size_t, std::vector<std::unique_ptr<Product>>> products;  // by warp group

static void start_cluster() {
  cluster_opened = 0;
  barriers.clear();
  copies.clear();
  products.clear();
  std::memset(named, 0, sizeof named);
}

static bool copy_something() {
  if (copies.empty()) return false;
  const auto copy = std::move(copies.front());
  copies.pop_front();
  copy();
  return true;
}

// Rows of 128 or 64 bytes, permuted within themselves.
static unsigned swizzled(unsigned address, unsigned row_bytes) {
  return address ^ (address >> 7 & (row_bytes == 128 ? 7 : 3)) << 4;
}

// Calls `use(place in shared memory, place in the matrix or null)` for every element of a box.
template <typename Use>
static void for_box(const Map& map, unsigned shared, const std::array<int, 3>& place, Use use) {
  const auto [column, row, matrix] = place;
  if (matrix < 0 || matrix >= long(map.matrices)) fail("a box of a matrix that there is not");
  const unsigned row_bytes = map.swizzle;
  if (row_bytes != 128 && row_bytes != 64) fail("a box of neither 128 nor 64 bytes a row");
  if (map.box_columns * map.item != row_bytes) fail("a box whose rows are not those of its swizzle");
  if (shared % (8 * row_bytes)) fail("a box that begins between patterns of its swizzle");
  in_cluster(shared + map.box_rows * row_bytes - 1);
  for (long r = 0; r < long(map.box_rows); ++r) {
    for (long c = 0; c < long(map.box_columns); ++c) {
      const bool inside = row + r >= 0 && row + r < long(map.rows) && column + c >= 0 &&
                          column + c < long(map.columns);
      char* const place =
          reinterpret_cast<char*>(map.address) + matrix * long(map.matrix_bytes) +
          (row + r) * long(map.row_bytes) + (column + c) * long(map.item);
      use(dynamic_shared + swizzled(shared + r * row_bytes + c * map.item, row_bytes),
          inside ? place : nullptr);
    }
  }
}

// --- Products ---

// Element (output, step) of an operand that a matrix descriptor names (PTX ISA, "Strides").
static float element_at(const Product& product, unsigned window, unsigned long long descriptor,
                        bool along, int output, int step) {
  const unsigned start = (descriptor & 0x3FFF) << 4;
  const unsigned leading = (descriptor >> 16 & 0x3FFF) << 4, stride = (descriptor >> 32 & 0x3FFF) << 4;
  const unsigned row_bytes = descriptor >> 62 == 1 ? 128 : 64, slab = row_bytes / product.item;
  const unsigned place =
      along ? start + output / slab * leading + step / 8 * stride + step % 8 * row_bytes +
                  output % slab * product.item
            : start + output / 8 * stride + output % 8 * row_bytes + step * product.item;
  if (place >= SHARED_BYTES) fail("an operand outside of shared memory");
  return product.read(dynamic_shared + window + swizzled(place, row_bytes));
}

// A's 64 rows, then the steps of B.
static std::vector<float> gather_operands(const Product& product, unsigned window) {
  std::vector<float> found;
  found.reserve((64 + product.columns) * product.depth);
  for (int row = 0; row < 64; ++row) {
    for (int n = 0; n < product.depth; ++n) {
      found.push_back(element_at(product, window, product.a, product.a_along, row, n));
    }
  }
  for (int n = 0; n < product.depth; ++n) {
    for (int column = 0; column < product.columns; ++column) {
      found.push_back(element_at(product, window, product.b, product.b_along, column, n));
    }
  }
  return found;
}

// Thread t has of D the rows t / 32 * 16 + t % 32 / 4 and 8 more, of every 8 columns two.
__attribute__((optimize("O3"))) static void perform(Product& product, unsigned window) {
  const std::vector<float> found = gather_operands(product, window);
  if (std::memcmp(found.data(), product.operands.data(), found.size() * sizeof(float))) {
    fail("operands were overwritten before their product was waited for");
  }
  const float* const a = found.data();
  const float* const b = a + 64 * product.depth;
  const int columns = product.columns;
  double sums[256];
  for (int row = 0; row < 64; ++row) {
    void* const* const owners = product.sums + row / 16 * 32 + row % 8 * 4;
    const int half = row % 16 / 8 * 2;
    for (int c = 0; c < columns; ++c) {
      const int place = c / 8 * 4 + half + c % 2;
      void* const owner = owners[c % 8 / 2];
      sums[c] = !product.add    ? 0.0
                : product.whole ? static_cast<int*>(owner)[place]
                                : static_cast<float*>(owner)[place];
    }
    for (int n = 0; n < product.depth; ++n) {
      const double left = a[row * product.depth + n];
      const float* const right = b + n * columns;
      for (int c = 0; c < columns; ++c) sums[c] += left * right[c];
    }
    for (int c = 0; c < columns; ++c) {
      const int place = c / 8 * 4 + half + c % 2;
      void* const owner = owners[c % 8 / 2];
      if (!product.whole) {
        static_cast<float*>(owner)[place] = ptx::truncated(sums[c]);
      } else if (std::abs(sums[c]) < 0x1p31) {
        static_cast<int*>(owner)[place] = static_cast<int>(sums[c]);
      } else {
        fail("a sum of whole numbers that 32 bits do not hold");
      }
    }
  }
  product.done = true;
  product.operands = {};
}

static std::size_t warp_group() { return running->number / 128; }

void multiply(void* sums, bool whole, int columns, unsigned long long a, unsigned long long b, bool add,
              int depth, int item, bool a_along, bool b_along, float (*read)(const unsigned char*)) {
  if (!running->fenced) fail("a product without wgmma.fence");
  for (const unsigned long long descriptor : {a, b}) {
    if (descriptor >> 62 == 0 || descriptor >> 62 == 3 || descriptor & 0x3FFFC000C000C000) {
      fail("a wrong matrix descriptor");
    }
  }
  auto& all = products[warp_group()];
  const std::size_t number = running->products++;
  if (number == all.size()) {
    all.emplace_back(new Product{a, b, columns, depth, item, add, a_along, b_along, false, read, 0});
    all.back()->whole = whole;
  }
  Product& product = *all[number];
  if (product.a != a || product.b != b || product.columns != columns || product.add != add) {
    fail("threads of a warp group that begin different products");
  }
  product.sums[running->number % 128] = sums;
  if (++product.issued == 128) {
    product.operands = gather_operands(product, running->rank * SHARED_BYTES);
  }
  running->begun.push_back(number);
  ++progress;
}

static void wait_for_products(std::size_t groups) {
  auto& committed = running->products_committed;
  auto& all = products[warp_group()];
  while (committed.size() > groups) {
    for (const std::size_t number : committed.front()) {
      Product& product = *all[number];
      await("its warp group to begin a product", [&] { return product.issued == 128; });
      if (!product.done) perform(product, running->rank * SHARED_BYTES);
    }
    committed.pop_front();
  }
  running->fenced = false;
}

}  // namespace host

namespace ptx {

void prefetch_tensormap(const void* map) { host::read_map(map); }

// --- Named barriers ---

static host::NamedBarrier& arrive_named(unsigned number, unsigned count) {
  if (number > 15 || count % 32) host::fail("a named barrier that there is not");
  host::NamedBarrier& barrier = host::named[host::running->rank][number];
  if (barrier.arrived && barrier.count != count) host::fail("different counts at a named barrier");
  barrier.count = count;
  if (++barrier.arrived == count) {
    barrier.arrived = 0;
    ++barrier.opened;
  }
  ++host::progress;
  return barrier;
}

void bar_arrive(unsigned number, unsigned count) { arrive_named(number, count); }

void bar_sync(unsigned number, unsigned count) {
  const unsigned before = host::named[host::running->rank][number & 15].opened;
  const host::NamedBarrier& barrier = arrive_named(number, count);
  host::await("a named barrier", [&] { return barrier.opened != before; });
}

// --- Clusters ---

void barrier_cluster_arrive_release() {
  ++host::running->cluster_arrivals;
  ++host::progress;
}

void barrier_cluster_arrive_relaxed() { barrier_cluster_arrive_release(); }

void barrier_cluster_wait_acquire() {
  const unsigned mine = host::running->cluster_arrivals;
  std::size_t there = 0;  // threads that have come: none is looked at again
  host::await("its cluster", [&] {
    if (host::cluster_opened >= mine) return true;
    for (; there < host::all_threads; ++there) {
      const host::Fiber& fiber = host::fibers[there];
      if (!fiber.finished && fiber.cluster_arrivals < mine) return false;
    }
    host::cluster_opened = mine;
    return true;
  });
}

unsigned counterpart(unsigned address, unsigned block) {
  if (block >= host::cluster_blocks) host::fail("a block that its cluster has not");
  return host::in_cluster(address) % host::SHARED_BYTES + block * host::SHARED_BYTES;
}

void mapa_shared_cluster_u32(unsigned* to, unsigned address, unsigned block) {
  *to = counterpart(address, block);
}

// --- Barriers in shared memory ---

void mbarrier_init_shared_cta_b64(unsigned address, unsigned arrivals) {
  if (address % 8 || arrivals == 0) host::fail("a barrier that there cannot be");
  host::barriers[host::in_cluster(address)] = {arrivals, arrivals, 0, 0};
  std::memcpy(host::dynamic_shared + address, &host::BARRIER_MAGIC, 8);
  ++host::progress;
}

void mbarrier_arrive_expect_tx_shared_cta_b64(std::nullptr_t, unsigned address, unsigned bytes) {
  host::arrive(address, bytes);
}

void mbarrier_arrive_shared_cta_b64(std::nullptr_t, unsigned address) {
  host::arrive(address, 0);
}

void mbarrier_arrive_shared_cluster_b64(std::nullptr_t, unsigned address) {
  host::arrive(address, 0);
}

void mbarrier_try_wait_parity_shared_cta_b64(bool* over, unsigned address, unsigned parity) {
  mbarrier_test_wait_parity_shared_cta_b64(over, address, parity);
  if (*over) return;
  host::block("a phase of a barrier in shared memory");
  mbarrier_test_wait_parity_shared_cta_b64(over, address, parity);
}

void mbarrier_test_wait_parity_shared_cta_b64(bool* over, unsigned address, unsigned parity) {
  if (parity > 1) host::fail("a parity that is neither 0 nor 1");
  *over = host::barrier_at(address).phase % 2 != parity;
  host::progress += *over;
}

// --- Copies by tensor maps ---

static Place flat(Flat place) { return {place[0], place[1], 0}; }

static void load_box(unsigned to, const void* map, Place place, unsigned barrier, unsigned blocks) {
  const host::Map read = host::read_map(map);
  // Not in the PTX ISA: hardware ends the kernel with an illegal instruction.
  if (place[0] * static_cast<int>(read.item) % 16) host::fail("a box begins within 16 bytes of a row");
  const auto copy = [=] {
    for (unsigned block = 0; block < 16; ++block) {
      if (!(blocks >> block & 1)) continue;
      host::for_box(read, counterpart(to, block), place,
                    [&](unsigned char* shared, const char* matrix) {
                      std::memset(shared, 0, read.item);
                      if (matrix) std::memcpy(shared, matrix, read.item);
                      if (!read.rounded || !matrix) return;
                      float value;
                      std::memcpy(&value, shared, 4);
                      unsigned bits;
                      cvt_rna_tf32_f32(&bits, value);
                      std::memcpy(shared, &bits, 4);
                    });
      host::SharedBarrier& arrived = host::barrier_at(counterpart(barrier, block));
      arrived.bytes -= read.box_rows * read.swizzle;
      host::turn(arrived);
    }
  };
  if (host::early) {
    copy();
  } else {
    host::copies.push_back(copy);
  }
}

void cp_async_bulk_prefetch_tensor_2d_L2_global_tile(const void* map, Flat) {
  host::read_map(map);
}

void cp_async_bulk_tensor_2d_shared_cluster_global_mbarrier_complete_tx_bytes(
    unsigned to, const void* map, Flat place, unsigned barrier) {
  load_box(to, map, flat(place), barrier, 1u << to / host::SHARED_BYTES);
}

void cp_async_bulk_tensor_2d_shared_cluster_global_mbarrier_complete_tx_bytes_multicast_cluster(
    unsigned to, const void* map, Flat place, unsigned barrier, unsigned short blocks) {
  load_box(to, map, flat(place), barrier, blocks);
}

void cp_async_bulk_tensor_3d_shared_cluster_global_mbarrier_complete_tx_bytes(
    unsigned to, const void* map, Place place, unsigned barrier) {
  load_box(to, map, place, barrier, 1u << to / host::SHARED_BYTES);
}

void cp_async_bulk_tensor_3d_shared_cluster_global_mbarrier_complete_tx_bytes_multicast_cluster(
    unsigned to, const void* map, Place place, unsigned barrier, unsigned short blocks) {
  load_box(to, map, place, barrier, blocks);
}

void cp_async_bulk_tensor_3d_global_shared_cta_bulk_group(const void* map, Place place, unsigned from) {
  const host::Map read = host::read_map(map);
  host::running->stores_begun.push_back([=] {
    host::for_box(read, from, place, [&](const unsigned char* shared, char* matrix) {
      if (matrix) std::memcpy(matrix, shared, read.item);
    });
  });
}

void cp_async_bulk_tensor_2d_global_shared_cta_bulk_group(const void* map, Flat place, unsigned from) {
  cp_async_bulk_tensor_3d_global_shared_cta_bulk_group(map, flat(place), from);
}

void cp_async_bulk_commit_group() {
  host::running->stores_committed.push_back(std::move(host::running->stores_begun));
  host::running->stores_begun.clear();
}

void cp_async_bulk_wait_group(std::size_t groups) {
  auto& committed = host::running->stores_committed;
  while (committed.size() > groups) {
    for (const auto& store : committed.front()) store();
    committed.pop_front();
  }
}

void cp_async_bulk_wait_group_read(std::size_t groups) { cp_async_bulk_wait_group(groups); }

// Lane l has the address of row l % 8 of matrix l / 8, and of row l / 4 of each matrix the elements
// 2 (l % 4) and the next.
void stmatrix_sync_aligned_m8n8_x4_shared_b16(unsigned address,
                                              const std::array<unsigned, 4>& registers) {
  if (address % 16) host::fail("a row of a matrix that begins between 16 bytes");
  const unsigned exchange = host::offer(address);
  for (int matrix = 0; matrix < 4; ++matrix) {
    const auto row = host::offered<unsigned>(first_of_warp() + matrix * 8 + lane() / 4, exchange);
    std::memcpy(shared(row) + lane() % 4 * 4, &registers[matrix], 4);
  }
}

// The same with blocks turned: the elements are of column l / 4.
void stmatrix_sync_aligned_m8n8_x4_trans_shared_b16(unsigned address,
                                                    const std::array<unsigned, 4>& registers) {
  if (address % 16) host::fail("a row of a matrix that begins between 16 bytes");
  const unsigned exchange = host::offer(address);
  for (int matrix = 0; matrix < 4; ++matrix) {
    for (int v = 0; v < 2; ++v) {
      const int turned = first_of_warp() + matrix * 8 + lane() % 4 * 2 + v;
      const auto row = host::offered<unsigned>(turned, exchange);
      std::memcpy(shared(row) + lane() / 4 * 2, reinterpret_cast<const char*>(&registers[matrix]) + 2 * v, 2);
    }
  }
}

// --- Products of warp groups ---

void wgmma_fence_sync_aligned() { host::running->fenced = true; }

void wgmma_commit_group_sync_aligned() {
  host::running->products_committed.push_back(std::move(host::running->begun));
  host::running->begun.clear();
}

void wgmma_wait_group_sync_aligned(std::size_t groups) { host::wait_for_products(groups); }

}  // namespace ptx
