// What compute capability 9.0 adds to PTX, carried out on the host: barriers in shared memory (mbarrier),
// copies by tensor maps, clusters, and products of warp groups (wgmma).
//
// Copies by tensor maps are carried out when no thread can go on without them, or, with `early`, when
// they are begun: what is read before it has arrived is missing in the one, what is overwritten before it
// was read is wrong in the other. Products are carried out when they are waited for, and must find their
// operands as they were when they were begun.
#pragma once

namespace host {

// --- Tensor maps ---

constexpr unsigned long long MAP_MAGIC = 0x6d61702d6f6e2d68;

// What HostProgram is given in place of a map of the driver's.
struct Map {
  unsigned long long magic, address, rows, columns, row_bytes, box_rows, box_columns, item, swizzle,
      rounded, matrices, matrix_bytes;
};

template <typename TensorMap>
static TensorMap map_at(const void* bytes) {
  TensorMap map;
  std::memcpy(&map, bytes, sizeof map);
  return map;
}

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

template <int COLUMNS, typename Sum>
static void multiply(const std::array<Sum*, COLUMNS / 2>& sums, unsigned long long a,
                     unsigned long long b, bool add, int depth, int item, bool a_along, bool b_along,
                     float (*read)(const unsigned char*)) {
  for (int i = 0; i < COLUMNS / 2; ++i) {
    if (sums[i] != sums[0] + i) fail("sums of a product that do not lie one after the other");
  }
  if (!running->fenced) fail("a product without wgmma.fence");
  for (const unsigned long long descriptor : {a, b}) {
    if (descriptor >> 62 == 0 || descriptor >> 62 == 3 || descriptor & 0x3FFFC000C000C000) fail("a wrong matrix descriptor");
  }
  auto& all = products[warp_group()];
  const std::size_t number = running->products++;
  if (number == all.size()) {
    all.emplace_back(new Product{a, b, COLUMNS, depth, item, add, a_along, b_along, false, read, 0});
    all.back()->whole = std::is_same_v<Sum, int>;
  }
  Product& product = *all[number];
  if (product.a != a || product.b != b || product.columns != COLUMNS || product.add != add) {
    fail("threads of a warp group that begin different products");
  }
  product.sums[running->number % 128] = sums[0];
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

// --- Registers ---

static void setp_eq_u32(bool* to, unsigned first, unsigned second) { *to = first == second; }
static void setp_ne_b32(bool* to, unsigned first, unsigned second) { *to = first != second; }
static void selp_u32(unsigned* to, unsigned yes, unsigned no, bool which) { *to = which ? yes : no; }
static void setmaxnreg_dec_sync_aligned_u32(int) {}
static void setmaxnreg_inc_sync_aligned_u32(int) {}

// --- Fences: threads run one after the other ---

static void fence_mbarrier_init_release_cluster() {}
static void fence_proxy_async_shared_cta() {}
static void prefetch_tensormap(const void* map) { host::read_map(map); }

// --- Other kernels of a stream: they run one after the other ---

static void griddepcontrol_launch_dependents() {}
static void griddepcontrol_wait() {}

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

static void bar_arrive(unsigned number, unsigned count) { arrive_named(number, count); }

static void bar_sync(unsigned number, unsigned count) {
  const unsigned before = host::named[host::running->rank][number & 15].opened;
  const host::NamedBarrier& barrier = arrive_named(number, count);
  host::await("a named barrier", [&] { return barrier.opened != before; });
}

// --- Clusters ---

static void barrier_cluster_arrive_release() {
  ++host::running->cluster_arrivals;
  ++host::progress;
}

static void barrier_cluster_arrive_relaxed() { barrier_cluster_arrive_release(); }

static void barrier_cluster_wait_acquire() {
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

// The same place in another block's shared memory.
static unsigned counterpart(unsigned address, unsigned block) {
  if (block >= host::cluster_blocks) host::fail("a block that its cluster has not");
  return host::in_cluster(address) % host::SHARED_BYTES + block * host::SHARED_BYTES;
}

static void mapa_shared_cluster_u32(unsigned* to, unsigned address, unsigned block) {
  *to = counterpart(address, block);
}

template <typename Value>
static void mapa_u64(const Value** to, const Value* here, unsigned block) {
  const auto address = reinterpret_cast<const unsigned char*>(here) - host::dynamic_shared;
  *to = reinterpret_cast<const Value*>(host::dynamic_shared + counterpart(address, block));
}

// --- Barriers in shared memory ---

static void mbarrier_init_shared_cta_b64(unsigned address, unsigned arrivals) {
  if (address % 8 || arrivals == 0) host::fail("a barrier that there cannot be");
  host::barriers[host::in_cluster(address)] = {arrivals, arrivals, 0, 0};
  std::memcpy(host::dynamic_shared + address, &host::BARRIER_MAGIC, 8);
  ++host::progress;
}

static void mbarrier_arrive_expect_tx_shared_cta_b64(std::nullptr_t, unsigned address, unsigned bytes) {
  host::arrive(address, bytes);
}

static void mbarrier_arrive_shared_cta_b64(std::nullptr_t, unsigned address) {
  host::arrive(address, 0);
}

static void mbarrier_arrive_shared_cluster_b64(std::nullptr_t, unsigned address) {
  host::arrive(address, 0);
}

static void mbarrier_try_wait_parity_shared_cta_b64(bool* over, unsigned address, unsigned parity) {
  if (parity > 1) host::fail("a parity that is neither 0 nor 1");
  const auto holds = [&] { return host::barrier_at(address).phase % 2 != parity; };
  if (!holds()) host::block("a phase of a barrier in shared memory");
  *over = holds();
  host::progress += *over;
}

// --- Copies by tensor maps ---

using Place = std::array<int, 3>;  // column, row, matrix
using Flat = std::array<int, 2>;   // column, row of a map of two dimensions

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

static void cp_async_bulk_prefetch_tensor_2d_L2_global_tile(const void* map, std::array<int, 2>) {
  host::read_map(map);
}

static void cp_async_bulk_tensor_2d_shared_cluster_global_mbarrier_complete_tx_bytes(
    unsigned to, const void* map, Flat place, unsigned barrier) {
  load_box(to, map, flat(place), barrier, 1u << to / host::SHARED_BYTES);
}

static void cp_async_bulk_tensor_2d_shared_cluster_global_mbarrier_complete_tx_bytes_multicast_cluster(
    unsigned to, const void* map, Flat place, unsigned barrier, unsigned short blocks) {
  load_box(to, map, flat(place), barrier, blocks);
}

static void cp_async_bulk_tensor_3d_shared_cluster_global_mbarrier_complete_tx_bytes(
    unsigned to, const void* map, Place place, unsigned barrier) {
  load_box(to, map, place, barrier, 1u << to / host::SHARED_BYTES);
}

static void cp_async_bulk_tensor_3d_shared_cluster_global_mbarrier_complete_tx_bytes_multicast_cluster(
    unsigned to, const void* map, Place place, unsigned barrier, unsigned short blocks) {
  load_box(to, map, place, barrier, blocks);
}

static void cp_async_bulk_tensor_3d_global_shared_cta_bulk_group(const void* map, Place place,
                                                                 unsigned from) {
  const host::Map read = host::read_map(map);
  host::running->stores_begun.push_back([=] {
    host::for_box(read, from, place, [&](const unsigned char* shared, char* matrix) {
      if (matrix) std::memcpy(matrix, shared, read.item);
    });
  });
}

static void cp_async_bulk_tensor_2d_global_shared_cta_bulk_group(const void* map, Flat place,
                                                                 unsigned from) {
  cp_async_bulk_tensor_3d_global_shared_cta_bulk_group(map, flat(place), from);
}

static void cp_async_bulk_commit_group() {
  host::running->stores_committed.push_back(std::move(host::running->stores_begun));
  host::running->stores_begun.clear();
}

static void cp_async_bulk_wait_group(std::size_t groups) {
  auto& committed = host::running->stores_committed;
  while (committed.size() > groups) {
    for (const auto& store : committed.front()) store();
    committed.pop_front();
  }
}

static void cp_async_bulk_wait_group_read(std::size_t groups) { cp_async_bulk_wait_group(groups); }

// Lane l has the address of row l % 8 of matrix l / 8, and of row l / 4 of each matrix the elements
// 2 (l % 4) and the next.
static void stmatrix_sync_aligned_m8n8_x4_shared_b16(unsigned address,
                                                     const std::array<unsigned, 4>& registers) {
  if (address % 16) host::fail("a row of a matrix that begins between 16 bytes");
  const unsigned exchange = host::offer(address);
  for (int matrix = 0; matrix < 4; ++matrix) {
    const auto row = host::offered<unsigned>(first_of_warp() + matrix * 8 + lane() / 4, exchange);
    std::memcpy(shared(row) + lane() % 4 * 4, &registers[matrix], 4);
  }
}

// --- Products of warp groups ---

static void wgmma_fence_sync_aligned() { host::running->fenced = true; }

static void wgmma_commit_group_sync_aligned() {
  host::running->products_committed.push_back(std::move(host::running->begun));
  host::running->begun.clear();
}

static void wgmma_wait_group_sync_aligned(std::size_t groups) { host::wait_for_products(groups); }

template <int COLUMNS>
static void wgmma_mma_async_sync_aligned_m64k16_f32_f16_f16(
    const std::array<float*, COLUMNS / 2>& sums, unsigned long long a, unsigned long long b, bool add,
    int, int, int a_along, int b_along) {
  host::multiply<COLUMNS>(sums, a, b, add, 16, 2, a_along, b_along, host::read_short<__half>);
}

template <int COLUMNS>
static void wgmma_mma_async_sync_aligned_m64k16_f32_bf16_bf16(
    const std::array<float*, COLUMNS / 2>& sums, unsigned long long a, unsigned long long b, bool add,
    int, int, int a_along, int b_along) {
  host::multiply<COLUMNS>(sums, a, b, add, 16, 2, a_along, b_along, host::read_short<__nv_bfloat16>);
}

template <int COLUMNS>
static void wgmma_mma_async_sync_aligned_m64k8_f32_tf32_tf32(
    const std::array<float*, COLUMNS / 2>& sums, unsigned long long a, unsigned long long b, bool add,
    int, int) {
  host::multiply<COLUMNS>(sums, a, b, add, 8, 4, false, false, host::read_tf32_at);
}

template <int COLUMNS>
static void wgmma_mma_async_sync_aligned_m64k32_s32_s8_s8(
    const std::array<int*, COLUMNS / 2>& sums, unsigned long long a, unsigned long long b, bool add) {
  host::multiply<COLUMNS>(sums, a, b, add, 32, 1, false, false, host::read_byte);
}

}  // namespace ptx
