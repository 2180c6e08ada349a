"""gemm for cpu: family unpacked, float32, layout nt.

template: gemm/cpu/unpacked.py.j2, digest 5ab0c15a2e3c146b
configuration: {"schedule": "guided", "threads": 2, "ty": 8, "vector": 512, "vectors": 2}
"""

import numpy as np
from llvmlite import ir
from llvmlite.binding import add_symbol
from numba import cfunc, njit, prange, types
from numba.core.cgutils import alloca_once, get_or_insert_function
from numba.extending import intrinsic, models, register_model

# ---- Element type, threads and compiler options
# A name of what is emitted here: a digest of all that it depends on.
PROGRAM = "dac83d0390896707"
REAL = types.float32
ITEMSIZE = 4
# Threads that share the work.
THREADS = 2
OPTIONS = {"nogil": True, "error_model": "numpy"}
# Small helpers vanish into their caller before types are inferred, which compiles fastest.
INLINE = {"inline": "always"}
# Functions called only from compiled code need no wrappers for Python and C.
CALLED = {**OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
# The schedule's functions vanish into the loop that they divide.
KERNEL = {**CALLED, "forceinline": True}

# ---- Vectors
# Elements of one.
LANES = 16
INT8, INT32, INT64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
ELEMENT = ir.FloatType()
VECTOR = ir.VectorType(ELEMENT, LANES)
# The vector in the names of LLVM's functions.
SUFFIX = f"v{LANES}f{8 * ITEMSIZE}"
POINTER = types.CPointer(REAL)


class Tile(types.Type):
    """`rows` x `vectors` vectors that wait in registers."""

    def __init__(self, rows, vectors):
        self.rows, self.vectors = rows, vectors
        super().__init__(f"Tile({rows}, {vectors}, {SUFFIX})")

    @property
    def value(self):
        """The type of its values in LLVM."""
        return ir.ArrayType(ir.ArrayType(VECTOR, self.vectors), self.rows)


@register_model(Tile)
class TileModel(models.PrimitiveModel):
    """A tile as Numba handles it: one value that it does not look into."""

    def __init__(self, manager, tile):
        super().__init__(manager, tile, tile.value)


def build(builder, tile, vector_at):
    """The tile that has the vector `vector_at(i, j)` in row i, place j."""
    value = ir.Constant(tile.value, ir.Undefined)
    for i in range(tile.rows):
        for j in range(tile.vectors):
            value = builder.insert_value(value, vector_at(i, j), (i, j))
    return value


def call(builder, name, result, *arguments):
    """Call one of LLVM's functions on vectors."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(get_or_insert_function(builder.module, kind, name), arguments)


def fma(builder, x, y, z):
    """x * y + z, rounded once."""
    return call(builder, f"llvm.fma.{SUFFIX}", VECTOR, x, y, z)


def splat(builder, scalar, lanes):
    """A scalar in every lane of a vector of type `lanes`."""
    single = builder.insert_element(ir.Constant(lanes, ir.Undefined), scalar, INT32(0))
    first = ir.Constant(ir.VectorType(INT32, lanes.count), None)
    return builder.shuffle_vector(single, single, first)


def first_lanes(builder, count, j, width=LANES):
    """The mask of vector j in a row of which the first `count` elements are there."""
    lanes = ir.VectorType(INT64, width)
    numbers = ir.Constant(lanes, list(range(j * width, (j + 1) * width)))
    return builder.icmp_signed("<", numbers, splat(builder, count, lanes))


def vector_pointer(builder, start, offset, j=0):
    """A pointer to vector j of the row that starts `offset` elements after `start`."""
    row = builder.gep(start, [offset])
    return builder.bitcast(builder.gep(row, [INT64(j * LANES)]), VECTOR.as_pointer())


def load_lanes(builder, place, mask):
    """The vector at a place of which the lanes in the mask are read; zeros in the others."""
    vector = ir.VectorType(ELEMENT, mask.type.count)
    name = f"llvm.masked.load.v{vector.count}f{8 * ITEMSIZE}.p0"
    place = builder.bitcast(place, vector.as_pointer())
    zero, alignment = ir.Constant(vector, None), INT32(ITEMSIZE)
    return call(builder, name, vector, place, alignment, mask, zero)


def joined(builder, left, right):
    """One vector of the elements of two that are as long as each other."""
    lanes = list(range(2 * left.type.count))
    return builder.shuffle_vector(left, right, ir.Constant(ir.VectorType(INT32, len(lanes)), lanes))


def clamped(builder, i, rows):
    """Row i, or the last of `rows` rows where there is no such row: reading it does no harm."""
    last = builder.sub(rows, INT64(1))
    return builder.select(builder.icmp_signed("<", INT64(i), last), INT64(i), last)


def by_name(signature):
    """Compile a function for itself, and have others call it by a name, as if written in C.

    Numba compiles what is called once more into every caller, which here takes longer than all
    else. An exception would be lost: such a function raises none.
    """

    def decorate(function):
        compiled = cfunc(signature, cache=True, **OPTIONS)(function)
        name = f"{function.__name__}_{PROGRAM}"
        add_symbol(name, compiled.address)
        return types.ExternalFunction(name, signature)

    return decorate


@intrinsic
def pointer(typing_context, address):
    """The pointer to an address."""

    def codegen(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], ELEMENT.as_pointer())

    return POINTER(types.int64), codegen


@intrinsic
def ahead(typing_context, start, count):
    """The pointer `count` elements after `start`."""

    def codegen(context, builder, signature, arguments):
        return builder.gep(arguments[0], [arguments[1]])

    return POINTER(POINTER, types.int64), codegen


@intrinsic(prefer_literal=True)
def zeros(typing_context, rows, vectors):
    """A tile of zeros; its size is two constants."""
    tile = Tile(rows.literal_value, vectors.literal_value)

    def codegen(context, builder, signature, arguments):
        return ir.Constant(tile.value, None)

    return tile(rows, vectors), codegen


@intrinsic
def load(typing_context, tile, start, stride, rows, columns):
    """A tile as large as `tile` from memory, whose rows are `stride` elements apart.

    Of the matrix that is read only `rows` x `columns` elements are there: further rows repeat the
    last one, further columns are zero.
    """

    def codegen(context, builder, signature, arguments):
        _, start, stride, rows, columns = arguments
        masks = [first_lanes(builder, columns, j) for j in range(tile.vectors)]

        def vector_at(i, j):
            offset = builder.mul(clamped(builder, i, rows), stride)
            return load_lanes(builder, vector_pointer(builder, start, offset, j), masks[j])

        return build(builder, tile, vector_at)

    return tile(tile, POINTER, types.int64, types.int64, types.int64), codegen


@intrinsic
def store(typing_context, tile, start, stride, rows, columns):
    """Store the first `rows` rows and `columns` columns of a tile, row by row.

    Rows may overlap: what is stored last stays.
    """

    def codegen(context, builder, signature, arguments):
        value, start, stride, rows, columns = arguments
        masks = [first_lanes(builder, columns, j) for j in range(tile.vectors)]
        nothing, alignment = ir.VoidType(), INT32(ITEMSIZE)
        for i in range(tile.rows):
            with builder.if_then(builder.icmp_signed("<", INT64(i), rows)):
                for j in range(tile.vectors):
                    vector = builder.extract_value(value, (i, j))
                    target = vector_pointer(builder, start, builder.mul(INT64(i), stride), j)
                    name = f"llvm.masked.store.{SUFFIX}.p0"
                    call(builder, name, nothing, vector, target, alignment, masks[j])
        return context.get_dummy_value()

    return types.void(tile, POINTER, types.int64, types.int64, types.int64), codegen


@intrinsic
def scale(typing_context, tile, factor):
    """factor * tile."""

    def codegen(context, builder, signature, arguments):
        value, factor = arguments
        factors = splat(builder, factor, VECTOR)

        def vector_at(i, j):
            return builder.fmul(factors, builder.extract_value(value, (i, j)))

        return build(builder, tile, vector_at)

    return tile(tile, REAL), codegen


@intrinsic
def add_scaled(typing_context, tile, factor, other):
    """tile + factor * other."""

    def codegen(context, builder, signature, arguments):
        value, factor, other = arguments
        factors = splat(builder, factor, VECTOR)

        def vector_at(i, j):
            vector = builder.extract_value(other, (i, j))
            return fma(builder, factors, vector, builder.extract_value(value, (i, j)))

        return build(builder, tile, vector_at)

    return tile(tile, REAL, tile), codegen


@intrinsic
def fetch(typing_context, start):
    """Have the cache line that starts there, or around there, brought near: a hint."""

    def codegen(context, builder, signature, arguments):
        line = builder.bitcast(arguments[0], INT8.as_pointer())
        read, first_level, data = INT32(0), INT32(3), INT32(1)
        call(builder, "llvm.prefetch.p0", ir.VoidType(), line, read, first_level, data)
        return context.get_dummy_value()

    return types.void(POINTER), codegen


@intrinsic
def transpose(typing_context, tile):
    """The transposes of the squares that lie beside each other in a tile of one vector a row.

    Two rows that are `size` apart exchange blocks of `size` elements: the right ones of the upper
    row for the left ones of the lower row. Sizes 1, 2, 4, ... make that a transpose.
    """

    def codegen(context, builder, signature, arguments):
        lanes = ir.VectorType(INT32, LANES)
        rows = [builder.extract_value(arguments[0], (i, 0)) for i in range(tile.rows)]
        for size in (2**step for step in range(tile.rows.bit_length() - 1)):
            left = [(lane ^ size) | LANES if lane & size else lane for lane in range(LANES)]
            right = [lane | LANES if lane & size else lane ^ size for lane in range(LANES)]
            for i in range(tile.rows):
                if not i & size:
                    rows[i], rows[i + size] = (
                        builder.shuffle_vector(rows[i], rows[i + size], ir.Constant(lanes, blocks))
                        for blocks in (left, right)
                    )
        return build(builder, tile, lambda i, j: rows[i])

    return tile(tile), codegen


@intrinsic
def allocate(typing_context, size):
    """The address of memory of that many bytes, to be released; 0 if there is none."""

    def codegen(context, builder, signature, arguments):
        kind = ir.FunctionType(INT8.as_pointer(), [INT64])
        function = get_or_insert_function(builder.module, kind, "malloc")
        return builder.ptrtoint(builder.call(function, arguments), INT64)

    return types.int64(types.int64), codegen


@intrinsic
def release(typing_context, address):
    """Give allocated memory back."""

    def codegen(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.VoidType(), [INT8.as_pointer()])
        function = get_or_insert_function(builder.module, kind, "free")
        builder.call(function, [builder.inttoptr(arguments[0], INT8.as_pointer())])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def rows_of(typing_context, tile):
    """How many rows a tile has, a constant."""

    def codegen(context, builder, signature, arguments):
        return INT64(tile.rows)

    return types.int64(tile), codegen


@intrinsic
def vectors_of(typing_context, tile):
    """How many vectors a row of a tile has, a constant."""

    def codegen(context, builder, signature, arguments):
        return INT64(tile.vectors)

    return types.int64(tile), codegen


def add_products_of(builder, tile, value, column, row):
    """tile + a b, of pointers to the elements of a and the vectors of b."""
    # Elements of A are loaded where they are used: LLVM would keep early ones in registers.
    for i, element in enumerate(column):
        factor = splat(builder, builder.load(element), VECTOR)
        for j in range(tile.vectors):
            total = fma(builder, factor, row[j], builder.extract_value(value, (i, j)))
            value = builder.insert_value(value, total, (i, j))
    return value


def unrelated(builder, number):
    """The same number, of which LLVM does not know what it was computed from."""
    kind = ir.FunctionType(INT64, [INT64])
    return builder.asm(kind, "", "=r,0", [number], side_effect=False)


def whole_column(builder, tile, start, stride):
    """Pointers to a column's elements.

    Every fourth is found from the first one, and the three behind it from there. LLVM, where it
    knows all distances as multiples of a stride, finds each from the one before: so many additions,
    one after the other in every step, take longer than the products do.
    """
    for i in range(tile.rows):
        element = start
        for part in (i // 4 * 4, i % 4):
            if part:
                distance = unrelated(builder, builder.mul(INT64(part), stride))
                element = builder.gep(element, [distance])
        yield element


def whole_row(builder, tile, start):
    """The vectors of a row of B."""
    places = (vector_pointer(builder, start, INT64(0), j) for j in range(tile.vectors))
    return [builder.load(place, align=ITEMSIZE) for place in places]


def row_within(builder, tile, start, columns):
    """The vectors of a row of B of which `columns` elements are there, and zeros behind them."""
    return [
        load_lanes(
            builder, vector_pointer(builder, start, INT64(0), j), first_lanes(builder, columns, j)
        )
        for j in range(tile.vectors)
    ]


@intrinsic
def add_whole(typing_context, tile, a, stride, b):
    """tile + a b: a column of A, its elements `stride` apart, times a row of B."""

    def codegen(context, builder, signature, arguments):
        value, a, stride, b = arguments
        column = whole_column(builder, tile, a, stride)
        return add_products_of(builder, tile, value, column, whole_row(builder, tile, b))

    return tile(tile, POINTER, types.int64, POINTER), codegen


@intrinsic
def add_within(typing_context, tile, a, stride, b, columns):
    """The same of a row of B of which only `columns` elements are there."""

    def codegen(context, builder, signature, arguments):
        value, a, stride, b, columns = arguments
        column = whole_column(builder, tile, a, stride)
        return add_products_of(builder, tile, value, column, row_within(builder, tile, b, columns))

    return tile(tile, POINTER, types.int64, POINTER, types.int64), codegen


@njit(**INLINE)
def write_tile(tile, alpha, beta, c, ldc, rows, columns):
    """C[rows x columns] = alpha * tile + beta * C; where beta is 0, C is not read."""
    tile = scale(tile, alpha)
    if beta != 0:
        tile = add_scaled(tile, beta, load(tile, c, ldc, rows, columns))
    store(tile, c, ldc, rows, columns)


@intrinsic
def add_steps(typing_context, tile, a, a_row, a_step, b, ldb, columns):
    """tile + the products of as many reduction steps as it has vectors, each step in its own.

    Of a row of B only `columns` elements are there, which are a vector at most.
    """

    def codegen(context, builder, signature, arguments):
        value, a, a_row, a_step, b, ldb, columns = arguments
        mask = first_lanes(builder, columns, 0)
        for j in range(tile.vectors):
            row = load_lanes(builder, vector_pointer(builder, b, builder.mul(INT64(j), ldb)), mask)
            start = builder.gep(a, [builder.mul(INT64(j), a_step)])
            for i, element in enumerate(whole_column(builder, tile, start, a_row)):
                factor = splat(builder, builder.load(element), VECTOR)
                total = fma(builder, factor, row, builder.extract_value(value, (i, j)))
                value = builder.insert_value(value, total, (i, j))
        return value

    kinds = (POINTER, types.int64, types.int64, POINTER, types.int64, types.int64)
    return tile(tile, *kinds), codegen


@intrinsic
def sum_of_vectors(typing_context, tile):
    """What the vectors of each row of a tile add up to, in their order: a tile of one vector."""
    single = Tile(tile.rows, 1)

    def codegen(context, builder, signature, arguments):
        def vector_at(i, _):
            total = builder.extract_value(arguments[0], (i, 0))
            for j in range(1, tile.vectors):
                total = builder.fadd(total, builder.extract_value(arguments[0], (i, j)))
            return total

        return build(builder, single, vector_at)

    return single(tile), codegen


@njit(**INLINE)
def product_by_steps(empty, a, a_row, a_step, depth, b, ldb, columns):
    """A[rows x depth] @ B[depth x columns], columns a vector at most."""
    steps = vectors_of(empty)
    tile, together = empty, depth // steps * steps
    for _ in range(0, together, steps):
        tile = add_steps(tile, a, a_row, a_step, b, ldb, columns)
        a, b = ahead(a, steps * a_step), ahead(b, steps * ldb)
    total = sum_of_vectors(tile)
    for _ in range(together, depth):
        total = add_within(total, a, a_row, b, columns)
        a, b = ahead(a, a_step), ahead(b, ldb)
    return total


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


@intrinsic
def load_squares(typing_context, tile, start, stride, columns):
    """LANES rows of a matrix of few columns, in squares as high as `tile` beside each other."""

    def codegen(context, builder, signature, arguments):
        _, start, stride, columns = arguments
        # Loads are no wider than a square: wider ones would often lie in two cache lines.
        mask = first_lanes(builder, columns, 0, tile.rows)

        def row(i):
            return load_lanes(builder, builder.gep(start, [builder.mul(INT64(i), stride)]), mask)

        def vector_at(i, j):
            rows = [row(below) for below in range(i, LANES, tile.rows)]
            while len(rows) > 1:
                pairs = zip(rows[::2], rows[1::2], strict=True)
                rows = [joined(builder, left, right) for left, right in pairs]
            return rows[0]

        return build(builder, tile, vector_at)

    return tile(tile, POINTER, types.int64, types.int64), codegen


@by_name(types.void(*[types.int64] * 6))
def turn(rows, columns, source_address, lds, target_address, ldt):
    """target[rows x columns] = S^T of an S that is columns x rows, by squares of vectors."""
    source, target = pointer(source_address), pointer(target_address)
    whole = columns // LANES * LANES
    # Few rows fit smaller squares, of whose elements fewer are missing.
    if rows <= 4:
        for j in range(0, whole, LANES):
            squares = load_squares(zeros(4, 1), ahead(source, j * lds), lds, rows)
            store(transpose(squares), ahead(target, j), ldt, rows, LANES)
    elif rows <= 8:
        for j in range(0, whole, LANES):
            squares = load_squares(zeros(8, 1), ahead(source, j * lds), lds, rows)
            store(transpose(squares), ahead(target, j), ldt, rows, LANES)
    else:
        whole = 0
    for j in range(whole, columns, LANES):
        for i in range(0, rows, LANES):
            square = load(zeros(LANES, 1), ahead(source, j * lds + i), lds, columns - j, rows - i)
            store(transpose(square), ahead(target, i * ldt + j), ldt, rows - i, LANES)


# ---- Configuration
# Columns of the widest tile.
TX = 2 * LANES
# Bytes of a cache line.
LINE = 64


@njit(**CALLED)
def multiply_tiles(empty, count, n, alpha, a, a_row, a_step, b, ldb, beta, c, ldc):
    """C = alpha * A @ B + beta * C in `count` tiles below each other, each as large as `empty`."""
    rows, columns = rows_of(empty), vectors_of(empty) * LANES
    for _ in range(count):
        # Storing waits for lines that are not near; they arrive while the sums grow.
        for i in range(rows):
            for j in range(0, columns, LINE // ITEMSIZE):
                fetch(ahead(c, i * ldc + j))
        tile, a_here, b_here = empty, a, b
        for _ in range(n):
            tile = add_whole(tile, a_here, a_row, b_here)
            a_here, b_here = ahead(a_here, a_step), ahead(b_here, ldb)
        write_tile(tile, alpha, beta, c, ldc, rows, columns)
        a, c = ahead(a, rows * a_row), ahead(c, rows * ldc)


@njit(**CALLED)
def multiply_rest(empty, count, n, there, alpha, a, a_row, a_step, b, ldb, beta, c, ldc):
    """The same in tiles of whose columns `there` are there."""
    rows = rows_of(empty)
    for _ in range(count):
        tile, a_here, b_here = empty, a, b
        for _ in range(n):
            tile = add_within(tile, a_here, a_row, b_here, there)
            a_here, b_here = ahead(a_here, a_step), ahead(b_here, ldb)
        write_tile(tile, alpha, beta, c, ldc, rows, there)
        a, c = ahead(a, rows * a_row), ahead(c, rows * ldc)


@njit(**CALLED)
def multiply_narrow(empty, count, n, there, alpha, a, a_row, a_step, b, ldb, beta, c, ldc):
    """The same in tiles of so few rows, one vector wide, that several steps are taken at a time."""
    rows = rows_of(empty)
    for _ in range(count):
        total = product_by_steps(empty, a, a_row, a_step, n, b, ldb, there)
        write_tile(total, alpha, beta, c, ldc, rows, there)
        a, c = ahead(a, rows * a_row), ahead(c, rows * ldc)


@by_name(
    types.void(
        *[types.int64] * 7, REAL, *[types.int64] * 5, REAL,
        *[types.int64] * 2,
    )
)
def multiply_blocks(
    first, last, m, n, k, height, width,
    alpha, a_address, a_row, a_step, b_address, ldb,
    beta, c_address, ldc,
):
    """Blocks first..last-1 of C, height x width each, counted along rows of blocks."""
    a, across = pointer(a_address), (k + width - 1) // width
    for block in range(first, last):
        top, left = block // across * height, block % across * width
        bottom, right = smaller(top + height, m), smaller(left + width, k)
        j = left
        while j < right:
            b, c, i = ahead(pointer(b_address), j), ahead(pointer(c_address), j), top
            whole = j + TX <= right
            wide = right - j > TX - LANES
            count = (bottom - i) // 8
            if count > 0:
                a_rows, c_rows = ahead(a, i * a_row), ahead(c, i * ldc)
                if whole:
                    multiply_tiles(
                        zeros(8, 2), count, n, alpha,
                        a_rows, a_row, a_step, b, ldb, beta, c_rows, ldc,
                    )
                elif wide:
                    multiply_rest(
                        zeros(8, 2), count, n, right - j, alpha,
                        a_rows, a_row, a_step, b, ldb, beta, c_rows, ldc,
                    )
                else:
                    multiply_rest(
                        zeros(8, 1), count, n, right - j, alpha,
                        a_rows, a_row, a_step, b, ldb, beta, c_rows, ldc,
                    )
                i += count * 8
            count = (bottom - i) // 4
            if count > 0:
                a_rows, c_rows = ahead(a, i * a_row), ahead(c, i * ldc)
                if whole:
                    multiply_tiles(
                        zeros(4, 2), count, n, alpha,
                        a_rows, a_row, a_step, b, ldb, beta, c_rows, ldc,
                    )
                elif wide:
                    multiply_rest(
                        zeros(4, 2), count, n, right - j, alpha,
                        a_rows, a_row, a_step, b, ldb, beta, c_rows, ldc,
                    )
                else:
                    multiply_narrow(
                        zeros(4, 2), count, n, right - j, alpha,
                        a_rows, a_row, a_step, b, ldb, beta, c_rows, ldc,
                    )
                i += count * 4
            count = (bottom - i) // 2
            if count > 0:
                a_rows, c_rows = ahead(a, i * a_row), ahead(c, i * ldc)
                if whole:
                    multiply_tiles(
                        zeros(2, 2), count, n, alpha,
                        a_rows, a_row, a_step, b, ldb, beta, c_rows, ldc,
                    )
                elif wide:
                    multiply_rest(
                        zeros(2, 2), count, n, right - j, alpha,
                        a_rows, a_row, a_step, b, ldb, beta, c_rows, ldc,
                    )
                else:
                    multiply_narrow(
                        zeros(2, 4), count, n, right - j, alpha,
                        a_rows, a_row, a_step, b, ldb, beta, c_rows, ldc,
                    )
                i += count * 2
            count = (bottom - i) // 1
            if count > 0:
                a_rows, c_rows = ahead(a, i * a_row), ahead(c, i * ldc)
                if whole:
                    multiply_tiles(
                        zeros(1, 2), count, n, alpha,
                        a_rows, a_row, a_step, b, ldb, beta, c_rows, ldc,
                    )
                elif wide:
                    multiply_rest(
                        zeros(1, 2), count, n, right - j, alpha,
                        a_rows, a_row, a_step, b, ldb, beta, c_rows, ldc,
                    )
                else:
                    multiply_narrow(
                        zeros(1, 4), count, n, right - j, alpha,
                        a_rows, a_row, a_step, b, ldb, beta, c_rows, ldc,
                    )
            j += TX if wide else LANES


# ---- Processors
# A thread that is woken up may be put on the processor of the one that woke it, which works, too;
# Linux may leave both there for hundreds of calls while another processor is idle. Whoever finds
# that stays away from there.
this_thread = types.ExternalFunction("pthread_self", types.uint64())
this_processor = types.ExternalFunction("sched_getcpu", types.int32())
# Words of 64 bits in the system's set of processors.
MASK_WORDS = 16


@intrinsic
def leave(typing_context, processor):
    """Allow the calling thread all of the process's processors but one, so that it moves.

    A thread that may use others, too, stays as it is: those of the first one are not all there are.
    """

    def codegen(context, builder, signature, arguments):
        processor = builder.zext(arguments[0], INT64)
        kind = ir.FunctionType(INT32, [INT32, INT64, INT64.as_pointer()])
        read = get_or_insert_function(builder.module, kind, "sched_getaffinity")
        write = get_or_insert_function(builder.module, kind, "sched_setaffinity")
        whose = get_or_insert_function(builder.module, ir.FunctionType(INT32, []), "getpid")
        # Where the system's sets are larger, it refuses these, as it does one that is empty.
        mask, own = (alloca_once(builder, INT64, MASK_WORDS, zfill=True) for _ in range(2))
        builder.call(read, [builder.call(whose, []), INT64(8 * MASK_WORDS), mask])
        builder.call(read, [INT32(0), INT64(8 * MASK_WORDS), own])
        others = INT64(0)
        for i in range(MASK_WORDS):
            of_first, of_own = (builder.load(builder.gep(each, [INT64(i)])) for each in (mask, own))
            others = builder.or_(others, builder.and_(of_own, builder.not_(of_first)))
        with builder.if_then(builder.icmp_unsigned("==", others, INT64(0))):
            index = builder.and_(builder.lshr(processor, INT64(6)), INT64(MASK_WORDS - 1))
            word = builder.gep(mask, [index])
            bit = builder.shl(INT64(1), builder.and_(processor, INT64(63)))
            builder.store(builder.and_(builder.load(word), builder.not_(bit)), word)
            builder.call(write, [INT32(0), INT64(8 * MASK_WORDS), mask])
        return context.get_dummy_value()

    return types.void(types.int32), codegen


@njit(**KERNEL)
def keep_apart(caller, processor):
    """Move the calling thread away if it runs on the processor of the one that called it."""
    if this_processor() == processor and this_thread() != caller:
        leave(processor)


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
    m, n, k, height, width,
    alpha, a, a_row, a_step, b, ldb,
    beta, c, ldc,
):
    """A thread's blocks; see `multiply_blocks`."""
    first, last = next_chunk(counter, count, chunk)
    while first < last:
        multiply_blocks(
            first, last, m, n, k, height, width,
            alpha, a, a_row, a_step, b, ldb,
            beta, c, ldc,
        )
        first, last = next_chunk(counter, count, chunk)


@njit(
    "void(int64, int64, int64, float32, uintp, int64, uintp, int64, float32, uintp, int64, "
    "int64, int64, int64)",
    cache=True,
    # Loops stay apart: a loop may need all that the one before it did.
    parallel={"fusion": False},
    **OPTIONS,
)
def gemm(m, n, k, alpha, a_address, lda, b_address, ldb, beta, c_address, ldc, sm, sk, chunk):
    """C[m x k] = alpha * A[m x n] @ B[n x k] + beta * C, in blocks of about sm x sk."""
    a, b, c = np.int64(a_address), np.int64(b_address), np.int64(c_address)
    width = even_block(k, sk, TX)
    across = (k + width - 1) // width
    # As many blocks for every thread, lower ones where there are too few.
    down = round_up((m + sm - 1) // sm * across, THREADS) // across
    sm = (m + down - 1) // down
    height = even_block(m, sm, 8)
    blocks = (m + height - 1) // height * across
    # Elements of A from one row to the next, and from one reduction step to the next.
    a_row, a_step = lda, 1
    turned = round_up(k, LANES)
    buffer = allocate(LINE + n * turned * ITEMSIZE)
    if buffer == 0:
        raise MemoryError("no memory for B")
    rows = round_up(buffer, LINE)
    turn(n, k, b, ldb, rows, turned)
    b, ldb = rows, turned
    counter = new_counter()
    caller, processor = this_thread(), this_processor()
    for _ in prange(THREADS):
        keep_apart(caller, processor)
        work(
            counter, blocks, chunk,
            m, n, k, height, width,
            alpha, a, a_row, a_step, b, ldb,
            beta, c, ldc,
        )
    release(buffer)
