// Executes the thread blocks of emitted CUDA C++ on the host, one cluster of them after the other. How
// their threads take turns is a matter of runtime_on_host.cpp.
//
// Where all threads wait for something, it is an error. A barrier that only some threads of a block reach
// is an error, an exchange that only some of a warp reach is one, and so is a copy to an address that the
// hardware would refuse. What a source says in PTX is carried out by the functions of ptx_on_host.h.
// Shared memory starts out as NaN in every block.
//
// Include it before the emitted source, with AUTOTUNE_HOST defined.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

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
extern uint3 threadIdx, blockIdx, blockDim, gridDim;
static constexpr int warpSize = 32;

template <typename Value>
static inline Value __ldg(const Value* address) {
  return *address;
}

static inline int __ffs(int value) { return __builtin_ffs(value); }

static inline int __mulhi(int a, int b) { return static_cast<int>(std::int64_t(a) * b >> 32); }
static inline int __dp4a(int a, int b, int sum) {
  for (int shift = 0; shift < 32; shift += 8) {
    sum += static_cast<std::int8_t>(a >> shift) * static_cast<std::int8_t>(b >> shift);
  }
  return sum;
}

// The sum of two products of 16 bits and 8, those of the first two bytes of `b`, or of its last two.
static inline unsigned __dp2a_lo(unsigned a, unsigned b, unsigned sum) {
  return sum + (a & 0xffff) * (b & 0xff) + (a >> 16) * (b >> 8 & 0xff);
}
static inline unsigned __dp2a_hi(unsigned a, unsigned b, unsigned sum) {
  return __dp2a_lo(a, b >> 16, sum);
}

static inline int __clzll(long long value) { return value ? __builtin_clzll(value) : 64; }
static inline long long __double2ll_rn(double value) { return std::llrint(value); }
static inline int __double2int_rn(double value) { return static_cast<int>(std::nearbyint(value)); }
static inline double __ll2double_rn(long long value) { return static_cast<double>(value); }
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
static inline float __int_as_float(int bits) { return __uint_as_float(static_cast<unsigned>(bits)); }
static inline int __float_as_int(float number) { return static_cast<int>(__float_as_uint(number)); }

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

[[noreturn]] void fail(const char* what);

constexpr std::size_t SHARED_BYTES = 256 << 10;  // what 18 bits of a matrix descriptor can name
extern unsigned char dynamic_shared[];           // of the blocks of a cluster
extern unsigned char* own_shared;                // of the running block

// Runs a kernel: `call(arguments)` is one thread's execution of it.
void launch(const uint3& grid, const uint3& block, std::size_t shared_bytes, unsigned cluster,
            void (*call)(void*), void* arguments);

// The number of the running thread in its cluster.
std::size_t number();

// Offers a value to the running thread's warp, all of whose threads must take part: the number of the
// exchange.
constexpr std::size_t OFFERED_BYTES = 256;  // at most
unsigned offer(const void* value, std::size_t size);

template <typename Value>
static unsigned offer(const Value& value) {
  static_assert(sizeof value <= OFFERED_BYTES, "what is offered fits");
  return offer(&value, sizeof value);
}

// What another thread of the warp offered in an exchange.
const void* offered(std::size_t thread, unsigned exchange);

template <typename Value>
static Value offered(std::size_t thread, unsigned exchange) {
  Value value;
  std::memcpy(&value, offered(thread, exchange), sizeof value);
  return value;
}

}  // namespace host

void __syncthreads();

// The same, for all threads of the block; whether any of them says yes.
int __syncthreads_or(int yes);

// All threads of a warp must take part, as in an exchange of nothing.
void __syncwarp();

// Threads run one after the other: another one may run at any wait.
static void __nanosleep(unsigned) {}

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
  const std::size_t self = host::number();
  if (mask != 0xffffffffu) host::fail("an exchange among some threads of a warp");
  return host::offered<Value>(self ^ std::size_t(distance), host::offer(value));
}

// What the thread so many places behind in the warp offers; its own value where there is none.
template <typename Value>
static inline Value __shfl_down_sync(unsigned mask, Value value, int distance) {
  const std::size_t self = host::number();
  if (mask != 0xffffffffu) host::fail("an exchange among some threads of a warp");
  const bool inside = self % 32 + std::size_t(distance) < 32;
  return host::offered<Value>(inside ? self + std::size_t(distance) : self, host::offer(value));
}

// The same before it.
template <typename Value>
static inline Value __shfl_up_sync(unsigned mask, Value value, int distance) {
  const std::size_t self = host::number();
  if (mask != 0xffffffffu) host::fail("an exchange among some threads of a warp");
  const bool inside = self % 32 >= std::size_t(distance);
  return host::offered<Value>(inside ? self - std::size_t(distance) : self, host::offer(value));
}

namespace host {
// What all threads of a warp offer, brought together two by two.
template <typename Value, typename Function>
static Value reduced(unsigned mask, Value value, Function function) {
  const std::size_t first = host::number() / 32 * 32;
  if (mask != 0xffffffffu) host::fail("an exchange among some threads of a warp");
  const unsigned exchange = host::offer(value);
  Value result = host::offered<Value>(first, exchange);
  for (std::size_t lane = 1; lane < 32; ++lane) {
    result = function(result, host::offered<Value>(first + lane, exchange));
  }
  return result;
}
}  // namespace host

static inline int __any_sync(unsigned mask, int yes) {
  return host::reduced(mask, yes, [](int a, int b) { return int(a || b); });
}
static inline int __reduce_min_sync(unsigned mask, int value) {
  return host::reduced(mask, value, [](int a, int b) { return a < b ? a : b; });
}
static inline int __reduce_max_sync(unsigned mask, int value) {
  return host::reduced(mask, value, [](int a, int b) { return a < b ? b : a; });
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
  const std::size_t self = host::number();
  if (mask != 0xffffffffu) host::fail("an exchange among some threads of a warp");
  return host::offered<Value>(self / 32 * 32 + std::size_t(lane % 32), host::offer(value));
}

// Addresses of shared memory, which PTX has in 32 bits, are distances from one place.
static inline std::size_t __cvta_generic_to_shared(const void* address) {
  return std::size_t(static_cast<const unsigned char*>(address) - host::dynamic_shared);
}

#include "ptx_on_host.h"
#include "hopper_on_host.h"
