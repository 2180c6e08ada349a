"""A lock on a journal that ends with the process that holds it."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from typing import TYPE_CHECKING

from optuna.storages.journal import JournalFileOpenLock

from autotune.core.errors import StudyError

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE_S = 60.0
"""How long to wait for who holds a journal. It is held for a write at a time: whoever has it for
longer has been stopped, or writes to a disk that does not answer."""

_PAUSE_S = 1e-3


class JournalLock(JournalFileOpenLock):
    """The system's lock on the journal itself (`flock`), which a dead process does not hold.

    Optuna's own, of which this is one for want of a public base, are files beside the journal:
    one that a killed process left is waited for half a minute. Like those, it is safe among
    processes and among threads. On NFS the system passes it on to the server, and a lock of a
    host that is gone ends when the server notices.

    Args:
        path: of the journal; made when missing, for its owner alone. A symbolic link is refused.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path
        self._local = threading.local()

    def acquire(self) -> bool:
        """Wait for the lock.

        Raises:
            StudyError: the journal is a link, or somebody has held the lock for a long time.
        """
        descriptor = self._open()
        try:
            self._wait(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._local.descriptor = descriptor
        return True

    def release(self) -> None:
        """Give the lock back."""
        os.close(self._local.descriptor)

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(self._path, flags, 0o600)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise StudyError(
                f"{self._path} is a symbolic link: remove it, or choose another study name"
            ) from error

    def _wait(self, descriptor: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StudyError(
                        f"another process has held {self._path} for {PATIENCE_S:g} s: end it, or "
                        "use another study name"
                    ) from None
                time.sleep(_PAUSE_S)
            else:
                return
