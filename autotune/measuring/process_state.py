"""What a kernel, or a compiler, must leave of its process as it found it.

Emitted code computes and returns; code of others' families may do anything. A process that it has
changed measures and judges whatever comes next differently, so that it must be replaced.
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import signal
import stat
import sys
import tempfile
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

SETTLE_S = 1.0
"""How long new threads may go on computing: those of a library spin for a while before they
sleep."""

_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""Variables that let an OpenMP library bind the calling thread when it starts its own."""

_SPINNING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Variables that let threads of an OpenMP library wait for work without ever sleeping."""

_ACTION_WORDS = 32
"""More than a `struct sigaction` takes anywhere. The handler is its first word."""

_SET_CHILD_SUBREAPER = 36

_LIBRARY = ctypes.CDLL(None)
_Action = ctypes.c_size_t * _ACTION_WORDS

_NOTES = (b"__", b"KMP_")
"""What the names of variables begin with that OpenMP libraries, and those who load them, set."""

_TASKS = Path("/proc/self/task")


@dataclass(frozen=True, slots=True)
class ProcessState:
    """The state of this process that must not change while a request is handled.

    The names of the attributes, with spaces, are what a change is reported by.

    Attributes:
        arithmetic: what becomes of subnormal numbers, and how sums are rounded, as computed.
        signal_handling: address of every signal's handler; 0 and 1 are defaults and ignoring.
        blocked_signals: of this thread.
        processor_affinity: processors that this thread may use; empty where not known.
        niceness: of this process.
        scheduling_policy: its number; zero where there is none.
        resource_limits: soft and hard, by number.
        working_folder: its path.
        file_mode_mask: the umask.
        environment: as the C library has it, without the notes of libraries to themselves.
        temporary_folder: where temporary files go, and the mode of that folder; None when it is
            gone.
        child_processes: their ids; empty where not known.
    """

    arithmetic: tuple[str, str]
    signal_handling: tuple[int, ...]
    blocked_signals: frozenset[int]
    processor_affinity: frozenset[int]
    niceness: int
    scheduling_policy: int
    resource_limits: tuple[tuple[int, int], ...]
    working_folder: str
    file_mode_mask: int
    environment: frozenset[bytes]
    temporary_folder: tuple[Path, int | None]
    child_processes: frozenset[int]

    @classmethod
    def read(cls) -> Self:
        """As it is now."""
        return cls(
            arithmetic=(_subnormals(), _rounding()),
            signal_handling=tuple(map(_handler, sorted(signal.valid_signals()))),
            blocked_signals=frozenset(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
            processor_affinity=_affinity(),
            niceness=os.getpriority(os.PRIO_PROCESS, 0),
            scheduling_policy=os.sched_getscheduler(0) if sys.platform == "linux" else 0,
            resource_limits=tuple(map(resource.getrlimit, _LIMITS)),
            working_folder=_working_folder(),
            file_mode_mask=_umask(),
            environment=_environment(),
            temporary_folder=_temporary_folder(),
            child_processes=_children(),
        )

    def changes_since(self, before: ProcessState) -> list[str]:
        """What differs from an earlier state, in words."""
        return [
            self._told(field.name, before)
            for field in fields(self)
            if getattr(self, field.name) != getattr(before, field.name)
        ]

    def undo_outside(self, before: ProcessState) -> None:
        """Undo what would outlive the process: end its children, make the temporary folder."""
        for child in self.child_processes - before.child_processes:
            _end_child(child)
        folder, mode = before.temporary_folder
        if mode is not None and self.temporary_folder[1] is None:
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(mode)

    def _told(self, name: str, before: ProcessState) -> str:
        if name == "arithmetic":
            return ", ".join(each for each in self.arithmetic if each != "as usual")
        if name == "child_processes":
            return "child processes left behind"
        if name == "environment":
            changed = self.environment ^ before.environment
            names = sorted(
                {entry.partition(b"=")[0].decode(errors="replace") for entry in changed}
            )
            return f"environment ({', '.join(names)})"
        return name.replace("_", " ")


class ProcessWatch:
    """Compares the state of this process before and after a request.

    Makes this process the one that orphans of its descendants become children of (Linux), so that
    those which hide behind a second fork are seen as well.
    """

    def __init__(self) -> None:
        if sys.platform == "linux":
            _LIBRARY.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._before = ProcessState.read()
        self._threads = _threads()

    def begin(self) -> None:
        """Take the state before a request."""
        self._before = ProcessState.read()
        self._threads = _threads()

    def end(self) -> str:
        """What a request has changed, in one line; empty when nothing.

        After a change this process must not go on. What would outlive it is undone.
        """
        after = ProcessState.read()
        changes = after.changes_since(self._before)
        if changes:
            after.undo_outside(self._before)
        if _still_computing(self._threads):
            changes.append("threads left computing")
        return f"changed the process: {', '.join(changes)}" if changes else ""


_LIMITS = tuple(
    sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})
)


def _subnormals() -> str:
    """Computed with values that no compiler sees."""
    smallest = float.fromhex(f"0x1p{sys.float_info.min_exp - 1}")
    halved = smallest * 0.5
    subnormal = math.ldexp(1.0, -1074)  # made of bits, not by arithmetic
    return "as usual" if halved != 0 and subnormal * 2.0**60 != 0 else "flush-to-zero switched on"


def _rounding() -> str:
    third = 1.0
    third /= 3.0
    eps = sys.float_info.epsilon
    # Up, down and towards zero differ from each other and from the nearest in one of these.
    usual = (1.0 + 0.25 * eps == 1.0, -1.0 - 0.25 * eps == -1.0, 1.0 - 0.125 * eps == 1.0)
    return "as usual" if all(usual) else "rounding mode changed"


def _handler(number: int) -> int:
    """Address of a signal's handler, whoever set it: Python knows only of its own."""
    action = _Action()
    _LIBRARY.sigaction(number, None, action)
    return int(action[0])


def _affinity() -> frozenset[int]:
    if sys.platform != "linux" or any(name in os.environ for name in _BINDING):
        return frozenset()
    return frozenset(os.sched_getaffinity(0))


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
    """Of the C library: Python's is a copy, made at its start."""
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


def _children() -> frozenset[int]:
    found: set[int] = set()
    for task in _threads():
        try:
            found.update(map(int, (_TASKS / str(task) / "children").read_text().split()))
        except OSError:  # the thread has ended, or this system does not tell
            continue
    return frozenset(found)


def _threads() -> frozenset[int]:
    try:
        return frozenset(int(task.name) for task in _TASKS.iterdir())
    except OSError:
        return frozenset()


def _still_computing(before: frozenset[int]) -> bool:
    """Whether threads that were not there before go on computing."""
    if any(name in os.environ for name in _SPINNING):
        return False
    deadline = time.monotonic() + SETTLE_S
    while any(map(_is_runnable, _threads() - before)):
        if time.monotonic() > deadline:
            return True
        time.sleep(2e-3)
    return False


def _is_runnable(thread: int) -> bool:
    """Also one that a busy machine does not let run is."""
    try:
        status = (_TASKS / str(thread) / "stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] == "R"


def _end_child(child: int) -> None:
    """Kill a child and take note of its end, so that no zombie stays."""
    try:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    except OSError:
        return
