"""Worker processes that may hang, crash or be killed without taking the parent along.

A worker is a fresh interpreter, neither forked nor `multiprocessing`'s: nothing is inherited but
the environment, `sys.path` and one socket, and the parent's ``__main__`` is never run again, so
that scripts without a guard, notebooks and ``python -`` work alike.

Requests are pickled: they travel from a parent to its own child. Replies are data of a declared
form (`autotune.measuring.channel`), since what a kernel does to its process must not reach the
parent: nothing that comes back is run or believed without its type.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Self, TypedDict, Unpack

from autotune.core.deadline import Deadline
from autotune.core.errors import OutOfTimeError, WorkerError
from autotune.core.interpreter import python
from autotune.measuring.channel import Channel, ReplyError, decode
from autotune.measuring.failure import Failure, FailureKind

START_TIMEOUT_S = 120.0
"""Seconds a set of ranks has to start; an mpiexec may hang."""

PREPARE_TIMEOUT_S = 600.0
"""Seconds a worker has to start, or to draw operands: imports, references of large problems, on a
machine that others keep busy. All of it is code of ours, which ends."""

STARTS = 2
"""Starts of a worker that dies, or is killed, before it is ready."""

GRACE_S = 1.0
"""Seconds that processes have to end by themselves, where nothing went wrong."""

MARK = "AUTOTUNE_WORKER"
"""Variable by which all that a worker started is found again, however it hides."""

RENEW_ANSWERS = 64
"""Answers after which a child that may be replaced is."""

RENEW_BYTES = 256 << 20
"""Bytes by which it may have grown before."""

_BOOT = "from autotune.measuring.child import serve; serve(*map(int, sys.argv[1:]))"

Handler = Callable[[Any], Any]
"""Made by a worker's entry; called with each request, returns the reply."""


class Closing(ABC):
    """Owner of processes, closed by a ``with`` block; after an error they are killed at once."""

    @abstractmethod
    def close(self, grace_s: float = GRACE_S) -> None:
        """End the processes: ask, wait up to `grace_s` seconds, then kill them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(GRACE_S if kind is None else 0.0)


class Running(ABC):
    """Processes that were started, and the channel to the one that answers."""

    channel: Channel
    process: subprocess.Popen[bytes]
    answered = 0
    _finalizer: Callable[[], object]

    @property
    def innocent(self) -> bool:
        """True if its death may be the doing of others: earlier requests may have left damage."""
        return self.answered > 0

    @abstractmethod
    def epitaph(self) -> str:
        """The end of the process, in one line."""

    def end(self, grace_s: float) -> None:
        """Close the channel, which asks the process to exit; kill it when it has not in time."""
        self.channel.close()
        if grace_s:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(grace_s)
        self._finalizer()


class Asking(Closing):
    """Owner of processes that answer one request after the other; one that fails costs them."""

    def _answer(
        self, running: Running, expected: Any, wait: Callable[[], bytes | None], told: str
    ) -> Any:
        """The reply that `wait` brings, of a type; `told` says that there was none in time."""
        try:
            content = wait()
            if content is not None:
                return decode(content, expected)
            failure = Failure(FailureKind.TIMED_OUT, told)
        except ReplyError as error:
            # A kernel has written to the socket, or over the memory of its process.
            reason = f"sent what is no reply ({error}): killed"
            failure = Failure(FailureKind.DIED, reason, innocent=running.answered > 0)
        except OutOfTimeError:
            self.close(grace_s=0)
            raise
        except Exception:  # usually EOFError: a process boundary
            reason, innocent = running.epitaph(), running.innocent
            failure = Failure(FailureKind.DIED, reason, innocent=innocent)
        except BaseException:
            # The reply is still to come and would answer the next request.
            self.close(grace_s=0)
            raise
        self.close(grace_s=0)
        return failure


class Child(Running):
    """A running child: its process, the channel to it, and its output.

    Raises:
        WorkerError: no process can be started.

    Attributes:
        ready: whether it has started, as far as is known.
    """

    def __init__(self, environment: Mapping[str, str], watched: bool) -> None:
        mark = f"{os.getpid()}-{secrets.token_hex(8)}"
        with contextlib.ExitStack() as opened:
            try:
                self.channel, theirs = Channel.pair(PREPARE_TIMEOUT_S)
                opened.callback(self.channel.close)
                with theirs:  # only the child holds its end: its death is an end of file
                    # Native code prints where it likes; none of it may reach the parent's
                    # standard output. The last line is kept for `epitaph`.
                    self._printed = opened.enter_context(_scratch_file())
                    self.process = subprocess.Popen(
                        python(_BOOT, *map(str, (theirs.fileno(), os.getpid(), int(watched)))),
                        stdin=subprocess.DEVNULL,
                        stdout=self._printed,
                        stderr=self._printed,
                        pass_fds=[theirs.fileno()],
                        env={**os.environ, **environment, MARK: mark},
                        # Its own process group: killed as a whole, and spared the terminal's
                        # Ctrl-C, which is for the parent to handle.
                        start_new_session=True,
                    )
            except OSError as error:
                raise WorkerError(
                    f"a worker process cannot be started: {error}: see the limits of open files "
                    "and of processes (ulimit -n, ulimit -u), and sys.executable"
                ) from error
            opened.pop_all()
        self.ready = False
        self._begun_bytes = 0
        # Also for a worker that nobody closed: at the latest when the interpreter exits.
        self._finalizer = weakref.finalize(
            self, _end, os.getpid(), self.process, self.channel, self._printed, mark
        )

    def epitaph(self) -> str:
        """The end of the child, in one line."""
        try:
            code = self.process.wait(5.0)
        except subprocess.TimeoutExpired:
            return "closed its connection and hung"
        text = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self._printed.seek(max(0, self._printed.seek(0, os.SEEK_END) - 500))
        last = self._printed.read().decode(errors="replace").strip().rpartition("\n")[2]
        return f"{text}: {last[:200]}" if last else text

    @property
    def innocent(self) -> bool:
        """As of all, and of who killed it."""
        return super().innocent or self.process.poll() == -signal.SIGKILL

    def note_answer(self) -> None:
        """Count an answer, and see how large the child is by the first."""
        if not self.answered:
            self._begun_bytes = _resident_bytes(self.process.pid)
        self.answered += 1

    @property
    def has_grown(self) -> bool:
        """True if it has answered so much, or grown so much since, that another serves better."""
        if self.answered < 2:
            return False
        grown = _resident_bytes(self.process.pid) - self._begun_bytes
        return self.answered >= RENEW_ANSWERS or grown > RENEW_BYTES


def _scratch_file() -> IO[bytes]:
    """A file without a name; in memory where that can be, as the temporary folder may be gone."""
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("printed", os.MFD_CLOEXEC), "w+b")
    return tempfile.TemporaryFile()


def _end(
    owner: int, process: subprocess.Popen[bytes], channel: Channel, printed: IO[bytes], mark: str
) -> None:
    # A child by fork has a copy, and the worker is its parent's.
    if os.getpid() == owner:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        # Processes that it left in groups and sessions of their own (Linux) have inherited its
        # environment, as the kernel keeps it. Those of others cannot be read, and some end.
        wanted = f"{MARK}={mark}".encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if wanted in path.read_bytes().split(b"\0"):
                    os.kill(int(path.parent.name), signal.SIGKILL)
    channel.close()
    printed.close()


def _resident_bytes(pid: int) -> int:
    """Memory of a process; 0 where the system does not tell (it is Linux that does)."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


class Options(TypedDict, total=False):
    """Options of a worker.

    Attributes:
        environment: variables to set for the child on top of the inherited ones.
        watched: whether a request fails that changes the child's process
            (`autotune.measuring.child`), which is then replaced.
        replies: the type of what the handler returns; see `autotune.measuring.channel.decode`.
        renewed: whether the child is replaced once it has grown: it keeps nothing from one request
            to the next, but compilers keep of every source.
    """

    environment: Mapping[str, str]
    watched: bool
    replies: Any
    renewed: bool


class WorkerProcess(Asking):
    """One child process that answers requests, started when first needed and again after a loss.

    On Linux the child also dies with the *thread* that started it (the kernel's rule for
    PR_SET_PDEATHSIG), so a worker belongs to one thread; one lost that way is started again.

    Args:
        entry: an importable function, called in the child with `arguments`; it returns the
            handler that is called with each request.
        arguments: picklable.
        options: see `Options`.
    """

    def __init__(
        self, entry: Callable[..., Handler], *arguments: Any, **options: Unpack[Options]
    ) -> None:
        self._start = entry, arguments
        self._environment = options.get("environment", {})
        self._watched = options.get("watched", False)
        self._replies = Failure | options.get("replies", Any)
        self._renewed = options.get("renewed", False)
        self._child: Child | None = None
        self._until = 0.0
        self._timeout_s = 0.0
        self._run = Deadline()

    @property
    def pid(self) -> int | None:
        """The child's process id; None while there is no child."""
        return None if self._child is None else self._child.process.pid

    @property
    def ready(self) -> bool:
        """True if the child has started, as far as is known."""
        return self._child is not None and self._child.ready

    @property
    def answered(self) -> int:
        """Requests that the child has answered; 0 while there is no child."""
        return 0 if self._child is None else self._child.answered

    @property
    def remaining_s(self) -> float:
        """Seconds left for the request submitted last, and of its run; never below zero."""
        return min(max(0.0, self._until - time.monotonic()), self._run.remaining_s)

    def spawn(self) -> None:
        """Start the child unless it runs; does not wait for it to be ready."""
        if self._child is not None and self._child.process.poll() is not None:
            self.close()
        if self._child is None:
            self._child = Child(self._environment, self._watched)
            self._send(self._child, self._start)

    def submit(self, request: Any, timeout_s: float, deadline: Deadline | None = None) -> None:
        """Send a request; its time limit runs from here, not from the start of the process.

        Raises:
            WorkerError: the worker does not start.
            OutOfTimeError: the run was over before it had started; nothing was sent.
        """
        self._run = deadline or Deadline()
        if self._run.over:
            raise OutOfTimeError("the run is over: nothing more is asked of a worker")
        if self._renewed and self._child is not None and self._child.has_grown:
            self.close()
        self.spawn()
        if not self.ready:
            self._await_start()
        self._limit(timeout_s)
        if self._child is not None:
            self._send(self._child, request)

    def collect(self) -> Any:
        """Wait for the reply to the request submitted last.

        Unless the handler raised, the child is gone after a `Failure`, with every process it
        started, and the next request starts another.

        Raises:
            OutOfTimeError: the run was over first; the child is gone, too.
        """
        child = self._child
        if child is None:
            return Failure(FailureKind.DIED, "the worker process was closed")
        reply = self._answer(
            child,
            self._replies if child.ready else Failure | None,
            lambda: child.channel.await_reply(self.remaining_s, self._run, "a worker"),
            f"no result within {self._timeout_s:g} s: killed",
        )
        if self._child is None:
            return reply
        if isinstance(reply, Failure) and reply.kind is FailureKind.CHANGED:
            self.close(grace_s=0)
        elif child.ready:
            child.note_answer()
        return reply

    def call(self, request: Any, timeout_s: float, deadline: Deadline | None = None) -> Any:
        """The reply to a picklable request, or a `Failure`.

        Raises:
            WorkerError: the worker does not start.
            OutOfTimeError: the run that it is made for was over first.
        """
        self.submit(request, timeout_s, deadline)
        return self.collect()

    def insist(self, request: Any, timeout_s: float, deadline: Deadline | None = None) -> Any:
        """As `call`, and once more in a fresh process where a failure says nothing yet.

        For requests to which it makes no difference what was asked before.
        """
        reply = self.call(request, timeout_s, deadline)
        if isinstance(reply, Failure) and reply.innocent:
            reply = self.call(request, timeout_s, deadline)
        return reply

    def close(self, grace_s: float = GRACE_S) -> None:
        """End the child: ask, wait up to `grace_s` seconds, then kill it with its group."""
        child, self._child = self._child, None
        if child is not None:
            child.end(grace_s)

    def _await_start(self) -> None:
        reasons: list[str] = []
        while len(reasons) < STARTS:
            self.spawn()
            self._limit(PREPARE_TIMEOUT_S)
            started = self.collect()
            if self._child is not None and not isinstance(started, Failure):
                self._child.ready = True
                return
            self.close()
            reasons.append(started.reason)
            if started.kind is not FailureKind.DIED:
                break  # it would do so again
        told = ", then ".join(dict.fromkeys(reasons))
        raise started.error(f"a worker process did not start: {told}")

    def _limit(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._until = time.monotonic() + timeout_s

    @staticmethod
    def _send(child: Child, message: Any) -> None:
        # A child that is gone already shows in `collect`, which knows how it ended.
        with contextlib.suppress(OSError):
            child.channel.ask(message)
