from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi_grids import root_cost

from autotune.distributed.grid import BlockPartition, ProcessGrid, factorisations
from autotune.distributed.mpi.cost_model import (
    NOMINAL,
    Machine,
    best_grids,
    distributed_cost,
    least_words,
)

extents = st.integers(1, 4)
grids = st.builds(ProcessGrid, extents, extents, extents)
sizes = st.integers(1, 40)


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


@given(grids, sizes, sizes, sizes)
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


@given(grids, sizes, sizes, sizes)
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
