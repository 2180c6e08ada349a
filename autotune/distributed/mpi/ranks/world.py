"""Sets of ranks: those started once by mpiexec, and those that this process is one of."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from autotune.core.deadline import Deadline
from autotune.core.errors import AutotuneError, OutOfTimeError
from autotune.core.interpreter import executable, python
from autotune.cpu.baseline import BRIEF_SPIN
from autotune.distributed.mpi.messages import FAULT, RankSet, Reply, Request
from autotune.distributed.mpi.processes import (
    RANK_NAMES,
    SIZE_NAMES,
    VARIABLE,
    descendants,
    find_mpiexec,
    launch_command,
    mapped,
    number_in,
    patience_s,
    processes,
    sweep,
    unlink,
    unlink_segments,
)
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
from autotune.measuring.channel import LOOK_S, Channel, ReplyError, decode
from autotune.measuring.processes import GRACE_S, START_TIMEOUT_S, Asking, Running

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

# mpiexec dies with the process that starts it, and takes the ranks along. The death signal stays
# set when the process becomes mpiexec.
_LAUNCH = (
    "import ctypes, os, sys; sys.platform == 'linux' and ctypes.CDLL(None).prctl(1, 9, 0, 0, 0); "
    "os.getppid() == int(sys.argv[1]) or os._exit(1); os.execv(sys.argv[2], sys.argv[2:])"
)
# A rank dies with its starter, from before it imports anything. It writes its output to the file
# itself: mpiexec, which would pass it on, may end before it has read all. (A batch system's
# may have put the rank on another machine, where there is no such file.)
_RANK = (
    "import ctypes, os; address, printed, kind = sys.argv[1:]; "
    "sys.platform == 'linux' and ctypes.CDLL(None).prctl(1, 9, 0, 0, 0); "
    "os.path.exists(printed) and os.dup2(os.open(printed, os.O_WRONLY | os.O_APPEND), 2); "
    "from autotune.distributed.mpi.ranks.ranks import main; main(address, gpus=kind == 'gpus')"
)


class Ranks(Protocol):
    """A set of ranks that requests can be put to, one after the other."""

    def describe(self) -> RankSet:
        """The ranks, as they describe themselves."""

    def call(self, request: Request, timeout_s: float, deadline: Deadline | None = None) -> Any:
        """The reply, or a `Failure`; after one the set is as new, or there is no set any more.

        Raises:
            OutOfTimeError: the run that the request is made for was over first.
        """

    def renew(self) -> None:
        """Have the next request handled by ranks that have done nothing else, where possible."""

    def close(self, grace_s: float = GRACE_S) -> None:
        """End the ranks, if they were started here."""


class World(Asking):
    """Ranks of this machine under one mpiexec, started when first needed.

    Rank 0 passes requests of this process on; between requests all ranks sleep. A request that is
    not answered in time, or that a rank does not survive, costs the whole set, and the next one
    starts another. No process outlives this one, however it ends.

    On Linux the ranks also die with the *thread* that started them (the kernel's rule for
    PR_SET_PDEATHSIG), so a world belongs to one thread.

    Args:
        ranks: number to start.
        threads: the most threads that the local product of a rank may use.
        gpus: each takes a GPU of its own.
    """

    def __init__(self, ranks: int, threads: int = 1, *, gpus: bool = False) -> None:
        self._ranks = ranks
        self._kind = "gpus" if gpus else "cpu"
        self._environment = {
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "NUMBA_NUM_THREADS": str(threads),
            **BRIEF_SPIN,
        }
        self._started: _Started | None = None

    @property
    def pid(self) -> int | None:
        """The process id of mpiexec, and of its group; None while there is none."""
        return None if self._started is None else self._started.process.pid

    def describe(self, deadline: Deadline | None = None) -> RankSet:
        """Start the ranks unless they run; how they describe themselves.

        Ranks that are lost while they start are started once more.

        Raises:
            AutotuneError: they do not start.
            OutOfTimeError: the run was over first.
            MissingDependencyError: mpi4py or mpiexec is missing.
        """
        if self._started is not None and self._started.process.poll() is not None:
            self.close(grace_s=0)
        if self._started is None:
            command = launch_command(find_mpiexec(), self._ranks)
            run = deadline or Deadline()
            try:
                self._started = _Started(command, self._kind, self._environment, run)
            except NotStartedError:
                self._started = _Started(command, self._kind, self._environment, run)
        return self._started.described

    def call(self, request: Request, timeout_s: float, deadline: Deadline | None = None) -> Any:
        """Put a request to the ranks and wait for the reply.

        After a `Failure` the ranks are gone; the next call starts others.

        Raises:
            AutotuneError: the ranks do not start.
            OutOfTimeError: the run was over first; ranks that were asked are gone, too.
        """
        run = deadline or Deadline()
        if run.over:
            raise OutOfTimeError("the run is over: nothing more is asked of its ranks")
        self.describe(run)
        started = self._started
        assert started is not None

        def wait() -> bytes | None:
            started.channel.ask(request)
            return started.channel.await_reply(timeout_s, run, "its ranks")

        told = f"no result from {self._ranks} ranks within {timeout_s:g} s: killed"
        reply = self._answer(started, Reply, wait, told)
        if self._started is not None:
            started.answered += 1
        return reply

    def renew(self) -> None:
        """End the ranks; the next request starts others."""
        self.close()

    def close(self, grace_s: float = GRACE_S) -> None:
        """End the ranks: ask, wait up to `grace_s` seconds, then kill them."""
        started, self._started = self._started, None
        if started is not None:
            started.end(grace_s)


class NotStartedError(AutotuneError):
    """Ranks were lost, or did not come, while they started."""


class _Started(Running):
    """A running mpiexec, the socket to its rank 0, and the output of all ranks.

    Raises:
        NotStartedError: the ranks end first, or take too long.
        OutOfTimeError: the run is over before that.
    """

    def __init__(
        self, command: list[str], kind: str, environment: dict[str, str], run: Deadline
    ) -> None:
        self._limit_s = patience_s(START_TIMEOUT_S)
        self._until = time.monotonic() + self._limit_s
        sweep()
        resources = contextlib.ExitStack()
        # Also for ranks that nobody closed: at the latest when the interpreter exits.
        self._finalizer = weakref.finalize(self, resources.close)
        try:
            # Only its owner can enter the folder, so only his processes can connect. It is gone
            # once the ranks have started, which keep the file open.
            with (
                tempfile.TemporaryDirectory(prefix=f"autotune-{os.getpid()}-") as folder,
                socket.socket(socket.AF_UNIX) as listener,
            ):
                address, printed = str(Path(folder) / "rank0"), str(Path(folder) / "printed")
                # Several write to it, each to its end.
                file = Path(printed).open("a+b")  # noqa: SIM115
                self._printed = resources.enter_context(file)
                listener.bind(address)
                listener.listen(1)
                self.process = subprocess.Popen(
                    [
                        *(executable(), "-I", "-S", "-c", _LAUNCH, str(os.getpid())),
                        *command,
                        *python(_RANK, address, printed, kind),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=self._printed,
                    stderr=self._printed,
                    env={**os.environ, **environment},
                    # A group of their own, spared the terminal's Ctrl-C, which is for this
                    # process to handle.
                    start_new_session=True,
                )
                resources.callback(_kill, self.process)
                self.channel = self._accept(listener, run)
            resources.callback(self.channel.close)
            self.described = self._await_description(run)
        except BaseException:
            self._finalizer()
            raise

    def epitaph(self) -> str:
        """The ranks' end in one line: the last words of the first of them to fail."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5.0)
        self._printed.seek(max(0, self._printed.seek(0, os.SEEK_END) - 20_000))
        lines = self._printed.read().decode(errors="replace").strip().splitlines()
        faults = [line for line in lines if line.startswith(FAULT)]
        if faults:
            return faults[0].removeprefix("autotune ")[:300]
        if (code := self.process.poll()) is None:
            return "the connection to rank 0 broke and the others hung"
        signalled = [line.strip() for line in lines if "SIGNAL" in line.upper()]
        last = (signalled or lines or [""])[-1]
        return f"a rank was lost, mpiexec ended with {code}: {last[:200]}".rstrip(": ")

    def _accept(self, listener: socket.socket, run: Deadline) -> Channel:
        listener.settimeout(LOOK_S)
        while time.monotonic() < self._until:
            if run.over:
                raise OutOfTimeError("the run was over before its ranks had started")
            with contextlib.suppress(TimeoutError):
                accepted, _ = listener.accept()
                # What a rank that is stopped leaves half read holds nobody up.
                return Channel(accepted, self._limit_s)
            if self.process.poll() is not None:
                raise NotStartedError(f"ranks did not start: {self.epitaph()}")
        raise NotStartedError(
            f"ranks did not start within {self._limit_s:g} s: see whether one is stopped, or set "
            f"{VARIABLE}"
        )

    def _await_description(self, run: Deadline) -> RankSet:
        """The ranks' description of themselves, once they have started."""
        try:
            self.channel.ask(None)
            left_s = max(0.0, self._until - time.monotonic())
            content = self.channel.await_reply(left_s, run, "its ranks")
            if content is not None:
                described: RankSet = decode(content, RankSet)
                return described
        except (EOFError, OSError, ReplyError):
            raise NotStartedError(f"ranks did not start: {self.epitaph()}") from None
        raise NotStartedError(f"nothing heard from rank 0 within {self._limit_s:g} s of its start")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End mpiexec and all processes below it, also stopped ones and those that just started."""
    if process.poll() is not None:
        return
    family = [one.pid for one in descendants(process.pid, processes())]
    segments = mapped(family)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for pid in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    unlink(segments)


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
