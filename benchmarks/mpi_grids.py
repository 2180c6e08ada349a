"""The process grids of the shipped MPI families, and what products from one root cost on them."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.core.configuration import Value
from autotune.distributed.grid import BlockPartition, ProcessGrid
from autotune.distributed.mpi.forecast import Cost, doublings


def grid_of(configuration: Mapping[str, Value]) -> ProcessGrid:
    """The grid of a configuration: what its family does not have is 1."""
    side = int(configuration.get("side", 1))
    return ProcessGrid(
        int(configuration.get("rows", side)),
        int(configuration.get("columns", side)),
        int(configuration.get("reduction", 1)),
    )


def from_root(partition: BlockPartition, rank: int) -> int:
    """Elements that travel between root and a rank: its A and B there, C back from layer 0.

    For rank 0, which is the root, that is nothing.
    """
    if rank == 0:
        return 0
    back = partition.home_c(rank).size
    return partition.task_a(rank).size + partition.task_b(rank).size + back


def root_cost(grid: ProcessGrid, m: int, n: int, k: int) -> Cost:
    """Cost of a product whose operands rank 0 sends out whole, and whose result it collects.

    All of it passes through rank 0, which is the busiest: every other rank gets its rows of A and
    its columns of B, and returns its block of C. Layers add up their partial sums before that.
    """
    partition = BlockPartition(grid, m, n, k, scattered=True)
    last = grid.size - 1
    words = sum(from_root(partition, rank) for rank in range(grid.size))
    words += (grid.reduction - 1) * partition.home_c(last).size
    messages = 3 * last + doublings(grid.reduction)
    rows, columns = partition.task_c(last).shape
    depth = partition.task_a(last).shape[1]
    return Cost(words, messages, 2 * rows * columns * depth)
