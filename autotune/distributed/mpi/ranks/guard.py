"""A process beside a rank that ends it, and by that all ranks, when it does not go on.

MPI waits without end for a rank that is stopped, has ended early or runs something else, and holds
Python's lock while it starts, so that no thread can look at a clock. The guard is a child of the
rank: it needs neither MPI nor the rank's help to say in one line what is wrong and to kill it.
mpiexec then ends the others.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator

from autotune.core.interpreter import python
from autotune.distributed.mpi.processes import (
    NODE_NAMES,
    RANK_NAMES,
    SIZE_NAMES,
    VARIABLE,
    OwnTime,
    local_ranks,
    mapped,
    named_ranks,
    number_in,
    patience_s,
    process_of,
    say_last,
    unlink,
)

ENDED_S = 5.0
"""Seconds after which a rank of this node that is not to be seen is taken to have ended: all are
started at once, and this one has imported a package since."""

_TICK_S = 0.25
_TURN_S = 1.0
"""Seconds that a guard leaves each rank before its own to speak, so that one line is printed."""

_MARK = "autotune.distributed.mpi.ranks.guard import watch"
_BOOT = f"from {_MARK}; parent, limit_s = sys.argv[1:]; watch(int(parent), float(limit_s))"


class Guard:
    """This rank's guard, which first waits for MPI to start.

    From then on it ends the rank if it is stopped by a signal for as long as ranks wait for each
    other, or does not keep a limit of its own. It ends with the process, whatever happens to that.

    Raises:
        InputError: the environment variable for the time limit is not a number.
    """

    def __init__(self) -> None:
        self.limit_s = patience_s()
        # A bare descriptor: nobody closes it while MPI ends, which is after Python has.
        theirs, self._commands = os.pipe()
        try:
            self._process = subprocess.Popen(
                python(_BOOT, str(os.getpid()), str(self.limit_s)),
                stdin=theirs,
                stdout=subprocess.DEVNULL,
                # Signals to the rank's group are not for the guard.
                start_new_session=True,
            )
        finally:
            os.close(theirs)

    def limit(self, seconds: float, line: str) -> None:
        """End all ranks with a line after that many seconds, unless something else is said."""
        self._send([seconds, line])

    def relax(self) -> None:
        """End only a rank that is stopped."""
        self._send(None)

    @contextlib.contextmanager
    def within(self, seconds: float, line: str) -> Iterator[None]:
        """End all ranks unless the body ends in time."""
        self.limit(seconds, line)
        try:
            yield
        finally:
            self.relax()

    def _send(self, command: object) -> None:
        with contextlib.suppress(OSError):  # killed: a rank works without
            os.write(self._commands, json.dumps(command).encode() + b"\n")


def watch(parent: int, limit_s: float) -> None:
    """Guard a rank, of that process, until either ends; ranks wait `limit_s` for each other."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    joining: _Joining | None = _Joining(parent, limit_s)
    stopped = _Stopped(parent, limit_s)
    given: tuple[OwnTime, float, str] | None = None
    unread = b""
    while os.getppid() == parent:
        if select.select([0], [], [], _TICK_S)[0]:
            text = os.read(0, 1 << 16)
            if not text:
                return
            *lines, unread = (unread + text).split(b"\n")
            for line in lines:
                command, joining = json.loads(line), None
                given = None if command is None else (OwnTime(2 * _TICK_S), *command)
        fault = stopped.look() or (joining.look() if joining else "")
        if given is not None and given[0].look() > given[1]:
            fault = given[2]
        if fault and os.getppid() == parent:
            say_last(f"autotune: {fault}")
            segments = mapped([parent])
            with contextlib.suppress(ProcessLookupError):
                os.kill(parent, signal.SIGKILL)
            unlink(segments)
            return


class _Stopped:
    """Notices that the rank has been stopped by a signal for too long."""

    def __init__(self, parent: int, limit_s: float) -> None:
        self._parent = parent
        self._limit_s = limit_s
        self._for: OwnTime | None = None

    def look(self) -> str:
        """The fault; empty where there is none."""
        process = process_of(self._parent)
        if process is None or process.state != "T":
            self._for = None
            return ""
        self._for = self._for or OwnTime(2 * _TICK_S)
        if self._for.look() < self._limit_s:
            return ""
        return (
            f"rank {number_in(RANK_NAMES, os.environ)} is stopped since {self._limit_s:g} s, and "
            f"the others wait for it: continue a rank sooner, or set {VARIABLE}; all of them are "
            "ended"
        )


class _Joining:
    """Notices ranks that do not come while MPI starts."""

    def __init__(self, parent: int, limit_s: float) -> None:
        self._parent = parent
        self._limit_s = limit_s
        self._waited, self._without = OwnTime(2 * _TICK_S), OwnTime(2 * _TICK_S)
        self._rank = number_in(RANK_NAMES, os.environ)
        self._size = number_in(SIZE_NAMES, os.environ)
        self._here = number_in(NODE_NAMES, os.environ)
        self._seen: set[int] = set()

    def look(self) -> str:
        """The fault; empty where there is none."""
        ranks = local_ranks(self._parent)
        self._seen |= ranks.keys()
        joined = {
            rank
            for rank, found in ranks.items()
            if not found.stopped and any(_MARK in command for command in found.commands)
        }
        turn_s = _TURN_S * sum(rank < (self._rank or 0) for rank in joined)
        ended = sorted(self._expected() - ranks.keys()) if ranks else []
        few = bool(ranks) and self._here is not None and len(ranks) < self._here
        if not (ended or few):
            self._without = OwnTime(2 * _TICK_S)
        elif self._without.look() > min(ENDED_S, self._limit_s) + turn_s:
            who = named_ranks(ended) if ended else "a rank of this node"
            return (
                f"{who} of {self._size} ended before joining the others: give every rank the same "
                "command, with valid options; all of them are ended"
            )
        if self._waited.look() <= self._limit_s + turn_s:
            return ""
        within = f"not joined the others within {self._limit_s:g} s"
        stopped = [rank for rank, found in ranks.items() if found.stopped]
        if stopped:
            return (
                f"{named_ranks(stopped)} of {self._size} is stopped and has {within}: continue "
                "it, or start again; all of them are ended"
            )
        absent = sorted(ranks.keys() - joined)
        if absent:
            return (
                f"{named_ranks(absent)} of {self._size} has {within} and runs "
                f"`{ranks[absent[0]].command:.120}`: give every rank the same command; all of "
                "them are ended"
            )
        return (
            f"of {self._size} ranks some have {within}, on other nodes: give every rank the same "
            f"command, or set {VARIABLE}; all of them are ended"
        )

    def _expected(self) -> set[int]:
        """Ranks that must be here: all, where there is one node, or those seen before."""
        if self._size is not None and self._here == self._size:
            return set(range(self._size))
        return self._seen
