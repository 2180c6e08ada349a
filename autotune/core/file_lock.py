"""Locks between processes: by files that are there anyway, and by one for each device."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from autotune.core import session
from autotune.core.deadline import Deadline
from autotune.core.errors import OutOfTimeError
from autotune.core.paths import others_who_write, runtime_folder


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
        _give_back(handle)


_PAUSE_S = 2e-3
"""Between two looks at a device that another process has."""


class Turns:
    """Turns at a device, among all processes of a user on this host, whatever their caches.

    Measuring is done alone. Compiling keeps processors busy that a kernel may run on: there
    compilers work beside each other, and beside no measurement.

    The lock is a file in a folder of the user's, which no other user may write: others can
    neither have it nor be in its way, and take no turns with this user.

    Args:
        device: its name on this host, "cpu" for the host itself; None takes no turns.
    """

    def __init__(self, device: str | None = None) -> None:
        self._device = device

    @contextlib.contextmanager
    def take(self, run: Deadline, *, shared: bool = False) -> Iterator[None]:
        """Have the device inside the block; nobody waits where files cannot be locked.

        Args:
            run: for which it is had.
            shared: beside others who share it, and not alone.

        Raises:
            OutOfTimeError: others had it until the run was over.
        """
        handle = None
        try:
            if self._device is not None and sys.platform != "win32":
                import fcntl

                kind = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
                with contextlib.suppress(OSError):
                    handle = os.open(_lock_file(self._device), _LOCK_FILE, 0o600)
                    _HELD.add(handle)
                    while not _locked(handle, kind):
                        if run.over:
                            raise OutOfTimeError("other runs had the device until this was over")
                        time.sleep(run.within(_PAUSE_S))
            yield
        finally:
            _give_back(handle)


def _lock_file(device: str) -> Path:
    """The file that stands for a device, in a folder that is made when missing.

    Raises:
        OSError: the folder cannot be made, or another user may write it.
    """
    folder = runtime_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.is_symlink() or others_who_write(folder):
        raise PermissionError(f"{folder} is not the user's own")
    # Hosts may share the folder.
    name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{socket.gethostname()}-{device}")
    return folder / f"{name}.lock"


_LOCK_FILE = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def _locked(handle: int, kind: int) -> bool:
    import fcntl

    try:
        fcntl.flock(handle, kind)
    except BlockingIOError:
        return False
    return True


def _give_back(handle: int | None) -> None:
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
