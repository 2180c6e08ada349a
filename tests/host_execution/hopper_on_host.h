// What compute capability 9.0 adds to PTX, carried out on the host: barriers in shared memory (mbarrier),
// copies by tensor maps, clusters, and products of warp groups (wgmma).
//
// Copies by tensor maps are carried out when no thread can go on without them, or, with `early`, when
// they are begun: what is read before it has arrived is missing in the one, what is overwritten before it
// was read is wrong in the other. Products are carried out when they are waited for, and must find their
// operands as they were when they were begun.
#pragma once

namespace host {

template <typename TensorMap>
static TensorMap map_at(const void* bytes) {
  TensorMap map;
  std::memcpy(&map, bytes, sizeof map);
  return map;
}

// --- Products: elements of their operands, and what a thread of a warp group does to begin one ---

template <typename Element>
static float read_short(const unsigned char* place) {
  Element value;
  std::memcpy(&value, place, sizeof value);
  return static_cast<float>(value);
}

static float read_byte(const unsigned char* place) { return static_cast<signed char>(*place); }

static float read_tf32_at(const unsigned char* place) {
  unsigned bits;
  std::memcpy(&bits, place, 4);
  return __uint_as_float(bits & 0xffffe000);
}

// Where the sums of a product are.
template <typename Sum, std::size_t COUNT>
static Sum* begin_of(const std::array<Sum*, COUNT>& sums) {
  for (std::size_t i = 0; i < COUNT; ++i) {
    if (sums[i] != sums[0] + i) fail("sums of a product that do not lie one after the other");
  }
  return sums[0];
}

void multiply(void* sums, bool whole, int columns, unsigned long long a, unsigned long long b, bool add,
              int depth, int item, bool a_along, bool b_along, float (*read)(const unsigned char*));

}  // namespace host

namespace ptx {

// --- Registers ---

static void setp_eq_u32(bool* to, unsigned first, unsigned second) { *to = first == second; }
static void setp_ne_b32(bool* to, unsigned first, unsigned second) { *to = first != second; }
static void selp_u32(unsigned* to, unsigned yes, unsigned no, bool which) { *to = which ? yes : no; }
static void elect_sync(bool* elected, unsigned) { *elected = threadIdx.x % 32 == 0; }
static void setmaxnreg_dec_sync_aligned_u32(int) {}
static void setmaxnreg_inc_sync_aligned_u32(int) {}

// --- Fences: threads run one after the other ---

static void fence_mbarrier_init_release_cluster() {}
static void fence_proxy_async_shared_cta() {}
void prefetch_tensormap(const void* map);

// --- Other kernels of a stream: they run one after the other ---

static void griddepcontrol_launch_dependents() {}
static void griddepcontrol_wait() {}

// --- Named barriers ---

void bar_arrive(unsigned number, unsigned count);
void bar_sync(unsigned number, unsigned count);

// --- Clusters ---

void barrier_cluster_arrive_release();
void barrier_cluster_arrive_relaxed();
void barrier_cluster_wait_acquire();

// The same place in another block's shared memory.
unsigned counterpart(unsigned address, unsigned block);

void mapa_shared_cluster_u32(unsigned* to, unsigned address, unsigned block);

template <typename Value>
static void mapa_u64(const Value** to, const Value* here, unsigned block) {
  const auto address = reinterpret_cast<const unsigned char*>(here) - host::dynamic_shared;
  *to = reinterpret_cast<const Value*>(host::dynamic_shared + counterpart(address, block));
}

// --- Barriers in shared memory ---

void mbarrier_init_shared_cta_b64(unsigned address, unsigned arrivals);
void mbarrier_arrive_expect_tx_shared_cta_b64(std::nullptr_t, unsigned address, unsigned bytes);
void mbarrier_arrive_shared_cta_b64(std::nullptr_t, unsigned address);
void mbarrier_arrive_shared_cluster_b64(std::nullptr_t, unsigned address);
void mbarrier_try_wait_parity_shared_cta_b64(bool* over, unsigned address, unsigned parity);
void mbarrier_test_wait_parity_shared_cta_b64(bool* over, unsigned address, unsigned parity);

// --- Copies by tensor maps ---

using Place = std::array<int, 3>;  // column, row, matrix
using Flat = std::array<int, 2>;   // column, row of a map of two dimensions

void cp_async_bulk_prefetch_tensor_2d_L2_global_tile(const void* map, Flat);
void cp_async_bulk_tensor_2d_shared_cluster_global_mbarrier_complete_tx_bytes(
    unsigned to, const void* map, Flat place, unsigned barrier);
void cp_async_bulk_tensor_2d_shared_cluster_global_mbarrier_complete_tx_bytes_multicast_cluster(
    unsigned to, const void* map, Flat place, unsigned barrier, unsigned short blocks);
void cp_async_bulk_tensor_3d_shared_cluster_global_mbarrier_complete_tx_bytes(
    unsigned to, const void* map, Place place, unsigned barrier);
void cp_async_bulk_tensor_3d_shared_cluster_global_mbarrier_complete_tx_bytes_multicast_cluster(
    unsigned to, const void* map, Place place, unsigned barrier, unsigned short blocks);
void cp_async_bulk_tensor_3d_global_shared_cta_bulk_group(const void* map, Place place, unsigned from);
void cp_async_bulk_tensor_2d_global_shared_cta_bulk_group(const void* map, Flat place, unsigned from);
void cp_async_bulk_commit_group();
void cp_async_bulk_wait_group(std::size_t groups);
void cp_async_bulk_wait_group_read(std::size_t groups);

void stmatrix_sync_aligned_m8n8_x4_shared_b16(unsigned address,
                                              const std::array<unsigned, 4>& registers);
void stmatrix_sync_aligned_m8n8_x4_trans_shared_b16(unsigned address,
                                                    const std::array<unsigned, 4>& registers);

// --- Products of warp groups ---

void wgmma_fence_sync_aligned();
void wgmma_commit_group_sync_aligned();
void wgmma_wait_group_sync_aligned(std::size_t groups);

template <int COLUMNS>
static void wgmma_mma_async_sync_aligned_m64k16_f32_f16_f16(
    const std::array<float*, COLUMNS / 2>& sums, unsigned long long a, unsigned long long b, bool add,
    int, int, int a_along, int b_along) {
  host::multiply(host::begin_of(sums), false, COLUMNS, a, b, add, 16, 2, a_along, b_along,
                 host::read_short<__half>);
}

template <int COLUMNS>
static void wgmma_mma_async_sync_aligned_m64k16_f32_bf16_bf16(
    const std::array<float*, COLUMNS / 2>& sums, unsigned long long a, unsigned long long b, bool add,
    int, int, int a_along, int b_along) {
  host::multiply(host::begin_of(sums), false, COLUMNS, a, b, add, 16, 2, a_along, b_along,
                 host::read_short<__nv_bfloat16>);
}

template <int COLUMNS>
static void wgmma_mma_async_sync_aligned_m64k8_f32_tf32_tf32(
    const std::array<float*, COLUMNS / 2>& sums, unsigned long long a, unsigned long long b, bool add,
    int, int) {
  host::multiply(host::begin_of(sums), false, COLUMNS, a, b, add, 8, 4, false, false, host::read_tf32_at);
}

template <int COLUMNS>
static void wgmma_mma_async_sync_aligned_m64k32_s32_s8_s8(
    const std::array<int*, COLUMNS / 2>& sums, unsigned long long a, unsigned long long b, bool add) {
  host::multiply(host::begin_of(sums), true, COLUMNS, a, b, add, 32, 1, false, false, host::read_byte);
}

}  // namespace ptx
