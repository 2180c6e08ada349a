"""NCCL as CuPy binds it: communicators of ranks, made once, and groups of calls."""

from __future__ import annotations

import atexit
import contextlib
from typing import TYPE_CHECKING, Any

from autotune.core import session
from autotune.core.dtypes import DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpi4py.MPI import Intracomm

    from autotune.distributed.mpi.gpu.order import Collective
    from autotune.gpu.interface import Stream


def communicator(mpi: Intracomm, ordinal: int) -> Collective:
    """NCCL's communicator of the same ranks; all of them make it, or have made it before.

    Args:
        mpi: the ranks.
        ordinal: the driver's number of this one's GPU.
    """
    from mpi4py import MPI

    mine, everyone = mpi.Get_group(), MPI.COMM_WORLD.Get_group()
    ranks = tuple(mine.Translate_ranks(list(range(mpi.size)), everyone))
    if not _NCCL:
        atexit.register(_drop_nccl)  # while MPI and all ranks are still there
    if ranks not in _NCCL:
        _NCCL[ranks] = _CupyNccl(mpi, ordinal)
    return _NCCL[ranks]


@contextlib.contextmanager
def group() -> Iterator[None]:
    """NCCL's calls in the body are one: none waits for another of them."""
    _nccl().groupStart()
    try:
        yield
    finally:
        _nccl().groupEnd()


class _CupyNccl:
    """See `Collective`: NCCL as CuPy binds it."""

    def __init__(self, mpi: Intracomm, ordinal: int) -> None:
        import cupy

        cupy.cuda.Device(ordinal).use()
        nccl = _nccl()
        identity = mpi.bcast(nccl.get_unique_id() if mpi.rank == 0 else None, 0)
        self._sum = nccl.NCCL_SUM
        self._comm = nccl.NcclCommunicator(mpi.size, identity, mpi.rank)

    def broadcast(
        self, sent: int, received: int, count: int, dtype: str, root: int, stream: Stream
    ) -> None:
        """See `Collective.broadcast`."""
        self._comm.broadcast(sent, received, count, DTYPES[dtype].nccl, root, stream.handle)

    def reduce(
        self, sent: int, received: int, count: int, dtype: str, root: int, stream: Stream
    ) -> None:
        """See `Collective.reduce`."""
        kind = DTYPES[dtype].nccl
        self._comm.reduce(sent, received, count, kind, self._sum, root, stream.handle)

    def send(self, sent: int, count: int, dtype: str, peer: int, stream: Stream) -> None:
        """See `Collective.send`."""
        self._comm.send(sent, count, DTYPES[dtype].nccl, peer, stream.handle)

    def receive(self, received: int, count: int, dtype: str, peer: int, stream: Stream) -> None:
        """See `Collective.receive`."""
        self._comm.recv(received, count, DTYPES[dtype].nccl, peer, stream.handle)

    def close(self) -> None:
        """Give it back."""
        self._comm.destroy()


_NCCL: dict[tuple[int, ...], _CupyNccl] = session.keep("communicators of NCCL", {}, lasting=True)
"""NCCL's communicators, by their ranks among all: making one takes a good part of a second."""


def _drop_nccl() -> None:
    """Give NCCL's communicators back, in the order in which all their ranks have made them."""
    while _NCCL:
        _NCCL.pop(next(iter(_NCCL))).close()


def _nccl() -> Any:
    from cupy.cuda import nccl

    return nccl
