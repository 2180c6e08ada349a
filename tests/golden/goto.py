"""gemm for cpu: family goto, float32, layout nn.

template: gemm/cpu/goto.py.j2, digest ff3fb8c25ba8c63b
configuration: {"schedule": "static", "threads": 1, "tx": 32, "ty": 14, "vector": 512}
"""

import numpy as np
from llvmlite import ir
from llvmlite.binding import add_symbol
from numba import cfunc, njit, types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic, models, register_model

# ---- Element type, threads and compiler options
# A name of what is emitted here: a digest of all that it depends on.
PROGRAM = "7bf3a868496025d6"
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


def add_products_of(builder, tile, value, column, row):
    """tile + a b, of pointers to the elements of a and the vectors of b."""
    # Elements of A are loaded where they are used: LLVM would keep early ones in registers.
    for i, element in enumerate(column):
        factor = splat(builder, builder.load(element), VECTOR)
        for j in range(tile.vectors):
            total = fma(builder, factor, row[j], builder.extract_value(value, (i, j)))
            value = builder.insert_value(value, total, (i, j))
    return value


def clamped_column(builder, tile, start, stride, rows):
    """Pointers to a column's elements, of which `rows` are there."""
    for i in range(tile.rows):
        yield builder.gep(start, [builder.mul(clamped(builder, i, rows), stride)])


def whole_row(builder, tile, start):
    """The vectors of a row of B."""
    places = (vector_pointer(builder, start, INT64(0), j) for j in range(tile.vectors))
    return [builder.load(place, align=ITEMSIZE) for place in places]


@intrinsic
def add_outer(typing_context, tile, a, stride, rows, b):
    """tile + a b: a column of A, of which `rows` elements are there, times a row of B."""

    def codegen(context, builder, signature, arguments):
        value, a, stride, rows, b = arguments
        column = clamped_column(builder, tile, a, stride, rows)
        return add_products_of(builder, tile, value, column, whole_row(builder, tile, b))

    return tile(tile, POINTER, types.int64, types.int64, POINTER), codegen


@njit(**INLINE)
def write_tile(tile, alpha, beta, c, ldc, rows, columns):
    """C[rows x columns] = alpha * tile + beta * C; where beta is 0, C is not read."""
    tile = scale(tile, alpha)
    if beta != 0:
        tile = add_scaled(tile, beta, load(tile, c, ldc, rows, columns))
    store(tile, c, ldc, rows, columns)


# ---- Configuration
# Rows and columns of the tile of C that stays in registers, and the vectors in one of its rows.
TY = 14
TX = 32
VECTORS = TX // LANES
# Rows of B that are copied together.
GROUP = 4
# Bytes of a cache line, where packed memory starts.
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


@njit(**INLINE)
def block_bytes(height, deep):
    """Memory for a packed block of A: a vector may overlap the end of the last column."""
    return round_up((height * deep + LANES) * ITEMSIZE, LINE)


@njit(**CALLED)
def pack_block(a, a_row, rows, depth, packed, deep):
    """Copy rows x depth of A into strips of TY rows x `deep` columns, each stored by columns.

    What a strip has more than A is filled with anything: it only meets what is not stored in C.
    """
    for i in range(0, rows, TY):
        strip = ahead(packed, i * deep)
        # A vector may be longer than what is left of a column: it overlaps the next column, which
        # is written later. So columns ascend, and the rows within them descend.
        for p in range(0, depth, LANES):
            for row in range((TY - 1) // LANES * LANES, -1, -LANES):
                there = smaller(LANES, rows - i - row)
                source = ahead(a, (i + row) * a_row + p)
                target = ahead(strip, p * TY + row)
                if there == LANES and p + LANES <= depth:
                    square = load(zeros(LANES, 1), source, a_row, LANES, LANES)
                    store(transpose(square), target, TY, LANES, LANES)
                elif there > 0:
                    square = load(zeros(LANES, 1), source, a_row, there, depth - p)
                    store(transpose(square), target, TY, LANES, LANES)


@by_name(types.void(*[types.int64] * 9))
def pack_strips(first, last, b_address, ldb, depth, columns, panel_address, packed_from, deep):
    """Copy strips first..last-1 of depth x columns of B, each deep x TX, stored by rows.

    Columns that B has not are zero. The panel starts with strip `packed_from`.
    """
    b, panel = pointer(b_address), pointer(panel_address)
    for p in range(0, depth, GROUP):
        rows = smaller(GROUP, depth - p)
        for strip in range(first, last):
            there = columns - strip * TX
            source = ahead(b, p * ldb + strip * TX)
            target = ahead(panel, ((strip - packed_from) * deep + p) * TX)
            if rows == GROUP and there >= TX:
                store(load(zeros(GROUP, VECTORS), source, ldb, GROUP, TX), target, TX, GROUP, TX)
            else:
                group = load(zeros(GROUP, VECTORS), source, ldb, rows, there)
                store(group, target, TX, rows, TX)


@njit(**INLINE)
def accumulate(tile, depth, a, a_row, a_step, rows, b, b_step, near, beside, pace):
    """tile + A @ B for a strip of A, of which `rows` rows are there, and a strip of B.

    Elements of A are `a_row` apart from row to row, and `a_step` from one reduction step to the
    next; those of B `b_step`. What is at `near` is brought near, `pace` elements a step, and what
    is `beside` it, unless that is 0.
    """
    for _ in range(depth):
        fetch(near)
        if beside:
            fetch(ahead(near, beside))
        near = ahead(near, pace)
        tile = add_outer(tile, a, a_row, rows, b)
        a = ahead(a, a_step)
        b = ahead(b, b_step)
    return tile


@njit(**INLINE)
def fetch_rows(start, stride, rows, columns):
    """Have a matrix brought near."""
    for i in range(rows):
        for j in range(0, columns, LINE // ITEMSIZE):
            fetch(ahead(start, i * stride + j))


@njit(**CALLED)
def multiply_tile(
    alpha, a, a_row, a_step, packed, b, b_step,
    beta, c, ldc, rows, depth, columns, near, beside, pace,
):
    """C = alpha * A @ B + beta * C for one tile: a strip of A, packed or not, and one of B.

    Meanwhile C arrives, which is needed when the sums are complete, and what is at `near`.
    """
    fetch_rows(c, ldc, rows, columns)
    # Steps, rows and columns that are constants cost neither registers nor masks.
    if columns <= LANES:
        narrow = zeros(TY, 1)
        if packed:
            narrow = accumulate(narrow, depth, a, 1, TY, TY, b, b_step, near, 0, pace)
        else:
            narrow = accumulate(narrow, depth, a, a_row, a_step, rows, b, b_step, near, 0, pace)
        write_tile(narrow, alpha, beta, c, ldc, rows, columns)
        return
    tile = zeros(TY, VECTORS)
    if packed and beside:
        tile = accumulate(tile, depth, a, 1, TY, TY, b, b_step, near, beside, pace)
    elif packed:
        tile = accumulate(tile, depth, a, 1, TY, TY, b, b_step, near, 0, pace)
    elif beside:
        tile = accumulate(tile, depth, a, a_row, a_step, rows, b, b_step, near, beside, pace)
    else:
        tile = accumulate(tile, depth, a, a_row, a_step, rows, b, b_step, near, 0, pace)
    if rows == TY and columns == TX:
        write_tile(tile, alpha, beta, c, ldc, TY, TX)
    else:
        write_tile(tile, alpha, beta, c, ldc, rows, columns)


@by_name(
    types.void(
        *[types.int64] * 6, REAL, *[types.int64] * 9, REAL,
        *[types.int64] * 4,
    )
)
def multiply_blocks(
    first, last, parts, m, depth, columns,
    alpha, a_address, a_row, a_step, pack_a, packed_address,
    b_address, ldb, panel_address, packed_from,
    beta, c_address, ldc, height, deep,
):
    """C = alpha * A @ B + beta * C in blocks first..last-1 of C, which is m x columns.

    Blocks are `height` rows, the columns in `parts` parts, counted along the rows of blocks.
    Strips of B from `packed_from` on are in the panel.
    """
    a, b = pointer(a_address), pointer(b_address)
    packed, panel = pointer(packed_address), pointer(panel_address)
    strips = (columns + TX - 1) // TX
    for block in range(first, last):
        top, part = block // parts * height, block % parts
        rows = smaller(height, m - top)
        a_block = ahead(a, top * a_row)
        c_block = ahead(pointer(c_address), top * ldc)
        if pack_a and (part == 0 or block == first):
            pack_block(a_block, a_row, rows, depth, packed, deep)
        for strip in range(strips * part // parts, strips * (part + 1) // parts):
            left = strip * TX
            width = smaller(TX, columns - left)
            # While the sums of this strip's tiles grow, the next strip arrives.
            if strip < packed_from:
                b_strip, b_step = ahead(b, left), ldb
                near, beside, pace = b_strip, LANES, ldb
            else:
                b_strip, b_step = ahead(panel, (strip - packed_from) * TX * deep), TX
                near, beside, pace = ahead(b_strip, TX * deep), 0, (TX * TY + rows - 1) // rows
            for i in range(0, rows, TY):
                a_strip = ahead(packed, i * deep) if pack_a else ahead(a_block, i * a_row)
                c_tile = ahead(c_block, i * ldc + left)
                used = smaller(TY, rows - i)
                if strip < packed_from:
                    # Two vectors of each of its rows with every tile; one may lie in two lines.
                    near = ahead(b_strip, TX + 2 * (i // TY) % VECTORS * LANES)
                multiply_tile(
                    alpha, a_strip, a_row, a_step, pack_a, b_strip, b_step,
                    beta, c_tile, ldc, used, depth, width, near, beside, pace,
                )
                near = ahead(near, pace * depth)


@njit(
    "void(int64, int64, int64, float32, uintp, int64, uintp, int64, float32, uintp, int64, "
    "int64, int64, int64, int64, int64, int64, int64)",
    cache=True,
    **OPTIONS,
)
def gemm(
    m, n, k, alpha, a_address, lda, b_address, ldb, beta, c_address, ldc, sm, sn, sk,
    pack_a, pack_b, parts, chunk
):
    """C[m x k] = alpha * A[m x n] @ B[n x k] + beta * C; sm, sn, sk are the blocks' sizes.

    Blocks of A are copied into strips if pack_a is not 0, and panels of B if pack_b is not.
    """
    a, b, c = np.int64(a_address), np.int64(b_address), np.int64(c_address)
    height = even_block(m, sm, TY)
    deep = even_block(n, sn, LANES)
    width = even_block(k, sk, TX)
    # Elements from one row or column to the next, and from one reduction step to the next.
    a_row, a_step = lda, 1
    b_column, b_step = 1, ldb
    # Every thread has a block of A; they share the panel of B.
    share = block_bytes(height, deep) if pack_a else 0
    room = deep * (width if pack_b else TX) * ITEMSIZE
    buffer = allocate(LINE + share + room)
    if buffer == 0:
        raise MemoryError("no memory for packed blocks")
    packed = round_up(buffer, LINE)
    panel = packed + share
    for left in range(0, k, width):
        columns = smaller(width, k - left)
        strips = (columns + TX - 1) // TX
        # A strip that B does not fill is packed in any case, and filled with zeros.
        packed_from = 0 if pack_b else columns // TX
        for p in range(0, n, deep):
            depth = smaller(deep, n - p)
            # Only the first panel meets C as it was; the others add to it.
            factor = beta if p == 0 else REAL(1)
            a_panel = a + p * a_step * ITEMSIZE
            b_panel = b + (p * b_step + left * b_column) * ITEMSIZE
            c_panel = c + left * ITEMSIZE
            pack_strips(
                packed_from, strips, b_panel, ldb, depth, columns, panel, packed_from, deep
            )
            blocks = (m + height - 1) // height
            multiply_blocks(
                0, blocks, 1, m, depth, columns,
                alpha, a_panel, a_row, a_step, pack_a, packed,
                b_panel, ldb, panel, packed_from,
                factor, c_panel, ldc, height, deep,
            )
    release(buffer)
