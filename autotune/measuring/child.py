"""The child's side of a worker process: it answers requests, and compares what they leave behind.

Emitted code computes and returns; code of others' families may do anything. A process that it has
changed measures and judges whatever comes next differently, so that it must be replaced.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import resource
import signal
import stat
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from autotune.core.errors import InputError
from autotune.core.processors import status_of
from autotune.measuring.channel import Channel, encode
from autotune.measuring.failure import Failure, FailureKind
from autotune.measuring.processes import Handler

SETTLE_S = 1.0
"""Seconds that new threads may go on computing: those of a library spin before they sleep."""

_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""Variables that let an OpenMP library bind the calling thread when it starts its own."""

_SPINNING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Variables that let threads of an OpenMP library wait for work without ever sleeping."""

_NOTES = (b"__", b"KMP_")
"""First letters of variables that OpenMP libraries, and those who load them, set."""

_ACTION_WORDS = 32
"""More than a `struct sigaction` takes anywhere. The handler is its first word."""

_SET_PARENT_DEATH_SIGNAL = 1
_SET_CHILD_SUBREAPER = 36

_LIBRARY = ctypes.CDLL(None)
_TASKS = Path("/proc/self/task")


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
            if watch is not None and (changed := watch.end()):
                reply = encode(Failure(FailureKind.CHANGED, changed))
            channel.answer(reply)


def _raised(error: Exception) -> Failure:
    message = " ".join(str(error).split())[:300]
    trace = "".join(traceback.format_exception(error))
    if isinstance(error, InputError):
        return Failure(FailureKind.REFUSED, message, trace)
    name = type(error).__name__
    return Failure(FailureKind.RAISED, f"{name}: {message}" if message else name, trace)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, even while it hangs."""
    if sys.platform == "linux":
        _LIBRARY.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before that
        os._exit(1)


ProcessState: TypeAlias = Mapping[str, Any]
"""State that must not change while a request is handled, by the words a change is reported in."""


def read_state() -> ProcessState:
    """The state of this process as it is now."""
    return {name: read() for name, read in _STATE.items()}


def changes(before: ProcessState, after: ProcessState) -> list[str]:
    """Differences of two states, in words."""
    return [
        _describe(name, before[name], after[name]) for name in after if after[name] != before[name]
    ]


def _describe(name: str, before: Any, after: Any) -> str:
    if name == "arithmetic":
        return ", ".join(part for part in after if part)
    if name == "environment":
        entries = {entry.partition(b"=")[0].decode(errors="replace") for entry in before ^ after}
        return f"environment ({', '.join(sorted(entries))})"
    return name


def undo_outside(before: ProcessState, after: ProcessState) -> None:
    """Undo what would outlive the process: end its children, make the temporary folder."""
    for child in after[_CHILDREN] - before[_CHILDREN]:
        with contextlib.suppress(OSError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)  # so that no zombie stays
    folder, mode = before["temporary folder"]
    if mode is not None and after["temporary folder"][1] is None:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(mode)


class ProcessWatch:
    """Compares the state of this process before and after a request.

    Makes this process the one that orphans of its descendants become children of (Linux), so that
    those which hide behind a second fork are seen as well.
    """

    def __init__(self) -> None:
        if sys.platform == "linux":
            _LIBRARY.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.begin()

    def begin(self) -> None:
        """Take the state before a request."""
        self._before = read_state()
        self._threads = _threads()

    def end(self) -> str:
        """Changes by a request, in one line; empty when there are none.

        After a change this process must not go on. What would outlive it is undone.
        """
        after = read_state()
        found = changes(self._before, after)
        if found:
            undo_outside(self._before, after)
        if _still_computing(self._threads):
            found.append("threads left computing")
        return f"changed the process: {', '.join(found)}" if found else ""


def _arithmetic() -> tuple[str, str]:
    """Subnormal numbers and rounding, computed with values that no compiler sees."""
    smallest = float.fromhex(f"0x1p{sys.float_info.min_exp - 1}")
    subnormal = math.ldexp(1.0, -1074)  # made of bits, not by arithmetic
    kept = smallest * 0.5 != 0 and subnormal * 2.0**60 != 0
    eps = sys.float_info.epsilon
    # Up, down and towards zero differ from each other and from the nearest in one of these.
    nearest = (1 + 0.25 * eps == 1, -1 - 0.25 * eps == -1, 1 - 0.125 * eps == 1)
    return (
        "" if kept else "flush-to-zero switched on",
        "" if all(nearest) else "rounding mode changed",
    )


def _handlers() -> list[int]:
    """Addresses of all signals' handlers, whoever set them: Python knows only of its own."""
    found = []
    for number in sorted(signal.valid_signals()):
        action = (ctypes.c_size_t * _ACTION_WORDS)()
        _LIBRARY.sigaction(number, None, action)
        found.append(action[0])
    return found


def _affinity() -> set[int]:
    if sys.platform != "linux" or any(name in os.environ for name in _BINDING):
        return set()
    return os.sched_getaffinity(0)


def _working_folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return "removed"


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _environment() -> frozenset[bytes]:
    """Variables of the C library: Python's are a copy, made at its start."""
    entries: Any = ctypes.POINTER(ctypes.c_char_p).in_dll(_LIBRARY, "environ")
    found: list[bytes] = []
    while entries and entries[len(found)] is not None:
        found.append(entries[len(found)])
    return frozenset(entry for entry in found if not entry.startswith(_NOTES))


def _temporary_folder() -> tuple[Path, int | None]:
    folder = Path(tempfile.gettempdir())
    try:
        return folder, stat.S_IMODE(folder.stat().st_mode)
    except OSError:
        return folder, None


def _children() -> set[int]:
    found: set[int] = set()
    for task in _threads():
        # A thread may have ended, and some systems do not tell.
        with contextlib.suppress(OSError):
            found.update(map(int, (_TASKS / str(task) / "children").read_text().split()))
    return found


_CHILDREN = "child processes left behind"

_STATE: dict[str, Callable[[], Any]] = {
    "arithmetic": _arithmetic,
    "signal handling": _handlers,
    "blocked signals": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()),
    "processor affinity": _affinity,
    "niceness": lambda: os.getpriority(os.PRIO_PROCESS, 0),
    "scheduling policy": lambda: (
        os.sched_getscheduler(0) if hasattr(os, "sched_getscheduler") else 0
    ),
    "resource limits": lambda: {
        name: resource.getrlimit(getattr(resource, name))
        for name in dir(resource)
        if name.startswith("RLIMIT_")
    },
    "working folder": _working_folder,
    "file mode mask": _umask,
    "environment": _environment,
    "temporary folder": _temporary_folder,
    _CHILDREN: _children,
}


def _threads() -> set[int]:
    try:
        return {int(task.name) for task in _TASKS.iterdir()}
    except OSError:
        return set()


def _still_computing(before: set[int]) -> bool:
    """True if threads that were not there before go on computing."""
    if any(name in os.environ for name in _SPINNING):
        return False
    deadline = time.monotonic() + SETTLE_S
    while any(map(_is_runnable, _threads() - before)):
        if time.monotonic() > deadline:
            return True
        time.sleep(2e-3)
    return False


def _is_runnable(thread: int) -> bool:
    """True if a thread runs, or would if the machine were not busy."""
    return status_of(_TASKS / str(thread))[:1] == ["R"]
