"""What is decided at the call: parts of the reduction, copies of operands, shares of blocks."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gemm_on_host import FAMILIES, LIMITS, Case, product, relative_error, small
from host_execution import ON_HOST, HostProgram

from autotune.core.dtypes import DTYPES
from autotune.families.rendering import render
from autotune.operations.problem import Gemm

pytestmark = ON_HOST

RUNTIME = [name for name in FAMILIES if any(p.runtime for p in FAMILIES[name].parameters)]
TYPES = {"dmma": "float64", "mma": "float16"}


@pytest.mark.parametrize("name", RUNTIME)
def test_one_binary_serves_whatever_is_decided_at_the_call(name: str) -> None:
    family = FAMILIES[name]
    layout = family.layouts[0]
    declared = {p.name: p.default for p in family.parameters if p.default is not None}
    texts = {
        render(family, {**declared, p.name: value}, dtype=family.dtypes[0], layout=layout).text
        for p in family.parameters
        if p.runtime
        for value in p.values
    }
    assert len(texts) == 1


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ["dmma", "mma", "mma_tf32", "pipelined", "skinny"])
@pytest.mark.parametrize("sizes", [(70, 301, 131), (1, 1, 1), (2, 1500, 65)])
@pytest.mark.parametrize("splits", [2, 5, 24])
def test_whoever_adds_the_parts_and_whenever_the_bits_are_the_same(
    name: str, sizes: tuple[int, int, int], splits: int, folder: Path
) -> None:
    dtype = TYPES.get(name, "float32")
    case = Case(*sizes, dtype, paddings=(1, 3, 2), misaligned=(0, 1, 2), alpha=-0.5, beta=0.75)
    ways = [{}] if name == "skinny" else [{"last": 0}, {"last": 1}]
    results = {
        product(name, small(name, splits=splits, **way), case, folder, backwards=backwards)
        for way in ways
        for backwards in (False, True)
    }
    assert len(results) == 1


@pytest.mark.sampled(6)
@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
@pytest.mark.parametrize("transpose_through", ["copies", "registers"])
@pytest.mark.parametrize(
    ("sizes", "paddings", "misaligned"),
    [
        ((17, 64, 128), (0, 0, 0), (0, 0, 0)),  # fewer rows than a tile has, rows aligned
        ((64, 64, 20), (0, 0, 0), (0, 0, 0)),  # fewer columns
        ((64, 60, 128), (1, 0, 0), (0, 0, 0)),  # A's rows are not aligned, B's are
        ((64, 60, 128), (0, 1, 3), (0, 0, 1)),  # the other way round
        ((64, 61, 128), (3, 0, 0), (0, 3, 0)),  # one base is not aligned, nor is the reduction
        ((65, 63, 129), (3, 3, 3), (0, 0, 0)),  # rows of whole vectors, sizes that are not
    ],
)
def test_each_operand_is_copied_as_its_rows_allow(
    layout: str,
    transpose_through: str,
    sizes: tuple[int, int, int],
    paddings: tuple[int, int, int],
    misaligned: tuple[int, int, int],
    folder: Path,
) -> None:
    case = Case(*sizes, layout=layout, paddings=paddings, misaligned=misaligned)
    rng = np.random.default_rng(1)
    for splits, realign in ((1, 0), (3, 0), (3, 1)):
        configuration = small(
            "pipelined",
            transpose_through=transpose_through,
            splits=splits,
            last=int(splits > 1),
            realign=realign,
        )
        error = relative_error(FAMILIES["pipelined"], configuration, case, LIMITS, rng, folder)
        assert error < 40 * DTYPES["float32"].unit_roundoff, (configuration, case)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "sizes", [{"sm": 96, "sk": 112}, {"sm": 112, "sk": 96}, {"sm": 48, "sk": 160}]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tiles_that_are_no_powers_of_two(sizes: dict[str, int], dtype: str, folder: Path) -> None:
    space = FAMILIES["pipelined"].space(Gemm(m=1000, n=4096, k=1000, dtype=dtype), LIMITS)
    drawn = (space[int(row)] for row in space.sample(20000, np.random.default_rng(2)))
    configuration = next(each for each in drawn if all(each[n] == v for n, v in sizes.items()))
    case = Case(161, 40, 225, dtype, misaligned=(1, 1, 1), beta=2.0)
    error = relative_error(
        FAMILIES["pipelined"], configuration, case, LIMITS, np.random.default_rng(2), folder
    )
    assert error < 40 * DTYPES[dtype].unit_roundoff


# --- streamed: shares of a few blocks


@pytest.mark.parametrize("least", [4, 16])
@pytest.mark.parametrize("multiprocessors", [1, 2, 3, 4, 5, 7, 11, 132])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (32, 500, 64), (33, 150, 65), (97, 70, 260)])
def test_any_number_of_blocks_computes_the_product(
    sizes: tuple[int, int, int], multiprocessors: int, least: int, folder: Path
) -> None:
    limits = replace(LIMITS, multiprocessor_count=multiprocessors)
    case = Case(*sizes, paddings=(1, 3, 2), misaligned=(0, 1, 2), alpha=-0.5, beta=0.75)
    rng = np.random.default_rng(multiprocessors)
    error = relative_error(
        FAMILIES["streamed"], small("streamed", least=least), case, limits, rng, folder
    )
    assert error < 4 * DTYPES["float32"].unit_roundoff * max(4.0, sizes[1] ** 0.5)


def test_random_shapes_and_devices(folder: Path) -> None:
    rng = np.random.default_rng(5)
    for _ in range(60):
        m, n, k = (int(size) for size in np.exp(rng.uniform(0, np.log([200, 300, 400]))))
        limits = replace(LIMITS, multiprocessor_count=int(rng.integers(1, 40)))
        case = Case(m, n, k, beta=float(rng.integers(2)))
        configuration = small(
            "streamed", least=int(rng.choice([4, 16])), group=int(rng.choice([1, 8]))
        )
        error = relative_error(FAMILIES["streamed"], configuration, case, limits, rng, folder)
        assert error < 4 * DTYPES["float32"].unit_roundoff * max(4.0, n**0.5), (case, limits)


def test_equal_calls_give_equal_bits(folder: Path) -> None:
    limits = replace(LIMITS, multiprocessor_count=6)
    case = Case(64, 333, 130)
    results = {
        product("streamed", small("streamed"), case, folder, limits, backwards=False)
        for _ in range(2)
    }
    assert len(results) == 1


PIECES = """
extern "C" __global__ void list_pieces(int m, int n, int k, int most, int* listed) {
  const Shares shares(m, n, k);
  const int count = count_pieces(shares, blockIdx.x);
  for (int number = 0; number < count && number < most; ++number) {
    const Piece piece = piece_at(shares, blockIdx.x, number);
    int* row = listed + (blockIdx.x * most + number) * 3;
    row[0] = piece.tile;
    row[1] = piece.begin;
    row[2] = piece.end;
  }
}
"""


@pytest.mark.parametrize("seed", range(40))
def test_no_block_waits_longer_than_its_share_takes(seed: int, folder: Path) -> None:
    """Where a step takes as long everywhere, all are done after the largest share."""
    rng = np.random.default_rng(seed)
    blocks = int(rng.integers(1, 140))
    m, k = 32 * int(rng.integers(1, 30)), 64 * int(rng.integers(1, 30))
    n = 8 * int(rng.integers(1, 40))
    tiles, steps = m // 32 * (k // 64), n // 8
    blocks = min(blocks, tiles * steps)
    most = tiles * steps // blocks + 3
    listed = np.zeros((blocks, most, 3), np.int32)
    program = HostProgram(render(FAMILIES["streamed"], small("streamed")).text + PIECES, folder)
    program.launch("list_pieces", (blocks, 1, 1), (1, 1, 1), (m, n, k, most, listed))

    pieces = [[(t, b, e) for t, b, e in own.tolist() if b < e] for own in listed]
    dealt_out = sorted(piece for own in pieces for piece in own)
    covered = [(tile, step) for tile, begin, end in dealt_out for step in range(begin, end)]
    assert covered == [(tile, step) for tile in range(tiles) for step in range(steps)]
    there: dict[int, int] = {}  # when all of a tile that its last block waits for is there
    for own in pieces:  # of lower numbers first: nobody waits for a higher one
        now = 0
        for tile, begin, end in own:
            now += end - begin
            if end < steps:
                there[tile] = max(there.get(tile, 0), now)
            elif begin > 0:
                now = max(now, there[tile])
        assert now <= -(-tiles * steps // blocks)


# --- skinny and outer: what rows allow, and what blocks add up


@pytest.mark.sampled(3)
@pytest.mark.parametrize("side", ["rows", "columns"])
@pytest.mark.parametrize("layout", ["nn", "tt"])
@pytest.mark.parametrize(
    ("paddings", "misaligned"),
    [
        ((0, 0, 0), (0, 0, 0)),
        ((4, 8, 4), (0, 0, 0)),
        ((1, 3, 5), (0, 0, 0)),
        ((0, 0, 0), (1, 3, 2)),
    ],
)
def test_any_threads_and_parts_on_any_rows(
    side: str,
    layout: str,
    paddings: tuple[int, int, int],
    misaligned: tuple[int, int, int],
    folder: Path,
) -> None:
    rng = np.random.default_rng(3)
    for across, splits in ((1, 1), (4, 3), (32, 1), (128, 2)):
        for sizes in ((3, 520, 68), (68, 520, 3), (1, 7, 1)):
            case = Case(*sizes, layout=layout, paddings=paddings, misaligned=misaligned, beta=0.5)
            configuration = small("skinny", side=side, across=across, splits=splits)
            error = relative_error(FAMILIES["skinny"], configuration, case, LIMITS, rng, folder)
            assert error < 60 * DTYPES["float32"].unit_roundoff, (configuration, case)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("side", ["rows", "columns"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("few", [1, 4])
def test_rows_begin_anywhere(dtype: str, side: str, layout: str, few: int, folder: Path) -> None:
    """Leading dimensions and bases of every kind modulo 16 bytes, and NaN all around."""
    rng = np.random.default_rng(few)
    vector = 16 // DTYPES[dtype].itemsize
    sizes = [(3, 520, 300), (2, 75, 37), (1, 2100, 21)]
    sizes += [(2, *rng.integers(1, 41, 2).tolist()) for _ in range(5)]
    for index, ((short, n, long), padding) in enumerate(
        zip(sizes, rng.permutation(8).tolist(), strict=True)
    ):
        m, k = (short, long) if side == "rows" else (long, short)
        stored_a = (m, n) if layout[0] == "n" else (n, m)
        stored_b = (n, k) if layout[1] == "n" else (k, n)
        # What is at a page's very end is guarded to the byte.
        ends = tuple(
            -((rows - 1) * (columns + padding) + columns) % vector
            for rows, columns in (stored_a, stored_b)
        )
        across, splits = ((4, 1), (8, 3), (32, 1), (16, 2), (2, 1), (64, 2))[index % 6]
        for wide, bases in (
            (8, (0, 0)),
            (16, ends),
            (8, ends),
            (8, rng.integers(1, vector, 2).tolist()),
        ):
            case = Case(
                *(m, n, k, dtype, layout),
                paddings=(padding, padding, 1),
                misaligned=(*bases, 0),
                special=splits > 1,
                out_dtype="float32" if DTYPES[dtype].itemsize == 2 else None,
            )
            chosen = {"few": few, "wide": wide, "loads": 16, "held": 16}
            how = {"across": max(few, across), "splits": splits}
            configuration = small("skinny", side=side, **how, **chosen)
            error = relative_error(FAMILIES["skinny"], configuration, case, LIMITS, rng, folder)
            sums = DTYPES[dtype].accumulated
            assert error < 60 * sums.unit_roundoff, (configuration, case)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(
    ("dtype", "n"),
    [("float32", 1), ("float32", 3), ("float32", 4), ("float32", 11), ("bfloat16", 3)],
)
def test_reductions_shorter_and_longer_than_what_is_in_registers(
    layout: str, dtype: str, n: int, folder: Path
) -> None:
    rng = np.random.default_rng(n)
    for (across, rows), k in itertools.product([(1, 16), (16, 32), (128, 128)], [64, 67]):
        case = Case(150, n, k, dtype, layout, misaligned=(1, 2, 0), alpha=1.5, beta=-0.25)
        configuration = small("outer", across=across, rows=rows)
        error = relative_error(FAMILIES["outer"], configuration, case, LIMITS, rng, folder)
        assert error < 20 * DTYPES["float32"].unit_roundoff, (configuration, case)
