"""gated for cpu: family blocked, float32, layout nn.

template: gemm/cpu/blocked.py.j2, digest 0686647a99258743
configuration: {"threads": 2, "unroll": 4}
"""

from math import tanh

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
# Reduction steps per pass over a row of C.
UNROLL = 4


@njit(**SUMMING)
def add_block(alpha, a, lda, b, ldb, c, ldc, rows, depth, columns):
    """C[rows x columns] += alpha * A[rows x depth] @ B[depth x columns]."""
    for i in range(rows):
        c_row = view(c + i * ldc * ITEMSIZE, columns)
        for step in range(depth // UNROLL):
            p = step * UNROLL
            steps = view(a + (i * lda + p) * ITEMSIZE, UNROLL)
            a0, b0 = alpha * steps[0], view(b + (p + 0) * ldb * ITEMSIZE, columns)
            a1, b1 = alpha * steps[1], view(b + (p + 1) * ldb * ITEMSIZE, columns)
            a2, b2 = alpha * steps[2], view(b + (p + 2) * ldb * ITEMSIZE, columns)
            a3, b3 = alpha * steps[3], view(b + (p + 3) * ldb * ITEMSIZE, columns)
            for j in range(columns):
                c_row[j] = c_row[j] + a0 * b0[j] + a1 * b1[j] + a2 * b2[j] + a3 * b3[j]
        for p in range(depth // UNROLL * UNROLL, depth):
            rest = alpha * view(a + (i * lda + p) * ITEMSIZE, 1)[0]
            b_row = view(b + p * ldb * ITEMSIZE, columns)
            for j in range(columns):
                c_row[j] += rest * b_row[j]


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
def minimum(x, y):
    """The smaller of two numbers; NaN if one of them is."""
    return x if x < y or x != x else y


@njit(**INLINE)
def followed(value, column, _shift_of_row, _residual, _scale):
    """What becomes of the `value` that a product alone would leave in C.

    scale * tanh(value + shift_of_row) - minimum(residual, 0.5)
    """
    return _scale * tanh(value + _shift_of_row) - minimum(_residual[column], REAL(0.5))


@njit(**KERNEL)
def finish(c, ldc, top, rows, left, columns, following):
    """What follows the product, in C[rows x columns] from row `top` and column `left` on."""
    (
        _shift_of_row_address, _ldshift_of_row,
        _residual_address, _ldresidual,
        _scale_given,
    ) = following
    for row in range(rows):
        target = view(c + row * ldc * ITEMSIZE, columns)
        place = (top + row) * _ldshift_of_row
        _shift_of_row_here = view(_shift_of_row_address + place * ITEMSIZE, 1)[0]
        first = (top + row) * _ldresidual + left
        _residual_here = view(_residual_address + first * ITEMSIZE, columns)
        for column in range(columns):
            target[column] = followed(
                target[column], column, _shift_of_row_here, _residual_here, _scale_given
            )


@njit(**INLINE)
def multiply(m, n, k, alpha, a, lda, b, ldb, c, ldc, sm, sn, sk, top, following):
    """C[m x k] += alpha * A[m x n] @ B[n x k], block by block."""
    for p in range(0, n, sn):
        depth = min(sn, n - p)
        for j in range(0, k, sk):
            columns = min(sk, k - j)
            b_block = b + (p * ldb + j) * ITEMSIZE
            for i in range(0, m, sm):
                rows = min(sm, m - i)
                a_block = a + (i * lda + p) * ITEMSIZE
                c_block = c + (i * ldc + j) * ITEMSIZE
                add_block(alpha, a_block, lda, b_block, ldb, c_block, ldc, rows, depth, columns)
                if p + depth == n:
                    finish(c_block, ldc, top + i, rows, j, columns, following)


@njit(
    "void(int64, int64, int64, float32, uintp, int64, uintp, int64, uintp, int64, uintp, int64, "
    "uintp, int64, int64, int64, int64)",
    cache=True,
    # Loops stay apart: a loop may need all that the one before it did.
    parallel={"fusion": False},
    **OPTIONS,
)
def gated(
    m, n, k, _scale, a_address, lda, b_address, ldb, _shift_of_row_address, _ldshift_of_row,
    _residual_address, _ldresidual, c_address, ldc, sm, sn, sk
):
    """C[m x k] = alpha * A[m x n] @ B[n x k] + beta * C; sm, sn, sk are the blocks' sizes."""
    alpha = REAL(1)
    beta = REAL(0)
    # What `followed` makes of every value in C is made by means of these.
    following = (
        np.int64(_shift_of_row_address), _ldshift_of_row,
        np.int64(_residual_address), _ldresidual,
        _scale,
    )
    a, b, c = np.int64(a_address), np.int64(b_address), np.int64(c_address)
    blocks = (m + sm - 1) // sm
    for thread in prange(THREADS):
        first = blocks * thread // THREADS * sm
        rows = min(m, blocks * (thread + 1) // THREADS * sm) - first
        a_rows = a + first * lda * ITEMSIZE
        c_rows = c + first * ldc * ITEMSIZE
        scale_c(beta, c_rows, ldc, rows, k)
        multiply(
            rows, n, k, alpha, a_rows, lda, b, ldb, c_rows, ldc, sm, sn, sk, first, following
        )
