"""Timing calls that all ranks make together."""

from __future__ import annotations

import time
import zlib
from typing import TYPE_CHECKING

import numpy as np

from autotune.core.statistics import median, median_interval
from autotune.measuring.messages import Series
from autotune.measuring.timing import Stop

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpi4py.MPI import Intracomm


def timed_together(comm: Intracomm, call: Callable[[], object]) -> float:
    """Seconds from when the first rank begins a call until the last has made it, on every rank.

    A barrier comes first. Where there are more ranks than cores, some leave it only when others
    have finished: what a rank measures of itself would miss that. Nodes have clocks of their own;
    on several, it is the time of the rank that takes longest.
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
    """Time a call that has been warmed up, until `Stop` says that it is enough.

    That follows from the times alone, which all ranks have alike: none needs to be told.

    Args:
        comm: the ranks.
        call: what to time, on this rank.
        budget_s: as in `Stop`.
        interval: as in `Stop`.
        deadline_s: as in `Stop`.
        enough: as in `Stop`.
    """
    stop = Stop(budget_s, interval, deadline_s, enough)
    samples: list[float] = []
    while True:
        samples.append(timed_together(comm, call))
        if stop.done(samples, sum(samples)):
            break
    return Series(median(samples), median_interval(samples), len(samples))
