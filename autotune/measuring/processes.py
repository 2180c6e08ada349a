"""Worker processes that may hang, crash or be killed without taking the parent along.

A worker is a fresh interpreter, neither forked nor `multiprocessing`'s: nothing is inherited but
the environment, `sys.path` and one socket, and the parent's ``__main__`` is never run again, so
that scripts without a guard, notebooks and ``python -`` work alike.

Requests are pickled: they travel from a parent to its own child. Replies are data of a declared
form (`autotune.measuring.replies`), since what a kernel does to its process must not reach the
parent: nothing that comes back is run or believed without its type.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from autotune.core.deadline import Deadline
from autotune.core.errors import OutOfTimeError, WorkerError
from autotune.core.measurement import Measurement, Outcome
from autotune.measuring.channel import Channel
from autotune.measuring.child import Child
from autotune.measuring.closing import GRACE_S, Closing
from autotune.measuring.process_state import ProcessWatch
from autotune.measuring.replies import ReplyError, decode, encode

START_TIMEOUT_S = 120.0
"""Seconds a set of ranks has to start; an mpiexec may hang."""

PREPARE_TIMEOUT_S = 600.0
"""Seconds a worker has to start, or to draw operands: imports, references of large problems, on a
machine that others keep busy. All of it is code of ours, which ends."""

STARTS = 2
"""How often a worker is started that dies, or is killed, before it is ready."""

LOOK_S = 0.1
"""Seconds after which whoever waits looks whether the run is to end sooner than it was."""

Handler = Callable[[Any], Any]
"""What a worker's entry returns: called with each request, returns the reply."""


class FailureKind(StrEnum):
    """How a request failed."""

    TIMED_OUT = "timed out"
    DIED = "died"
    RAISED = "raised"
    CHANGED = "changed its process"


@dataclass(frozen=True, slots=True)
class Failure:
    """A reply that did not come.

    Attributes:
        kind: how it failed.
        reason: one line: the time limit, the signal or exit code, or the exception.
        trace: the worker's traceback, where it raised.
        innocent: whether it may be the doing of somebody else: of requests that the process had
            answered before, or of whoever killed it. A fresh process tells.
    """

    kind: FailureKind
    reason: str
    trace: str = ""
    innocent: bool = False

    def judge(self, otherwise: Outcome = Outcome.LAUNCH_FAILED, who: str = "") -> Measurement:
        """The measurement of the candidate that the request was about.

        Args:
            otherwise: its outcome, unless the time was up.
            who: did not reply, where it was no kernel.
        """
        outcome = Outcome.TIMEOUT if self.kind is FailureKind.TIMED_OUT else otherwise
        return Measurement(outcome, reason=f"{who}: {self.reason}" if who else self.reason)


class WorkerProcess(Closing):
    """One child process that answers requests, started when first needed and again after a loss.

    On Linux the child also dies with the *thread* that started it (the kernel's rule for
    PR_SET_PDEATHSIG), so a worker belongs to one thread; one lost that way is started again.

    Args:
        entry: an importable function, called in the child with `arguments`; it returns the
            handler that is called with each request.
        arguments: picklable.
        environment: variables to set for the child on top of the inherited ones.
        watched: whether a request fails that changes the child's process
            (`autotune.measuring.process_state`), which is then replaced.
        replies: the type of what the handler returns; see `autotune.measuring.replies.decode`.
        renewed: whether the child is replaced once it has grown (`autotune.measuring.child`):
            it keeps nothing from one request to the next, but compilers keep of every source.
    """

    def __init__(
        self,
        entry: Callable[..., Handler],
        *arguments: Any,
        environment: Mapping[str, str] | None = None,
        watched: bool = False,
        replies: Any = Any,
        renewed: bool = False,
    ) -> None:
        self._entry = entry
        self._arguments = arguments
        self._environment = dict(environment or {})
        self._watched = watched
        self._replies = Failure | replies
        self._renewed = renewed
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
        """Whether the child has started, as far as is known."""
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
            self._child = Child(self._environment, self._watched, PREPARE_TIMEOUT_S)
            self._send((self._entry, self._arguments))

    def submit(self, request: Any, timeout_s: float, deadline: Deadline | None = None) -> None:
        """Send a request; its time limit runs from here, not from the start of the process.

        Args:
            request: picklable.
            timeout_s: its time limit.
            deadline: of the run that it is made for.

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
        if self._child is not None and not self._child.ready:
            self._await_start()
        self._limit(timeout_s)
        self._send(request)

    def collect(self) -> Any:
        """Wait for the reply to the request submitted last.

        Returns:
            The reply, or a `Failure`. Unless the handler raised, the child is gone after a
            failure, with every process it started, and the next request starts another.

        Raises:
            OutOfTimeError: the run was over first; the child is gone, too.
        """
        child = self._child
        if child is None:
            return Failure(FailureKind.DIED, "the worker process was closed")
        try:
            while (content := child.channel.replied(min(LOOK_S, self.remaining_s))) is None:
                if self._run.over:
                    raise OutOfTimeError("the run was over before a worker had answered")
                if self.remaining_s == 0:
                    self.close(grace_s=0)
                    limit = f"no result within {self._timeout_s:g} s: killed"
                    return Failure(FailureKind.TIMED_OUT, limit)
            reply = decode(content, self._replies if child.ready else Failure | None)
            if isinstance(reply, Failure) and reply.kind is FailureKind.CHANGED:
                self.close(grace_s=0)
            elif child.ready:
                child.note_answer()
            return reply
        except OutOfTimeError:
            self.close(grace_s=0)
            raise
        except ReplyError as error:
            # A kernel has written to the socket, or over the memory of its process.
            self.close(grace_s=0)
            reason = f"sent what is no reply ({error}): killed"
            return Failure(FailureKind.DIED, reason, innocent=child.answered > 0)
        except Exception:  # usually EOFError: a process boundary
            reason = child.epitaph()
            innocent = child.innocent
            self.close(grace_s=0)
            return Failure(FailureKind.DIED, reason, innocent=innocent)
        except BaseException:
            # The reply is still to come and would answer the next request.
            self.close(grace_s=0)
            raise

    def call(self, request: Any, timeout_s: float, deadline: Deadline | None = None) -> Any:
        """Send a request and wait for its reply.

        Returns:
            The reply, or a `Failure`.

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
        raise WorkerError(f"a worker process did not start: {told}")

    def _limit(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._until = time.monotonic() + timeout_s

    def _send(self, message: Any) -> None:
        if self._child is not None:
            # A child that is gone already shows in `collect`, which knows how it ended.
            with contextlib.suppress(OSError):
                self._child.channel.ask(message)


def serve(descriptor: int, parent: int, watched: int) -> None:
    """Be a worker: build the handler, then answer requests until the parent is gone.

    Args:
        descriptor: of the inherited socket.
        parent: the parent's process id.
        watched: whether requests may not change this process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # crashes are expected here
    _die_with(parent)
    channel = Channel.hidden(descriptor)
    with contextlib.suppress(EOFError, OSError):
        entry, arguments = channel.requested()
        handler: Handler | None = None
        try:
            handler = entry(*arguments)
            reply = encode(None)
        except Exception as error:  # a process boundary: the parent raises it
            reply = encode(_raised(error))
        channel.answer(reply)
        watch = ProcessWatch() if watched else None
        while handler is not None:
            request = channel.requested()
            if watch is not None:
                watch.begin()
            try:
                reply = encode(handler(request))
            except Exception as error:  # a process boundary: the parent decides what it means
                reply = encode(_raised(error))
            if watch is not None and (changes := watch.end()):
                reply = encode(Failure(FailureKind.CHANGED, changes))
            channel.answer(reply)


def _raised(error: Exception) -> Failure:
    message = " ".join(str(error).split())[:300]
    name = type(error).__name__
    return Failure(
        FailureKind.RAISED,
        f"{name}: {message}" if message else name,
        "".join(traceback.format_exception(error)),
    )


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, even while it hangs."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before that
        os._exit(1)
