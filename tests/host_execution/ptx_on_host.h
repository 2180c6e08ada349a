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

// --- Conversions, and stores of several words ---

template <typename Element>
static void convert_pair(unsigned* to, float high, float low) {
  const Element pair[2] = {Element(low), Element(high)};
  static_assert(sizeof pair == sizeof *to, "two elements are a word");
  std::memcpy(to, pair, sizeof pair);
}

static void cvt_rn_f16x2_f32(unsigned* to, float high, float low) {
  convert_pair<__half>(to, high, low);
}

static void cvt_rn_bf16x2_f32(unsigned* to, float high, float low) {
  convert_pair<__nv_bfloat16>(to, high, low);
}

void st_global_v4_b32(void* to, const std::array<unsigned, 4>& words);

// --- Asynchronous copies: carried out as late as they may be, when their thread waits for them ---

void cp_async_cg_shared_global(unsigned to, const void* from, int bytes, int given);
void cp_async_ca_shared_global(unsigned to, const void* from, int bytes, int given);

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

void cp_async_commit_group();
void cp_async_wait_group(unsigned groups);

// --- Matrices out of shared memory ---

void ldmatrix_sync_aligned_m8n8_x4_shared_b16(const std::array<unsigned*, 4>& registers,
                                              unsigned address);
void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(const std::array<unsigned*, 4>& registers,
                                                    unsigned address);

// --- Products ---

// To 11 bits of significand, to nearest, ties away from zero.
void cvt_rna_tf32_f32(unsigned* to, float value);

// float64: IEEE FMAs.
void mma_sync_aligned_m8n8k4_row_col_f64_f64_f64_f64(const std::array<double*, 2>& d,
                                                     const std::array<double, 1>& a,
                                                     const std::array<double, 1>& b,
                                                     const std::array<double, 2>& c);
void mma_sync_aligned_m16n8k4_row_col_f64_f64_f64_f64(const std::array<double*, 4>& d,
                                                      const std::array<double, 2>& a,
                                                      const std::array<double, 1>& b,
                                                      const std::array<double, 4>& c);
void mma_sync_aligned_m16n8k8_row_col_f64_f64_f64_f64(const std::array<double*, 4>& d,
                                                      const std::array<double, 4>& a,
                                                      const std::array<double, 2>& b,
                                                      const std::array<double, 4>& c);
void mma_sync_aligned_m16n8k16_row_col_f64_f64_f64_f64(const std::array<double*, 4>& d,
                                                       const std::array<double, 8>& a,
                                                       const std::array<double, 4>& b,
                                                       const std::array<double, 4>& c);

// Shorter types: products are exact, their sum with C is truncated to float32.
void mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32(const std::array<float*, 4>& d,
                                                        const std::array<unsigned, 4>& a,
                                                        const std::array<unsigned, 2>& b,
                                                        const std::array<float, 4>& c);
void mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(const std::array<float*, 4>& d,
                                                       const std::array<unsigned, 4>& a,
                                                       const std::array<unsigned, 2>& b,
                                                       const std::array<float, 4>& c);
void mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(const std::array<float*, 4>& d,
                                                         const std::array<unsigned, 4>& a,
                                                         const std::array<unsigned, 2>& b,
                                                         const std::array<float, 4>& c);

// Whole numbers: exact, as long as sums fit.
void mma_sync_aligned_m16n8k32_row_col_s32_s8_s8_s32(const std::array<int*, 4>& d,
                                                     const std::array<unsigned, 4>& a,
                                                     const std::array<unsigned, 2>& b,
                                                     const std::array<int, 4>& c);

}  // namespace ptx
