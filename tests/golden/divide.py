"""gemm for cpu: family divide, float32, layout nn.

template: gemm/cpu/divide.py.j2, digest 7268c9b0add144af
configuration: {"threads": 1, "unroll": 2}
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
# Reduction steps per pass over a row of C.
UNROLL = 2


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
            for j in range(columns):
                c_row[j] = c_row[j] + a0 * b0[j] + a1 * b1[j]
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


@njit(types.void(*[types.int64] * 3, REAL, *[types.int64] * 7), **CALLED)
def divide(m, n, k, alpha, a, lda, b, ldb, c, ldc, cutoff):
    """C[m x k] += alpha * A[m x n] @ B[n x k], halving the largest size above `cutoff`."""
    largest = max(m, n, k)
    half = largest // 2
    if largest <= cutoff:
        add_block(alpha, a, lda, b, ldb, c, ldc, m, n, k)
    elif m == largest:
        a_low, c_low = a + half * lda * ITEMSIZE, c + half * ldc * ITEMSIZE
        divide(half, n, k, alpha, a, lda, b, ldb, c, ldc, cutoff)
        divide(m - half, n, k, alpha, a_low, lda, b, ldb, c_low, ldc, cutoff)
    elif k == largest:
        b_right, c_right = b + half * ITEMSIZE, c + half * ITEMSIZE
        divide(m, n, half, alpha, a, lda, b, ldb, c, ldc, cutoff)
        divide(m, n, k - half, alpha, a, lda, b_right, ldb, c_right, ldc, cutoff)
    else:
        a_right, b_low = a + half * ITEMSIZE, b + half * ldb * ITEMSIZE
        divide(m, half, k, alpha, a, lda, b, ldb, c, ldc, cutoff)
        divide(m, n - half, k, alpha, a_right, lda, b_low, ldb, c, ldc, cutoff)


@njit(
    "void(int64, int64, int64, float32, uintp, int64, uintp, int64, float32, uintp, int64, "
    "int64)",
    cache=True,
    **OPTIONS,
)
def gemm(m, n, k, alpha, a_address, lda, b_address, ldb, beta, c_address, ldc, cutoff):
    """C[m x k] = alpha * A[m x n] @ B[n x k] + beta * C; blocks are at most `cutoff` a side."""
    a, b, c = np.int64(a_address), np.int64(b_address), np.int64(c_address)
    scale_c(beta, c, ldc, m, k)
    divide(m, n, k, alpha, a, lda, b, ldb, c, ldc, cutoff)
