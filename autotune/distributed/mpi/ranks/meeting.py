"""Waiting for other ranks with an end, and naming those that do not come.

The wait itself is a non-blocking collective operation that is looked at now and then. Only when it
takes too long do ranks send messages: a roll is called, and ranks in the same wait answer. Waits
of a communicator are numbered, since a message may be read in a later wait than it was sent in.
Blocking operations come after, when every rank is known to be there.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from autotune.core import session
from autotune.core.errors import AutotuneError, OperandError
from autotune.distributed.mpi.gpu.rank import GpuRank
from autotune.distributed.mpi.loading import MakePlan
from autotune.distributed.mpi.processes import (
    VARIABLE,
    OwnTime,
    local_ranks,
    mapped,
    named_ranks,
    patience_s,
    say_last,
    unlink,
)

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm, Request

_Loaded = TypeVar("_Loaded", MakePlan, GpuRank)

COMPILING = 5.0
"""A factor of the time that ranks wait for each other, where each compiles a kernel."""

_TAG_BELOW_MAXIMUM = 7
"""The roll's tag is so far below the largest: on a user's communicator it is nobody else's."""

_SPIN_S = 0.01
"""Seconds of waiting in which a rank only yields: most waits are shorter, and naps would show."""

_NAP_S = 1e-3
_NAP_SHARE = 0.01
"""A nap is at most this part of the wait so far, so that it delays by no more than that."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A wait with all other ranks of a communicator.

    Attributes:
        name: for people, as in "rank 3 of 4 did not make {name}".
        limit_s: seconds after which those who do not come are named.
        ends: all ranks are ended then; if not, they go on waiting.
    """

    name: str
    limit_s: float
    ends: bool


@dataclass(slots=True)
class _Waits:
    """The waits of a communicator, which all its ranks make in the same order.

    Attributes:
        made: number of waits that this rank has made.
        under_way: by rank, the wait that it has said it is in, counted from 0.
        gone: by rank that has ended, the waits that it has made, and its last words.
    """

    made: int = 0
    under_way: dict[int, int] = field(default_factory=dict)
    gone: dict[int, tuple[int, str]] = field(default_factory=dict)

    def present(self) -> set[int]:
        """Other ranks that make the wait that this rank is in, or have made it."""
        return {rank for rank, number in self.under_way.items() if number >= self.made}

    def ended(self) -> dict[int, str]:
        """Ranks that will not make it, and why, by rank."""
        return {rank: reason for rank, (made, reason) in self.gone.items() if made <= self.made}


_sent: list[Any] = []
"""Messages to ranks that may never take them: their buffers stay."""


def meet(comm: Intracomm, name: str, *, patience: float = 1.0) -> None:
    """Wait until every rank is here; if one does not come, all of them are ended with a line.

    Args:
        comm: the ranks.
        name: as in `Waiting`.
        patience: a factor of the usual time.
    """
    limit_s = patience * patience_s()
    wait(comm, comm.Ibarrier(), lambda: Waiting(name, limit_s, ends=True))


def check_same(comm: Intracomm, **arguments: object) -> None:
    """Check that all ranks pass the same.

    Raises:
        OperandError: they do not, on every rank; the message names the first that differs.
    """
    passed = comm.allgather(arguments)
    for rank, other in enumerate(passed):
        for name in {**passed[0], **other}:
            mine, theirs = passed[0].get(name), other.get(name)
            if theirs != mine and (theirs == theirs or mine == mine):  # NaN is not itself
                raise OperandError(
                    f"all ranks must pass the same {name}: rank 0 passes {mine!r}, "
                    f"rank {rank} passes {theirs!r}"
                )


def load_on_all(comm: Intracomm, load: Callable[[], _Loaded], *, name: str = "") -> _Loaded:
    """Load something on every rank; the first error of any is raised on all, and nothing stays.

    Args:
        comm: the ranks.
        load: this rank's part.
        name: of the wait for others, `COMPILING` times the usual; empty waits without end.
    """
    error, loaded = None, None
    try:
        loaded = load()
    except AutotuneError as refused:
        error = refused
    if name:
        meet(comm, name, patience=COMPILING)
    for fault in comm.allgather(error):
        if fault is not None:
            if loaded is not None:
                loaded.close()
            raise fault
    assert loaded is not None
    return loaded


def wait(comm: Intracomm, request: Request, waiting: Callable[[], Waiting]) -> None:
    """Wait until a non-blocking collective operation is complete.

    Where it takes too long, one rank prints a line that names those who have not begun it, and
    ends all of them if that is wanted, or if one of those has ended already or is stopped.

    Args:
        comm: the ranks.
        request: the operation.
        waiting: describes the wait; asked only where it takes a while.
    """
    waits = _waits(comm)
    started = time.perf_counter()
    while not request.Test():
        if time.perf_counter() - started > _SPIN_S:
            _wait_long(comm, request, waiting(), waits)
            break
        os.sched_yield()
    waits.made += 1


def say_gone(comm: Intracomm, reason: str) -> None:
    """Tell the others why this rank ends; it will not take part in any further wait."""
    _send(comm, ("gone", _waits(comm).made, reason))


def end_all(comm: Intracomm, line: str) -> NoReturn:
    """Print a line and end every rank, also those that are stopped or hang."""
    say_last(f"autotune: {line}")
    unlink(mapped(["self"]))
    comm.Abort(1)
    raise SystemExit(1)


def _wait_long(comm: Intracomm, request: Request, waiting: Waiting, waits: _Waits) -> None:
    waited, named = OwnTime(), False
    called_s: float | None = None
    grace_s = min(5.0, max(1.0, waiting.limit_s / 4))
    while not request.Test():
        seconds = waited.look()
        _receive(comm, waits)
        present = waits.present()
        if called_s is None and (seconds > waiting.limit_s or present or waits.ended()):
            called_s = seconds
            _send(comm, ("waits", waits.made, ""))
        if called_s is not None and not named:
            # The first of those who wait speaks; the others only if it does not get to.
            place = sum(rank < comm.rank for rank in present)
            if seconds > called_s + grace_s * (1 + 2 * place):
                named = _report(comm, waiting, waits)
                called_s = seconds
        time.sleep(min(_NAP_S, _NAP_SHARE * seconds))


def _receive(comm: Intracomm, waits: _Waits) -> None:
    """Take in messages of others."""
    from mpi4py import MPI

    status = MPI.Status()
    while comm.iprobe(MPI.ANY_SOURCE, _tag(comm), status):
        kind, number, reason = comm.recv(None, status.source, _tag(comm))
        if kind == "waits":
            waits.under_way[status.source] = number
        else:
            waits.gone[status.source] = number, reason


def _report(comm: Intracomm, waiting: Waiting, waits: _Waits) -> bool:
    """Name ranks that do not come, and end all if that is to be; False if there are none."""
    ended = waits.ended()
    if ended:
        rank, reason = min(ended.items())
        end_all(
            comm,
            f"rank {rank} of {comm.size} has ended ({reason}) and does not make {waiting.name}, "
            "for which others wait: every rank must; all of them are ended",
        )
    absent = sorted(set(range(comm.size)) - waits.present() - {comm.rank})
    # Where all have come, the operation is under way, and only who is stopped keeps it there.
    stopped = _stopped(comm, absent or list(range(comm.size)))
    if not absent and not stopped:
        return False
    line = f"{named_ranks(absent or stopped)} of {comm.size} did not make {waiting.name} within "
    line += f"{waiting.limit_s:g} s"
    if stopped:
        line += f" ({named_ranks(stopped)} is stopped)"
    if waiting.ends or stopped:
        end_all(comm, f"{line}, and every rank must (or set {VARIABLE}): all of them are ended")
    print(
        f"autotune: {line}, and every rank must: the others go on waiting; set {VARIABLE} to the "
        "seconds after which they are ended",
        file=sys.stderr,
        flush=True,
    )
    return True


def _stopped(comm: Intracomm, ranks: list[int]) -> list[int]:
    """Those of a communicator's ranks that are on this node and stopped by a signal."""
    from mpi4py import MPI

    here = local_ranks(os.getpid())
    started = comm.Get_group().Translate_ranks(ranks, MPI.COMM_WORLD.Get_group())
    numbers = dict(zip(ranks, started, strict=True))
    return [rank for rank in ranks if numbers[rank] in here and here[numbers[rank]].stopped]


def _send(comm: Intracomm, message: Any) -> None:
    for rank in range(comm.size):
        if rank != comm.rank:
            _sent.append(comm.isend(message, rank, _tag(comm)))


def _waits(comm: Intracomm) -> _Waits:
    """The waits of a communicator, by any handle of it; a duplicate has its own."""
    waits = comm.Get_attr(_key())
    if not isinstance(waits, _Waits):
        waits = _Waits()
        comm.Set_attr(_key(), waits)
    return waits


@session.cached()
def _key() -> int:
    """The attribute that communicators keep their waits in."""
    from mpi4py import MPI

    return MPI.Comm.Create_keyval()


def _tag(comm: Intracomm) -> int:
    from mpi4py import MPI

    return int(comm.Get_attr(MPI.TAG_UB) or 0) - _TAG_BELOW_MAXIMUM
