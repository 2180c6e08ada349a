"""Problems that a program uses: ``AUTOTUNE_RECORD=FILE`` has them written to a list of shapes.

Every problem has a count of the calls of its kernels; one that was looked up and never called
counts as one. What was counted since the last time is appended whenever the count has doubled,
and when the process ends: a process that is killed loses less than half of it. Lines are written
in one piece under a lock of the file's, so that processes may share one; whoever reads it adds the
lines up (`autotune.runtime.shape_list`).
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.core import session
from autotune.core.errors import InputError
from autotune.core.paths import expanded
from autotune.runtime.shape_list import UsedShape, append

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.operations.problem import Problem
    from autotune.serving.kernel import Kernel

VARIABLE = "AUTOTUNE_RECORD"
"""The environment variable that names the file."""

_log = logging.getLogger(__name__)


def counted(kernel: Kernel) -> Kernel:
    """Count the calls of a kernel that was looked up, where the environment asks for that."""
    count = _count(kernel.problem, kernel.target)
    if count is not None:
        count.look_up()
        kernel.hear(count.add)
    return kernel


def counter(problem: Problem, target: str) -> Callable[[], None] | None:
    """Counts a use of a problem that a library may compute; None where nobody asks for it."""
    count = _count(problem, target)
    return None if count is None else count.add


def _count(problem: Problem, target: str) -> Count | None:
    given = os.environ.get(VARIABLE)
    if not given or (path := _path(given)) is None:
        return None
    return _recorder(path.absolute()).count(problem, target)


@session.cached()
def _path(given: str) -> Path | None:
    try:
        return expanded(given)
    except InputError as error:  # a program must not end for its list of shapes
        _log.warning("%s: %s: shapes are not recorded", VARIABLE, error)
        return None


class Count:
    """Uses of one problem on one target.

    A use takes the next of some numbers, which the interpreter does for one thread at a time;
    whoever looks how far they have come takes one as well.

    Args:
        used: the problem, where, and any weight.
        write: writes what is to be added to a list of shapes.
    """

    __slots__ = ("_ahead", "_due", "_lock", "_looks", "_ticks", "_used", "_write", "_written")

    def __init__(self, used: UsedShape, write: Callable[[list[UsedShape]], None]) -> None:
        self._used = used
        self._write = write
        self.begin_again()

    def begin_again(self) -> None:
        """Count from nothing, as in a child by fork: what was counted is its parent's."""
        self._lock = threading.Lock()  # of the parent's another thread may hold the old one
        self._ahead: list[None] | None = None
        self._looks = self._written = 0
        self._due = 1
        self._ticks = itertools.count(1)

    def look_up(self) -> None:
        """Count the first look-up as the call that is to come; any thread may."""
        with self._lock:
            if self._ahead is not None:
                return
            self._ahead = []
        self.add()
        self._ahead.append(None)

    def add(self) -> None:
        """Count a use, unless its look-up was counted for it; any thread may."""
        if self._ahead:
            with suppress(IndexError):  # another thread was first
                self._ahead.pop()
                return
        if next(self._ticks) >= self._due:
            self._write(self.take())

    def take(self) -> list[UsedShape]:
        """Uses to be written, which count as written then; none where all are."""
        with self._lock:
            number = next(self._ticks)
            counted = number - 1 - self._looks
            self._looks += 1
            self._due = number + max(counted, 1)
            added = counted - self._written
            self._written = counted
        return [replace(self._used, weight=added)] if added else []


class Recorder:
    """The counts of one list of shapes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._counts: dict[tuple[Problem, str], Count] = {}
        self._fails = False
        from multiprocessing import util  # late: few programs record

        util.register_after_fork(self, Recorder._write_at_end)
        self._write_at_end()
        session.at_fork(child=self._begin_again)

    def count(self, problem: Problem, target: str) -> Count:
        """The count of a problem on a target."""
        used = UsedShape(problem, target, 1)
        return self._counts.setdefault((problem, target), Count(used, self._append))

    def write(self) -> None:
        """Write what was counted since the last time."""
        self._append([used for count in [*self._counts.values()] for used in count.take()])

    def _append(self, used: list[UsedShape]) -> None:
        if not used or self._fails:
            return
        try:
            append(self._path, used)
        except OSError as error:  # a program must not end for its list of shapes
            self._fails = True
            _log.warning(
                "%s=%s cannot be written (%s): shapes are not recorded",
                VARIABLE,
                self._path,
                error.strerror or error,
            )

    def _begin_again(self) -> None:
        for count in [*self._counts.values()]:
            count.begin_again()
        self._write_at_end()

    def _write_at_end(self) -> None:
        """Write what is left when this process ends, be it a child of multiprocessing's.

        Those end without `atexit`, but run what `multiprocessing` keeps for them: a child by fork
        forgets what its parent had there, and calls what was registered for after the fork.
        """
        from multiprocessing import util

        util.Finalize(self, self.write, exitpriority=0)


@session.cached()
def _recorder(path: Path) -> Recorder:
    return Recorder(path)
