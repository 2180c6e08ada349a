// Kernels that the evaluator itself runs: filling and inspecting guarded matrices, comparing
// results, and copying operands that a kernel cannot read where they lie.
//
// Compiled with T, the element type of results, and WORD, an unsigned integer of the size of A's and
// B's. Every kernel walks its work with a stride of the whole grid, so any grid will do; those
// that copy take tiles. Loops stay rolled where unrolling gains nothing: a run's first trial waits
// until these kernels are compiled.

__device__ long long first_index() { return blockIdx.x * (long long)blockDim.x + threadIdx.x; }
__device__ long long grid_stride() { return gridDim.x * (long long)blockDim.x; }

template <typename Word>
__device__ void fill(Word* words, long long count, Word value)
{
#pragma unroll 1
    for (long long i = first_index(); i < count; i += grid_stride()) {
        words[i] = value;
    }
}

// The same by bytes per element.
extern "C" __global__ void fill_2(unsigned short* words, long long count, unsigned short value)
{
    fill(words, count, value);
}
extern "C" __global__ void fill_4(unsigned* words, long long count, unsigned value)
{
    fill(words, count, value);
}
extern "C" __global__ void fill_8(
    unsigned long long* words, long long count, unsigned long long value)
{
    fill(words, count, value);
}

// A well-mixed hash of a value and its place, after splitmix64.
__device__ unsigned long long mix(unsigned long long value, unsigned long long place)
{
    unsigned long long z = value + 0x9E3779B97F4A7C15ull * (place + 1);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

__device__ unsigned long long block_sum(unsigned long long value)
{
    __shared__ unsigned long long partial[32];
    for (int distance = 16; distance > 0; distance /= 2) {
        value += __shfl_down_sync(0xffffffff, value, distance);
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        partial[threadIdx.x / 32] = value;
    }
    __syncthreads();
    unsigned long long total = 0;
#pragma unroll 1
    for (int warp = 0; warp < blockDim.x / 32; ++warp) {
        total += partial[warp];
    }
    return total;
}

// Adds to findings: words that no longer hold `poison` in the guard zone before the matrix [0],
// after it [1] and between its rows [2]; elements that still hold it [3]; a hash of the rest [4].
// `words` starts with the guard zone before the matrix. Blocks of whole warps.
template <typename Word>
__device__ void inspect(
    const Word* words, long long guard, long long rows, long long columns, long long stride,
    Word poison, unsigned long long* findings)
{
    unsigned long long found[5] = {0, 0, 0, 0, 0};
    const long long size = rows * stride;
#pragma unroll 1
    for (long long i = first_index(); i < size + 2 * guard; i += grid_stride()) {
        const Word word = words[i];
        const long long place = i - guard;
        if (place < 0) {
            found[0] += word != poison;
        } else if (place >= size) {
            found[1] += word != poison;
        } else if (place % stride >= columns) {
            found[2] += word != poison;
        } else {
            found[3] += word == poison;
            found[4] += mix(word, place);
        }
    }
#pragma unroll 1
    for (int kind = 0; kind < 5; ++kind) {
        const unsigned long long total = block_sum(found[kind]);
        if (threadIdx.x == 0 && total != 0) {
            atomicAdd(&findings[kind], total);
        }
    }
}

// The same by bytes per element.
extern "C" __global__ void inspect_2(
    const unsigned short* words, long long guard, long long rows, long long columns,
    long long stride, unsigned short poison, unsigned long long* findings)
{
    inspect(words, guard, rows, columns, stride, poison, findings);
}
extern "C" __global__ void inspect_4(
    const unsigned* words, long long guard, long long rows, long long columns, long long stride,
    unsigned poison, unsigned long long* findings)
{
    inspect(words, guard, rows, columns, stride, poison, findings);
}
extern "C" __global__ void inspect_8(
    const unsigned long long* words, long long guard, long long rows, long long columns,
    long long stride, unsigned long long poison, unsigned long long* findings)
{
    inspect(words, guard, rows, columns, stride, poison, findings);
}

// Raises worst, as the bits of a double, to the largest error relative to what is allowed:
// |c - expected| / (factor * scale + rounding * |expected| + absolute); without scale, that is 1.
// The bits of a NaN are larger than those of any number.
extern "C" __global__ void compare(
    const T* c, long long stride, long long rows, long long columns,
    const double* expected, const double* scale, double factor, double rounding, double absolute,
    unsigned long long* worst)
{
    unsigned long long largest = 0;
#pragma unroll 1
    for (long long i = first_index(); i < rows * columns; i += grid_stride()) {
        const double value = c[i / columns * stride + i % columns];
        const double allowed = factor * (scale != nullptr ? scale[i] : 1.0) +
                               rounding * fabs(expected[i]) + absolute;
        const double error = fabs(value - expected[i]) / allowed;
        const unsigned long long bits = __double_as_longlong(error) & 0x7FFFFFFFFFFFFFFFll;
        largest = bits > largest ? bits : largest;
    }
    for (int distance = 16; distance > 0; distance /= 2) {
        const unsigned long long other = __shfl_down_sync(0xffffffff, largest, distance);
        largest = other > largest ? other : largest;
    }
    if (threadIdx.x % 32 == 0 && largest != 0) {
        atomicMax(worst, largest);
    }
}

// image[i][v] = sum over j of c[i][j] times +1 or -1, as bit v of signs[j] is 0 or 1. One block a
// row; blocks of 256 threads.
extern "C" __global__ void __launch_bounds__(256) project(
    const T* c, long long stride, long long rows, long long columns,
    const unsigned short* signs, double* image)
{
    constexpr int VECTORS = 16;
    __shared__ double partial[8][VECTORS];
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        double sums[VECTORS] = {};
        for (long long j = threadIdx.x; j < columns; j += blockDim.x) {
            const double value = c[row * stride + j];
            const unsigned sign = signs[j];
#pragma unroll
            for (int v = 0; v < VECTORS; ++v) {
                sums[v] += (sign >> v & 1) != 0 ? -value : value;
            }
        }
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
            for (int distance = 16; distance > 0; distance /= 2) {
                sums[v] += __shfl_down_sync(0xffffffff, sums[v], distance);
            }
            if (threadIdx.x % 32 == 0) {
                partial[threadIdx.x / 32][v] = sums[v];
            }
        }
        __syncthreads();
        if (threadIdx.x < VECTORS) {
            double total = 0;
            for (int warp = 0; warp < 8; ++warp) {
                total += partial[warp][threadIdx.x];
            }
            image[row * VECTORS + threadIdx.x] = total;
        }
        __syncthreads();
    }
}

// taken[i][j] = c[row i of rows][column j of columns]; a null list takes them all, in order.
extern "C" __global__ void take(
    const T* c, long long stride, const int* rows, long long row_count,
    const int* columns, long long column_count, T* taken)
{
#pragma unroll 1
    for (long long i = first_index(); i < row_count * column_count; i += grid_stride()) {
        const long long row = rows != nullptr ? rows[i / column_count] : i / column_count;
        const long long column = columns != nullptr ? columns[i % column_count] : i % column_count;
        taken[i] = c[row * stride + column];
    }
}

// to[j][i] = from[i][j], rows of `to` so many elements `apart`. Blocks of 32 x 8 threads; each takes
// tiles of 32 x 32.
__device__ void transpose_tiles(
    const WORD* from, long long stride, long long rows, long long columns, WORD* to,
    long long apart)
{
    constexpr int TILE = 32;
    __shared__ WORD tile[TILE][TILE + 1];
    const long long tiles_across = (columns + TILE - 1) / TILE;
    const long long tiles = tiles_across * ((rows + TILE - 1) / TILE);
    for (long long t = blockIdx.x; t < tiles; t += gridDim.x) {
        const long long row = t / tiles_across * TILE;
        const long long column = t % tiles_across * TILE;
        for (int i = threadIdx.y; i < TILE; i += blockDim.y) {
            if (row + i < rows && column + threadIdx.x < columns) {
                tile[i][threadIdx.x] = from[(row + i) * stride + column + threadIdx.x];
            }
        }
        __syncthreads();
        for (int i = threadIdx.y; i < TILE; i += blockDim.y) {
            if (column + i < columns && row + threadIdx.x < rows) {
                to[(column + i) * apart + row + threadIdx.x] = tile[threadIdx.x][i];
            }
        }
        __syncthreads();
    }
}

// The same, dense rows in `to`.
extern "C" __global__ void __launch_bounds__(256) transpose(
    const WORD* from, long long stride, long long rows, long long columns, WORD* to)
{
    transpose_tiles(from, stride, rows, columns, to, rows);
}

extern "C" __global__ void __launch_bounds__(256) transpose_apart(
    const WORD* from, long long stride, long long rows, long long columns, WORD* to,
    long long apart)
{
    transpose_tiles(from, stride, rows, columns, to, apart);
}

// What a thread copies at a time: 4 bytes where elements are smaller.
constexpr int UNIT = sizeof(WORD) < 4 ? 4 / sizeof(WORD) : 1;
struct alignas(UNIT * sizeof(WORD)) Unit {
    WORD element[UNIT];
};

constexpr int COPY_THREADS = 256;
constexpr int COPY_UNITS = 8;  // of a thread that are on their way at a time

// to[i][j] = from[i][j], rows of `to` so many elements `apart`, which are whole units. Units are
// counted along the rows, so that neighbouring threads have neighbours, however short rows are.
__device__ void copy_units(
    const WORD* __restrict__ from, long long stride, long long rows, long long columns,
    WORD* __restrict__ to, long long apart)
{
    const unsigned units = (columns + UNIT - 1) / UNIT;
    const unsigned rows_on = COPY_THREADS / units;
    const unsigned units_on = COPY_THREADS % units;
    const long long at_once = COPY_THREADS * COPY_UNITS;
    const long long count = rows * units;
    for (long long first = blockIdx.x * at_once; first < count; first += gridDim.x * at_once) {
        const long long index = first + threadIdx.x;
        long long row = count >> 32 == 0 ? (unsigned)index / units : index / units;
        unsigned unit = index - row * units;
        Unit held[COPY_UNITS];
        WORD* place[COPY_UNITS];
#pragma unroll
        for (int i = 0; i < COPY_UNITS; ++i) {
            place[i] = nullptr;
            if (row < rows) {
                const long long column = (long long)unit * UNIT;
                const WORD* source = from + row * stride + column;
                place[i] = to + row * apart + column;
#pragma unroll
                for (int j = 0; j < UNIT; ++j) {
                    held[i].element[j] = column + j < columns ? source[j] : WORD(0);
                }
            }
            row += rows_on;
            unit += units_on;
            if (unit >= units) {
                unit -= units;
                ++row;
            }
        }
#pragma unroll
        for (int i = 0; i < COPY_UNITS; ++i) {
            if (place[i] != nullptr) *reinterpret_cast<Unit*>(place[i]) = held[i];
        }
    }
}

extern "C" __global__ void __launch_bounds__(COPY_THREADS) copy_rows(
    const WORD* from, long long stride, long long rows, long long columns, WORD* to,
    long long apart)
{
    copy_units(from, stride, rows, columns, to, apart);
}

// Two matrices at once: blocks with blockIdx.y = 0 copy the first, the others the second.
extern "C" __global__ void __launch_bounds__(COPY_THREADS) copy_rows_of_two(
    const WORD* first, long long first_stride, long long first_rows, long long first_columns,
    WORD* first_to, long long first_apart,
    const WORD* second, long long second_stride, long long second_rows, long long second_columns,
    WORD* second_to, long long second_apart)
{
    if (blockIdx.y == 0) {
        copy_units(first, first_stride, first_rows, first_columns, first_to, first_apart);
    } else {
        copy_units(second, second_stride, second_rows, second_columns, second_to, second_apart);
    }
}
