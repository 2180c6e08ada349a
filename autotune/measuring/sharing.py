"""One measurement process for several problems, each of which finds its operands kept there.

What a measurement needs besides a kernel (operands, references computed from them) takes longer to
make than most kernels take to time. A run over many problems makes it once for each, and starts
the process once.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.core.errors import WorkerError
from autotune.measuring.closing import GRACE_S
from autotune.measuring.processes import PREPARE_TIMEOUT_S, Failure, Handler, WorkerProcess

if TYPE_CHECKING:
    from autotune.core.deadline import Deadline


@dataclass(frozen=True, slots=True)
class _Prepare:
    """Make what measuring a subject needs."""

    subject: Any


@dataclass(frozen=True, slots=True)
class _About:
    """A request about a subject."""

    subject: Any
    request: Any


@dataclass(frozen=True, slots=True)
class _Unprepared:
    """The process has nothing for that subject, or no more."""


class Subjects:
    """The child's side: a handler that keeps what was made for the latest subjects.

    Args:
        make: makes what answers the requests about a subject.
        first: a subject to begin with.
        weigh: about how many bytes of memory a subject takes.
        limit: bytes to keep at most; the latest subject stays whatever it takes.
    """

    def __init__(
        self,
        make: Callable[[Any], Handler],
        first: Any,
        *,
        weigh: Callable[[Any], int],
        limit: int,
    ) -> None:
        self._make = make
        self._weigh = weigh
        self._limit = limit
        self._kept: dict[Any, Handler] = {}
        self._prepare(first)

    def __call__(self, message: _Prepare | _About) -> Any:
        """Answer a message of `SharedWorker`."""
        if isinstance(message, _Prepare):
            return self._prepare(message.subject)
        handler = self._kept.pop(message.subject, None)
        if handler is None:
            return _Unprepared()
        self._kept[message.subject] = handler  # the latest of all now
        return handler(message.request)

    def _prepare(self, subject: Any) -> None:
        if subject in self._kept:
            return
        room = self._limit - self._weigh(subject)
        while self._kept and sum(map(self._weigh, self._kept)) > room:
            del self._kept[next(iter(self._kept))]
        gc.collect()  # what goes may hold a device's memory, which the next one needs
        self._kept[subject] = self._make(subject)


class SharedWorker:
    """The parent's side: a process that is asked about one subject or another.

    Args:
        entry: an importable function, called in the child with `arguments` and a subject; returns
            `Subjects`.
        arguments: picklable.
        environment: variables to set for the child on top of the inherited ones.
        watched: whether a request that leaves the child changed counts as failed; see
            `WorkerProcess`.
        replies: the type of what subjects are answered with; see `WorkerProcess`.
    """

    def __init__(
        self,
        entry: Callable[..., Subjects],
        *arguments: Any,
        environment: Mapping[str, str] | None = None,
        watched: bool = False,
        replies: Any = Any,
    ) -> None:
        self._entry = entry
        self._arguments = arguments
        self._environment = environment
        self._watched = watched
        self._replies = replies
        self._process: WorkerProcess | None = None
        self._coming: Any = None
        self._made: set[Any] = set()

    @property
    def pid(self) -> int | None:
        """The child's process id; None while there is no child."""
        return None if self._process is None else self._process.pid

    @property
    def answered(self) -> int:
        """Requests that the child has answered; 0 while there is no child."""
        return 0 if self._process is None else self._process.answered

    def begin(self, subject: Any, deadline: Deadline | None = None) -> None:
        """Have what a subject needs made; does not wait for it.

        Args:
            subject: picklable and hashable.
            deadline: of the run.
        """
        if self._process is None or self._process.pid is None:
            self._coming, self._made = None, {subject}
            self._process = WorkerProcess(
                self._entry,
                *self._arguments,
                subject,
                environment=self._environment,
                watched=self._watched,
                replies=_Unprepared | None | self._replies,
            )
            self._process.spawn()
        elif self._process.ready and self._coming is None and subject not in self._made:
            self._process.submit(_Prepare(subject), PREPARE_TIMEOUT_S, deadline)
            self._coming = subject
            self._made.add(subject)

    def call(
        self, subject: Any, request: Any, timeout_s: float, deadline: Deadline | None = None
    ) -> Any:
        """The reply to a request about a subject, or a `Failure`; see `WorkerProcess.call`.

        Raises:
            WorkerError: the worker does not start, or cannot make what the subject needs.
            OutOfTimeError: the run was over first.
        """
        self.begin(subject, deadline)
        self._arrive(subject, deadline)
        reply = self._worker.call(_About(subject, request), timeout_s, deadline)
        if isinstance(reply, _Unprepared):
            self._made.discard(subject)
            self.begin(subject, deadline)
            self._arrive(subject, deadline)
            reply = self._worker.call(_About(subject, request), timeout_s, deadline)
        return reply

    def close(self, grace_s: float = GRACE_S) -> None:
        """End the child, as `WorkerProcess.close` does."""
        self._coming = None
        if self._process is not None:
            self._process.close(grace_s)

    @property
    def _worker(self) -> WorkerProcess:
        assert self._process is not None
        return self._process

    def _arrive(self, subject: Any, deadline: Deadline | None) -> None:
        """Wait for what `begin` has asked for; a process that others have used may die of them."""
        coming, self._coming = self._coming, None
        if coming is not None and isinstance(reply := self._worker.collect(), Failure):
            self._worker.close(grace_s=0)
            if reply.innocent:
                self.begin(subject, deadline)
            else:
                raise WorkerError(f"operands of {coming} cannot be made: {reply.reason}")
