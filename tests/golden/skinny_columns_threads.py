"""gemm for cpu: family skinny, float64, layout nn.

template: gemm/cpu/skinny.py.j2, digest dd32168addf1ca06
configuration: {"schedule": "guided", "side": "columns", "threads": 2, "ty": 4, "vector": 256,
    "vectors": 2}
"""

import numpy as np
from llvmlite import ir
from llvmlite.binding import add_symbol
from numba import cfunc, njit, prange, types
from numba.core.cgutils import alloca_once, get_or_insert_function
from numba.extending import intrinsic, models, register_model

# ---- Element type, threads and compiler options
# A name of what is emitted here: a digest of all that it depends on.
PROGRAM = "f807e919619899af"
REAL = types.float64
ITEMSIZE = 8
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
LANES = 4
INT8, INT32, INT64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
ELEMENT = ir.DoubleType()
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


# Rows of the matrix that are worked on together.
WIDE = 8
# Vectors of a row that count as a step: as many bytes of it are read as of a matrix stored the
# other way.
STRETCH = 8
# Bytes of the matrix that stay in the level-1 cache while all rows of X pass by.
NEAR = 2**14


def dots_of(width):
    """The function that adds products of rows to a tile, `width` elements of each."""

    @intrinsic
    def add(typing_context, tile, x, x_stride, y, y_stride, there, count):
        """tile + x y, the products of a vector of each row of x with one of each row of y.

        Of y only `there` rows are there, the last is repeated; of a vector only `count` elements.
        """

        def codegen(context, builder, signature, arguments):
            value, x, x_stride, y, y_stride, there, count = arguments
            mask = first_lanes(builder, count, 0, width)

            def vector(start, offset):
                part = load_lanes(builder, builder.gep(start, [offset]), mask)
                if width == LANES:
                    return part
                return joined(builder, part, ir.Constant(part.type, None))

            row = [
                vector(y, builder.mul(clamped(builder, j, there), y_stride))
                for j in range(tile.vectors)
            ]
            for i in range(tile.rows):
                factor = vector(x, builder.mul(INT64(i), x_stride))
                for j in range(tile.vectors):
                    total = fma(builder, factor, row[j], builder.extract_value(value, (i, j)))
                    value = builder.insert_value(value, total, (i, j))
            return value

        kinds = (POINTER, types.int64, POINTER, types.int64, types.int64, types.int64)
        return tile(tile, *kinds), codegen

    return add


add_dots = dots_of(LANES)
# For the end of rows: half a vector lies in two cache lines less often than a whole one.
add_half_dots = dots_of(LANES // 2)


def halved(builder, left, right, size):
    """The blocks of `size` elements of two vectors, each as the sum of its halves."""

    def halves(shift):
        starts = range(shift, 2 * LANES, size)
        chosen = [start + lane for start in starts for lane in range(size // 2)]
        mask = ir.Constant(ir.VectorType(INT32, LANES), chosen)
        return builder.shuffle_vector(left, right, mask)

    return builder.fadd(halves(0), halves(size // 2))


def added_up(builder, vectors):
    """A vector of totals: what the elements of each of LANES vectors add up to.

    Blocks are halved until they are single elements; every step leaves half as many vectors.
    """
    size = LANES
    while size > 1:
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [halved(builder, left, right, size) for left, right in pairs]
        size //= 2
    return vectors[0]


@intrinsic
def cleared(typing_context, tile):
    """A tile of zeros as large as another one: constants, where that one was handed over."""

    def codegen(context, builder, signature, arguments):
        return ir.Constant(tile.value, None)

    return tile(tile), codegen


@intrinsic
def block_of_c(typing_context, tile):
    """The totals of a tile's vectors, a block of C, as one row: its rows behind each other."""
    block = Tile(1, -(-tile.rows * tile.vectors // LANES))
    order = [(i, j) for j in range(tile.vectors) for i in range(tile.rows)]

    def codegen(context, builder, signature, arguments):
        vectors = [builder.extract_value(arguments[0], place) for place in order]
        vectors += [ir.Constant(VECTOR, None)] * (block.vectors * LANES - len(vectors))

        def vector_at(i, j):
            return added_up(builder, vectors[j * LANES : (j + 1) * LANES])

        return build(builder, block, vector_at)

    return block(tile), codegen


@intrinsic
def divided(typing_context, block, tile):
    """A tile's block of C with its rows below each other; behind their ends, anything."""
    rows, columns = tile.vectors, tile.rows
    result = Tile(rows, -(-columns // LANES))

    def codegen(context, builder, signature, arguments):
        def vector_at(i, j):
            vector, lane = divmod(i * columns + j * LANES, LANES)
            both = (vector, min(vector + 1, block.vectors - 1))
            chosen = ir.Constant(ir.VectorType(INT32, LANES), list(range(lane, lane + LANES)))
            parts = (builder.extract_value(arguments[0], (0, place)) for place in both)
            return builder.shuffle_vector(*parts, chosen)

        return build(builder, result, vector_at)

    return result(block, tile), codegen


@njit(**INLINE)
def multiply_tile(empty, x, x_few, depth, w, ldw, there, alpha, beta, c, ldc):
    """C = alpha * X @ W^T + beta * C in one tile, as large as `empty`, of `there` rows of W."""
    few, tile, whole = rows_of(empty), cleared(empty), depth // LANES * LANES
    for _ in range(0, whole, LANES):
        tile = add_dots(tile, x, x_few, w, ldw, there, LANES)
        x, w = ahead(x, LANES), ahead(w, LANES)
    rest = depth - whole
    if rest > LANES // 2:
        tile = add_dots(tile, x, x_few, w, ldw, there, rest)
    elif rest > 0:
        tile = add_half_dots(tile, x, x_few, w, ldw, there, rest)
    block = scale(block_of_c(tile), alpha)
    if ldc == few:  # no gaps between the rows of C
        write_tile(block, REAL(1), beta, c, 0, 1, there * few)
    else:
        write_tile(divided(block, empty), REAL(1), beta, c, ldc, there, few)


@njit(**CALLED)
def multiply_tiles(empty, x, x_few, depth, w, ldw, there, alpha, beta, c, ldc):
    """C = alpha * X @ W^T + beta * C of `there` rows of W, in tiles as large as `empty`."""
    wide = vectors_of(empty)
    for _ in range(there // wide):
        multiply_tile(empty, x, x_few, depth, w, ldw, wide, alpha, beta, c, ldc)
        w, c = ahead(w, wide * ldw), ahead(c, wide * ldc)
    if there % wide > 0:
        multiply_tile(empty, x, x_few, depth, w, ldw, there % wide, alpha, beta, c, ldc)


@njit(**INLINE)
def multiply_panels(few, x, x_few, first, last, w, ldw, left, right, step, alpha, beta, c, ldc):
    """C = alpha * X @ W^T + beta * C of rows left..right of W, in reduction steps first..last.

    Panels of X stay in the caches: `step` stretches, and more where its rows are fewer than WIDE.
    """
    panel = step * STRETCH * LANES * (WIDE // smaller(few, WIDE))
    for p in range(first, last, panel):
        depth = smaller(panel, last - p)
        block = round_up(NEAR // (depth * ITEMSIZE) + 1, WIDE)
        for j in range(left, right, block):
            there = smaller(block, right - j)
            w_here, i = ahead(w, j * ldw + p), 0
            while few - i >= 4:
                multiply_tiles(
                    zeros(4, 2),
                    ahead(x, i * x_few + p), x_few, depth, w_here, ldw, there,
                    alpha, beta, ahead(c, j * ldc + i), ldc,
                )
                i += 4
            if few - i >= 3:
                multiply_tiles(
                    zeros(3, 2),
                    ahead(x, i * x_few + p), x_few, depth, w_here, ldw, there,
                    alpha, beta, ahead(c, j * ldc + i), ldc,
                )
                i += 3
            if few - i >= 2:
                multiply_tiles(
                    zeros(2, 4),
                    ahead(x, i * x_few + p), x_few, depth, w_here, ldw, there,
                    alpha, beta, ahead(c, j * ldc + i), ldc,
                )
                i += 2
            if few - i >= 1:
                multiply_tiles(
                    zeros(1, 8),
                    ahead(x, i * x_few + p), x_few, depth, w_here, ldw, there,
                    alpha, beta, ahead(c, j * ldc + i), ldc,
                )
        beta = REAL(1)  # further panels are added


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
    else:
        whole = 0
    for j in range(whole, columns, LANES):
        for i in range(0, rows, LANES):
            square = load(zeros(LANES, 1), ahead(source, j * lds + i), lds, columns - j, rows - i)
            store(transpose(square), ahead(target, i * ldt + j), ldt, rows - i, LANES)


@by_name(types.void(*[types.int64] * 13, REAL, REAL, *[types.int64] * 3))
def multiply_segments(
    first, last, parts, few, n, long,
    x_address, x_few, w_address, ldw, segment, depth, step,
    alpha, beta, c_address, ldc, between,
):
    """C = alpha * X @ W^T + beta * C in tasks first..last-1.

    A task is a segment of W's rows in a part of the reduction. Every part has a C of its own,
    `between` elements behind the one before.
    """
    x, w, c = pointer(x_address), pointer(w_address), pointer(c_address)
    for task in range(first, last):
        left, part = task // parts * segment, task % parts
        multiply_panels(
            few, x, x_few, part * depth, smaller((part + 1) * depth, n), w, ldw,
            left, smaller(left + segment, long), step, alpha, beta, ahead(c, part * between), ldc,
        )


@by_name(types.void(*[types.int64] * 3, REAL, *[types.int64] * 4, REAL, *[types.int64] * 2))
def add_parts(few, first, last, alpha, sums_address, lds, parts, between, beta, c_address, ldc):
    """C = alpha * (the sums of all parts, in their order) + beta * C, in places first..last."""
    sums, c = pointer(sums_address), pointer(c_address)
    for i in range(first, last):
        for j in range(0, few, LANES):
            here, columns = ahead(sums, i * lds + j), few - j
            row = load(zeros(1, 1), here, 0, 1, columns)
            for part in range(1, parts):
                other = load(row, ahead(here, part * between), 0, 1, columns)
                row = add_scaled(row, REAL(1), other)
            write_tile(row, alpha, beta, ahead(c, i * ldc + j), ldc, 1, columns)


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
    parts, few, n, long,
    x, x_few, w, ldw, segment, depth, step,
    alpha, beta, c, ldc, between,
):
    """A thread's tasks; see `multiply_segments`."""
    first, last = next_chunk(counter, count, chunk)
    while first < last:
        multiply_segments(
            first, last, parts, few, n, long,
            x, x_few, w, ldw, segment, depth, step,
            alpha, beta, c, ldc, between,
        )
        first, last = next_chunk(counter, count, chunk)


@njit(
    "void(int64, int64, int64, float64, uintp, int64, uintp, int64, float64, uintp, int64, "
    "int64, int64, int64, int64)",
    cache=True,
    # Loops stay apart: a loop may need all that the one before it did.
    parallel={"fusion": False},
    **OPTIONS,
)
def gemm(
    m, n, k, alpha, a_address, lda, b_address, ldb, beta, c_address, ldc, sn, sk, parts,
    chunk
):
    """C[m x k] = alpha * A[m x n] @ B[n x k] + beta * C, one of m and k small.

    A is read in segments of about sk rows and panels of sn steps; the
    reduction has `parts` parts, whose sums are added in their order.
    """
    a, b, c = np.int64(a_address), np.int64(b_address), np.int64(c_address)
    few, long, x, ldx, w, ldw = k, m, b, ldb, a, lda
    if parts == 1:  # as many segments for every thread
        blocks = round_up((long + sk - 1) // sk, THREADS)
        sk = (long + blocks - 1) // blocks
    segment = even_block(long, sk, WIDE)
    segments = (long + segment - 1) // segment
    depth = even_block(n, (n + parts - 1) // parts, LANES)
    parts = (n + depth - 1) // depth
    # Products of parts wait behind each other, m x k without gaps, until they are added.
    between = m * k if parts > 1 else 0
    turned = round_up(n, LANES) + LINE // ITEMSIZE
    buffer = allocate(LINE + (few * turned + parts * between) * ITEMSIZE)
    if buffer == 0:
        raise MemoryError("no memory for X")
    # Elements from one of the few rows of X to the next.
    x_few = ldx
    rows = round_up(buffer, LINE)
    if few > 1 or ldx > 1:
        turn(few, n, x, ldx, rows, turned)
        x, x_few = rows, turned
    factor, kept, target, ldt = alpha, beta, c, ldc
    if parts > 1:
        factor, kept, ldt = REAL(1), REAL(0), k
        target = rows + few * turned * ITEMSIZE
    count = segments * parts
    counter = new_counter()
    caller, processor = this_thread(), this_processor()
    for _ in prange(THREADS):
        keep_apart(caller, processor)
        work(
            counter, count, chunk,
            parts, few, n, long,
            x, x_few, w, ldw, segment, depth, sn,
            factor, kept, target, ldt, between,
        )
    if parts > 1:
        # As many places for every thread, in whole lines.
        share = round_up((long + THREADS - 1) // THREADS, LINE)
        for thread in prange(THREADS):
            first, last = thread * share, smaller((thread + 1) * share, long)
            if first < last:
                add_parts(
                    few, first, last, alpha, target, ldt, parts, between, beta, c, ldc
                )
    release(buffer)
