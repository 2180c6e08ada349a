"""Prices, portfolios and choices, on devices whose times are made up and therefore known."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from autotune.core.configuration import Candidate, Configuration
from autotune.families.family import KernelFamily
from autotune.families.offers import default_family
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.model import (
    Calls,
    Chooser,
    PriceBook,
    Sizes,
    Timed,
    Unit,
    Units,
    build,
    chip_of,
    program_of,
)
from autotune.model.book import Built, select
from autotune.model.choosing import strangeness
from autotune.model.prices import fit
from autotune.model.pricing import Priced, Programs, price
from autotune.model.terms import SECTOR_BYTES, TERMS, UNIT, Chip, kind_of_rows, sectors_in_vain
from autotune.operations.problem import Gemm
from autotune.serving.predicting import Predictor
from autotune.targets.families import catalog
from autotune.targets.registry import make_target

LIMITS = find_gpu("h200").limits
sizes_of_all_kinds = st.builds(
    Sizes,
    m=st.integers(1, 20_000),
    n=st.integers(1, 20_000),
    k=st.integers(1, 20_000),
    itemsize=st.sampled_from([2, 4, 8]),
    layout=st.sampled_from(["nn", "nt", "tn", "tt"]),
)
tiles = st.tuples(*[st.sampled_from([1, 8, 16, 48, 128, 256])] * 3)


@given(sizes_of_all_kinds, tiles, st.integers(1, 128), st.integers(1, 8), st.integers(1, 200))
def test_terms_are_what_whole_numbers_give(
    sizes: Sizes, tile: tuple[int, int, int], parts: int, resident: int, places: int
) -> None:
    programs = Programs.of([Unit(tile, parts)], resident, Chip(places))
    counted = dict(zip(TERMS, programs.count(sizes)[:, 0], strict=True))
    units = -(-sizes.m // tile[0]) * -(-sizes.k // tile[1]) * parts
    steps = math.ceil(math.ceil(sizes.n / tile[2]) / parts)
    full, rest = divmod(units, places * resident)
    last = -(-rest // places)
    waves = full + (rest > 0)
    assert counted["steps of full waves"] == full * resident * steps
    assert counted["steps of the last wave"] == last * steps
    assert counted["steps in a row"] == waves * steps
    assert counted["units"] == full * resident + last
    assert counted["waves"] == waves
    assert counted["bytes of parts"] == (parts > 1) * parts * sizes.m * sizes.k * sizes.itemsize


def sectors_of(starts: NDArray[np.int64], run_bytes: int) -> list[set[int]]:
    """What runs touch, byte by byte."""
    return [
        {int(byte) // SECTOR_BYTES for byte in range(start, start + run_bytes)}
        for start in starts.tolist()
    ]


@given(st.sampled_from([2, 4, 8]), st.integers(1, 70), st.integers(32, 300))
def test_sectors_are_those_that_addresses_lie_in(itemsize: int, run: int, beyond: int) -> None:
    row_bytes, run_bytes = (16 * run + beyond) * itemsize, run * itemsize
    cycle = np.arange(SECTOR_BYTES // itemsize)  # what begins later begins as one of these does
    starts = np.add.outer(cycle * row_bytes, cycle * run_bytes).ravel()
    touched = np.mean([len(each) for each in sectors_of(starts, run_bytes)])
    in_vain = sectors_in_vain(np.array([run_bytes]), row_bytes)
    assert in_vain[0] == pytest.approx(touched - run_bytes / SECTOR_BYTES, abs=1e-12)


@given(st.sampled_from([2, 4, 8]), st.data())
def test_rows_shorter_than_a_sector_share_it(itemsize: int, data: st.DataObject) -> None:
    row = data.draw(st.integers(1, SECTOR_BYTES // itemsize - 1))
    run = data.draw(st.integers(1, row))
    begin = data.draw(st.integers(0, row - run))
    starts = (np.arange(SECTOR_BYTES) * row + begin) * itemsize
    touched = len(set().union(*sectors_of(starts, run * itemsize))) / SECTOR_BYTES
    in_vain = sectors_in_vain(np.array([run * itemsize]), row * itemsize)
    assert in_vain[0] == pytest.approx(touched - run * itemsize / SECTOR_BYTES, abs=1e-12)
    wider = np.array([(row + 1) * itemsize])
    assert sectors_in_vain(wider, row * itemsize) == 0  # a whole row, and no more


@pytest.mark.parametrize(
    ("sizes", "unaligned", "between"),
    [
        (Sizes(9, 64, 64, 2), {}, {}),
        (Sizes(9, 66, 63, 2), {"A", "B"}, {"B"}),
        (Sizes(9, 65, 60, 2, "nt"), {"A", "B"}, {"A", "B"}),
        (Sizes(9, 65, 63, 4), {"A", "B"}, {}),  # whole words, however odd
        (Sizes(65, 2, 63, 2, "tt"), {"A", "B"}, {"A"}),
    ],
)
def test_steps_are_dearer_the_worse_rows_lie(
    sizes: Sizes, unaligned: Collection[str], between: Collection[str]
) -> None:
    units = [Unit((16, 16, 16)), Unit((16, 16, 16), copied=True)]
    counted = Programs.of(units, 1, Chip(6)).count(sizes)
    terms = {name: row.tolist() for name, row in zip(TERMS, counted, strict=True)}
    every = terms["steps of full waves"][0] + terms["steps of the last wave"][0]
    for operand in "AB":
        found = terms[f"steps, rows of {operand} unaligned"]
        assert found == [every * (operand in unaligned), 0]
        found = terms[f"steps, rows of {operand} between words"]
        assert found == [every * (operand in between), 0]
    assert terms["copies"] == [0, bool(unaligned)]


@pytest.mark.parametrize(("columns", "ragged"), [(64, False), (66, True), (63, True)])
@pytest.mark.parametrize("places", [1, 6])
def test_tiles_are_dearer_where_rows_of_c_are_no_whole_vectors(
    columns: int, ragged: bool, places: int
) -> None:
    tile = (16, 16, 16)
    units = [Unit(tile), Unit(tile, 4), Unit(tile, 4, in_block=True), Unit(tile, share=4)]
    counted = Programs.of(units, 1, Chip(places)).count(Sizes(90, 512, columns, 4))
    terms = {name: row.tolist() for name, row in zip(TERMS, counted, strict=True)}
    stores = ragged and places > 1  # a CPU's stores need no alignment
    expected = [stores * count for count in terms["units"]]
    expected[1] = 0.0  # another kernel's parts have rows of their own
    assert terms["units, rows of C unaligned"] == expected


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_rows_of_a_kind_have_the_same_sectors(run: int, row: int) -> None:
    runs = 2 * np.array([run])
    assert kind_of_rows(2 * row) < 2 * SECTOR_BYTES
    assert sectors_in_vain(runs, 2 * row) == sectors_in_vain(runs, kind_of_rows(2 * row))


units_of_all_kinds = st.builds(
    Unit,
    tile=tiles,
    parts=st.sampled_from([1, 2, 7, 32]),
    in_block=st.booleans(),
    copied=st.booleans(),
    share=st.just(0),
    volume=st.sampled_from([1.0, 4.0]),
    area=st.sampled_from([1.0, 2.0]),
) | st.builds(Unit, tile=tiles, copied=st.booleans(), share=st.sampled_from([1, 4]))


@given(
    sizes_of_all_kinds,
    st.lists(st.tuples(units_of_all_kinds, st.integers(1, 8)), min_size=1, max_size=6),
    st.builds(Chip, places=st.integers(1, 200))
    | st.builds(Chip, st.just(1), near=st.integers(1, 2**22), far=st.integers(1, 2**28)),
    st.integers(0, 1000),
)
def test_what_is_multiplied_beforehand_changes_no_time(
    sizes: Sizes, units: list[tuple[Unit, int]], chip: Chip, seed: int
) -> None:
    table = np.array([unit.row for unit, _ in units])
    resident = np.array([float(resident) for _, resident in units])
    prices = np.random.default_rng(seed).uniform(0, 1, (len(TERMS), len(units)))
    expected = price(Programs(table, resident, chip).count(sizes), prices)
    for order in (slice(None), np.argsort(table[:, UNIT.index("share")])):
        programs = Programs(table[order], resident[order], chip)
        priced = Priced(programs, prices[:, order], sizes.layout, sizes.itemsize)
        for _ in range(2):  # nothing is left behind for the next shape
            np.testing.assert_allclose(priced.seconds(sizes), expected[order], rtol=1e-9)


def test_shared_units_leave_no_wave_partly_empty() -> None:
    sizes = Sizes(1100, 512, 128, 4)  # nine tiles of 32 steps
    units = [Unit((128, 128, 16), share=share) for share in (0, 4)]
    counted = Programs.of(units, 1, Chip(6)).count(sizes)
    terms = {name: row.tolist() for name, row in zip(TERMS, counted, strict=True)}
    assert terms["steps of full waves"] == [32, 48]
    assert terms["steps of the last wave"] == [32, 0]
    assert terms["steps in a row"] == [64, 48]
    # A unit with a share goes through its part of nine tiles, and through a rest of another.
    assert terms["waves"] == [2, 9 / 6 + 1]


def test_steps_are_dearer_beyond_a_cpus_caches() -> None:
    chip = Chip(1, near=2**20, far=2**25)
    for sizes, wanted in (
        (Sizes(256, 256, 256, 4), (0.0, 0.0)),  # an operand has a quarter of the near cache
        (Sizes(512, 512, 8, 4), (0.5, 0.0)),  # as much as there is
        (Sizes(8, 512, 2048, 4), (1.0, 0.0)),
        (Sizes(2048, 2048, 2048, 4), (1.0, 0.5 + 0.5 * math.log2(1.5))),
        (Sizes(4096, 4096, 4096, 4), (1.0, 1.0)),
    ):
        assert chip.beyond(sizes) == wanted
        counted = Programs.of([Unit((8, 16, 1))], 1, chip).count(sizes)[:, 0]
        terms = dict(zip(TERMS, counted.tolist(), strict=True))
        steps = terms["steps of full waves"]
        assert terms["steps, an operand beyond the near cache"] == wanted[0] * steps
        assert terms["steps, all beyond the far cache"] == wanted[1] * steps
    assert Chip(132).beyond(Sizes(8192, 8192, 8192, 4)) == (0.0, 0.0)


def device_time(tile: tuple[int, int, int], sizes: Sizes, parts: int) -> float:
    """A device whose prices are known: a launch, steps by volume, and memory."""
    prices = dict.fromkeys(TERMS, 0.0)
    volume = math.prod(tile)
    prices["call"] = 2e-6
    prices["steps of full waves"] = 5e-12 * volume
    prices["steps of the last wave"] = 4e-12 * volume
    prices["steps in a row"] = 2e-8 + 1e-12 * volume
    prices["waves"] = 1e-6
    prices["bytes of B"] = 2e-13
    prices["bytes of parts"] = 4e-13
    prices["sum of parts"] = 2e-6
    counted = Programs.of([Unit(tile, parts)], 1, chip_of(LIMITS)).count(sizes)[:, 0]
    return float(counted @ np.array(list(prices.values())))


def drawn(rng: np.random.Generator, count: int) -> list[Sizes]:
    m, k = (np.exp(rng.uniform(0, np.log(8192), count)).astype(int) for _ in range(2))
    n = np.exp(rng.uniform(np.log(16), np.log(8192), count)).astype(int)
    return [Sizes(*map(int, each), 4) for each in zip(m, n, k, strict=True)]


def counted(tile: tuple[int, int, int], shapes: list[Sizes], parts: list[int]) -> np.ndarray:
    return np.array(
        [
            Programs.of([Unit(tile, each)], 1, chip_of(LIMITS)).count(sizes)[:, 0]
            for sizes, each in zip(shapes, parts, strict=True)
        ]
    )


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000))
def test_prices_predict_what_was_not_measured(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tile = (64, 128, 8)
    shapes = drawn(rng, 60)
    parts = rng.choice([1, 2, 4, 16], len(shapes)).tolist()
    seconds = np.array([device_time(tile, *each) for each in zip(shapes, parts, strict=True)])
    noisy = seconds * np.exp(rng.normal(0, 0.02, len(seconds)))
    noisy[3] *= 10  # a disturbed moment
    terms = counted(tile, shapes, parts)
    fitted = fit(terms[:40], noisy[:40], np.ones(40))
    assert (fitted.prices >= 0).all()
    errors = np.abs(np.log(terms[40:] @ fitted.prices / seconds[40:]))
    assert np.median(errors) < 0.05
    assert np.mean(errors) < 0.15


def test_without_measurements_of_a_term_the_prior_speaks() -> None:
    tile = (64, 64, 8)
    terms = counted(tile, [Sizes(64, n, 64, 4) for n in (64, 512, 4096)], [1, 1, 1])
    prior = np.full(len(TERMS), 1e-9)
    prices = fit(terms, np.array([1e-6, 2e-6, 5e-6]), np.ones(3), prior).prices
    assert prices[TERMS.index("bytes of parts")] == pytest.approx(1e-9)


def test_a_portfolio_is_as_small_as_its_loss_allows() -> None:
    # Two programs that are good at one half each, one that is fair at all, and a poor one.
    seconds = np.array([[1.0, 1, 4, 4], [4, 4, 1, 1], [1.5, 1.5, 1.5, 1.5], [9, 9, 9, np.inf]])
    chosen, loss = select(seconds, most=64, loss=0.01)
    assert chosen[0] == 2
    assert set(chosen[1:]) == {0, 1}
    assert loss == pytest.approx(0.0)
    chosen, loss = select(seconds, most=64, loss=0.6)
    assert (chosen, round(loss, 6)) == ([2], 0.5)
    assert len(select(seconds, most=1, loss=0.0)[0]) == 1
    with pytest.raises(ValueError, match="every shape needs a program"):
        select(np.array([[np.inf]]), most=1, loss=0.0)


@pytest.fixture(scope="module")
def pipelined() -> KernelFamily:
    return catalog("cuda", "gemm", ())["pipelined"]


def test_what_is_built_chooses_well(pipelined: KernelFamily) -> None:
    rng = np.random.default_rng(5)
    families = {"pipelined": pipelined}
    space = pipelined.space(Gemm(1024, 1024, 1024), LIMITS)
    programs = {program_of(pipelined, space[int(row)]) for row in space.sample(24, rng)}
    found = [Units(pipelined, each, "float32", LIMITS).variants() for each in programs]
    calls = [call for each, _ in found for call in each]
    # What the device knows no price of.
    calls = [each for each in calls if each["last"] == 0 and each["realign"] == 0]
    shapes = drawn(rng, 60)

    units = {each: Units(pipelined, each, "float32", LIMITS).of(each) for each in calls}

    def seconds(configuration: Configuration, sizes: Sizes) -> float:
        unit = units[configuration]
        return device_time(unit.tile, sizes, unit.parts)

    book = PriceBook(families, "float32", LIMITS)
    for sizes in shapes[:40]:
        for number in rng.permutation(len(calls))[:60].tolist():
            candidate = Candidate("pipelined", calls[number])
            book.note(Timed(candidate, sizes, seconds(calls[number], sizes), resident=1))
    book.learn()
    built = build(book, families, loss=0.02)
    assert 0 < len(built.entries) <= len(programs)
    assert built.shapes == 40
    assert built.loss <= 0.02
    offered = []
    for entry in built.entries:
        known = [each for each in calls if program_of(pipelined, each) == entry.configuration]
        table = np.array([units[each].row for each in known])
        offered.append(Calls(entry, known, table))
    chooser = Chooser(offered, chip_of(LIMITS), 4)
    losses = []
    for sizes in shapes[40:]:
        choice = next(chooser.ranked(sizes))
        best = min(seconds(each, sizes) for each in calls)
        losses.append(seconds(choice.candidate.configuration, sizes) / best)
    assert np.exp(np.mean(np.log(losses))) < 1.1
    ranked = list(chooser.ranked(shapes[0]))
    count = sum(len(each.configurations) for each in offered)
    assert len(ranked) == len({(c.entry, c.candidate) for c in ranked}) == count


def test_what_was_timed_on_small_problems_alone_is_not_chosen_for_large_ones(
    pipelined: KernelFamily,
) -> None:
    near, far = Sizes(100, 100, 100, 4), Sizes(8000, 8000, 8000, 4)
    book = PriceBook({"pipelined": pipelined}, "float32", LIMITS)
    space = pipelined.space(Gemm(1024, 1024, 1024), LIMITS)
    programs = list(
        dict.fromkeys(program_of(pipelined, space[row]) for row in range(0, 9000, 700))
    )
    small, large = (Candidate("pipelined", each) for each in programs[:2])
    # Where both were timed the first one is faster; how it does on the large one, nobody knows.
    for scale in (1, 2, 3):
        sizes = Sizes(100 * scale, 100 * scale, 100, 4)
        book.note(Timed(small, sizes, 1e-6 * scale**2, resident=1))
        book.note(Timed(large, sizes, 1.3e-6 * scale**2, resident=1))
    book.note(Timed(large, far, 1.3e-6 * 512_000, resident=1))
    book.learn()
    entries = [book.program(each, "nn").entry(pipelined) for each in (small, large)]  # type: ignore[union-attr]
    assert [each.largest for each in entries] == [9e6, 512e9]
    offered = []
    for each in entries:
        units = Units(pipelined, each.configuration, "float32", LIMITS)
        offered.append(Calls(each, *units.variants()))
    chooser = Chooser(offered, chip_of(LIMITS), 4)
    assert next(chooser.ranked(far)).entry == entries[1]
    assert strangeness(far, entries[1].largest) == 1
    assert strangeness(near, entries[0].largest) == 1
    assert strangeness(far, entries[0].largest) > 40
    assert strangeness(far, 0.0) == 1  # where nothing is known of it, nothing is held against it


FEW_AND_ODD = [
    (3, 5553, 689),
    (5, 7001, 333),
    (2, 12000, 515),
    (1, 827, 1253),
    (689, 5553, 3),
    (700, 9001, 5),
    (2, 15267, 3971),
]
"""Few rows or few columns of C; the rows of what is large begin anywhere."""


@pytest.mark.parametrize("shape", FEW_AND_ODD, ids=["x".join(map(str, s)) for s in FEW_AND_ODD])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_few_rows_are_not_multiplied_by_runs_of_a_few_bytes(
    dtype: str, shape: tuple[int, int, int]
) -> None:
    family = catalog("cuda", "gemm", ())["skinny"]
    problem = Gemm(*shape, dtype=dtype)
    side = "rows" if problem.m < problem.k else "columns"
    configuration = Configuration(
        {**family.default(problem, LIMITS), "side": side, "few": 1, "wide": 8, "loads": 8}
    )
    book = PriceBook({"skinny": family}, dtype, LIMITS)
    program = book.program(Candidate("skinny", configuration), problem.layout)
    assert program is not None
    chosen, _ = program.expected(Sizes.of(problem))
    _, columns, steps = program.units.of(chosen).tile
    run = columns if side == "rows" else steps  # of B, or of A
    assert run * problem.itemsize >= 2 * SECTOR_BYTES


def test_programs_that_were_never_timed_have_expectations(pipelined: KernelFamily) -> None:
    book = PriceBook({"pipelined": pipelined}, "float32", LIMITS)
    default = Candidate("pipelined", pipelined.default(Gemm(512, 512, 512), LIMITS))
    program = book.program(default, "nn")
    assert program is not None
    assert book.program(default, "nn") is program
    small, large = (program.expected(Sizes(n, n, n, 4))[1] for n in (512, 4096))
    assert 0 < 50 * small < large
    book.learn()
    assert program.expected(Sizes(512, 512, 512, 4))[1] == pytest.approx(small)
    assert build(book, {"pipelined": pipelined}).entries == ()
    program.known = cast(Any, object())  # of an earlier portfolio; nothing was measured since
    assert build(book, {"pipelined": pipelined}) == Built((), 0.0, 0)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("shape", "fields", "families"),
    [
        ((1, 8192, 4096), {}, {"skinny"}),
        ((4096, 8192, 1), {}, {"skinny"}),
        ((4096, 4096, 4096), {}, {"pipelined", "streamed"}),
        ((300, 9000, 40), {}, {"pipelined", "streamed"}),
        ((4096, 4096, 4096), {"dtype": "float64"}, {"dmma"}),
        ((4096, 4096, 4096), {"dtype": "float16"}, {"wgmma"}),
        ((4096, 4096, 4096), {"dtype": "bfloat16", "out_dtype": "float32"}, {"wgmma"}),
        ((4096, 4096, 4096), {"accuracy": "tf32"}, {"rounded_fp16"}),
        ((4096, 4096, 4096), {"accuracy": "tf32", "layout": "nt"}, {"rounded_fp16"}),
        ((2048, 2048, 2048), {"accuracy": "tf32"}, {"wgmma_tf32"}),
        ((2048, 2048, 2048), {"accuracy": "tf32", "layout": "nt"}, {"wgmma_tf32"}),
        ((40, 4096, 4096), {"accuracy": "tf32", "layout": "tn"}, {"mma_tf32"}),
    ],
)
def test_limits_alone_choose_a_family_that_fits(
    shape: tuple[int, int, int], fields: dict[str, str], families: set[str]
) -> None:
    device = make_target("cuda").device(None, "h200")
    predictor = Predictor([], catalog("cuda", "gemm", ()), device)
    problem = Gemm(*shape, **fields)
    assert predictor.choose(problem) is None
    default = default_family(catalog("cuda", "gemm", ()), problem, device.limits)
    assert default is not None
    chosen = predictor.by_limits(problem, default)
    assert chosen is not None
    assert chosen.family in families
    assert (
        catalog("cuda", "gemm", ())[chosen.family]
        .space(problem, LIMITS)
        .rejection(chosen.configuration)
        is None
    )
