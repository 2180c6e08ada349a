"""Several workers for requests that do not depend on each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, Unpack

from autotune.core.deadline import Deadline
from autotune.core.errors import OutOfTimeError, WorkerError
from autotune.measuring.processes import (
    GRACE_S,
    LOOK_S,
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
