"""Costs of distributed products in words, messages and time, by grid; and the least cost.

Words are elements. The model is the usual one of latency and bandwidth: a rank spends
``latency * messages + seconds per byte * bytes`` on receiving, and nothing overlaps. It ranks
grids; measurement says which is fastest. For ``autotune space`` messages and local products are
measured once on this machine, and kept beside the records.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from autotune.core.device import Device
from autotune.core.errors import AutotuneError, CacheError
from autotune.core.limits import MpiLimits
from autotune.core.paths import CacheLocations
from autotune.core.reading import read_regular
from autotune.core.writing import deliver
from autotune.cpu.target import CpuTarget
from autotune.distributed.grid import BlockPartition, ProcessGrid, factorisations
from autotune.distributed.mpi.messages import Network
from autotune.operations.problem import Gemm, Problem, only_gemm
from autotune.serving.lookup import look_up
from autotune.serving.reports import Forecast
from autotune.store import MatchQuality


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


_FILE = "networks.json"
_LARGEST = 1 << 20
_TIMEOUT_S = 60.0

_OF_RANKS = ("ranks", "nodes", "cores", "operands")
"""Fields of the fingerprint that do not change the cost of a message between two ranks."""


def predicted_grids(problem: Problem, device: Device, cache: str | None = None) -> Forecast | None:
    """The best grids by the model, best first; None for a device that is no ranks on CPUs."""
    limits = device.limits
    if not isinstance(limits, MpiLimits) or limits.gpus:
        return None
    known = known_machine(only_gemm(problem, "target mpi"), device, cache)
    machine = known.machine
    m, n, k = problem.shape
    least = least_words(m, n, k, limits.ranks) * problem.itemsize
    grids: list[dict[str, Any]] = [
        {
            "grid": [grid.rows, grid.columns, grid.reduction],
            "bytes": cost.words * problem.itemsize,
            "least_bytes": round(least),
            "messages": cost.messages,
            "predicted_s": cost.seconds(machine, problem.itemsize),
            "sources": {"messages": known.network_source, "flops": known.rate_source},
        }
        for grid, cost in best_grids(m, n, k, limits.ranks, machine, problem.itemsize)
    ]
    cells = [
        (
            "x".join(map(str, row["grid"])),
            f"{row['bytes'] / 1e6:.3f}",
            f"{row['least_bytes'] / 1e6:.3f}",
            str(row["messages"]),
            f"{row['predicted_s'] * 1e3:.3f}",
        )
        for row in grids
    ]
    return Forecast(
        name="grids",
        rows=tuple(grids),
        text=(
            "grids (rows x columns x reduction) by the model, for distributed operands and a core "
            f"for every rank:\n  messages: {machine.latency_s * 1e6:.3g} us, "
            f"{1e-9 / machine.seconds_per_byte:.3g} GB/s, {known.network_source}\n"
            f"  products: {machine.flops_per_s / 1e9:.3g} GFLOP/s a rank, {known.rate_source}"
        ),
        header=("grid", "MB received", "least MB", "messages", "ms"),
        cells=tuple(cells),
    )


@dataclass(frozen=True, slots=True)
class KnownMachine:
    """A machine for the cost model, and the sources of its figures."""

    machine: Machine
    network_source: str
    rate_source: str


def known_machine(
    problem: Gemm, device: Device, cache: str | os.PathLike[str] | None = None
) -> KnownMachine:
    """This machine's figures, for predictions of a problem on more ranks than it may have.

    Messages between two ranks here are timed the first time that somebody asks, and kept with the
    MPI library's name; where MPI is missing, figures are nominal. A rank multiplies as fast as the
    CPU record of one thread that is nearest to its share of the problem, each rank on a core of
    its own.

    Args:
        problem: what all ranks compute together.
        device: the ranks, as `MpiTarget.device` gives them; none are running.
        cache: the user's cache.

    Raises:
        CacheError: the cache cannot be read or written.
    """
    place = CacheLocations.at(cache)
    network, network_source = _network(device, place.root / _FILE)
    rate, rate_source = _rate(problem, device.limits.names()["ranks"], place.database)
    machine = replace(NOMINAL, flops_per_s=rate)
    if network is not None:
        machine = Machine(network.latency_s, network.seconds_per_byte, rate)
    return KnownMachine(machine, network_source, rate_source)


def _network(device: Device, file: Path) -> tuple[Network | None, str]:
    """The cost of a message between two ranks here, and its source."""
    from autotune.distributed.mpi.messages import MeasureNetwork, Network
    from autotune.distributed.mpi.ranks.world import World

    fields = device.fingerprint.fields
    library = device.toolchain.get("mpi", str(fields["mpi"]))
    source = f"measured between two ranks here, {library}"
    # The processor and what carries the messages.
    same = {name: value for name, value in fields.items() if name not in _OF_RANKS}
    key = json.dumps([same, library], sort_keys=True)
    kept = _read(file)
    if key in kept:
        with contextlib.suppress(AttributeError, TypeError, ValueError):
            found = Network(**{name: float(value) for name, value in kept[key].items()})
            if all(math.isfinite(value) and value > 0 for value in asdict(found).values()):
                return found, source
    try:
        with World(2) as world:
            network = world.call(MeasureNetwork(), _TIMEOUT_S)
    except AutotuneError as error:
        return None, f"nominal ({error})"
    if not isinstance(network, Network) or min(asdict(network).values()) <= 0:
        return None, "nominal (messages could not be timed)"
    CacheLocations.at(file.parent).create()
    known = json.dumps({**kept, key: asdict(network)}, indent=1, sort_keys=True)
    deliver(file, known.encode(), CacheError)
    return network, source


def _read(file: Path) -> dict[str, Any]:
    """Earlier measurements; none where the file is missing or is no such file."""
    try:
        found = json.loads(read_regular(file, _LARGEST))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _rate(problem: Gemm, ranks: int, database: Path) -> tuple[float, str]:
    """Operations a second of a rank's product, and their source."""
    # A rank's share, were it a cube of the problem's proportions.
    shrink = ranks ** (1 / 3)
    m, n, k = (max(1, round(size / shrink)) for size in (problem.m, problem.n, problem.k))
    share = replace(problem, m=m, n=n, k=k, threads=1)
    looked_up = look_up(share, CpuTarget(), match="nearest", cache=database)
    if (predicted := looked_up.prediction) is not None:
        return share.flops / predicted.seconds, f"of one thread: {predicted.reason}"
    found = looked_up.match
    if found.record is None or found.quality > MatchQuality.NEAREST:
        return NOMINAL.flops_per_s, "nominal (no CPU record of one thread is near)"
    sizes = "x".join(str(found.record.problem[name]) for name in "mnk")
    return found.record.gflops * 1e9, f"of the CPU record for {sizes}, one thread"
