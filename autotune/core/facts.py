"""Facts that were worked out once and kept on disk, each under a key that says when it holds.

All of it can be worked out again: what cannot be read is as good as not there, and what cannot be
written is not kept.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import closing, suppress
from typing import TYPE_CHECKING, TypeAlias

from autotune.core.reading import check_regular

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

Stamp: TypeAlias = "tuple[str, int, int]"
"""A file as it was: its path, the time of its last change in nanoseconds, its size in bytes."""

FILE = "facts.sqlite"
"""Name of the file of facts in a folder."""

_TABLE = "CREATE TABLE IF NOT EXISTS facts (key TEXT PRIMARY KEY, value TEXT NOT NULL)"
_TIMEOUT_S = 5.0
_DAMAGED = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
_log = logging.getLogger(__name__)


def stamps_of(files: Iterable[Path]) -> tuple[Stamp, ...]:
    """The files as they are now.

    Raises:
        OSError: one cannot be looked at.
    """
    return tuple(
        (str(file), status.st_mtime_ns, status.st_size)
        for file in files
        for status in (file.stat(),)
    )


def unchanged(stamps: Iterable[Stamp]) -> bool:
    """Return whether files are as they were."""
    try:
        for path, changed_ns, size in stamps:
            status = os.stat(path)  # noqa: PTH116 - half the time of making a Path
            if (status.st_mtime_ns, status.st_size) != (changed_ns, size):
                return False
    except OSError:
        return False
    return True


class Facts:
    """Texts by key in one SQLite file, which many processes may use at once.

    Args:
        path: the file; made, for its owner's eyes only, with the first fact. Its folder must be
            there by then.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def get(self, *keys: str) -> dict[str, str]:
        """The texts under these keys, those that are there and can be read."""
        if not keys or not self.path.is_file():  # a pipe would be waited for
            return {}
        # Whoever cannot write there needs no lock either: nobody writes to a read-only place.
        writable = os.access(self.path.parent, os.W_OK)
        query = f"SELECT key, value FROM facts WHERE key IN ({', '.join('?' * len(keys))})"
        try:
            with closing(self._open("mode=ro" if writable else "mode=ro&immutable=1")) as facts:
                rows = facts.execute(query, keys).fetchall()
        except sqlite3.Error as error:
            _log.debug("%s: not read: %s", self.path, error)
            return {}
        return {key: value for key, value in rows if isinstance(value, str)}

    def put(self, facts: Mapping[str, str]) -> None:
        """Keep texts; a file that is damaged is begun again."""
        for _ in range(2):
            try:
                return self._put(facts)
            except sqlite3.DatabaseError as error:
                _log.debug("%s: not written: %s", self.path, error)
                if error.sqlite_errorcode & 0xFF not in _DAMAGED:
                    return None
                with suppress(OSError):
                    self.path.unlink()
            except OSError as error:
                _log.debug("%s: not written: %s", self.path, error)
                return None
        return None

    def _put(self, facts: Mapping[str, str]) -> None:
        # SQLite would make it with the umask's mode.
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            check_regular(os.fstat(descriptor).st_mode, self.path)
        finally:
            os.close(descriptor)
        with closing(self._open("mode=rw")) as connection, connection:
            # What a crash of the machine loses is worked out again.
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute(_TABLE)
            connection.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", facts.items())

    def _open(self, mode: str) -> sqlite3.Connection:
        uri = f"{self.path.absolute().as_uri()}?{mode}"
        return sqlite3.connect(uri, uri=True, timeout=_TIMEOUT_S)
