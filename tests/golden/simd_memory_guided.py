"""gemm for cpu: family simd, float64, layout nn.

template: gemm/cpu/simd.py.j2, digest 0b3d720c94b53508
configuration: {"row": "memory", "schedule": "guided", "threads": 2, "unroll": 1, "vector": 512}
"""

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.core.cgutils import alloca_once, get_or_insert_function
from numba.core.datamodel.models import PrimitiveModel
from numba.extending import intrinsic, register_model
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
# Vectors per step along a row.
UNROLL = 1

# ---- Vectors
# Elements of a vector of 512 bits.
LANES = 8
VECTOR = ir.VectorType(ir.DoubleType(), LANES)


class Vector(types.Type):
    """LANES elements in a register."""

    def __init__(self):
        super().__init__(f"Vector({LANES} x float64)")


@register_model(Vector)
class VectorModel(PrimitiveModel):
    """A vector as a value of LLVM's."""

    def __init__(self, manager, kind):
        super().__init__(manager, kind, VECTOR)


vector = Vector()


@intrinsic
def broadcast(typing_context, x):
    """`x` in every lane."""

    def codegen(context, builder, signature, arguments):
        lane = ir.IntType(32)
        first = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), arguments[0], lane(0))
        return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(lane, LANES), None))

    return vector(REAL), codegen


@intrinsic
def load(typing_context, address):
    """The LANES elements at an address."""

    def codegen(context, builder, signature, arguments):
        return builder.load(builder.inttoptr(arguments[0], VECTOR.as_pointer()), align=ITEMSIZE)

    return vector(types.int64), codegen


@intrinsic
def store(typing_context, address, value):
    """Store a vector's elements at an address."""

    def codegen(context, builder, signature, arguments):
        address, value = arguments
        builder.store(value, builder.inttoptr(address, VECTOR.as_pointer()), align=ITEMSIZE)
        return context.get_dummy_value()

    return types.void(types.int64, vector), codegen


@intrinsic
def multiply_add(typing_context, x, y, z):
    """x * y + z, rounded once."""

    def codegen(context, builder, signature, arguments):
        function = ir.FunctionType(VECTOR, [VECTOR] * 3)
        name = f"llvm.fma.v{LANES}f{8 * ITEMSIZE}"
        return builder.call(get_or_insert_function(builder.module, function, name), arguments)

    return vector(vector, vector, vector), codegen


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
def add_row(alpha, a, depth, b, ldb, c, columns):
    """c[columns] += alpha * a[depth] @ B[depth x columns]; the row waits in memory."""
    a_row = view(a, depth)
    whole = columns // (UNROLL * LANES) * (UNROLL * LANES)
    for p in range(depth):
        b_row = b + p * ldb * ITEMSIZE
        factor = broadcast(alpha * a_row[p])
        for j in range(0, whole, UNROLL * LANES):
            b_step, c_step = b_row + j * ITEMSIZE, c + j * ITEMSIZE
            b0 = load(b_step + 0 * LANES * ITEMSIZE)
            c0 = load(c_step + 0 * LANES * ITEMSIZE)
            store(c_step + 0 * LANES * ITEMSIZE, multiply_add(factor, b0, c0))
        # What is left of the row is less than a step.
        b_rest = view(b_row + whole * ITEMSIZE, columns - whole)
        c_rest = view(c + whole * ITEMSIZE, columns - whole)
        for j in range(columns - whole):
            c_rest[j] += alpha * a_row[p] * b_rest[j]


@njit(**CALLED)
def multiply_rows(
    first, last, height, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, depth, width,
):
    """Tiles first..last-1 of `height` rows of C, by blocks of depth x width of B."""
    for tile in range(first, last):
        top = tile * height
        rows = min(height, m - top)
        scale_c(beta, c + top * ldc * ITEMSIZE, ldc, rows, k)
        for p in range(0, n, depth):
            for j in range(0, k, width):
                b_block = b + (p * ldb + j) * ITEMSIZE
                for i in range(top, top + rows):
                    a_row = a + (i * lda + p) * ITEMSIZE
                    c_row = c + (i * ldc + j) * ITEMSIZE
                    add_row(
                        alpha, a_row, min(depth, n - p), b_block, ldb, c_row, min(width, k - j)
                    )


# Schedule: guided. A thread that is free takes the next chunk of tiles, by counting up
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
def compare_exchange(typing_context, address, expected, value):
    """Put `value` at an address if `expected` is there, atomically; what was there before."""

    def codegen(context, builder, signature, arguments):
        address, expected, value = arguments
        word = builder.inttoptr(address, value.type.as_pointer())
        return builder.extract_value(
            builder.cmpxchg(word, expected, value, ATOMIC, ATOMIC), 0
        )

    return types.int64(types.int64, types.int64, types.int64), codegen


@njit(**KERNEL)
def next_chunk(counter, count, chunk):
    """Half of an even share of what is left, at least `chunk`; empty when nothing is left."""
    first = compare_exchange(counter, 0, 0)
    while first < count:
        share = (count - first + 2 * THREADS - 1) // (2 * THREADS)
        last = min(first + max(1, chunk, share), count)
        found = compare_exchange(counter, first, last)
        if found == first:
            return first, last
        first = found
    return count, count


@njit(**CALLED)
def work(
    counter, count, chunk,
    height, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, depth, width,
):
    """A thread's tiles."""
    first, last = next_chunk(counter, count, chunk)
    while first < last:
        multiply_rows(
            first, last, height, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, depth, width,
        )
        first, last = next_chunk(counter, count, chunk)


@njit(
    "void(int64, int64, int64, float64, uintp, int64, uintp, int64, float64, uintp, int64, "
    "int64, int64)",
    cache=True,
    # Loops stay apart: a loop may need all that the one before it did.
    parallel={"fusion": False},
    **OPTIONS,
)
def gemm(m, n, k, alpha, a_address, lda, b_address, ldb, beta, c_address, ldc, block, chunk):
    """C[m x k] = alpha * A[m x n] @ B[n x k] + beta * C; block 0 means whole rows, one a tile."""
    a, b, c = np.int64(a_address), np.int64(b_address), np.int64(c_address)
    height = max(1, block)
    depth = n if block == 0 else block
    width = k if block == 0 else block
    count = (m + height - 1) // height
    counter = new_counter()
    for _ in prange(THREADS):
        work(
            counter, count, chunk,
            height, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, depth, width,
        )
