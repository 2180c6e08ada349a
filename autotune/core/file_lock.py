"""Locks between processes, by files that are there anyway."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from autotune.core import session


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Keep other processes from doing the same at the same time, where files can be locked.

    The lock ends with the process that has it. A child by fork would share it, and keep it for as
    long as it lives: it gives its part back at once.

    Args:
        path: a file that stands for what is done.
    """
    handle = None
    try:
        if sys.platform != "win32":
            import fcntl

            with contextlib.suppress(OSError):
                handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                _HELD.add(handle)
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        if handle in _HELD:
            _HELD.remove(handle)
            os.close(handle)


_HELD: set[int] = set()
"""Descriptors of the locks that this process has or waits for."""


def _after_fork_in_child() -> None:
    for handle in _HELD:
        os.close(handle)
    _HELD.clear()


session.at_fork(child=_after_fork_in_child)
