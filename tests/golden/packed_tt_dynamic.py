"""gemm for cpu: family packed, float64, layout tt.

template: gemm/cpu/packed.py.j2, digest 7cf9b3e9214a0c55
configuration: {"schedule": "dynamic", "shared": "grid", "threads": 2, "ty": 2, "unroll": 3}
"""

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.core.cgutils import alloca_once
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

# ---- Element type, threads and compiler options
REAL = types.float64
ITEMSIZE = 8
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
TY = 2
# Reduction steps per pass over the tile: TY * UNROLL elements of A wait in registers.
UNROLL = 3
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
    for p in range(steps):
        used = rows if p < depth else 0
        source = view(a + p * lda * ITEMSIZE, used)
        for i in range(used):
            view(packed + (i * steps + p) * ITEMSIZE, 1)[0] = source[i]
        for i in range(used, GROUP):
            view(packed + (i * steps + p) * ITEMSIZE, 1)[0] = 0


@njit(**INLINE)
def pack_b(b, ldb, depth, columns, packed, steps, width):
    """Copy depth x columns of B into `steps` packed rows of `width`; the surplus is zero."""
    # One cache line of packed columns at a time: few rows of B are read side by side.
    for left in range(0, width, LANES):
        for p in range(steps):
            target = view(packed + (p * width + left) * ITEMSIZE, LANES)
            used = max(0, smaller(LANES, columns - left)) if p < depth else 0
            for j in range(used):
                target[j] = view(b + ((left + j) * ldb + p) * ITEMSIZE, 1)[0]
            for j in range(used, LANES):
                target[j] = 0


@njit(**SUMMING)
def accumulate(tile, a, b, steps, width):
    """tile[TY x width] = a[TY x steps] @ b[steps x width], all packed, UNROLL steps at a time."""
    whole = view(tile, TY * width)
    for j in range(TY * width):
        whole[j] = 0
    c0 = view(tile + 0 * width * ITEMSIZE, width)
    c1 = view(tile + 1 * width * ITEMSIZE, width)
    for step in range(steps // UNROLL):
        p = step * UNROLL
        b0 = view(b + (p + 0) * width * ITEMSIZE, width)
        b1 = view(b + (p + 1) * width * ITEMSIZE, width)
        b2 = view(b + (p + 2) * width * ITEMSIZE, width)
        row = view(a + (0 * steps + p) * ITEMSIZE, UNROLL)
        a0_0, a0_1, a0_2 = row[0], row[1], row[2]
        row = view(a + (1 * steps + p) * ITEMSIZE, UNROLL)
        a1_0, a1_1, a1_2 = row[0], row[1], row[2]
        for j in range(width):
            c0[j] = c0[j] + a0_0 * b0[j] + a0_1 * b1[j] + a0_2 * b2[j]
            c1[j] = c1[j] + a1_0 * b0[j] + a1_1 * b1[j] + a1_2 * b2[j]


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
    b_panel = b + (left * ldb + p) * ITEMSIZE
    pack_b(b_panel, ldb, depth, columns, panel, steps, width)
    for i in range(top, bottom, GROUP):
        rows = smaller(GROUP, bottom - i)
        a_strips = a + (p * lda + i) * ITEMSIZE
        pack_a(a_strips, lda, rows, depth, strips, steps)
        for row in range(0, rows, TY):
            accumulate(tile, strips + row * steps * ITEMSIZE, panel, steps, width)
            c_tile = c + ((i + row) * ldc + left) * ITEMSIZE
            used = smaller(TY, rows - row)
            write_back(alpha, tile, width, factor, c_tile, ldc, used, columns)


@njit(**INLINE)
def multiply_blocks(
    first, last, m, n, k, alpha,
    a, lda, b, ldb, beta, c, ldc, height, deep, width, space,
):
    """Blocks first..last-1 of C, each height x width, counted down the columns of blocks."""
    down = (m + height - 1) // height
    for block in range(first, last):
        top, left = block % down * height, block // down * width
        bottom, columns = smaller(top + height, m), smaller(width, k - left)
        for p in range(0, n, deep):
            # Only the first panel meets C as it was; the others add to it.
            factor = beta if p == 0 else REAL(1)
            depth = smaller(deep, n - p)
            add_panel(
                top, bottom, left, columns, p, depth,
                alpha, a, lda, b, ldb, factor, c, ldc, width, space,
            )


# Schedule: dynamic. A thread that is free takes the next chunk of tiles, by counting up
# atomically. No order between the threads' other accesses follows from that, and none is needed:
# tiles are independent, and the end of the parallel loop orders everything.
ATOMIC = "monotonic"
# Words of 64 bits that surely hold one whole cache line of 64 bytes.
COUNTER_WORDS = 16


@intrinsic
def new_counter(typing_context):
    """Address of a counter that is 0, on this function's stack and on a cache line of its own."""

    def codegen(context, builder, signature, arguments):
        words = alloca_once(builder, ir.IntType(64), COUNTER_WORDS)
        start = builder.ptrtoint(words, ir.IntType(64))
        line = builder.and_(builder.add(start, start.type(63)), start.type(-64))
        builder.store(line.type(0), builder.inttoptr(line, words.type))
        return line

    return types.int64(), codegen


@intrinsic
def fetch_add(typing_context, address, value):
    """Add to the word at an address, atomically; what it was before."""

    def codegen(context, builder, signature, arguments):
        address, value = arguments
        word = builder.inttoptr(address, value.type.as_pointer())
        return builder.atomic_rmw("add", word, value, ATOMIC)

    return types.int64(types.int64, types.int64), codegen


@njit(**KERNEL)
def next_chunk(counter, count, chunk):
    """The next `chunk` tiles; an empty chunk when none are left."""
    first = fetch_add(counter, max(1, chunk))
    return first, min(first + max(1, chunk), count)


@njit(**CALLED)
def work(
    counter, count, chunk,
    m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, height, deep, width,
):
    """A thread's blocks of C."""
    buffer = np.empty(workspace(deep, width), REAL)
    first, last = next_chunk(counter, count, chunk)
    while first < last:
        multiply_blocks(
            first, last, m, n, k, alpha,
            a, lda, b, ldb, beta, c, ldc, height, deep, width, buffer.ctypes.data,
        )
        first, last = next_chunk(counter, count, chunk)
    keep_alive(buffer)


@njit(
    "void(int64, int64, int64, float64, uintp, int64, uintp, int64, float64, uintp, int64, "
    "int64, int64, int64, int64)",
    cache=True,
    # Loops stay apart: a loop may need all that the one before it did.
    parallel={"fusion": False},
    **OPTIONS,
)
def gemm(m, n, k, alpha, a_address, lda, b_address, ldb, beta, c_address, ldc, sm, sn, sk, chunk):
    """C[m x k] = alpha * A[m x n] @ B[n x k] + beta * C; sm, sn, sk are the blocks' sizes."""
    a, b, c = np.int64(a_address), np.int64(b_address), np.int64(c_address)
    height = even_block(m, sm, TY)
    deep = even_block(n, sn, UNROLL)
    width = even_block(k, sk, LANES)
    count = ((m + height - 1) // height) * ((k + width - 1) // width)
    counter = new_counter()
    for _ in prange(THREADS):
        work(
            counter, count, chunk,
            m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, height, deep, width,
        )
