"""Compiling while a program goes on: one thread has worker processes do it, job after job.

Nothing of it is in the program's way: compilers run in processes of their own, so that neither
Python's lock nor a fork meets them, and the thread ends with the program. A child by fork, which
has no such thread, begins one of its own when it needs it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from autotune.core import session
from autotune.core.errors import AutotuneError, CompileError
from autotune.core.switches import is_on
from autotune.measuring.processes import Failure, WorkerProcess

VARIABLE = "AUTOTUNE_BACKGROUND"
"""0 has everything compiled in the call that needs it."""

IDLE_S = 10.0
"""Seconds after its last job for which the thread, and its workers, stay for a next one."""

COMPILE_TIMEOUT_S = 300.0
"""Seconds that a compiler may take."""

_log = logging.getLogger(__name__)


def is_wanted(asked: bool | None) -> bool:
    """Whether to compile in the background.

    Args:
        asked: what the caller says; None asks `VARIABLE`.

    Raises:
        InputError: the variable is neither 0 nor 1.
    """
    return is_on(VARIABLE) if asked is None else asked


class Workers:
    """Worker processes, one for each kind of compiler; they belong to one thread."""

    def __init__(self) -> None:
        self._workers: dict[Hashable, WorkerProcess] = {}

    def ask(self, kind: Hashable, make: Callable[[], WorkerProcess], request: Any) -> Any:
        """What a worker replies.

        Args:
            kind: of the worker; the first request of a kind makes it.
            make: makes it.
            request: picklable.

        Raises:
            CompileError: it does not reply in time, dies, or raises.
            AutotuneError: it does not start.
        """
        worker = self._workers.get(kind) or self._workers.setdefault(kind, make())
        reply = worker.insist(request, COMPILE_TIMEOUT_S)
        if isinstance(reply, Failure):
            raise CompileError(f"the compiler {reply.kind}: {reply.reason}")
        return reply

    def close(self) -> None:
        """End them."""
        for worker in self._workers.values():
            worker.close(grace_s=0)
        self._workers.clear()


@dataclass(frozen=True, slots=True)
class Job:
    """Something to compile.

    Attributes:
        key: jobs with equal keys are one.
        name: what is compiled, for people.
        compile: compiles and loads it; raises AutotuneError.
    """

    key: Hashable
    name: str
    compile: Callable[[Workers], None]


Told = Callable[[str], None]
"""Hears of a job's end: why it failed, or an empty text."""


class Background:
    """The jobs of this process. A job that has failed is not tried again."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[Job] = deque()
        self._told: dict[Hashable, list[Told]] = {}
        self._failures: dict[Hashable, str] = {}
        self._thread: threading.Thread | None = None
        self._working = False
        self._alone = False

    @property
    def busy(self) -> bool:
        """Whether a job is under way, or waits."""
        with self._changed:
            return self._working or bool(self._queue)

    def has(self, key: Hashable) -> bool:
        """Whether a job is under way, waits, or has failed: what it makes is not to be had now."""
        with self._changed:
            return key in self._told or key in self._failures

    def submit(self, job: Job, told: Told) -> bool:
        """Have a job done, unless that is under way or has failed; returns at once.

        Args:
            job: what to do.
            told: hears of its end, once, in the thread that does it; at once if it has failed.

        Returns:
            Whether `told` hears of it. No thread may be to be had: the limit of processes is
            reached, or the program ends. Nothing is kept of the job then.
        """
        with self._changed:
            failed = self._failures.get(job.key)
            if failed is None:
                if self._thread is None and not self._start():
                    return False
                waiting = self._told.setdefault(job.key, [])
                waiting.append(told)
                if len(waiting) == 1:
                    self._queue.append(job)
                self._changed.notify()
        if failed is not None:
            told(failed)
        return True

    def _start(self) -> bool:
        """Start the thread, which waits for the lock that the caller holds; whether it runs."""
        thread = threading.Thread(target=self._work, name="autotune-background", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            if not self._alone and threading.main_thread().is_alive():
                _log.warning("nothing is compiled in the background for now: %s", error)
            self._alone = True
            return False
        self._thread = thread
        return True

    def forget(self) -> None:
        """Let what has failed be tried again."""
        with self._changed:
            self._failures.clear()

    def _work(self) -> None:
        workers = Workers()
        try:
            while (job := self._next()) is not None:
                failure = _done(job, workers)
                with self._changed:
                    if failure:
                        self._failures[job.key] = failure
                    waiting = self._told.pop(job.key)
                for told in waiting:
                    _tell(told, failure)
        finally:
            workers.close()

    def _next(self) -> Job | None:
        with self._changed:
            self._working = False
            self._changed.wait_for(lambda: self._queue, IDLE_S)
            if self._queue:
                self._working = True
                return self._queue.popleft()
            self._thread = None  # the next job begins another
            return None


def failure_text(error: Exception) -> str:
    """What an error says, and what kind it is where it is none of ours."""
    return str(error) if isinstance(error, AutotuneError) else f"{type(error).__name__}: {error}"


def _tell(told: Told, failure: str) -> None:
    """Have somebody hear of an end; whatever comes of it, others wait for the thread."""
    try:
        told(failure)
    except Exception:
        _log.exception("what was compiled cannot be used")


def _done(job: Job, workers: Workers) -> str:
    """Why a job failed; empty where it did not."""
    try:
        job.compile(workers)
    except Exception as error:  # of compilers and drivers, too: others wait for the thread
        failure = failure_text(error)
    else:
        return ""
    if threading.main_thread().is_alive():  # or the program ends, and its workers with it
        _log.warning("%s was not compiled, and is not tried again: %s", job.name, failure)
    return failure


_background = Background()


def background() -> Background:
    """The jobs of this process; those of its parent, where it is a child by fork, are not."""
    return _background


def _after_fork_in_child() -> None:
    global _background
    _background = Background()


session.at_fork(child=_after_fork_in_child)
session.on_forget(lambda: _background.forget())
