"""Grids of ranks and what products cost on them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi_grids import from_root, root_cost

from autotune.core.errors import InputError
from autotune.distributed.grid import BlockPartition, ProcessGrid, factorisations, span
from autotune.distributed.mpi.forecast import (
    NOMINAL,
    Machine,
    best_grids,
    distributed_cost,
    least_words,
)

extents = st.integers(1, 5)
sizes = st.integers(1, 23)
process_grids = st.builds(ProcessGrid, extents, extents, extents)
partitions = st.builds(BlockPartition, process_grids, sizes, sizes, sizes, scattered=st.booleans())

IDLE = 3
"""Ranks beyond those of the grid, in every property."""


def ranks(partition: BlockPartition) -> range:
    return range(partition.grid.size + IDLE)


@given(st.integers(0, 200), st.integers(1, 40))
def test_spans_follow_each_other_and_differ_by_one_at_most(extent: int, parts: int) -> None:
    spans = [span(extent, parts, index) for index in range(parts)]
    assert [stop for _, stop in spans[:-1]] == [start for start, _ in spans[1:]]
    assert (spans[0][0], spans[-1][1]) == (0, extent)
    lengths = [stop - start for start, stop in spans]
    assert max(lengths) - min(lengths) <= 1


@given(st.integers(0, 200), st.integers(1, 12), st.integers(1, 12))
def test_spans_nest(extent: int, parts: int, finer: int) -> None:
    for index in range(parts):
        pieces = [span(extent, parts * finer, index * finer + piece) for piece in range(finer)]
        assert (pieces[0][0], pieces[-1][1]) == span(extent, parts, index)


@given(process_grids)
def test_places_and_ranks_are_inverse(grid: ProcessGrid) -> None:
    places = [grid.place(rank) for rank in range(grid.size)]
    assert len(set(places)) == grid.size
    assert [grid.rank(*place) for place in places if place] == list(range(grid.size))
    assert grid.place(grid.size) is None


@given(partitions)
def test_every_term_of_every_element_is_computed_once(partition: BlockPartition) -> None:
    done = np.zeros((partition.m, partition.k, partition.n), int)
    for rank in ranks(partition):
        c = partition.task_c(rank)
        assert partition.task_a(rank).columns == partition.task_b(rank).rows
        assert partition.task_a(rank).rows == c.rows
        assert partition.task_b(rank).columns == c.columns
        done[(*c.slices, slice(*partition.task_a(rank).columns))] += 1
    assert (done == 1).all()


@given(partitions)
def test_every_element_has_one_home(partition: BlockPartition) -> None:
    m, n, k = partition.m, partition.n, partition.k
    for home, shape in (
        (partition.home_a, (m, n)),
        (partition.home_b, (n, k)),
        (partition.home_c, (m, k)),
    ):
        kept = np.zeros(shape, int)
        for rank in ranks(partition):
            kept[home(rank).slices] += 1
        assert (kept == 1).all()


@given(partitions)
def test_homes_lie_inside_what_the_rank_works_on(partition: BlockPartition) -> None:
    for rank in range(partition.grid.size):
        for home, task in (
            (partition.home_a(rank), partition.task_a(rank)),
            (partition.home_b(rank), partition.task_b(rank)),
            (partition.home_c(rank), partition.task_c(rank)),
        ):
            if home.size:
                assert task.rows[0] <= home.rows[0]
                assert home.rows[1] <= task.rows[1]
                assert task.columns[0] <= home.columns[0]
                assert home.columns[1] <= task.columns[1]


@given(partitions)
def test_idle_ranks_have_nothing(partition: BlockPartition) -> None:
    for rank in range(partition.grid.size, partition.grid.size + IDLE):
        blocks = (
            partition.task_a(rank),
            partition.task_b(rank),
            partition.task_c(rank),
            partition.home_a(rank),
            partition.home_b(rank),
            partition.home_c(rank),
        )
        assert all(block.size == 0 for block in blocks)
        assert partition.received(rank) == from_root(partition, rank) == 0


@given(partitions)
def test_volumes_add_up(partition: BlockPartition) -> None:
    m, n, k = partition.m, partition.n, partition.k
    grid = partition.grid
    received = sum(partition.received(rank) for rank in ranks(partition))
    copies = (grid.columns - 1) * m * n + (grid.rows - 1) * n * k + (grid.reduction - 1) * m * k
    assert received == copies
    sent = sum(from_root(partition, rank) for rank in ranks(partition))
    own = partition.task_a(0).size + partition.task_b(0).size + partition.home_c(0).size
    assert sent == grid.columns * m * n + grid.rows * n * k + m * k - own


@given(st.integers(1, 60))
def test_factorisations_are_all_grids_of_that_size(count: int) -> None:
    found = list(factorisations(count))
    expected = {
        (rows, columns, reduction)
        for rows in range(1, count + 1)
        for columns in range(1, count + 1)
        for reduction in range(1, count + 1)
        if rows * columns * reduction == count
    }
    assert {(grid.rows, grid.columns, grid.reduction) for grid in found} == expected
    assert len(found) == len(expected)
    flat = list(factorisations(count, layers=False))
    assert flat == [grid for grid in found if grid.reduction == 1]


def test_smaller_grids_leave_ranks_idle() -> None:
    found = [grid for used in range(1, 5) for grid in factorisations(used, layers=False)]
    assert [str(grid) for grid in found] == [
        "1x1", "1x2", "2x1", "1x3", "3x1", "1x4", "2x2", "4x1",
    ]  # fmt: skip


@given(st.integers(1, 4096))
def test_the_squarest_factorisation_is_among_them(count: int) -> None:
    side = math.isqrt(count)
    square = ProcessGrid(side, side)
    assert (square in set(factorisations(count, layers=False))) == (side * side == count)


@pytest.mark.parametrize("extents", [(0, 1, 1), (1, 0, 1), (1, 1, -2)])
def test_extents_must_be_positive(extents: tuple[int, int, int]) -> None:
    with pytest.raises(InputError, match="at least 1"):
        ProcessGrid(*extents)


def test_ranks_must_not_be_negative() -> None:
    with pytest.raises(InputError, match="rank must be at least 0, got -1"):
        BlockPartition(ProcessGrid(2, 2), 4, 4, 4).task_a(-1)
    with pytest.raises(InputError, match="at least 1, got 0"):
        list(factorisations(0))


extents_of = st.integers(1, 4)
grids = st.builds(ProcessGrid, extents_of, extents_of, extents_of)
prices = st.integers(1, 40)


@given(grids, st.integers(1, 6), st.integers(1, 6), st.integers(1, 6))
def test_no_grid_of_equal_shares_beats_the_lower_bound(
    grid: ProcessGrid, m: int, n: int, k: int
) -> None:
    m, n, k = (grid.size * factor for factor in (m, n, k))
    words = distributed_cost(grid, m, n, k).words
    assert words >= least_words(m, n, k, grid.size) - 1e-6


@pytest.mark.parametrize(
    ("shape", "grid"),
    [
        ((64, 64, 64), ProcessGrid(2, 2, 2)),  # a cube: all three dimensions are divided
        ((64, 16, 64), ProcessGrid(4, 4, 1)),  # a short reduction: only m and k are
        ((1024, 16, 16), ProcessGrid(8, 1, 1)),  # tall: only the long dimension is
        ((16, 1024, 16), ProcessGrid(1, 1, 8)),  # deep: only the reduction is
    ],
)
def test_the_right_grid_attains_the_lower_bound(
    shape: tuple[int, int, int], grid: ProcessGrid
) -> None:
    words = distributed_cost(grid, *shape).words
    assert words == pytest.approx(least_words(*shape, grid.size))
    best, cost = best_grids(*shape, grid.size, NOMINAL, itemsize=8)[0]
    assert (best, cost.words) == (grid, words)


@given(grids, prices, prices, prices)
def test_words_are_those_of_the_busiest_rank(grid: ProcessGrid, m: int, n: int, k: int) -> None:
    partition = BlockPartition(grid, m, n, k, scattered=True)
    cost = distributed_cost(grid, m, n, k)
    # Blocks differ by one row or column: the last rank is within that of the busiest.
    most = max(partition.received(rank) for rank in range(grid.size))
    rows, columns = partition.task_c(grid.size - 1).shape
    depth = partition.task_a(grid.size - 1).shape[1]
    assert most - (rows + columns + depth) * grid.reduction - 1 <= cost.words <= most
    flops = [
        2 * partition.task_a(rank).size * partition.task_b(rank).shape[1]
        for rank in range(grid.size)
    ]
    assert cost.flops == max(flops)


@given(grids, prices, prices, prices)
def test_all_words_from_the_root_pass_through_it(
    grid: ProcessGrid, m: int, n: int, k: int
) -> None:
    cost = root_cost(grid, m, n, k)
    sums = (grid.reduction - 1) * m * k
    assert cost.words <= grid.columns * m * n + grid.rows * n * k + m * k + sums
    assert grid.size > 1 or cost.words == 0
    assert cost.messages >= 3 * (grid.size - 1)


def test_layers_add_up_what_they_return_to_the_root() -> None:
    layers = root_cost(ProcessGrid(1, 1, 4), 80, 120, 40)
    # A and B leave once, but for the root's quarter; C comes back once, but for its quarter.
    through_root = (80 * 120 + 120 * 40 + 80 * 40) * 3 // 4
    assert layers.words == through_root + 3 * (80 * 40 // 4)
    assert layers.messages == 3 * 3 + 2


def test_panels_cost_messages_and_no_words() -> None:
    grid = ProcessGrid(4, 4)
    whole, panels = (distributed_cost(grid, 512, 512, 512, panel=panel) for panel in (None, 64))
    assert panels.words == whole.words
    assert panels.messages == 8 * whole.messages


def test_one_rank_receives_nothing() -> None:
    cost = distributed_cost(ProcessGrid(1, 1), 30, 40, 50)
    assert (cost.words, cost.messages, cost.flops) == (0, 0, 2 * 30 * 40 * 50)
    assert least_words(30, 40, 50, 1) == 0


def test_time_is_latency_bandwidth_and_arithmetic() -> None:
    cost = distributed_cost(ProcessGrid(2, 2), 8, 8, 8)
    machine = Machine(latency_s=1.0, seconds_per_byte=0.5, flops_per_s=2.0)
    assert cost.seconds(machine, itemsize=8) == cost.messages + 4.0 * cost.words + cost.flops / 2


@pytest.mark.parametrize("ranks", [7, 61, 4093])
def test_awkward_counts_leave_a_few_ranks_idle(ranks: int) -> None:
    grid, cost = best_grids(4096, 4096, 4096, ranks, NOMINAL, itemsize=8)[0]
    assert ranks // 2 < grid.size <= ranks
    exact = [distributed_cost(each, 4096, 4096, 4096) for each in factorisations(ranks)]
    fastest = min(each.seconds(NOMINAL, 8) for each in exact)
    assert cost.seconds(NOMINAL, 8) <= fastest
