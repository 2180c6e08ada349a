// Executes the thread blocks of emitted CUDA C++ on the host, one cluster of them after the other.
//
// Every thread is a fiber. A fiber runs until it meets a barrier, exchanges a value with its warp,
// waits, or ends; then the next one runs. Where all wait for something, it is an error.
// A barrier that only some threads of a block reach is an
// error, an exchange that only some of a warp reach is one, and so is a copy to an address that the
// hardware would refuse. What a source says in PTX is carried out by the functions of ptx_on_host.h.
// Shared memory starts out as NaN in every block.
//
// Include it before the emitted source, with AUTOTUNE_HOST defined.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
#define __shared__ static
#define __restrict__ __restrict
#define __grid_constant__

using std::abs;
using std::erf;
using std::exp;
using std::fma;
using std::max;
using std::min;
using std::rint;
using std::sqrt;
using std::tanh;
#define __expf std::exp  // a name that the C library has, too
static inline float __fdividef(float x, float y) { return x / y; }

struct uint3 {
  unsigned x, y, z;
};
static uint3 threadIdx, blockIdx, blockDim, gridDim;
static constexpr int warpSize = 32;

template <typename Value>
static inline Value __ldg(const Value* address) {
  return *address;
}

static inline int __ffs(int value) { return __builtin_ffs(value); }

static inline int __mulhi(int a, int b) { return static_cast<int>(std::int64_t(a) * b >> 32); }
static inline int __clzll(long long value) { return value ? __builtin_clzll(value) : 64; }
static inline long long __double2ll_rn(double value) { return std::llrint(value); }
static inline int __double2int_rn(double value) { return static_cast<int>(std::nearbyint(value)); }
static inline double __ull2double_rn(unsigned long long value) { return static_cast<double>(value); }

static inline double __longlong_as_double(long long bits) {
  double number;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}

static inline int __clz(int value) { return value ? __builtin_clz(value) : 32; }
static inline int __float2int_rn(float value) { return static_cast<int>(std::nearbyint(value)); }

// The lower word of two, moved down by `shift` bits modulo 32.
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((std::uint64_t(high) << 32 | low) >> (shift & 31));
}

// Four bytes of two words, one for each hexadecimal digit of `chosen`.
static inline unsigned __byte_perm(unsigned low, unsigned high, unsigned chosen) {
  const std::uint64_t bytes = std::uint64_t(high) << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= unsigned(bytes >> 8 * (chosen >> 4 * i & 7) & 0xff) << 8 * i;
  }
  return result;
}

static inline float __uint_as_float(unsigned bits) {
  float number;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}

static inline unsigned __float_as_uint(float number) {
  unsigned bits;
  std::memcpy(&bits, &number, sizeof bits);
  return bits;
}

// Numbers of 16 bits, which the emitted source converts to float and back, and nothing else.
struct __half {
  _Float16 value;
  __half() = default;
  explicit __half(float number) : value(static_cast<_Float16>(number)) {}
  explicit operator float() const { return value; }
};

struct __nv_bfloat16 {
  std::uint16_t bits;
  __nv_bfloat16() = default;
  explicit __nv_bfloat16(float number) {
    std::uint32_t wide;
    std::memcpy(&wide, &number, sizeof wide);
    // To nearest, ties to even; a NaN stays one.
    const bool nan = (wide & 0x7FFFFFFF) > 0x7F800000;
    bits = nan ? 0x7FFF : (wide + 0x7FFF + (wide >> 16 & 1)) >> 16;
  }
  explicit operator float() const {
    return __uint_as_float(std::uint32_t(bits) << 16);
  }
};

namespace host {

[[noreturn]] static void fail(const char* what) {
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
  unsigned char offered[2][256];  // in the latest exchange and the one before it
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
constexpr std::size_t SHARED_BYTES = 256 << 10;  // what 18 bits of a matrix descriptor can name
constexpr unsigned MOST_BLOCKS = 16;             // of a cluster
alignas(1024) static unsigned char dynamic_shared[MOST_BLOCKS * SHARED_BYTES];
static unsigned char* own_shared = dynamic_shared;  // of the running block
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

// Runs a kernel: `call(arguments)` is one thread's execution of it.
static void launch(const uint3& grid, const uint3& block, std::size_t shared_bytes,
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
      }
    }
  }
}

// The number of the first thread of the running warp, and of the first one behind it.
static std::size_t warp_begin() { return running->warp_begin; }

static std::size_t warp_end() { return running->warp_end; }

// Offers a value to the running thread's warp, all of whose threads must take part: the number of the
// exchange.
template <typename Value>
static unsigned offer(const Value& value) {
  static_assert(sizeof value <= sizeof running->offered[0], "what is offered fits");
  const unsigned exchange = ++running->exchanges;
  std::memcpy(running->offered[exchange % 2], &value, sizeof value);
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

// What another thread of the warp offered in an exchange.
template <typename Value>
static Value offered(std::size_t thread, unsigned exchange) {
  // A thread that is one exchange ahead has kept what it offered in this one.
  if (thread >= warp_end() || fibers[thread].exchanges - exchange > 1) {
    fail("an exchange that not all threads of a warp reach");
  }
  Value value;
  std::memcpy(&value, fibers[thread].offered[exchange % 2], sizeof value);
  return value;
}

}  // namespace host

extern "C" void order_blocks(bool backwards, bool early) {
  host::backwards = backwards;
  host::early = early;
}

static inline void __syncthreads() {
  host::running->at_barrier = true;
  host::leave();
}

// The same, for all threads of the block; whether any of them says yes.
static inline int __syncthreads_or(int yes) {
  static bool any;
  __syncthreads();
  any = false;
  __syncthreads();
  any |= yes != 0;
  __syncthreads();
  return any;
}

// Blocks run one after the other, and so do the threads of a block between barriers.
static inline void __threadfence() {}

static inline unsigned atomicInc(unsigned* address, unsigned most) {
  const unsigned before = *address;
  *address = before >= most ? 0 : before + 1;
  return before;
}

static inline unsigned atomicExch(unsigned* address, unsigned value) {
  return std::exchange(*address, value);
}

static inline unsigned atomicCAS(unsigned* address, unsigned expected, unsigned value) {
  const unsigned before = *address;
  if (before == expected) *address = value;
  return before;
}

// What the thread whose place in the warp differs by `distance` offers. All threads of a warp must
// take part.
template <typename Value>
static inline Value __shfl_xor_sync(unsigned mask, Value value, int distance) {
  const std::size_t self = host::running->number;
  if (mask != 0xffffffffu) host::fail("an exchange among some threads of a warp");
  return host::offered<Value>(self ^ std::size_t(distance), host::offer(value));
}

// What the thread so many places behind in the warp offers; its own value where there is none.
template <typename Value>
static inline Value __shfl_down_sync(unsigned mask, Value value, int distance) {
  const std::size_t self = host::running->number;
  if (mask != 0xffffffffu) host::fail("an exchange among some threads of a warp");
  const bool inside = self % 32 + std::size_t(distance) < 32;
  return host::offered<Value>(inside ? self + std::size_t(distance) : self, host::offer(value));
}

// The same before it.
template <typename Value>
static inline Value __shfl_up_sync(unsigned mask, Value value, int distance) {
  const std::size_t self = host::running->number;
  if (mask != 0xffffffffu) host::fail("an exchange among some threads of a warp");
  const bool inside = self % 32 >= std::size_t(distance);
  return host::offered<Value>(inside ? self - std::size_t(distance) : self, host::offer(value));
}

template <typename Value>
static inline Value atomicAdd(Value* address, Value value) {
  return std::exchange(*address, *address + value);
}

static inline unsigned long long atomicMax(unsigned long long* address, unsigned long long value) {
  return std::exchange(*address, *address < value ? value : *address);
}

static inline long long __double_as_longlong(double value) {
  long long bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// What the thread of the warp that `lane` names offers. All threads of a warp must take part.
template <typename Value>
static inline Value __shfl_sync(unsigned mask, Value value, int lane) {
  const std::size_t self = host::running->number;
  if (mask != 0xffffffffu) host::fail("an exchange among some threads of a warp");
  return host::offered<Value>(self / 32 * 32 + std::size_t(lane % 32), host::offer(value));
}

// All threads of a warp must take part, as in an exchange of nothing.
static inline void __syncwarp() {
  const std::size_t first = host::warp_begin();
  const unsigned exchange = host::offer('\0');
  for (int lane = 0; lane < warpSize; ++lane) host::offered<char>(first + lane, exchange);
}

// Addresses of shared memory, which PTX has in 32 bits, are distances from one place.
static inline std::size_t __cvta_generic_to_shared(const void* address) {
  return std::size_t(static_cast<const unsigned char*>(address) - host::dynamic_shared);
}

#include "ptx_on_host.h"
#include "hopper_on_host.h"
