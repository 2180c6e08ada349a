"""Workers for requests of several problems, and pools of them for requests that stand alone.

Operands, and references computed from them, take longer to make than most kernels take to time. A
run over many problems makes them once for each, and starts the process that measures once.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

from autotune.core.deadline import Deadline
from autotune.core.errors import OutOfTimeError, WorkerError
from autotune.measuring.channel import LOOK_S
from autotune.measuring.failure import Failure
from autotune.measuring.processes import (
    GRACE_S,
    PREPARE_TIMEOUT_S,
    Closing,
    Handler,
    Options,
    WorkerProcess,
)


class WorkerPool(Closing):
    """Worker processes with one entry, each waited for by a thread of its own.

    Args:
        entry: makes a worker's handler; see `WorkerProcess`.
        arguments: picklable.
        count: how many workers at most; those are started that are needed.
        options: of every worker.
    """

    def __init__(
        self,
        entry: Callable[..., Handler],
        *arguments: Any,
        count: int,
        **options: Unpack[Options],
    ) -> None:
        self._make = partial(WorkerProcess, entry, *arguments, **options)
        self._workers: list[WorkerProcess] = []
        # The one that was used last is asked first: it runs.
        self._idle: list[WorkerProcess] = []
        self._open = Deadline()
        # As many threads as processes, and all of them live until `close`: a process dies with
        # the thread that started it.
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="pool")

    def submit(
        self, request: Any, timeout_s: float, deadline: Deadline | None = None
    ) -> Future[Any]:
        """Answer a request when a worker is free; returns at once.

        Returns:
            The future reply, or `Failure`. It raises WorkerError when a worker does not start,
            OutOfTimeError when the run is over or the pool closed before that.

        Raises:
            WorkerError: there is no thread to be had.
        """
        try:
            return self._threads.submit(
                self._answer, request, timeout_s, _Either(deadline, self._open)
            )
        except RuntimeError as error:
            raise WorkerError(
                f"no thread can be started to wait for a worker ({error}): see the limit of "
                "processes (ulimit -u)"
            ) from error

    def run(
        self,
        requests: Sequence[Any],
        timeout_s: float,
        deadline: Deadline | None = None,
        told: Callable[[int], None] = lambda answered: None,
    ) -> list[Any]:
        """Answer all requests.

        Args:
            requests: picklable.
            timeout_s: limit for each request.
            deadline: of the run that they are made for.
            told: callback before the first reply and after each, with how many came.

        Returns:
            A reply or a `Failure` for each request, in their order; None for those that the end of
            the run came before.

        Raises:
            WorkerError: a worker does not start.
        """
        run = deadline or Deadline()
        replies: list[Any] = [None] * len(requests)
        positions = {
            self.submit(request, timeout_s, run): position
            for position, request in enumerate(requests)
        }
        try:
            if requests:
                told(0)
            while positions and not run.over:
                for future in wait(positions, LOOK_S, FIRST_COMPLETED).done:
                    if run.over:
                        break
                    replies[positions.pop(future)] = future.result()
                    told(len(requests) - len(positions))
        except OutOfTimeError:
            pass  # so it was while a worker was waited for
        except BaseException:
            self.close(grace_s=0)  # replies to requests that nobody waits for any more
            raise
        for future in positions:
            future.cancel()
        return replies

    def close(self, grace_s: float = GRACE_S) -> None:
        """End all workers, as `WorkerProcess.close` does; what is not answered will not be."""
        self._open.hasten(0.0, grace_s=0.0)
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.close(grace_s)

    def _answer(self, request: Any, timeout_s: float, deadline: Deadline) -> Any:
        try:
            worker = self._idle.pop()
        except IndexError:  # as many are busy as threads beside this one, fewer than there may be
            worker = self._make()
            self._workers.append(worker)
        try:
            return worker.insist(request, timeout_s, deadline)
        finally:
            self._idle.append(worker)


class _Either(Deadline):
    """Over when a run is, or the pool closed."""

    def __init__(self, run: Deadline | None, pool: Deadline) -> None:
        super().__init__()
        self._both = (run or Deadline(), pool)

    @property
    def remaining_s(self) -> float:
        return min(deadline.remaining_s for deadline in self._both)


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
        first: a subject to begin with; None where it is not known yet.
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
        if first is not None:
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
        options: of the process.
    """

    def __init__(
        self, entry: Callable[..., Subjects], *arguments: Any, **options: Unpack[Options]
    ) -> None:
        self._entry = entry
        self._arguments = arguments
        self._options = options
        self._options["replies"] = _Unprepared | None | options.get("replies", Any)
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

    def begin(self, subject: Any, deadline: Deadline | None = None) -> WorkerProcess:
        """The process, which makes what a subject needs; does not wait for it.

        Args:
            subject: picklable and hashable; None has the process start alone.
            deadline: of the run.
        """
        process = self._process
        if process is None or process.pid is None:
            self._coming, self._made = None, {None, subject}  # there is nothing to make for None
            process = WorkerProcess(self._entry, *self._arguments, subject, **self._options)
            self._process = process
            process.spawn()
        elif process.ready and self._coming is None and subject not in self._made:
            process.submit(_Prepare(subject), PREPARE_TIMEOUT_S, deadline)
            self._coming = subject
            self._made.add(subject)
        return process

    def call(
        self, subject: Any, request: Any, timeout_s: float, deadline: Deadline | None = None
    ) -> Any:
        """The reply to a request about a subject, or a `Failure`; see `WorkerProcess.call`.

        Raises:
            WorkerError: the worker does not start, or cannot make what the subject needs.
            OutOfTimeError: the run was over first.
        """
        process = self._arrive(subject, deadline)
        reply = process.call(_About(subject, request), timeout_s, deadline)
        if isinstance(reply, _Unprepared):
            self._made.discard(subject)
            process = self._arrive(subject, deadline)
            reply = process.call(_About(subject, request), timeout_s, deadline)
        return reply

    def close(self, grace_s: float = GRACE_S) -> None:
        """End the child, as `WorkerProcess.close` does."""
        self._coming = None
        if self._process is not None:
            self._process.close(grace_s)

    def _arrive(self, subject: Any, deadline: Deadline | None) -> WorkerProcess:
        """The process once it has what `begin` asks for; one that others used may die of them."""
        process = self.begin(subject, deadline)
        coming, self._coming = self._coming, None
        if coming is not None and isinstance(reply := process.collect(), Failure):
            process.close(grace_s=0)
            if not reply.innocent:
                raise reply.error(f"operands cannot be made: {reply.reason}")
            process = self.begin(subject, deadline)
        return process
