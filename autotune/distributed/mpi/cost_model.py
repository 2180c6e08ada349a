"""Costs of distributed products in words, messages and time, by grid; and the least cost.

Words are elements. The model is the usual one of latency and bandwidth: a rank spends
``latency * messages + seconds per byte * bytes`` on receiving, and nothing overlaps. It ranks
grids; measurement says which is fastest.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass

from autotune.distributed.grid import BlockPartition, ProcessGrid, factorisations


@dataclass(frozen=True, slots=True)
class Machine:
    """A rank's speed of computing and receiving.

    Attributes:
        latency_s: seconds of a message of no length.
        seconds_per_byte: further seconds for every byte of it.
        flops_per_s: operations of the local product in a second.
    """

    latency_s: float
    seconds_per_byte: float
    flops_per_s: float


NOMINAL = Machine(latency_s=2e-6, seconds_per_byte=1e-10, flops_per_s=5e10)
"""A cluster of today in round numbers: 2 us, 10 GB/s and 50 GFLOP/s for every rank."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The work of the busiest rank.

    Attributes:
        words: elements it receives.
        messages: messages it receives, one after the other.
        flops: operations of its local products.
    """

    words: int
    messages: int
    flops: int

    def seconds(self, machine: Machine, itemsize: int) -> float:
        """Time of all of it, nothing overlapping, for elements of so many bytes."""
        communication = machine.latency_s * self.messages
        communication += machine.seconds_per_byte * self.words * itemsize
        return communication + self.flops / machine.flops_per_s


def distributed_cost(
    grid: ProcessGrid, m: int, n: int, k: int, *, panel: int | None = None
) -> Cost:
    """Cost of a product whose operands are kept in blocks (see `BlockPartition`).

    Every rank gathers its part of A along its row of ranks and of B along its column, and its
    partial sum is added to the others' and scattered. The words are the same whether that happens
    at once or in panels; the messages are not. Collectives are counted as trees: one message for
    every doubling of the ranks that take part.

    Args:
        grid: the ranks.
        m: rows of A and C.
        n: the reduction.
        k: columns of B and C.
        panel: reduction steps that travel at a time, as in SUMMA; None means all at once.
    """
    partition = BlockPartition(grid, m, n, k, scattered=True)
    last = grid.size - 1  # of parts that differ by one, the last is one of the longer ones
    depth = partition.task_a(last).shape[1]
    steps = 1 if panel is None else max(1, math.ceil(depth / panel))
    messages = steps * (doublings(grid.columns) + doublings(grid.rows))
    messages += doublings(grid.reduction)
    rows, columns = partition.task_c(last).shape
    return Cost(partition.received(last), messages, 2 * rows * columns * depth)


def least_words(m: int, n: int, k: int, ranks: int) -> float:
    """Words that some rank has to receive, by any algorithm and with any memory.

    Al Daas, Ballard, Grigori, Kumar and Rouse, "Brief announcement: tight memory-independent
    parallel matrix multiplication communication lower bounds", SPAA 2022; the three cases, without
    the constants, are those of Demmel et al., "Communication-optimal parallel recursive
    rectangular matrix multiplication", IPDPS 2013. It holds for ranks that each keep and compute
    an equal share, and there are grids that attain it.
    """
    short, middle, long = sorted((m, n, k))
    if ranks * middle <= long:
        accessed = (long * middle + long * short) / ranks + middle * short
    elif ranks * short**2 <= long * middle:
        accessed = 2 * math.sqrt(long * middle / ranks) * short + long * middle / ranks
    else:
        accessed = 3 * (long * middle * short / ranks) ** (2 / 3)
    return accessed - (m * n + n * k + m * k) / ranks


def best_grids(
    m: int, n: int, k: int, ranks: int, machine: Machine, itemsize: int, *, count: int = 5
) -> list[tuple[ProcessGrid, Cost]]:
    """The `count` grids that are fastest by the model, best first, operands kept in blocks."""
    costs = [
        (grid, distributed_cost(grid, m, n, k))
        for grid in _large_grids(ranks)
        if grid.rows <= m and grid.columns <= k and grid.reduction <= n
    ]
    return heapq.nsmallest(
        count, costs, key=lambda pair: (pair[1].seconds(machine, itemsize), pair[0])
    )


def _large_grids(ranks: int) -> Iterator[ProcessGrid]:
    """Grids of all ranks, and of a few less: the number of ranks may have no useful factors."""
    for used in range(ranks, max(0, ranks - math.isqrt(ranks) // 2 - 1), -1):
        yield from factorisations(used)


def doublings(ranks: int) -> int:
    """Messages of a collective of so many ranks, one after the other, as a tree."""
    return (ranks - 1).bit_length()
