"""gemm for cpu: family strassen, float32, layout nn.

template: gemm/cpu/strassen.py.j2, digest c6d6762b83092e53
configuration: {"threads": 1, "ty": 4, "unroll": 4}
"""

import numpy as np
from numba import njit, types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

# ---- Element type, threads and compiler options
REAL = types.float32
ITEMSIZE = 4
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


# The seven products, one a row. Each is a sum of quadrants of A times a sum of quadrants of B,
# added to quadrants of C; quadrants are numbered 0 = 11, 1 = 12, 2 = 21, 3 = 22.
#   first of A, sign, second of A, first of B, sign, second of B, factors for C11, C12, C21, C22
PRODUCTS = (
    (0, 1, 3, 0, 1, 3, 1, 0, 0, 1),
    (2, 1, 3, 0, 0, 0, 0, 0, 1, -1),
    (0, 0, 0, 1, -1, 3, 0, 1, 0, 1),
    (3, 0, 3, 2, -1, 0, 1, 0, 1, 0),
    (0, 1, 1, 3, 0, 3, -1, 1, 0, 0),
    (2, -1, 0, 0, 1, 1, 0, 0, 0, 1),
    (1, -1, 3, 2, 1, 3, 1, 0, 0, 0),
)


@njit(**INLINE)
def scale_c(beta, c, ldc, rows, columns):
    """C[rows x columns] = beta * C; where beta is 0, C is not read: it may hold NaN."""
    for i in range(rows):
        row = view(c + i * ldc * ITEMSIZE, columns)
        if beta == 0:
            for j in range(columns):
                row[j] = 0
        elif beta != 1:
            for j in range(columns):
                row[j] *= beta


@njit(**INLINE)
def quadrant(number, address, leading, rows, columns):
    """Address of a quadrant of a matrix whose quadrants are rows x columns."""
    return address + (number // 2 * rows * leading + number % 2 * columns) * ITEMSIZE


@njit(**CALLED)
def combine(x, ldx, factor, y, ldy, target, ldt, rows, columns):
    """target = x + factor * y, all rows x columns; target may be x."""
    for i in range(rows):
        x_row = view(x + i * ldx * ITEMSIZE, columns)
        y_row = view(y + i * ldy * ITEMSIZE, columns)
        target_row = view(target + i * ldt * ITEMSIZE, columns)
        for j in range(columns):
            target_row[j] = x_row[j] + factor * y_row[j]


@njit(**INLINE)
def side(first, sign, second, address, leading, rows, columns, target):
    """One factor of a product: a quadrant where it lies (sign 0), or a sum built in target."""
    x = quadrant(first, address, leading, rows, columns)
    if sign == 0:
        return x, leading
    y = quadrant(second, address, leading, rows, columns)
    combine(x, leading, REAL(sign), y, leading, target, columns, rows, columns)
    return target, columns


@njit(**INLINE)
def scratch(m, n, k, cutoff):
    """Elements that all levels of the recursion need for their sums and products."""
    elements = 0
    while min(m, n, k) > cutoff:
        m, n, k = m // 2, n // 2, k // 2
        elements += m * n + n * k + m * k
    return elements


@njit(types.void(*[types.int64] * 3, REAL, *[types.int64] * 8), **CALLED)
def multiply_directly(m, n, k, alpha, a, lda, b, ldb, c, ldc, sn, sk):
    """C[m x k] += alpha * A[m x n] @ B[n x k] through packed panels."""
    deep = even_block(n, sn, UNROLL)
    width = even_block(k, sk, LANES)
    blocks = (k + width - 1) // width
    buffer = np.empty(workspace(deep, width), REAL)
    space = buffer.ctypes.data
    multiply_blocks(
        0, blocks, m, n, k, alpha,
        a, lda, b, ldb, REAL(1), c, ldc, m, deep, width, space,
    )
    keep_alive(buffer)


@njit(types.void(*[types.int64] * 3, REAL, *[types.int64] * 10), **CALLED)
def strassen(m, n, k, alpha, a, lda, b, ldb, c, ldc, cutoff, sn, sk, space):
    """C[m x k] += alpha * A[m x n] @ B[n x k]; sizes up to `cutoff` are multiplied directly."""
    if min(m, n, k) <= cutoff:
        multiply_directly(m, n, k, alpha, a, lda, b, ldb, c, ldc, sn, sk)
        return
    h, d, w = m // 2, n // 2, k // 2
    # Scratch: a sum of quadrants of A, one of B, and the product; the rest is for lower levels.
    a_space, b_space = space, space + h * d * ITEMSIZE
    q = b_space + d * w * ITEMSIZE
    below = q + h * w * ITEMSIZE
    for product in PRODUCTS:
        x, ldx = side(product[0], product[1], product[2], a, lda, h, d, a_space)
        y, ldy = side(product[3], product[4], product[5], b, ldb, d, w, b_space)
        scale_c(REAL(0), q, w, h, w)
        strassen(h, d, w, alpha, x, ldx, y, ldy, q, w, cutoff, sn, sk, below)
        for number in range(4):
            factor = product[6 + number]
            if factor != 0:
                target = quadrant(number, c, ldc, h, w)
                combine(target, ldc, REAL(factor), q, w, target, ldc, h, w)
    # What the even core left out: the last reduction step, column and row.
    if n % 2:
        a_end, b_end = a + (n - 1) * ITEMSIZE, b + (n - 1) * ldb * ITEMSIZE
        multiply_directly(2 * h, 1, 2 * w, alpha, a_end, lda, b_end, ldb, c, ldc, sn, sk)
    if k % 2:
        b_end, c_end = b + (k - 1) * ITEMSIZE, c + (k - 1) * ITEMSIZE
        multiply_directly(m, n, 1, alpha, a, lda, b_end, ldb, c_end, ldc, sn, sk)
    if m % 2:
        a_end, c_end = a + (m - 1) * lda * ITEMSIZE, c + (m - 1) * ldc * ITEMSIZE
        multiply_directly(1, n, 2 * w, alpha, a_end, lda, b, ldb, c_end, ldc, sn, sk)


@njit(**INLINE)
def multiply(m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, cutoff, sn, sk):
    """C = alpha * A @ B + beta * C, with the scratch memory of all levels allocated once."""
    space = np.empty(scratch(m, n, k, cutoff), REAL)
    scale_c(beta, c, ldc, m, k)
    strassen(m, n, k, alpha, a, lda, b, ldb, c, ldc, cutoff, sn, sk, space.ctypes.data)
    keep_alive(space)


@njit(
    "void(int64, int64, int64, float32, uintp, int64, uintp, int64, float32, uintp, int64, "
    "int64, int64, int64)",
    cache=True,
    **OPTIONS,
)
def gemm(m, n, k, alpha, a_address, lda, b_address, ldb, beta, c_address, ldc, cutoff, sn, sk):
    """C[m x k] = alpha * A[m x n] @ B[n x k] + beta * C; sizes up to `cutoff` are not split."""
    a, b, c = np.int64(a_address), np.int64(b_address), np.int64(c_address)
    multiply(m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, cutoff, sn, sk)
