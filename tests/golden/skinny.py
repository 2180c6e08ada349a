"""gemm for cpu: family skinny, float32, layout nn.

template: gemm/cpu/skinny.py.j2, digest dd32168addf1ca06
configuration: {"schedule": "static", "side": "rows", "threads": 1, "ty": 8, "vector": 512,
    "vectors": 2}
"""

import numpy as np
from llvmlite import ir
from llvmlite.binding import add_symbol
from numba import cfunc, njit, types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic, models, register_model

# ---- Element type, threads and compiler options
# A name of what is emitted here: a digest of all that it depends on.
PROGRAM = "364bb1c8eb7e39d4"
REAL = types.float32
ITEMSIZE = 4
OPTIONS = {"nogil": True, "error_model": "numpy"}
# Small helpers vanish into their caller before types are inferred, which compiles fastest.
INLINE = {"inline": "always"}
# Functions called only from compiled code need no wrappers for Python and C.
CALLED = {**OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}

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


# ---- Configuration
# Bytes of a cache line, where sums start.
LINE = 64


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


# Columns that are worked on together, while `step` rows of them stay in the level-1 cache.
WIDE = 4 * LANES
# Where X has one row: rows of W to be read beside each other, from end to end of so many columns,
# whose sums stay in the level-1 cache. Memory is fastest with few long streams.
STEPS, SUMS = 8, 32768 // ITEMSIZE


@njit(**INLINE)
def add_rows(tile, x, x_few, x_step, depth, w, ldw):
    """tile + X[:, :depth] @ W[:depth]."""
    for _ in range(depth):
        tile = add_whole(tile, x, x_few, w)
        x, w = ahead(x, x_step), ahead(w, ldw)
    return tile


@njit(**CALLED)
def add_tiles(empty, x, x_few, x_step, depth, w, ldw, there, fresh, sums, lds):
    """sums[rows x there] += X[rows x depth] @ W[depth x there], tile by tile, as large as `empty`.

    The sums have room for WIDE columns; if they are fresh, they begin with zero.
    """
    rows, wide = rows_of(empty), vectors_of(empty) * LANES
    for j in range(0, there, wide):
        target, columns = ahead(sums, j), there - j
        tile = empty
        if not fresh:
            tile = load(empty, target, lds, rows, wide)
        x_here, w_here = x, ahead(w, j)
        if columns >= wide and rows <= 2 and depth == STEPS:  # nothing is counted between them
            tile = add_rows(tile, x_here, x_few, x_step, STEPS, w_here, ldw)
        elif columns >= wide:
            tile = add_rows(tile, x_here, x_few, x_step, depth, w_here, ldw)
        else:
            for _ in range(depth):
                tile = add_within(tile, x_here, x_few, w_here, columns)
                x_here, w_here = ahead(x_here, x_step), ahead(w_here, ldw)
        store(tile, target, lds, rows, wide)


@njit(**CALLED)
def add_panels(few, x, x_few, x_step, first, last, w, ldw, left, right, step, sums, lds):
    """sums[few x (left..right)] = X @ W, of reduction steps first..last, `step` at a time.

    So many rows of W are read side by side, each from its beginning to its end.
    """
    # Where one tile has all rows of X, no row of W is read again.
    wide = right - left if few in (8, 4, 2, 1) else WIDE
    for p in range(first, last, step):
        depth = smaller(step, last - p)
        for j in range(left, right, wide):
            there = smaller(wide, right - j)
            w_here, i = ahead(w, p * ldw + j), 0
            while few - i >= 8:
                add_tiles(
                    zeros(8, 2),
                    ahead(x, i * x_few + p * x_step), x_few, x_step, depth,
                    w_here, ldw, there, p == first, ahead(sums, i * lds + j), lds,
                )
                i += 8
            if few - i >= 4:
                add_tiles(
                    zeros(4, 4),
                    ahead(x, i * x_few + p * x_step), x_few, x_step, depth,
                    w_here, ldw, there, p == first, ahead(sums, i * lds + j), lds,
                )
                i += 4
            if few - i >= 2:
                add_tiles(
                    zeros(2, 4),
                    ahead(x, i * x_few + p * x_step), x_few, x_step, depth,
                    w_here, ldw, there, p == first, ahead(sums, i * lds + j), lds,
                )
                i += 2
            if few - i >= 1:
                add_tiles(
                    zeros(1, 4),
                    ahead(x, i * x_few + p * x_step), x_few, x_step, depth,
                    w_here, ldw, there, p == first, ahead(sums, i * lds + j), lds,
                )
                i += 1


@njit(**CALLED)
def write_sums(few, first, last, alpha, sums, lds, parts, between, beta, c, ldc):
    """C = alpha * (the sums of all parts, in their order) + beta * C, in places first..last."""
    for i in range(few):
        for j in range(first, last, LANES):
            here = ahead(sums, i * lds + j)
            row = load(zeros(1, 1), here, 0, 1, LANES)
            for part in range(1, parts):
                other = load(row, ahead(here, part * between), 0, 1, LANES)
                row = add_scaled(row, REAL(1), other)
            write_tile(row, alpha, beta, ahead(c, i * ldc + j), ldc, 1, last - j)


@by_name(
    types.void(
        *[types.int64] * 14, REAL, *[types.int64] * 2, REAL,
        *[types.int64] * 2,
    )
)
def multiply_segments(
    first, last, parts, few, n, long,
    x_address, x_few, x_step, w_address, ldw, segment, depth, step,
    alpha, sums_address, lds, beta, c_address, ldc,
):
    """The sums of tasks first..last-1: a segment of W's columns in a part of the reduction each.

    Where the reduction has one part, C = alpha * sums + beta * C follows at once.
    """
    x, w, sums = pointer(x_address), pointer(w_address), pointer(sums_address)
    between = few * lds
    for task in range(first, last):
        left, part = task // parts * segment, task % parts
        right = smaller(left + segment, long)
        add_panels(
            few, x, x_few, x_step, part * depth, smaller((part + 1) * depth, n), w, ldw,
            left, right, step, ahead(sums, part * between), lds,
        )
        if parts == 1:
            write_sums(few, left, right, alpha, sums, lds, 1, 0, beta, pointer(c_address), ldc)


@njit(
    "void(int64, int64, int64, float32, uintp, int64, uintp, int64, float32, uintp, int64, "
    "int64, int64, int64, int64)",
    cache=True,
    **OPTIONS,
)
def gemm(
    m, n, k, alpha, a_address, lda, b_address, ldb, beta, c_address, ldc, sn, sk, parts,
    chunk
):
    """C[m x k] = alpha * A[m x n] @ B[n x k] + beta * C, one of m and k small.

    B is read in segments of about sk columns and panels of sn steps; the
    reduction has `parts` parts, whose sums are added in their order.
    A single row has panels and segments of its own.
    """
    a, b, c = np.int64(a_address), np.int64(b_address), np.int64(c_address)
    few, long, x, ldx, w, ldw = m, k, a, lda, b, ldb
    if few == 1 and long > 4 * WIDE:  # shorter rows are no streams
        sn, sk = STEPS, SUMS
    segment = even_block(long, sk, WIDE)
    segments = (long + segment - 1) // segment
    depth = even_block(n, (n + parts - 1) // parts, LANES)
    parts = (n + depth - 1) // depth
    # A line more between rows of sums: they would fall into the same sets of the caches.
    lds = round_up(long, WIDE * LANES) + LINE // ITEMSIZE
    between = few * lds
    buffer = allocate(LINE + parts * between * ITEMSIZE)
    if buffer == 0:
        raise MemoryError("no memory for sums")
    sums = round_up(buffer, LINE)
    # Elements from one of the few rows of X to the next, and from one reduction step to the next.
    x_few, x_step = ldx, 1
    multiply_segments(
        0, segments, 1, few, n, long,
        x, x_few, x_step, w, ldw, segment, n, sn,
        alpha, sums, lds, beta, c, ldc,
    )
    release(buffer)
