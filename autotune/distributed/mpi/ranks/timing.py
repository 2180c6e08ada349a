"""Times of calls that all ranks make together, and of messages between two of them."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from autotune.core.statistics import median, median_interval
from autotune.distributed.mpi.messages import Network
from autotune.measuring.messages import Series
from autotune.measuring.timing import Stop

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

LENGTHS = (8, 1 << 22)
"""Bytes of the messages timed: the shortest gives the latency, both together the bandwidth."""

ROUNDS = (400, 25)
"""Number of times that they are sent."""


def timed_together(comm: Intracomm, call: Callable[[], object]) -> float:
    """Seconds from when the first rank begins a call until the last has made it, on every rank.

    A barrier comes first. Where there are more ranks than cores, some leave it only when others
    have finished: a rank's own time would miss that. Nodes have clocks of their own; on several,
    it is the time of the rank that takes longest.
    """
    from mpi4py import MPI

    node = zlib.crc32(MPI.Get_processor_name().encode())
    comm.Barrier()
    start = time.perf_counter()
    call()
    end = time.perf_counter()
    mine = np.array([end - start, end, -start, node, -node], "float64")
    most = np.empty_like(mine)
    comm.Allreduce(mine, most, MPI.MAX)
    longest, last, first, one, same = map(float, most)
    # A coarse clock may have seen nothing; nothing takes less than its unit.
    return max(last + first if one == -same else longest, 1e-9)


def time_together(
    comm: Intracomm,
    call: Callable[[], object],
    *,
    budget_s: float,
    interval: float,
    deadline_s: float,
    enough: Callable[[float], bool],
) -> Series:
    """Time a call that has been warmed up, until `Stop`, of the same arguments, has enough.

    That follows from the times alone, which all ranks have alike: none needs to be told.
    """
    stop = Stop(budget_s, interval, deadline_s, enough)
    samples: list[float] = []
    while True:
        samples.append(timed_together(comm, call))
        if stop.done(samples, sum(samples)):
            break
    return Series(median(samples), median_interval(samples), len(samples))


def measure_network(comm: Intracomm) -> Network:
    """Send messages to and fro between ranks 0 and 1; called by all ranks.

    The model is that of Hockney, "The communication challenge for MPP", Parallel Computing 20,
    1994: time = latency + length / bandwidth. With one rank there are no messages, and they cost
    nothing.
    """
    if comm.size == 1:
        return Network(0.0, 0.0)
    short_s, long_s = (
        _one_way_s(comm, length, rounds) for length, rounds in zip(LENGTHS, ROUNDS, strict=True)
    )
    per_byte = max(0.0, long_s - short_s) / (LENGTHS[1] - LENGTHS[0])
    return Network(short_s, per_byte)


def _one_way_s(comm: Intracomm, length: int, rounds: int) -> float:
    """Half the shortest time of a message there and back, on every rank.

    The shortest: the others were held up by something else.
    """
    message = np.zeros(length, "uint8")
    samples = []
    comm.Barrier()
    for _ in range(rounds):
        start = time.perf_counter()
        if comm.rank == 0:
            comm.Send(message, 1)
            comm.Recv(message, 1)
        elif comm.rank == 1:
            comm.Recv(message, 0)
            comm.Send(message, 0)
        samples.append((time.perf_counter() - start) / 2)
    seconds: float = comm.bcast(min(samples), 0)
    return seconds
