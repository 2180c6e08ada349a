/*
 * gemm for cuda: family skinny, float32, layout nn.
 *
 * template: gemm/cuda/skinny.cu.j2, digest 3fa5709a6d0421d7
 * configuration: {"few": 4, "held": 4, "loads": 8, "min_blocks": 2, "side": "rows", "warps": 8,
 *     "wide": 4}
 * launch: grid (ceildiv(short, 4), strips, splits), block (256, 1, 1), 9216 bytes of dynamic shared
 *     memory
 *   workspace: ticket_bytes + part_bytes bytes, of which the first ticket_bytes are zero
 *   strip = across * 4
 *   short = M
 *   long = K
 *   overlap = (strip > 4 and long % 4 > 0) * 4
 *   strips = ceildiv(long, strip - overlap)
 *   tiles = strips * ceildiv(short, 4)
 *   ticket_bytes = (splits > 1) * ceildiv(tiles, 4) * 16
 *   part_bytes = (splits > 1) * tiles * splits * 4 * strip * 4
 *
 *     side = "rows": C has few rows (FEW a block); "columns" is the same, transposed.
 *
 *               k (streamed)      Threads lie across the outputs and down the reduction. Each reads
 *         +------------------+    vectors of the large operand once, LOADS of them on their way at
 *         |  |  | B |  |  |  | n  any time, and multiplies them by FEW factors from a panel of the
 *         +------------------+    small operand in shared memory. Sums of the threads down the
 *     n                           reduction meet in shared memory. With splits > 1 blocks share it,
 *   +----+ +-----------------+    and the last one of a tile adds up all parts (split-K).
 *   | A  | |       C         | FEW
 *   +----+ +-----------------+    Reference: J. Chen et al., "TSM2", ICS 2019.
 */

using T = float;
constexpr int ITEMSIZE = 4;
static_assert(sizeof(T) == ITEMSIZE, "bytes per element");

// --- Configuration ---

// Rows of C that a block computes, and columns of C that a thread does.
constexpr int FEW = 4;
constexpr int WIDE = 4;

// Vectors of B that a thread has on their way at any time.
constexpr int LOADS = 8;

// Elements of a panel of A that a thread copies to shared memory.
constexpr int HELD = 4;

// Warps of a block.
constexpr int WARPS = 8;

// Blocks that a multiprocessor must be able to hold.
constexpr int MIN_BLOCKS = 2;

// --- What follows from it ---

constexpr int THREADS = 32 * WARPS;

// Elements of B in a 16-byte access.
constexpr int VECTOR = 4;

// Vectors of a thread for the same reduction step, a share; how many shares are on their way, and
// how many of them are used before others are asked for.
constexpr int CHUNKS = WIDE / VECTOR;
constexpr int DEPTH = LOADS / CHUNKS;
constexpr int HALF = DEPTH == 1 ? 1 : DEPTH / 2;

// Reduction steps of a panel.
constexpr int SN = THREADS * HELD / FEW;

// A panel keeps the factors of a reduction step side by side, and those of the next
// FACTORS_LD further.
constexpr int PAD = 0;
constexpr int FACTORS_LD = FEW + PAD;
constexpr int PANEL = SN * FACTORS_LD;

static_assert(THREADS * HELD % FEW == 0, "threads * held / few must be a whole number (sn)");
static_assert((FEW >= 8) * 16 % ITEMSIZE == 0,
              "(few >= 8) * 16 / acc_itemsize must be a whole number (pad)");
static_assert(WIDE % VECTOR == 0,
              "a thread takes whole vectors of 16 bytes where they lie along its columns (rows) "
              "of C");
static_assert(LOADS >= WIDE,
              "where vectors lie along the reduction, a thread asks for one of each of its "
              "columns (rows) at least");

constexpr int SHARED_BYTES = 9216;
static_assert(2 * PANEL * ITEMSIZE <= SHARED_BYTES, "shared memory as predicted");
extern __shared__ __align__(16) unsigned char shared_memory[];

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

// The same number, of which the compiler knows nothing: what follows from it is computed where it
// is needed, at the price of an instruction, not kept in registers all through the kernel.
__device__ __forceinline__ int recomputed(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// --- The result ---

// C = alpha * A B + beta * C, of which C is not read where beta is zero.
struct Output {
  T alpha, beta;
  T* c;
  int ldc;

  __device__ __forceinline__ T* at(int row, int column) const {
    return c + static_cast<long long>(row) * ldc + column;
  }

  // What becomes of an element `old` of C, where that of A B is `product`.
  __device__ __forceinline__ T value(T product, const T& old) const {
    T value = alpha * product;
    if (beta != T(0)) value = fma(beta, old, value);
    return value;
  }

  __device__ __forceinline__ void store(int row, int column, T product) const {
    T* element = at(row, column);
    *element = value(product, *element);
  }
};

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

// --- The streamed operand ---

// Elements that are loaded by one instruction.
struct alignas(16) Chunk {
  T element[VECTOR];
};

// How many elements an address lies behind a boundary of vectors.
__device__ __forceinline__ int shift_of(const T* address) {
  return reinterpret_cast<unsigned long long>(address) / sizeof(T) % VECTOR;
}

// Whether rows that are `apart` rows from each other lie behind boundaries alike.
__device__ __forceinline__ bool lie_alike(int apart, int ld) {
  return static_cast<unsigned>(apart) * static_cast<unsigned>(ld) % VECTOR == 0;
}

// More reduction steps than there are.
constexpr int ALL = 0x7fffffff;

// A thread's share of the operand. Threads lie `across` the outputs, and one below the other down
// the reduction: thread `x` across and `y` down takes WIDE outputs of every (threads / across)-th
// reduction step, from step `y` on.
template <bool ALIGNED>
struct Stream {
  const T* from;
  long long stride;  // from one of the thread's rows to the next
  int across;
  int step;          // reduction steps from one of the thread's rows to the next
  int outputs;       // that are left from the thread's first place on
  int steps;         // that are left from the thread's next one on
  int before;        // elements of the thread's first share that lie before the operand
  int singly;        // where so few steps are left, elements of the next share are read one by one
  int rest;          // and of those after it

  // `own` is the thread's first row where the block's strip begins. Its rows lie `shift` elements
  // behind boundaries, if they lie `alike`. `behind` steps are those of others.
  __device__ __forceinline__ Stream(const T* operand, const T* own, int ld, bool alike, int shift,
                                    int outputs, int steps, int behind, int across, int down, int x)
      : across(across), step(down), steps(steps), before(0), singly(0), rest(0) {
    const int place = x * VECTOR - shift;
    from = own + place;
    stride = static_cast<long long>(step) * ld;
    this->outputs = outputs - place;
    if (ALIGNED) return;
    // A vector reaches beyond the end of a row, and that of the operand, if few rows follow.
    const bool ragged = (this->outputs & (across * VECTOR - 1)) < VECTOR;
    rest = alike ? (ragged ? max(0, VECTOR - 1 - behind) : 0) : ALL;
    before = from < operand ? operand - from : 0;
    singly = before > 0 ? ALL : rest;
  }

  // Asks for the thread's next share. Outputs that there are not get zeros, or what is beside.
  __device__ __forceinline__ void read(Chunk (&chunk)[CHUNKS]) {
#pragma unroll
    for (int j = 0; j < CHUNKS; ++j) {
      const int ahead = j * across * VECTOR;
      chunk[j] = {};
      if (steps > singly && ahead < outputs) {
        chunk[j] = *reinterpret_cast<const Chunk*>(from + ahead);
      }
    }
    if (!ALIGNED && 0 < steps && steps <= singly) {
#pragma unroll
      for (int i = 0; i < WIDE; ++i) {
        const int place = i / VECTOR * across * VECTOR + i % VECTOR;
        if (before <= place && place < outputs) {
          chunk[i / VECTOR].element[i % VECTOR] = from[place];
        }
      }
      before = 0;
    }
    singly = rest;
    from += stride;
    steps -= step;
  }

  // Reduction steps from a share to the next; in a panel, where the factors of the first share are,
  // and how far on those of the next.
  __device__ __forceinline__ int period() const { return step; }
  __device__ __forceinline__ static int first_factor(int y) { return y * FACTORS_LD; }
  __device__ __forceinline__ int next_factor() const { return step * FACTORS_LD; }

  // acc += the products of a share with the factors of its reduction step.
  __device__ __forceinline__ void multiply(T (&acc)[FEW][WIDE], const Chunk (&chunk)[CHUNKS],
                                           const T* factors) const {
    T factor[FEW];
    read_neighbours(factor, factors);
#pragma unroll
    for (int f = 0; f < FEW; ++f) {
#pragma unroll
      for (int i = 0; i < WIDE; ++i) {
        acc[f][i] = fma(factor[f], chunk[i / VECTOR].element[i % VECTOR], acc[f][i]);
      }
    }
  }
};

// Which output of the block a thread's i-th one is. Those before its strip stand at the strip's
// end, which is left to the next one.
__device__ __forceinline__ int output_of(int i, int across, int x, int shift) {
  return ((i / VECTOR * across + x) * VECTOR + i % VECTOR - shift) & (across * WIDE - 1);
}

// --- The other operand ---

// A block's part of A, FEW rows of it, as the threads copy it to shared memory: a thread its
// HELD elements of every panel. Those of the next panel wait in registers while one is used.
struct Factors {
  const T* from;  // the thread's first element of the next panel
  int ld;
  int few;    // rows that are left from that element on
  int steps;  // reduction steps that are
  T held[HELD];

  // Steps and rows from a thread's first element of a panel to its i-th.
  __device__ __forceinline__ static constexpr int step_of(int i) { return i * THREADS % SN; }
  __device__ __forceinline__ static constexpr int few_of(int i) { return i * THREADS / SN; }

  // Of the panels from the reduction step on that `operand` starts with.
  __device__ __forceinline__ Factors(const T* operand, int ld, int few, int steps)
      : ld(ld), few(few - own_few()), steps(steps - own_step()) {
    from = operand + static_cast<long long>(own_few()) * ld + own_step();
  }
  __device__ __forceinline__ static int own_step() { return threadIdx.x % SN; }
  __device__ __forceinline__ static int own_few() { return threadIdx.x / SN; }

  // Asks for the thread's elements of the next panel; zeros for what is not there.
  __device__ __forceinline__ void fetch() {
    const long long stride = recomputed(ld);
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
      const bool inside = step_of(i) < steps && few_of(i) < few;
      held[i] = inside ? from[few_of(i) * stride + step_of(i)] : T(0);
    }
    from += SN;
    steps -= SN;
  }

  // Writes them to shared memory.
  __device__ __forceinline__ void put(T* panel) const {
    panel += own_step() * FACTORS_LD + own_few();
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
      panel[step_of(i) * FACTORS_LD + few_of(i)] = held[i];
    }
  }
};

// acc += the products of the thread's share of the part of the reduction.
template <bool ALIGNED>
__device__ __forceinline__ void accumulate(T (&acc)[FEW][WIDE], Stream<ALIGNED> stream,
                                           Factors factors, int steps, int y) {
  T* panel = reinterpret_cast<T*>(shared_memory);
  const int turn = DEPTH * stream.period();
  Chunk chunk[DEPTH][CHUNKS];
#pragma unroll
  for (int d = 0; d < DEPTH; ++d) stream.read(chunk[d]);
  factors.fetch();
  for (int first = 0; first < steps; first += SN) {
    // Two panels take turns: nobody still reads the one that is written.
    factors.put(panel);
    __syncthreads();
    factors.fetch();
    const int end = min(SN, steps - first);
    const T* own = panel + stream.first_factor(y);
    for (int step = 0; step < end; step += turn) {
      // One half of the shares is used and asked for again, while the other half is on its way.
#pragma unroll
      for (int half = 0; half < DEPTH; half += HALF) {
#pragma unroll
        for (int d = half; d < half + HALF; ++d) {
          stream.multiply(acc, chunk[d], own);
          own += stream.next_factor();
        }
#pragma unroll
        for (int d = half; d < half + HALF; ++d) stream.read(chunk[d]);
      }
    }
    panel = reinterpret_cast<T*>(shared_memory) + (first / SN % 2 == 0 ? PANEL : 0);
  }
}

// --- Sums over threads ---

// Rows of C whose sums fit shared memory at a time; an output's sums lie SUMS_PAD further
// than side by side.
constexpr int SUMS_PAD = 16 / ITEMSIZE;
__device__ constexpr int fitting(int few) {
  const int bytes = few * THREADS * (WIDE + SUMS_PAD) * ITEMSIZE;
  return few == 1 || bytes <= SHARED_BYTES ? few : fitting(few / 2);
}
constexpr int AT_ONCE = fitting(FEW);
static_assert(AT_ONCE * THREADS * (WIDE + SUMS_PAD) * ITEMSIZE <= SHARED_BYTES, "room for sums");

// Adds up what the threads that lie down the reduction have for the same element of C, in an order
// that is always the same, and passes element and sum to `store(f, output, sum)`. `output_of(i)` is
// which output of the block a thread's i-th one is.
template <typename Which, typename Store>
__device__ __forceinline__ void sum_over_threads(T (&acc)[FEW][WIDE], int across, int down, int y,
                                                 Which output_of, Store store) {
  T* sums = reinterpret_cast<T*>(shared_memory);
  const int outputs = across * WIDE;
  const int shift = log2_of(outputs);
  const int ld = outputs + SUMS_PAD;
  // Where there are more threads than elements, several neighbours add up one.
  const int idle = log2_of(THREADS / AT_ONCE) - shift;
  const int log_partners = max(0, min(idle, min(log2_of(down), 5)));
  const int partners = 1 << log_partners;
  const int partner = threadIdx.x & (partners - 1);
#pragma unroll 1
  for (int first = 0; first < FEW; first += AT_ONCE) {
    __syncthreads();
#pragma unroll
    for (int f = 0; f < AT_ONCE; ++f) {
#pragma unroll
      for (int i = 0; i < WIDE; ++i) {
        sums[(f * down + y) * ld + output_of(i)] = acc[f][i];
      }
    }
    __syncthreads();
    const int stride = THREADS >> log_partners;
    for (int index = threadIdx.x >> log_partners; index < AT_ONCE * outputs; index += stride) {
      const int f = index >> shift;
      const int output = index & (outputs - 1);
      T sum = 0;
#pragma unroll 4
      for (int i = partner; i < down; i += partners) sum += sums[(f * down + i) * ld + output];
      for (int distance = partners / 2; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, distance);
      }
      if (partner == 0) store(first + f, output, sum);
    }
    // The next ones move up: what is in registers has constant indices.
#pragma unroll
    for (int f = 0; f + AT_ONCE < FEW; ++f) {
#pragma unroll
      for (int i = 0; i < WIDE; ++i) acc[f][i] = acc[f + AT_ONCE][i];
    }
  }
}

// --- Parts of the reduction ---

// Whether the calling block is the last of `count` blocks to come here; it may then read what the
// others wrote before they came. The ticket is zero before the first and after the last of them.
__device__ __forceinline__ bool last_to_come(unsigned* ticket, unsigned count) {
  __syncthreads();
  bool last = false;
  if (threadIdx.x == 0) {
    // The barriers make this thread's fences good for the whole block.
    __threadfence();
    last = atomicInc(ticket, count - 1) == count - 1;
    __threadfence();
  }
  return __syncthreads_or(last);
}

// Where a part of a tile keeps an element of C: as C's rows have it.
__device__ __forceinline__ int place(int f, int output, int strip) {
  return f * strip + output;
}

// Adds up the parts of a tile, in their order, and passes place and sum to `store(place, sum)`.
template <typename Store>
__device__ __forceinline__ void sum_over_parts(const T* parts, int count, int strip, Store store) {
  constexpr int WIDTH = 16 / ITEMSIZE;
  const Vector<WIDTH>* in_vectors = reinterpret_cast<const Vector<WIDTH>*>(parts);
  const int vectors = FEW * strip / WIDTH;
  const int log_partners = max(0, min(log2_of(THREADS) - log2_of(vectors), 5));
  const int partners = 1 << log_partners;
  const int partner = threadIdx.x & (partners - 1);
  for (int index = threadIdx.x >> log_partners; index < vectors; index += THREADS >> log_partners) {
    Vector<WIDTH> sum = {};
#pragma unroll 8
    for (int i = partner; i < count; i += partners) {
      const Vector<WIDTH> part = in_vectors[i * vectors + index];
#pragma unroll
      for (int v = 0; v < WIDTH; ++v) sum.element[v] += part.element[v];
    }
    for (int distance = partners / 2; distance > 0; distance /= 2) {
#pragma unroll
      for (int v = 0; v < WIDTH; ++v) {
        sum.element[v] += __shfl_xor_sync(0xffffffffu, sum.element[v], distance);
      }
    }
    if (partner != 0) continue;
#pragma unroll
    for (int v = 0; v < WIDTH; ++v) store(index * WIDTH + v, sum.element[v]);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) gemm(
    int m, int n, int k, float alpha, const float* __restrict__ a, int lda,
    const float* __restrict__ b, int ldb, float beta, float* __restrict__ c, int ldc,
    float* __restrict__ workspace, int across, int splits) {
  // The block's tile: its rows and columns of C.
  const int strip = across * WIDE;
  const int first_few = blockIdx.x * FEW;
  // Where rows of B are no whole vectors, a tile leaves its last columns to the next one: of some
  // rows it has no vectors with them.
  const int overlap = k % VECTOR == 0 || strip == VECTOR ? 0 : VECTOR;
  const int first_output = blockIdx.y * (strip - overlap);

  // Its part of the reduction, which starts where vectors do.
  const int part = blockIdx.z;
  const unsigned vectors_in_all = (n - 1) / VECTOR + 1;
  const int least = vectors_in_all / splits;
  const int longer = vectors_in_all % splits;  // parts that have one vector more
  const int begin = (part * least + min(part, longer)) * VECTOR;
  const int end = min(begin + (least + (part < longer)) * VECTOR, n);
  const int steps = end - begin;

  // The thread's place: `across` threads lie across the columns, `down` along the reduction.
  const int down = THREADS >> log2_of(across);
  const int x = threadIdx.x & (across - 1);
  const int y = threadIdx.x >> log2_of(across);
  const T* factors = a + static_cast<long long>(first_few) * lda + begin;
  const Factors other(factors, lda, m - first_few, steps);

  T acc[FEW][WIDE] = {};
  const bool aligned = rows_aligned<VECTOR>(b, ldb) && k % VECTOR == 0;
  const T* own = b + static_cast<long long>(begin + y) * ldb + first_output;
  const bool alike = overlap > 0 && lie_alike(down, ldb);
  const int shift = alike ? shift_of(own) : 0;
  const int left = k - first_output;
  if (aligned) {
    const Stream<true> stream(b, own, ldb, alike, shift, left, steps - y, n - end,
                              across, down, x);
    accumulate(acc, stream, other, steps, y);
  } else {
    const Stream<false> stream(b, own, ldb, alike, shift, left, steps - y, n - end,
                               across, down, x);
    accumulate(acc, stream, other, steps, y);
  }

  const Output result = {alpha, beta, c, ldc};
  const auto store = [&](int f, int output, T sum) {
    f += first_few;
    output += first_output;
    if (f >= m || output >= k || output - first_output >= strip - overlap) return;
    result.store(f, output, sum);
  };
  unsigned* tickets = reinterpret_cast<unsigned*>(workspace);
  const int tile = blockIdx.y * gridDim.x + blockIdx.x;
  const int tiles = gridDim.x * gridDim.y;
  T* parts = reinterpret_cast<T*>(tickets + (tiles + 3) / 4 * 4) +
             static_cast<long long>(tile) * splits * FEW * strip;
  const auto own_output = [&](int i) { return output_of(i, across, x, shift); };
  sum_over_threads(acc, across, down, y, own_output, [&](int f, int output, T sum) {
    if (splits == 1) {
      store(f, output, sum);
    } else {
      parts[part * FEW * strip + place(f, output, strip)] = sum;
    }
  });

  // The block that finishes the tile's last part adds up all of them.
  if (splits == 1 || !last_to_come(tickets + tile, splits)) return;
  sum_over_parts(parts, splits, strip, [&](int at, T sum) {
    store(at >> log2_of(strip), at & (strip - 1), sum);
  });
}
