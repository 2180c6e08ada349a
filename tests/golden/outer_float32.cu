/*
 * gemm for cuda: family outer, float32, layout nn.
 *
 * template: gemm/cuda/outer.cu.j2, digest 4ca209a539dcc098
 * configuration: {"min_blocks": 2, "sn": 8, "ty": 2, "warps": 8, "wide": 4}
 * launch: grid (ceildiv(K, strip), ceildiv(M, rows), 1), block (256, 1, 1), no dynamic shared
 *     memory
 *   strip = across * 4
 *    WIDE columns a thread    Short reductions (n <= SN a turn), large C. A thread keeps its
 *         +--+--+--+--+       columns of B in registers and walks down the rows of C:
 *         |  |B |  |  | n     elements of A come in panels through shared memory, where all
 *   n     +--+--+--+--+       threads of a warp read the same one. C is written as fast as
 *  +--+   +--+--+--+--+       memory takes it; nothing else crosses memory more than a few times.
 *  |A |-->|  |C |  |  | m
 *  +--+   +--+|-+--+--+       Reference: S. Williams, A. Waterman, D. Patterson, "Roofline",
 *             v               CACM 52(4), 2009: such products are bound by memory.
 */

using T = float;
constexpr int ITEMSIZE = 4;
static_assert(sizeof(T) == ITEMSIZE, "bytes per element");

// --- Configuration ---

// Reduction steps that a thread has of its columns of B.
constexpr int SN = 8;

// Rows and columns of C that a thread computes at a time.
constexpr int TY = 2;
constexpr int WIDE = 4;

// Warps of a block.
constexpr int WARPS = 8;

// Blocks that a multiprocessor must be able to hold.
constexpr int MIN_BLOCKS = 2;

// --- What follows from it ---

constexpr int THREADS = 32 * WARPS;

// Elements of a 16-byte access.
constexpr int VECTOR = 16 / ITEMSIZE;

// Rows of A in shared memory.
constexpr int PANEL = 128;

static_assert(WIDE % VECTOR == 0,
              "columns are written in vectors of 16 bytes where C's rows allow it");

struct __align__(16) Panel {
  T a[PANEL][SN];
};
static_assert(sizeof(Panel) == 4096, "shared memory as predicted");
__shared__ Panel panel;

// --- Memory ---

// WIDTH neighbouring elements that are loaded or stored by one instruction.
template <int WIDTH>
struct alignas(WIDTH * sizeof(T)) Vector {
  T element[WIDTH];
};

// Whether every row of a matrix can be accessed WIDTH elements at a time.
template <int WIDTH, typename Element>
__device__ __forceinline__ bool rows_aligned(const Element* first, int leading_dimension) {
  return reinterpret_cast<unsigned long long>(first) % (WIDTH * sizeof(Element)) == 0 &&
         leading_dimension % WIDTH == 0;
}

// The logarithm of a power of two.
__device__ __forceinline__ int log2_of(int power) { return __ffs(power) - 1; }

// COUNT neighbours in shared memory, in whole vectors.
template <int COUNT>
__device__ __forceinline__ void read_neighbours(T (&to)[COUNT], const T* from) {
  constexpr int WIDTH = COUNT * ITEMSIZE < 16 ? COUNT : 16 / ITEMSIZE;
#pragma unroll
  for (int i = 0; i < COUNT; i += WIDTH) {
    const Vector<WIDTH> part = *reinterpret_cast<const Vector<WIDTH>*>(from + i);
#pragma unroll
    for (int v = 0; v < WIDTH; ++v) to[i + v] = part.element[v];
  }
}

// --- The result ---

// C = alpha * A B + beta * C, of which C is not read where beta is zero.
struct Output {
  T alpha, beta;
  T* c;
  int ldc;

  // What becomes of an element `old` of C, where that of A B is `product`.
  __device__ __forceinline__ T value(T product, const T& old) const {
    T value = alpha * product;
    if (beta != T(0)) value = fma(beta, old, value);
    return value;
  }
};

// Copies rows [first_row, first_row + PANEL) and steps [first_step, first_step + SN) of A to shared
// memory, with zeros where there are none.
__device__ __forceinline__ void copy_panel(const T* a, int lda, int first_row, int m,
                                           int first_step, int n) {
#pragma unroll 4
  for (int index = threadIdx.x; index < PANEL * SN; index += THREADS) {
    const int row = index / SN, step = index % SN;
    const T* from = a + static_cast<long long>(first_row + row) * lda + first_step + step;
    panel.a[row][step] = first_row + row < m && first_step + step < n ? *from : T(0);
  }
}

// A thread's columns of C, `columns` of which there are from its first one on: neighbours in
// vectors of VECTOR, `across` * VECTOR from one to the next, or single ones, `across` from one to
// the next.
template <bool VECTORS>
struct Columns {
  int across;
  int columns;

  __device__ __forceinline__ int offset(int i) const {
    return VECTORS ? i / VECTOR * across * VECTOR + i % VECTOR : i * across;
  }

  // Reads SN steps of B; `b` is its first row at the thread's first column.
  __device__ __forceinline__ void read(T (&b_frag)[SN][WIDE], const T* b, int ldb,
                                       int steps) const {
#pragma unroll
    for (int p = 0; p < SN; ++p) {
#pragma unroll
      for (int i = 0; i < WIDE; ++i) {
        const bool inside = p < steps && offset(i) < columns;
        b_frag[p][i] = inside ? b[static_cast<long long>(p) * ldb + offset(i)] : T(0);
      }
    }
  }

  // Reads what C has in one row, from the thread's first column on.
  __device__ __forceinline__ void read(T (&c_frag)[WIDE], const T* c) const {
    if constexpr (VECTORS) {
#pragma unroll
      for (int i = 0; i < WIDE; i += VECTOR) {
        Vector<VECTOR> chunk = {};
        if (offset(i) < columns) chunk = *reinterpret_cast<const Vector<VECTOR>*>(c + offset(i));
#pragma unroll
        for (int v = 0; v < VECTOR; ++v) c_frag[i + v] = chunk.element[v];
      }
    } else {
#pragma unroll
      for (int i = 0; i < WIDE; ++i) c_frag[i] = offset(i) < columns ? c[offset(i)] : T(0);
    }
  }

  // Writes such a row.
  __device__ __forceinline__ void write(const T (&c_frag)[WIDE], T* c) const {
    if constexpr (VECTORS) {
#pragma unroll
      for (int i = 0; i < WIDE; i += VECTOR) {
        Vector<VECTOR> chunk;
#pragma unroll
        for (int v = 0; v < VECTOR; ++v) chunk.element[v] = c_frag[i + v];
        if (offset(i) < columns) *reinterpret_cast<Vector<VECTOR>*>(c + offset(i)) = chunk;
      }
    } else {
#pragma unroll
      for (int i = 0; i < WIDE; ++i) {
        if (offset(i) < columns) c[offset(i)] = c_frag[i];
      }
    }
  }
};

// Multiplies `rows` rows, whose A is in the panel; thread `y` of `down` takes TY of every
// down * TY. `output` starts at the panel's first row and the thread's first column.
// TY * SN * WIDE products are unrolled: not many, as B's SN * WIDE elements are in registers.
template <bool VECTORS>
__device__ __forceinline__ void multiply(const Columns<VECTORS>& own, const T (&b_frag)[SN][WIDE],
                                         const Output& output, int rows, int y, int down) {
  for (int first = y * TY; first < rows; first += down * TY) {
    T* c_rows = output.c + static_cast<long long>(first) * output.ldc;
    // What C has is asked for before it is needed.
    T c_frag[TY][WIDE] = {};
    if (output.beta != T(0)) {
#pragma unroll
      for (int r = 0; r < TY; ++r) {
        if (first + r < rows) own.read(c_frag[r], c_rows + static_cast<long long>(r) * output.ldc);
      }
    }
#pragma unroll
    for (int r = 0; r < TY; ++r) {
      T a_frag[SN];
      read_neighbours(a_frag, panel.a[first + r]);
      T acc[WIDE] = {};
#pragma unroll
      for (int p = 0; p < SN; ++p) {
#pragma unroll
        for (int i = 0; i < WIDE; ++i) acc[i] = fma(a_frag[p], b_frag[p][i], acc[i]);
      }
#pragma unroll
      for (int i = 0; i < WIDE; ++i) acc[i] = output.value(acc[i], c_frag[r][i]);
      if (first + r < rows) own.write(acc, c_rows + static_cast<long long>(r) * output.ldc);
    }
  }
}

// The block's part of C: rows [first_row, end), and the columns of its threads.
template <bool VECTORS>
__device__ __forceinline__ void fill(int n, int k, T alpha, const T* a, int lda, const T* b,
                                     int ldb, T beta, T* c, int ldc, int first_row, int end,
                                     int first_column, int across) {
  const int x = threadIdx.x & (across - 1);
  const int y = threadIdx.x >> log2_of(across);
  const int column = first_column + (VECTORS ? x * VECTOR : x);
  const Columns<VECTORS> own = {across, k - column};
  for (int step = 0; step < n; step += SN) {
    T b_frag[SN][WIDE];
    own.read(b_frag, b + static_cast<long long>(step) * ldb + column, ldb, n - step);
    for (int row = first_row; row < end; row += PANEL) {
      __syncthreads();
      copy_panel(a, lda, row, end, step, n);
      __syncthreads();
      T* c_panel = c + static_cast<long long>(row) * ldc + column;
      const Output output = {alpha, step == 0 ? beta : T(1), c_panel, ldc};
      multiply(own, b_frag, output, min(PANEL, end - row), y, THREADS >> log2_of(across));
    }
  }
}

// Blocks of THREADS threads: along x for the columns of C, along y for its rows.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) gemm(
    int m, int n, int k, float alpha, const float* __restrict__ a, int lda,
    const float* __restrict__ b, int ldb, float beta, float* __restrict__ c, int ldc, int across,
    int rows) {
  const int first_column = blockIdx.x * across * WIDE;
  const int first_row = blockIdx.y * rows;
  const int end = min(first_row + rows, m);
  if (rows_aligned<VECTOR>(c, ldc) && k % VECTOR == 0) {
    fill<true>(n, k, alpha, a, lda, b, ldb, beta, c, ldc, first_row, end, first_column, across);
  } else {
    fill<false>(n, k, alpha, a, lda, b, ldb, beta, c, ldc, first_row, end, first_column, across);
  }
}
