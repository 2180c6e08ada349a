"""Being a rank: which MPI this is, and handling requests, in step with all others."""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import socket
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from autotune.core.errors import AutotuneError
from autotune.core.processors import affinity_count
from autotune.distributed.mpi.gpu.cuda import describe_gpus
from autotune.distributed.mpi.messages import (
    FAULT,
    MeasureNetwork,
    RankSet,
    Refused,
    Request,
    Setup,
)
from autotune.distributed.mpi.processes import parse_library, say_last, unlink_segments
from autotune.distributed.mpi.ranks.harness import MpiHarness, measure_network
from autotune.measuring.channel import Channel, encode
from autotune.measuring.trial import Trials

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

NAP_S = 5e-4
"""Sleep of a rank between two looks: a request costs that much at most before it is seen."""

_TAG = 7


def describe(comm: Intracomm, *, gpus: bool = False) -> RankSet:
    """The ranks of a communicator; called by all of them, the same on each.

    Args:
        comm: the ranks.
        gpus: each takes a GPU of its own.

    Raises:
        InputError: there are fewer GPUs than ranks.
        MissingDependencyError: there is no GPU, or a package for it is missing.
    """
    from mpi4py import MPI

    cores = dict(comm.allgather((MPI.Get_processor_name(), affinity_count())))
    library = parse_library(MPI.Get_library_version())
    found = describe_gpus(comm) if gpus else None
    return RankSet(comm.size, len(cores), sum(cores.values()), *library, found)


class Session:
    """One rank's part in handling requests, of which all handle the same, in the same order."""

    def __init__(self, comm: Intracomm) -> None:
        self._comm = comm
        self._trials: Trials | None = None

    def handle(self, request: Request) -> object:
        """Handle a request; rank 0 returns the answer."""
        if isinstance(request, Setup):
            self._trials = Trials(MpiHarness(self._comm, request), request.effort)
            return None
        if isinstance(request, MeasureNetwork):
            return measure_network(self._comm)
        if self._trials is None:
            return Refused(f"{type(request).__name__} came before Setup")
        return self._trials(request)


def send_all(comm: Intracomm, message: Any) -> None:
    """Send a picklable message from rank 0 to every other rank, which is in `follow`."""
    for request in [comm.isend(message, rank, _TAG) for rank in range(1, comm.size)]:
        request.wait()


def follow(comm: Intracomm, *, gpus: bool = False) -> Any:
    """Answer rank 0's requests, as any other rank, until it says that it is the last.

    Between requests the rank sleeps, where MPI's own calls would spin.

    Returns:
        The content of rank 0's last message.
    """
    describe(comm, gpus=gpus)  # as rank 0 does, and all have to
    session = Session(comm)
    while True:
        while not comm.iprobe(0, _TAG):
            time.sleep(NAP_S)
        kind, content = comm.recv(source=0, tag=_TAG)
        if kind == "end":
            confirm(comm, content)
            return content
        with Together(comm):
            session.handle(content)


def confirm(comm: Intracomm, content: Any) -> None:
    """Check that every rank has been left with the same, which is JSON-able."""
    text = json.dumps(content, sort_keys=True)
    if len(set(comm.allgather(text))) > 1:
        raise AutotuneError(f"ranks end with different winners: {text:.200} is one of them")


class Together(contextlib.AbstractContextManager["Together"]):
    """Ends every rank when this one fails: the others wait for messages that will not come.

    Args:
        comm: the ranks.
        agreed: errors that all ranks raise together, and none waits after.
    """

    def __init__(self, comm: Intracomm, *, agreed: type[Exception] | tuple[()] = ()) -> None:
        self._comm = comm
        self._agreed = agreed

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None or issubclass(kind, self._agreed):
            return
        text = " ".join(str(error).split())[:300]
        frames = traceback.extract_tb(trace)
        where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
        rank = self._comm.rank
        say_last(f"{FAULT} {rank}: {kind.__name__}: {text}{where}; all ranks are ended")
        self._comm.Abort(1)


def main(address: str, *, gpus: bool) -> None:
    """Be one of the ranks that a `World` started.

    Args:
        address: the Unix socket on which it waits for rank 0.
        gpus: each takes a GPU of its own.
    """
    from mpi4py import MPI

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # crashes are expected here
    comm = MPI.COMM_WORLD
    with Together(comm):
        unlink_segments(comm)
        if comm.rank:
            follow(comm, gpus=gpus)
            return
        described = describe(comm, gpus=gpus)
        session = Session(comm)
        end = socket.socket(socket.AF_UNIX)
        end.connect(address)
        channel = Channel.hidden(end.detach())
        _next(channel)  # who the ranks are is asked first
        channel.answer(encode(described))
        while (request := _next(channel)) is not None:
            send_all(comm, ("request", request))
            reply = encode(session.handle(request))
            with contextlib.suppress(OSError):  # nobody is there to read it: the next is the end
                channel.answer(reply)
        send_all(comm, ("end", None))
        confirm(comm, None)


def _next(channel: Channel) -> Request | None:
    """The next request; None once there is nobody to make one."""
    try:
        request: Request = channel.requested()
    except (EOFError, OSError):
        return None
    return request
