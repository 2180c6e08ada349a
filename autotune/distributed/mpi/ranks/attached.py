"""Ranks that somebody else started: this process is one of them, under the user's mpiexec."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autotune.core.deadline import Deadline
from autotune.core.errors import AutotuneError, OutOfTimeError
from autotune.distributed.mpi.messages import RankSet, Request
from autotune.distributed.mpi.processes import RANK_NAMES, SIZE_NAMES, number_in, unlink_segments
from autotune.distributed.mpi.ranks.guard import Guard
from autotune.distributed.mpi.ranks.meeting import check_same
from autotune.distributed.mpi.ranks.ranks import (
    Session,
    Together,
    confirm,
    describe,
    follow,
    send_all,
)
from autotune.measuring.processes import GRACE_S

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm


def under_mpiexec() -> bool:
    """Tell, without starting MPI, whether this process is one of several ranks."""
    return (number_in(SIZE_NAMES, os.environ) or 1) > 1


def is_first() -> bool:
    """Tell, without starting MPI, whether this process is rank 0 under an mpiexec."""
    return not number_in(RANK_NAMES, os.environ)


def attach(options: Mapping[str, object], *, gpus: bool = False) -> AttachedRanks | Any:
    """On rank 0 all the ranks under this mpiexec; elsewhere the winners that rank 0 leaves.

    The other ranks return when rank 0 dismisses them. Whatever happens to any rank, from here on
    all of them end with a line that says so, within the time that ranks wait for each other.

    Args:
        options: of the command; the same on all of them.
        gpus: each rank takes a GPU of its own.

    Raises:
        OperandError: the ranks were not asked for the same, on every rank.
        AutotuneError: they cannot be used, on every rank.
        SystemExit: something else went wrong on this rank.
    """
    guard = Guard()  # MPI starts only when all ranks start it, and looks at no signal before
    with contextlib.ExitStack() as started:
        started.callback(guard.relax)
        from mpi4py import MPI

        comm = MPI.COMM_WORLD.Dup()
        unlink_segments(comm)
        check_same(comm, **options)
    with Together(comm, agreed=AutotuneError):
        if comm.rank:
            return follow(comm, gpus=gpus)
        return AttachedRanks(comm, guard, gpus=gpus)


class AttachedRanks:
    """The ranks of a communicator, of which this process is rank 0 and the others `follow`.

    They cannot be started again: a request that is not answered in time ends them all, with a
    line that says why. Every rank makes its part of the set, rank 0 by this constructor.

    Args:
        comm: the ranks; a communicator of their own, with no other traffic.
        guard: this rank's, which ends it in time.
        gpus: each takes a GPU of its own.

    Attributes:
        winners: left to the other ranks in the end; JSON-able.
    """

    def __init__(self, comm: Intracomm, guard: Guard, *, gpus: bool = False) -> None:
        self.winners: list[dict[str, Any]] = []
        self._comm = comm
        self._guard = guard
        self._described = describe(comm, gpus=gpus)
        self._session = Session(comm)

    def describe(self) -> RankSet:
        """The ranks, as they describe themselves."""
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
        late = (
            f"no result from {self._comm.size} ranks within {timeout_s:g} s (a candidate hangs or "
            "is too slow): start again; all of them are ended"
        )
        with self._guard.within(timeout_s, late), Together(self._comm):
            send_all(self._comm, ("request", request))
            return self._session.handle(request)

    def renew(self) -> None:
        """Do nothing: only their mpiexec can start others."""

    def close(self, grace_s: float = GRACE_S) -> None:
        """Do nothing: the others wait for `dismiss`, so that a next problem finds them."""

    def dismiss(self) -> None:
        """Let the other ranks go, each with the winners, which `follow` returns there."""
        late = f"not all of {self._comm.size} ranks ended within {self._guard.limit_s:g} s"
        with self._guard.within(self._guard.limit_s, f"{late}: all of them are ended"):
            send_all(self._comm, ("end", self.winners))
            confirm(self._comm, self.winners)
