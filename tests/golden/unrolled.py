"""gemm for cpu: family unrolled, float32, layout nn.

template: gemm/cpu/unrolled.py.j2, digest 8d92174b69681f18
configuration: {"threads": 1, "tx": 2, "unroll": 4}
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
# Independent partial sums of one dot product.
UNROLL = 4
# Columns of C per pass over a row of A.
TX = 2


@njit(**INLINE)
def gather(b, ldb, n, used, packed):
    """Copy `used` columns of B to contiguous runs of n elements; up to TX, the rest are zero."""
    for x in range(TX):
        target = view(packed + x * n * ITEMSIZE, n)
        if x >= used:
            for p in range(n):
                target[p] = 0
        else:
            for p in range(n):
                target[p] = view(b + (p * ldb + x) * ITEMSIZE, 1)[0]


@njit(**SUMMING)
def dots(a, columns, n):
    """TX dot products of a row of A with gathered columns of B, in UNROLL stretches of the row."""
    stretch = n // UNROLL
    a0 = view(a + 0 * stretch * ITEMSIZE, stretch)
    a1 = view(a + 1 * stretch * ITEMSIZE, stretch)
    a2 = view(a + 2 * stretch * ITEMSIZE, stretch)
    a3 = view(a + 3 * stretch * ITEMSIZE, stretch)
    b0_0 = view(columns + (0 * n + 0 * stretch) * ITEMSIZE, stretch)
    b0_1 = view(columns + (0 * n + 1 * stretch) * ITEMSIZE, stretch)
    b0_2 = view(columns + (0 * n + 2 * stretch) * ITEMSIZE, stretch)
    b0_3 = view(columns + (0 * n + 3 * stretch) * ITEMSIZE, stretch)
    sum0_0 = REAL(0)
    sum0_1 = REAL(0)
    sum0_2 = REAL(0)
    sum0_3 = REAL(0)
    b1_0 = view(columns + (1 * n + 0 * stretch) * ITEMSIZE, stretch)
    b1_1 = view(columns + (1 * n + 1 * stretch) * ITEMSIZE, stretch)
    b1_2 = view(columns + (1 * n + 2 * stretch) * ITEMSIZE, stretch)
    b1_3 = view(columns + (1 * n + 3 * stretch) * ITEMSIZE, stretch)
    sum1_0 = REAL(0)
    sum1_1 = REAL(0)
    sum1_2 = REAL(0)
    sum1_3 = REAL(0)
    for p in range(stretch):
        sum0_0 += a0[p] * b0_0[p]
        sum0_1 += a1[p] * b0_1[p]
        sum0_2 += a2[p] * b0_2[p]
        sum0_3 += a3[p] * b0_3[p]
        sum1_0 += a0[p] * b1_0[p]
        sum1_1 += a1[p] * b1_1[p]
        sum1_2 += a2[p] * b1_2[p]
        sum1_3 += a3[p] * b1_3[p]
    done = UNROLL * stretch
    rest = view(a + done * ITEMSIZE, n - done)
    for p in range(n - done):
        sum0_0 += rest[p] * view(columns + (0 * n + done + p) * ITEMSIZE, 1)[0]
        sum1_0 += rest[p] * view(columns + (1 * n + done + p) * ITEMSIZE, 1)[0]
    return (
        sum0_0 + sum0_1 + sum0_2 + sum0_3
,
        sum1_0 + sum1_1 + sum1_2 + sum1_3
,
    )


@njit(**INLINE)
def multiply_columns(first, last, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
    """Groups first..last-1 of TX columns of C."""
    gathered = np.empty(TX * n, REAL)
    for group in range(first, last):
        left = group * TX
        used = min(TX, k - left)
        b_columns = b + left * ITEMSIZE
        gather(b_columns, ldb, n, used, gathered.ctypes.data)
        for i in range(m):
            sums = dots(a + i * lda * ITEMSIZE, gathered.ctypes.data, n)
            target = view(c + (i * ldc + left) * ITEMSIZE, used)
            for x in range(used):
                if beta == 0:
                    target[x] = alpha * sums[x]
                else:
                    target[x] = alpha * sums[x] + beta * target[x]


@njit(
    "void(int64, int64, int64, float32, uintp, int64, uintp, int64, float32, uintp, int64)",
    cache=True,
    **OPTIONS,
)
def gemm(m, n, k, alpha, a_address, lda, b_address, ldb, beta, c_address, ldc):
    """C[m x k] = alpha * A[m x n] @ B[n x k] + beta * C."""
    a, b, c = np.int64(a_address), np.int64(b_address), np.int64(c_address)
    groups = (k + TX - 1) // TX
    multiply_columns(0, groups, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
