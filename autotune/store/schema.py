"""The cache's SQLite file: its tables, how it is opened, and what its errors mean.

A connection lives for one read or one transaction. That costs a fraction of a millisecond and
makes a cache safe to hand to threads, forked workers and MPI ranks.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from autotune.core.errors import CacheError
from autotune.core.paths import private_folder
from autotune.core.reading import check_regular

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SCHEMA_VERSION = 4
"""Stored in the file's `user_version`: how many of `_STEPS` it has been through."""

VALUE_LIMIT = 64 << 20
"""Bytes that a value, or a row, may have."""

_LITTLE = 1 << 18
"""Bytes of free space with which a disk is taken to be full."""

APPLICATION_ID = 0x61746E65
"""Stored in the file's `application_id` ("atne"): tells a cache from other SQLite files."""

_RECORDS_AND_MEASUREMENTS = (
    """
    CREATE TABLE records (
        id TEXT PRIMARY KEY,
        fingerprint TEXT NOT NULL,
        operation TEXT NOT NULL,
        problem TEXT NOT NULL,
        target TEXT NOT NULL,
        created TEXT NOT NULL,
        document TEXT NOT NULL
    )
    """,
    "CREATE INDEX records_by_key ON records (fingerprint, operation, problem, target)",
    """
    CREATE TABLE measurements (
        number INTEGER PRIMARY KEY,
        study TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        operation TEXT NOT NULL,
        problem TEXT NOT NULL,
        target TEXT NOT NULL,
        family TEXT NOT NULL,
        configuration TEXT NOT NULL,
        outcome TEXT NOT NULL,
        median_s REAL,
        interval_low_s REAL,
        interval_high_s REAL,
        repeats INTEGER NOT NULL,
        error REAL,
        reason TEXT NOT NULL,
        details TEXT NOT NULL,
        created TEXT NOT NULL
    )
    """,
    "CREATE INDEX measurements_by_key ON measurements (fingerprint, operation, problem, target)",
)
_BINARIES = ("CREATE TABLE binaries (digest TEXT PRIMARY KEY, content BLOB NOT NULL)",)

_PORTFOLIOS = (
    """
    CREATE TABLE portfolios (
        fingerprint TEXT NOT NULL,
        operation TEXT NOT NULL,
        target TEXT NOT NULL,
        subject TEXT NOT NULL,
        document TEXT NOT NULL,
        PRIMARY KEY (fingerprint, operation, target, subject)
    )
    """,
)

_STUDIES = (
    "CREATE INDEX IF NOT EXISTS measurements_by_candidate "
    "ON measurements (study, family, configuration)",
)

_STEPS = (_RECORDS_AND_MEASUREMENTS, _BINARIES, _PORTFOLIOS, _STUDIES)
"""The steps of a file from each version to the next; an empty one begins at version 0."""


_written = 0


def written() -> int:
    """The number of transactions of this process that have ended, on whatever file.

    Whoever keeps what a file held has to look at the file only when this has changed, as far as
    this process is concerned.
    """
    return _written


@contextmanager
def transaction(path: Path, timeout_s: float) -> Iterator[sqlite3.Connection]:
    """Open for writing, creating what is missing; commit at the end, roll back on any error.

    Raises:
        CacheError: the file cannot be written; nothing in it has changed.
    """
    global _written
    try:
        with _translated(path):
            private_folder(path.parent)
            with closing(_connect(path, "mode=rwc", timeout_s)) as connection:
                with connection:
                    connection.execute("BEGIN IMMEDIATE")
                    _upgrade(connection, _version(connection, path))
                    yield connection
                _use_write_ahead_log(connection)
    finally:
        # Of two threads that are here at the same time one may not count; what both have written
        # is in their files by now, and the number is another one.
        _written += 1


def read(
    path: Path,
    query: str,
    values: Sequence[object],
    timeout_s: float,
    *,
    since: int = 1,
    read_only: bool = False,
) -> list[tuple[Any, ...]]:
    """The rows of one query; none when there is no file yet, which is not created.

    Args:
        path: the file, of any version up to this one's; reading does not upgrade it.
        query: what to ask.
        values: its parameters.
        timeout_s: how long to wait for another process, in seconds.
        since: the version that the tables of the query came with; a file before it has no rows.
        read_only: whether the file is never to be written, nor any other made beside it.

    Raises:
        CacheError: the file cannot be read, or is not a cache that this autotune knows.
    """
    with _translated(path):
        if not path.exists():
            return []
        wal = path.with_name(f"{path.name}-wal")
        if read_only and not wal.exists():
            return _read(path, "mode=ro&immutable=1", query, values, timeout_s, since)
        try:
            mode = "mode=ro" if read_only else "mode=rw"
            return _read(path, mode, query, values, timeout_s, since)
        except sqlite3.OperationalError as error:
            closed = sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY
            full = sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL
            if _code(error) not in (closed if file_state(str(wal))[1] else closed + full):
                raise
        # A write-ahead log needs files beside the database even to be read. Read-only media and
        # full disks have no room for them, and nobody is writing: there, or while there is no log.
        return _read(path, "mode=ro&immutable=1", query, values, timeout_s, since)


def file_state(path: str) -> tuple[int, int]:
    """Time and size of a file, which change when it is written; zeros where it holds nothing."""
    try:
        status = os.stat(path)  # noqa: PTH116 - half the time of making a Path
    except OSError:
        return 0, 0
    return (status.st_mtime_ns, status.st_size) if status.st_size else (0, 0)


def check_free(path: Path, timeout_s: float) -> None:
    """Make sure that a transaction could begin; nothing is changed.

    Raises:
        CacheError: another process is writing for longer than that, or the file cannot be written.
    """
    with _translated(path), closing(_connect(path, "mode=rw", timeout_s)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")


def _read(
    path: Path, mode: str, query: str, values: Sequence[object], timeout_s: float, since: int
) -> list[tuple[Any, ...]]:
    with closing(_connect(path, mode, timeout_s)) as connection:
        connection.execute("BEGIN")  # the check and the query see the same moment
        if _version(connection, path) < since:
            return []
        return connection.execute(query, values).fetchall()


def _connect(path: Path, mode: str, timeout_s: float) -> sqlite3.Connection:
    with suppress(FileNotFoundError):
        check_regular(path.stat().st_mode, path)  # a pipe would be waited for
    uri = f"{path.absolute().as_uri()}?{mode}"
    # No isolation level: transactions begin where the code says so.
    connection = sqlite3.connect(uri, uri=True, timeout=timeout_s, isolation_level=None)
    # The file may be a stranger's: its schema runs nothing, and a value has a size.
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_LIMIT)
    connection.execute("PRAGMA trusted_schema = OFF")
    # A text that is damaged is the fault of its row, not of all that are read with it.
    connection.text_factory = _text
    return connection


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """The schema's version; 0 for an empty database, an error for a strange one."""
    [[application]] = connection.execute("PRAGMA application_id")
    [[version]] = connection.execute("PRAGMA user_version")
    [[tables, others]] = connection.execute(
        # A table has a page where it begins: views, triggers and virtual tables have none.
        "SELECT count(*), total(type NOT IN ('table', 'index') OR rootpage = 0) FROM sqlite_master"
    )
    if others:
        raise CacheError(
            f"{path} is no cache: it has views, triggers or virtual tables, whose text would be "
            "run; the file was left as it is: use --cache elsewhere"
        )
    if application == APPLICATION_ID and version > SCHEMA_VERSION:
        raise CacheError(
            f"{path} was written by a newer autotune (schema {version}, this one knows "
            f"{SCHEMA_VERSION}): upgrade autotune or use --cache elsewhere"
        )
    if application == APPLICATION_ID and version > 0:
        return int(version)
    if (application, version, tables) == (0, 0, 0):
        # SQLite takes a file shorter than its smallest page for an empty database.
        if 0 < path.stat().st_size < 512:
            raise CacheError(_damaged(path, "file is not a database"))
        return 0
    raise CacheError(
        f"{path} is an SQLite database of another program; the file was left as it is: use "
        "--cache elsewhere"
    )


def _upgrade(connection: sqlite3.Connection, version: int) -> None:
    """Bring the file to this version; every step only adds to what is there."""
    if version == SCHEMA_VERSION:
        return
    for statements in _STEPS[version:]:
        for statement in statements:
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Let readers and a writer work at once, where the file system can do that."""
    # Network file systems lack the shared memory it takes, and another process may hold the file
    # just now. The default journal is as safe, only slower; the next writer tries again.
    with suppress(sqlite3.OperationalError):
        [[mode]] = connection.execute("PRAGMA journal_mode")
        if mode != "wal":
            connection.execute("PRAGMA journal_mode = WAL").fetchall()


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise CacheError(_explain(path, error)) from error
    except OSError as error:
        raise CacheError(
            f"cannot use the cache {path} ({error.strerror}): use --cache elsewhere"
        ) from error


def _explain(path: Path, error: sqlite3.DatabaseError) -> str:
    code = _code(error)
    if code == sqlite3.SQLITE_IOERR and _is_full(path.parent):
        code = sqlite3.SQLITE_FULL
    match code:
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
            return _damaged(path, str(error))
        case sqlite3.SQLITE_FULL:
            return (
                f"cannot write {path}: the disk is full; free some space or use --cache elsewhere"
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return f"{path} is locked by another process for too long: end it or try again"
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return f"cannot open or write {path} ({error}): use --cache for a writable place"
        case sqlite3.SQLITE_IOERR:
            return f"cannot read or write {path} ({error}): check the disk and its free space"
        case _:
            return f"cannot use the cache {path}: {error}"


def _is_full(folder: Path) -> bool:
    """Guess why there is no room for what SQLite maps: it says no more than that it failed."""
    with suppress(OSError):
        return shutil.disk_usage(folder).free < _LITTLE
    return False


def _damaged(path: Path, what: str) -> str:
    return (
        f"{path} is damaged or not a cache ({what}); the file was left as it is: move it away or "
        "use --cache elsewhere"
    )


def _code(error: sqlite3.Error) -> int:
    """The primary result code; extended codes carry it in their low byte."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
