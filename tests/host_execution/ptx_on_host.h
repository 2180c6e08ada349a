// PTX instructions, carried out on the host: what host_execution.py makes of asm statements.
//
// An instruction is called what PTX calls it, with "_" for "." and ":". Its operands come in PTX's order:
// a list in braces as an array, what it writes by its address. Where elements of a matrix lie in a
// warp's registers is as the PTX ISA has it ("Matrix Fragments for mma", "ldmatrix").
#pragma once
#include <array>

namespace ptx {

template <typename... Values>
static auto list(Values... values) {
  return std::array<std::common_type_t<Values...>, sizeof...(Values)>{values...};
}

static char* shared(unsigned address) {
  return reinterpret_cast<char*>(host::dynamic_shared) + static_cast<int>(address);
}

static int lane() { return int(host::running->number - host::warp_begin()); }

// The number of the first thread of the running warp.
static std::size_t first_of_warp() { return host::warp_begin(); }

// --- Asynchronous copies: carried out as late as they may be, when their thread waits for them ---

static void copy(char* to, const void* from, int bytes, int given) {
  if (bytes != 4 && bytes != 8 && bytes != 16) host::fail("a size that cp.async has not");
  if (given < 0 || given > bytes) host::fail("more bytes than are copied");
  if (reinterpret_cast<std::uintptr_t>(to) % bytes != 0) host::fail("misaligned copy to shared");
  if (given && reinterpret_cast<std::uintptr_t>(from) % bytes != 0) host::fail("misaligned copy");
  host::running->open.push_back({to, static_cast<const char*>(from), bytes, given});
}

static void cp_async_cg_shared_global(unsigned to, const void* from, int bytes, int given) {
  if (bytes != 16) host::fail("a copy past the L1 cache that has not 16 bytes");
  copy(shared(to), from, bytes, given);
}

static void cp_async_ca_shared_global(unsigned to, const void* from, int bytes, int given) {
  copy(shared(to), from, bytes, given);
}

// Where what is read is to be ignored, nothing is read.
struct Predicate {
  int number;
};

static void cp_async_cg_shared_global(unsigned to, const void* from, int bytes, Predicate ignored) {
  cp_async_cg_shared_global(to, from, bytes, ignored.number ? 0 : bytes);
}

static void cp_async_ca_shared_global(unsigned to, const void* from, int bytes, Predicate ignored) {
  cp_async_ca_shared_global(to, from, bytes, ignored.number ? 0 : bytes);
}

static void cp_async_commit_group() {
  host::running->committed.push_back(std::move(host::running->open));
  host::running->open.clear();
}

static void cp_async_wait_group(unsigned groups) {
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

static void ldmatrix_sync_aligned_m8n8_x4_shared_b16(const std::array<unsigned*, 4>& registers,
                                                     unsigned address) {
  load_matrices(registers, address, false);
}

static void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(
    const std::array<unsigned*, 4>& registers, unsigned address) {
  load_matrices(registers, address, true);
}

// --- Products ---

// To 11 bits of significand, to nearest, ties away from zero.
static void cvt_rna_tf32_f32(unsigned* to, float value) {
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

// float64: IEEE FMAs.
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

static void mma_sync_aligned_m8n8k4_row_col_f64_f64_f64_f64(const std::array<double*, 2>& d,
                                                            const std::array<double, 1>& a,
                                                            const std::array<double, 1>& b,
                                                            const std::array<double, 2>& c) {
  multiply_doubles<8, 4>(
      d, a, b, c, [](int lane, int) { return Position{lane / 4, lane % 4}; }, row_is_step);
}

static void mma_sync_aligned_m16n8k4_row_col_f64_f64_f64_f64(const std::array<double*, 4>& d,
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

static void mma_sync_aligned_m16n8k8_row_col_f64_f64_f64_f64(const std::array<double*, 4>& d,
                                                             const std::array<double, 4>& a,
                                                             const std::array<double, 2>& b,
                                                             const std::array<double, 4>& c) {
  multiply_doubles<16, 8>(d, a, b, c, of_a_k8, row_is_step);
}

static void mma_sync_aligned_m16n8k16_row_col_f64_f64_f64_f64(const std::array<double*, 4>& d,
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

// Shorter types: products are exact, their sum with C is truncated to float32.
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

static void mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32(const std::array<float*, 4>& d,
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

static void mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(const std::array<float*, 4>& d,
                                                              const std::array<unsigned, 4>& a,
                                                              const std::array<unsigned, 2>& b,
                                                              const std::array<float, 4>& c) {
  multiply_exactly<16, 2>(d, a, b, c, of_a_k16, of_b_k16, read_half<__half>);
}

static void mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(const std::array<float*, 4>& d,
                                                                const std::array<unsigned, 4>& a,
                                                                const std::array<unsigned, 2>& b,
                                                                const std::array<float, 4>& c) {
  multiply_exactly<16, 2>(d, a, b, c, of_a_k16, of_b_k16, read_half<__nv_bfloat16>);
}

}  // namespace ptx
