"""Ranks that somebody else started: this process is their rank 0, under the user's mpiexec."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from autotune.errors import OutOfTimeError
from autotune.evaluators.mpi.quiet import tell
from autotune.evaluators.mpi.ranks import Together, confirm, describe, follow
from autotune.evaluators.mpi.session import Session

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from autotune.deadline import Deadline
    from autotune.evaluators.mpi.messages import RankSet, Request


_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
"""What MPICH, Intel MPI and Open MPI tell the processes that their mpiexec starts."""


def under_mpiexec() -> bool:
    """Whether this process is one of several ranks; asked without starting MPI."""
    return any(os.environ.get(name, "1") not in ("", "0", "1") for name in _SIZES)


def attach(*, gpus: bool = False) -> AttachedRanks | Any:
    """On rank 0 all the ranks under this mpiexec; elsewhere what rank 0 leaves them with.

    The other ranks return when rank 0 dismisses them.

    Args:
        gpus: whether each rank takes a GPU of its own.
    """
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    return follow(comm, gpus=gpus) if comm.rank else AttachedRanks(comm, gpus=gpus)


class AttachedRanks:
    """The ranks of a communicator, of which this process is rank 0 and the others `follow`.

    They cannot be started again: a request that is not answered in time ends them all, with a
    line that says why. Every rank makes its part of the set, rank 0 by this constructor.

    Attributes:
        winners: what the other ranks are left with in the end; JSON-able.

    Args:
        comm: the ranks; a communicator of their own, with no other traffic.
        gpus: whether each takes a GPU of its own.
    """

    def __init__(self, comm: Intracomm, *, gpus: bool = False) -> None:
        self.winners: list[dict[str, Any]] = []
        self._comm = comm
        self._described = describe(comm, gpus=gpus)
        self._session = Session(comm)

    def describe(self) -> RankSet:
        """What the set consists of."""
        return self._described

    def call(self, request: Request, timeout_s: float, deadline: Deadline | None = None) -> Any:
        """Handle a request together with the others; nothing returns if it takes too long.

        Ranks that cannot be started again are not cut off by the end of a run: what has begun goes
        on until it is done.

        Raises:
            OutOfTimeError: the run is over already.
        """
        if deadline is not None and deadline.over:
            raise OutOfTimeError("the run is over: nothing more is asked of its ranks")
        watchdog = threading.Timer(timeout_s, self._give_up, (timeout_s,))
        watchdog.daemon = True
        watchdog.start()
        try:
            with Together(self._comm):
                tell(self._comm, ("request", request))
                return self._session.handle(request)
        finally:
            watchdog.cancel()

    def renew(self) -> None:
        """Nothing: only who started them can start others."""

    def close(self, grace_s: float = 1.0) -> None:
        """Nothing: the others wait for `dismiss`, so that a next problem finds them."""

    def dismiss(self) -> None:
        """Let the other ranks go, each with the winners, which `follow` returns there."""
        tell(self._comm, ("end", self.winners))
        confirm(self._comm, self.winners)

    def _give_up(self, timeout_s: float) -> None:
        print(
            f"autotune: no result from {self._comm.size} ranks within {timeout_s:g} s: "
            "all of them are ended",
            file=sys.stderr,
            flush=True,
        )
        self._comm.Abort(1)
