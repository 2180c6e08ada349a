"""gemm for cpu: family loops, float64, layout nn.

template: gemm/cpu/loops.py.j2, digest 7ac33e83e86a3da3
configuration: {"order": "jik", "threads": 2}
"""

import numpy as np
from numba import njit, prange, types
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


@intrinsic
def matrix(typing_context, address, rows, leading):
    """A matrix at an integer address, as an array; its rows are `leading` elements apart."""
    array_type = types.Array(REAL, 2, "C")

    def codegen(context, builder, signature, arguments):
        address, rows, leading = arguments
        array = make_array(array_type)(context, builder)
        itemsize = context.get_constant(types.intp, ITEMSIZE)
        populate_array(
            array,
            data=builder.inttoptr(address, array.data.type),
            shape=[rows, leading],
            strides=[builder.mul(leading, itemsize), itemsize],
            itemsize=itemsize,
            meminfo=None,
        )
        return array._getvalue()

    return array_type(types.int64, types.int64, types.int64), codegen


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


@njit(**SUMMING)
def multiply(m, n, k, alpha, a, lda, b, ldb, c, ldc):
    """C[m x k] += alpha * A[m x n] @ B[n x k]."""
    A, B, C = matrix(a, m, lda), matrix(b, n, ldb), matrix(c, m, ldc)
    for j in range(k):
        for i in range(m):
            for p in range(n):
                C[i, j] += alpha * A[i, p] * B[p, j]


@njit(
    "void(int64, int64, int64, float64, uintp, int64, uintp, int64, float64, uintp, int64)",
    cache=True,
    # Loops stay apart: a loop may need all that the one before it did.
    parallel={"fusion": False},
    **OPTIONS,
)
def gemm(m, n, k, alpha, a_address, lda, b_address, ldb, beta, c_address, ldc):
    """C[m x k] = alpha * A[m x n] @ B[n x k] + beta * C."""
    a, b, c = np.int64(a_address), np.int64(b_address), np.int64(c_address)
    for thread in prange(THREADS):
        first = k * thread // THREADS
        columns = k * (thread + 1) // THREADS - first
        b_columns = b + first * ITEMSIZE
        c_columns = c + first * ITEMSIZE
        scale_c(beta, c_columns, ldc, m, columns)
        multiply(m, n, columns, alpha, a, lda, b_columns, ldb, c_columns, ldc)
