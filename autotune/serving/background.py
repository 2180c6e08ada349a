"""Compiling in the background: one thread has worker processes do job after job.

Compilers run in processes of their own, so that neither Python's lock nor a fork meets them, and
the thread ends with the program. A child by fork begins a thread of its own when it needs it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from autotune.core import session
from autotune.core.arguments import is_on
from autotune.core.errors import AutotuneError, CompileError
from autotune.measuring.failure import Failure
from autotune.measuring.processes import WorkerProcess

VARIABLE = "AUTOTUNE_BACKGROUND"
"""0 has everything compiled in the call that needs it."""

IDLE_S = 10.0
"""Seconds after its last job for which the thread, and its workers, stay for a next one."""

COMPILE_TIMEOUT_S = 300.0
"""Seconds that a compiler may take."""

_log = logging.getLogger(__name__)


def is_wanted(asked: bool | None) -> bool:
    """True if the caller, or `VARIABLE` where `asked` is None, wants the background.

    Raises:
        InputError: the variable is neither 0 nor 1.
    """
    return is_on(VARIABLE) if asked is None else asked


class Workers:
    """Worker processes, one for each kind of compiler; they belong to one thread."""

    def __init__(self) -> None:
        self._workers: dict[Hashable, WorkerProcess] = {}

    def ask(self, kind: Hashable, make: Callable[[], WorkerProcess], request: Any) -> Any:
        """A worker's reply to a picklable request; the first of a kind makes the worker.

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
    """Something to compile; jobs with equal keys are one, and `name` is for people.

    `compile` compiles and loads it, or raises AutotuneError.
    """

    key: Hashable
    name: str
    compile: Callable[[Workers], None]


Callback = Callable[[str], None]
"""Called at a job's end with why it failed, or an empty text."""


class Background:
    """The jobs of this process. A job that has failed is not tried again."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[Job] = deque()
        self._waiting: dict[Hashable, list[Callback]] = {}
        self._failures: dict[Hashable, str] = {}
        self._thread: threading.Thread | None = None
        self._working = False
        self._alone = False

    @property
    def busy(self) -> bool:
        """True while a job is under way, or waits."""
        with self._changed:
            return self._working or bool(self._queue)

    def has(self, key: Hashable) -> bool:
        """True if a job is under way, waits, or has failed."""
        with self._changed:
            return key in self._waiting or key in self._failures

    def submit(self, job: Job, callback: Callback) -> bool:
        """Have a job done, unless that is under way or has failed; returns at once.

        Args:
            job: the compilation.
            callback: called once, in the thread that does it; at once if it has failed.

        Returns:
            False where no thread is to be had, since the limit of processes is reached or the
            program ends; nothing is kept of the job then.
        """
        with self._changed:
            failed = self._failures.get(job.key)
            if failed is None:
                if self._thread is None and not self._start():
                    return False
                waiting = self._waiting.setdefault(job.key, [])
                waiting.append(callback)
                if len(waiting) == 1:
                    self._queue.append(job)
                self._changed.notify()
        if failed is not None:
            callback(failed)
        return True

    def _start(self) -> bool:
        """Start the thread, which waits for the lock that the caller holds; True if it runs."""
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
                failure = _compile(job, workers)
                with self._changed:
                    if failure:
                        self._failures[job.key] = failure
                    waiting = self._waiting.pop(job.key)
                for callback in waiting:
                    try:
                        callback(failure)
                    except Exception:  # others wait for the thread
                        _log.exception("what was compiled cannot be used")
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
    """An error's message, with its kind where it is none of ours."""
    return str(error) if isinstance(error, AutotuneError) else f"{type(error).__name__}: {error}"


def _compile(job: Job, workers: Workers) -> str:
    """Do a job; gives why it failed, empty where it did not."""
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
