"""What messages between ranks cost, measured."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from autotune.distributed.mpi.messages import Network

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

LENGTHS = (8, 1 << 22)
"""Bytes of the messages timed: the shortest gives the latency, both together the bandwidth."""

ROUNDS = (400, 25)
"""How often they are sent."""


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

    The shortest: what takes longer was held up by something else.
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
