"""Threads and forks: locks that a fork finds free, and threads that it loses."""

from __future__ import annotations

import logging
import sys
import threading
from typing import Any

from autotune.core import session

LOADING = threading.RLock()
"""Held while a kernel is looked up, rendered, compiled or loaded: threads that want one wait for
the first. Whatever else is locked meanwhile (modules that are imported, properties that are
computed once, LLVM) a fork then finds free, too.

One lock for all kernels, since Numba compiles one at a time anyway."""

WORKQUEUE = threading.RLock()
"""Held around parallel calls when Numba's threading layer is workqueue, which aborts the process
when two threads enter it at once."""

_log = logging.getLogger(__name__)
_from_main_thread = True
_lost = False


def threads_are_lost() -> bool:
    """Return whether this is a child by fork of a process whose Numba threads do not outlive that.

    Those of GNU OpenMP do not: Numba ends a child at its next parallel call. Those of TBB do if
    the main thread forked, and those of workqueue do.
    """
    return _lost


def _before_fork() -> None:
    # Whatever another thread is doing is finished first: the child would find it half done, and
    # the locks taken for ever. Imported before this is registered, `logging` takes its lock after.
    global _from_main_thread
    LOADING.acquire()
    WORKQUEUE.acquire()
    _from_main_thread = threading.current_thread() is threading.main_thread()


def _release() -> None:
    WORKQUEUE.release()
    LOADING.release()


def _after_fork_in_child() -> None:
    global _lost
    layer = _threading_layer()
    if layer == "omp" or (layer == "tbb" and not _from_main_thread):
        if not _lost:
            _log.info("forked from a process with threads of %s: kernels use one thread", layer)
        _lost = True
    _release()


def _threading_layer() -> str | None:
    """The layer whose threads Numba has started; None before it has."""
    numba: Any = sys.modules.get("numba")
    try:
        return None if numba is None else str(numba.threading_layer())
    except (ValueError, AttributeError):  # not started, or not imported to the end
        return None


session.at_fork(before=_before_fork, parent=_release, child=_after_fork_in_child)
