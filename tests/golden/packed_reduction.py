"""gemm for cpu: family packed, float32, layout nn.

template: gemm/cpu/packed.py.j2, digest 7cf9b3e9214a0c55
configuration: {"schedule": "static", "shared": "reduction", "threads": 2, "ty": 4, "unroll": 4}
"""

import numpy as np
from numba import njit, prange, types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

# ---- Element type, threads and compiler options
REAL = types.float32
ITEMSIZE = 4
# Threads that share the work.
THREADS = 2
# Contraction to FMA is allowed. Reordering is not: (x + z) - x would be z, also where x is NaN.
OPTIONS = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"contract"},
}
# Small helpers vanish into their caller before types are inferred, which compiles fastest.
INLINE = {"inline": "always"}
# Functions called only from compiled code need no wrappers for Python and C.
CALLED = {**OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
# Loops that carry the time are vectorised by themselves first, and inlined by LLVM afterwards.
KERNEL = {**CALLED, "forceinline": True}
# Such a loop that forms sums of products and nothing else: terms may be added in any order.
SUMMING = {**KERNEL, "fastmath": {"contract", "reassoc", "nsz"}}


@intrinsic
def view(typing_context, address, count):
    """`count` contiguous elements at an integer address, as an array that owns nothing."""
    array_type = types.Array(REAL, 1, "C")

    def codegen(context, builder, signature, arguments):
        array = make_array(array_type)(context, builder)
        itemsize = context.get_constant(types.intp, ITEMSIZE)
        populate_array(
            array,
            data=builder.inttoptr(arguments[0], array.data.type),
            shape=[arguments[1]],
            strides=[itemsize],
            itemsize=itemsize,
            meminfo=None,
        )
        return array._getvalue()

    return array_type(types.int64, types.int64), codegen


# ---- Configuration
# Bytes of a cache line: packed rows start on one and fill a whole number of them.
LINE = 64
# Elements in it.
LANES = LINE // ITEMSIZE
# Rows of C that are accumulated together, in a tile that stays in the L1 cache.
TY = 4
# Reduction steps per pass over the tile: TY * UNROLL elements of A wait in registers.
UNROLL = 4
# Rows of A that are packed together: whole tiles, and at least a line if A is stored transposed.
GROUP = (LANES + TY - 1) // TY * TY


@intrinsic
def keep_alive(typing_context, array):
    """Do nothing with an array whose address is in use: Numba frees it after its last mention."""

    def codegen(context, builder, signature, arguments):
        return context.get_dummy_value()

    return types.void(array), codegen


@njit(**INLINE)
def smaller(x, y):
    """The smaller of two integers: Numba's own takes long to compile."""
    return x if x < y else y


@njit(**INLINE)
def round_up(value, multiple):
    """The smallest multiple of `multiple` that is at least `value`."""
    return (value + multiple - 1) // multiple * multiple


@njit(**INLINE)
def even_block(total, most, multiple):
    """Size of equal blocks of about `most` that cover `total`: a multiple of `multiple`."""
    blocks = (total + most - 1) // most
    return round_up((total + blocks - 1) // blocks, multiple)


@njit(**INLINE)
def pack_a(a, lda, rows, depth, packed, steps):
    """Copy rows x depth of A into GROUP packed rows of `steps` elements; the surplus is zero."""
    for i in range(GROUP):
        target = view(packed + i * steps * ITEMSIZE, steps)
        used = depth if i < rows else 0
        source = view(a + i * lda * ITEMSIZE, used)
        for p in range(used):
            target[p] = source[p]
        for p in range(used, steps):
            target[p] = 0


@njit(**INLINE)
def pack_b(b, ldb, depth, columns, packed, steps, width):
    """Copy depth x columns of B into `steps` packed rows of `width`; the surplus is zero."""
    for p in range(steps):
        target = view(packed + p * width * ITEMSIZE, width)
        used = columns if p < depth else 0
        source = view(b + p * ldb * ITEMSIZE, used)
        for j in range(used):
            target[j] = source[j]
        for j in range(used, width):
            target[j] = 0


@njit(**SUMMING)
def accumulate(tile, a, b, steps, width):
    """tile[TY x width] = a[TY x steps] @ b[steps x width], all packed, UNROLL steps at a time."""
    whole = view(tile, TY * width)
    for j in range(TY * width):
        whole[j] = 0
    c0 = view(tile + 0 * width * ITEMSIZE, width)
    c1 = view(tile + 1 * width * ITEMSIZE, width)
    c2 = view(tile + 2 * width * ITEMSIZE, width)
    c3 = view(tile + 3 * width * ITEMSIZE, width)
    for step in range(steps // UNROLL):
        p = step * UNROLL
        b0 = view(b + (p + 0) * width * ITEMSIZE, width)
        b1 = view(b + (p + 1) * width * ITEMSIZE, width)
        b2 = view(b + (p + 2) * width * ITEMSIZE, width)
        b3 = view(b + (p + 3) * width * ITEMSIZE, width)
        row = view(a + (0 * steps + p) * ITEMSIZE, UNROLL)
        a0_0, a0_1, a0_2, a0_3 = row[0], row[1], row[2], row[3]
        row = view(a + (1 * steps + p) * ITEMSIZE, UNROLL)
        a1_0, a1_1, a1_2, a1_3 = row[0], row[1], row[2], row[3]
        row = view(a + (2 * steps + p) * ITEMSIZE, UNROLL)
        a2_0, a2_1, a2_2, a2_3 = row[0], row[1], row[2], row[3]
        row = view(a + (3 * steps + p) * ITEMSIZE, UNROLL)
        a3_0, a3_1, a3_2, a3_3 = row[0], row[1], row[2], row[3]
        for j in range(width):
            c0[j] = c0[j] + a0_0 * b0[j] + a0_1 * b1[j] + a0_2 * b2[j] + a0_3 * b3[j]
            c1[j] = c1[j] + a1_0 * b0[j] + a1_1 * b1[j] + a1_2 * b2[j] + a1_3 * b3[j]
            c2[j] = c2[j] + a2_0 * b0[j] + a2_1 * b1[j] + a2_2 * b2[j] + a2_3 * b3[j]
            c3[j] = c3[j] + a3_0 * b0[j] + a3_1 * b1[j] + a3_2 * b2[j] + a3_3 * b3[j]


@njit(**INLINE)
def write_back(alpha, tile, width, beta, c, ldc, rows, columns):
    """C[rows x columns] = alpha * tile + beta * C; where beta is 0, C is not read."""
    for i in range(rows):
        source = view(tile + i * width * ITEMSIZE, columns)
        target = view(c + i * ldc * ITEMSIZE, columns)
        if beta == 0:
            for j in range(columns):
                target[j] = alpha * source[j]
        else:
            for j in range(columns):
                target[j] = alpha * source[j] + beta * target[j]


@njit(**INLINE)
def workspace(deep, width):
    """Elements that `add_panel` works in: a tile, a panel of B, strips of A, and alignment."""
    return LANES + (TY + deep) * width + GROUP * deep


@njit(**KERNEL)
def add_panel(
    top, bottom, left, columns, p, depth, alpha, a, lda, b, ldb, factor, c, ldc, width, space
):
    """C = alpha * A @ B + factor * C: rows top..bottom-1, `columns` columns, steps p..p+depth-1."""
    steps = round_up(depth, UNROLL)
    tile = round_up(space, LINE)
    panel = tile + TY * width * ITEMSIZE
    strips = panel + steps * width * ITEMSIZE
    b_panel = b + (p * ldb + left) * ITEMSIZE
    pack_b(b_panel, ldb, depth, columns, panel, steps, width)
    for i in range(top, bottom, GROUP):
        rows = smaller(GROUP, bottom - i)
        a_strips = a + (i * lda + p) * ITEMSIZE
        pack_a(a_strips, lda, rows, depth, strips, steps)
        for row in range(0, rows, TY):
            accumulate(tile, strips + row * steps * ITEMSIZE, panel, steps, width)
            c_tile = c + ((i + row) * ldc + left) * ITEMSIZE
            used = smaller(TY, rows - row)
            write_back(alpha, tile, width, factor, c_tile, ldc, used, columns)


# Schedule: static. Who takes which tiles is settled beforehand.


@njit(**KERNEL)
def first_chunk(thread, count, chunk):
    """A thread's first chunk: every THREADS-th is its own, or one run of tiles if chunk is 0."""
    if chunk == 0:
        return count * thread // THREADS, count * (thread + 1) // THREADS
    first = thread * chunk
    return first, min(first + chunk, count)


@njit(**KERNEL)
def next_chunk(first, count, chunk):
    """The chunk after the one that starts at `first`; empty when there is none."""
    first = count if chunk == 0 else first + THREADS * chunk
    return first, min(first + chunk, count)


@njit(**CALLED)
def work(thread, count, chunk, m, n, k, a, lda, b, ldb, sums, deep, width):
    """A thread's panels of the reduction, added up in a C of its own, sums[m x k]."""
    buffer = np.empty(workspace(deep, width), REAL)
    elements = view(sums, m * k)
    for j in range(m * k):
        elements[j] = 0
    first, last = first_chunk(thread, count, chunk)
    while first < last:
        for p in range(first * deep, smaller(last * deep, n), deep):
            depth = smaller(deep, n - p)
            for left in range(0, k, width):
                columns = smaller(width, k - left)
                add_panel(
                    0, m, left, columns, p, depth, REAL(1),
                    a, lda, b, ldb, REAL(1), sums, k, width, buffer.ctypes.data,
                )
        first, last = next_chunk(first, count, chunk)
    keep_alive(buffer)


@njit(**CALLED)
def add_sums(i, sums, step, k, alpha, beta, c, ldc):
    """Row i of C = alpha * (the threads' sums, in the order of the threads) + beta * C."""
    first = sums + i * k * ITEMSIZE
    row = view(first, k)
    for thread in range(1, THREADS):
        other = view(first + thread * step * ITEMSIZE, k)
        for j in range(k):
            row[j] += other[j]
    target = c + i * ldc * ITEMSIZE
    write_back(alpha, first, k, beta, target, k, 1, k)


@njit(
    "void(int64, int64, int64, float32, uintp, int64, uintp, int64, float32, uintp, int64, "
    "int64, int64, int64, int64)",
    cache=True,
    # Loops stay apart: a loop may need all that the one before it did.
    parallel={"fusion": False},
    **OPTIONS,
)
def gemm(m, n, k, alpha, a_address, lda, b_address, ldb, beta, c_address, ldc, sm, sn, sk, chunk):
    """C[m x k] = alpha * A[m x n] @ B[n x k] + beta * C; sm, sn, sk are the blocks' sizes."""
    a, b, c = np.int64(a_address), np.int64(b_address), np.int64(c_address)
    deep = even_block(n, sn, UNROLL)
    width = even_block(k, sk, LANES)
    # Tiles are the panels of the reduction.
    count = (n + deep - 1) // deep
    sums = np.empty(THREADS * m * k, REAL)
    start = sums.ctypes.data
    for thread in prange(THREADS):
        own = start + thread * m * k * ITEMSIZE
        work(thread, count, chunk, m, n, k, a, lda, b, ldb, own, deep, width)
    for i in prange(m):
        add_sums(i, start, m * k, k, alpha, beta, c, ldc)
    keep_alive(sums)
