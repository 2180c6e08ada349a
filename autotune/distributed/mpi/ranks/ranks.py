"""Being a rank: which MPI this is, and answering requests until there are no more."""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.core.errors import AutotuneError
from autotune.core.processors import affinity_count
from autotune.distributed.mpi.gpu.gpus import describe_gpus
from autotune.distributed.mpi.identity import parse_library
from autotune.distributed.mpi.messages import FAULT, RankSet, Request
from autotune.distributed.mpi.ranks.leftovers import unlink_segments
from autotune.distributed.mpi.ranks.quiet import listen, tell
from autotune.distributed.mpi.ranks.session import Session
from autotune.measuring.channel import Channel
from autotune.measuring.replies import encode

if TYPE_CHECKING:
    from types import TracebackType

    from mpi4py.MPI import Intracomm


def describe(comm: Intracomm, *, gpus: bool = False) -> RankSet:
    """The ranks of a communicator; called by all of them, the same on each.

    Args:
        comm: the ranks.
        gpus: whether each takes a GPU of its own.

    Raises:
        InputError: there are fewer GPUs than ranks.
        MissingDependencyError: there is no GPU, or what runs kernels on it is missing.
    """
    from mpi4py import MPI

    host = MPI.Get_processor_name()
    cores = dict(comm.allgather((host, affinity_count())))
    library, version, transport = parse_library(MPI.Get_library_version())
    return RankSet(
        comm.size,
        len(cores),
        sum(cores.values()),
        library,
        version,
        transport,
        describe_gpus(comm) if gpus else None,
    )


def follow(comm: Intracomm, *, gpus: bool = False) -> Any:
    """Answer rank 0's requests, as any other rank, until it says that it is the last.

    Args:
        comm: the ranks.
        gpus: as rank 0 has it.

    Returns:
        What rank 0 leaves everybody with.
    """
    describe(comm, gpus=gpus)  # as rank 0 does, and all have to
    session = Session(comm)
    while True:
        kind, content = listen(comm)
        if kind == "end":
            confirm(comm, content)
            return content
        with Together(comm):
            session.handle(content)


def confirm(comm: Intracomm, content: Any) -> None:
    """Check that every rank has been left with the same, which is JSON-able.

    Raises:
        AutotuneError: they have not.
    """
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
        print(
            f"{FAULT} {self._comm.rank}: {kind.__name__}: {text}{where}; all ranks are ended",
            file=sys.stderr,
            flush=True,
        )
        self._comm.Abort(1)


def main(address: str, *, gpus: bool) -> None:
    """Be one of the ranks that a `World` started.

    Args:
        address: the Unix socket on which it waits for rank 0.
        gpus: whether each takes a GPU of its own.
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
            tell(comm, ("request", request))
            reply = encode(session.handle(request))
            with contextlib.suppress(OSError):  # nobody is there to read it: the next is the end
                channel.answer(reply)
        tell(comm, ("end", None))
        confirm(comm, None)


def _next(channel: Channel) -> Request | None:
    """The next request; None once there is nobody to make one."""
    try:
        request: Request = channel.requested()
    except (EOFError, OSError):
        return None
    return request
