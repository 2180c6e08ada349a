"""Storages of studies: an Optuna journal file, or any database Optuna knows."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import TrialState

from autotune.core.errors import AutotuneError, CacheError, StudyError
from autotune.core.printable import first_line, shown
from autotune.search.internals import quiet

PATIENCE_S = 60.0
"""Time to wait for a journal's lock. It is held for a write at a time: whoever has it for
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
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(self._path, flags, 0o600)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise StudyError(
                f"{self._path} is a symbolic link: remove it, or choose another study name"
            ) from error
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

    def _wait(self, descriptor: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StudyError(
                        f"another process has held {self._path} for {PATIENCE_S:g} s: end it, or "
                        "use another study name"
                    ) from None
                time.sleep(_PAUSE_S)


_RECORD_START = b'{"op_code":'

_DAMAGED = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    RecursionError,
)
"""Errors that Optuna raises when it reads foreign or damaged records."""


def open_storage(url: str | None, name: str, folder: Path) -> BaseStorage:
    """Open the storage of a study: a database URL such as `sqlite:///studies.db`, or a journal.

    Journal files are named by the study and kept in `folder`, which is created when missing.

    Raises:
        StudyError: a name that is no text, a URL that cannot be opened, or a file that is not a
            journal; such a file is left as it is.
        CacheError: the folder or the file cannot be read or written.
        MissingDependencyError: the database's driver is not installed.
    """
    try:
        name.encode()
    except (AttributeError, UnicodeEncodeError) as error:
        raise StudyError(f"a study's name must be text in UTF-8, got {shown(name)}") from error
    with quiet():
        if url is not None:
            # SQLAlchemy takes a tenth of a second to import; journals do without.
            from autotune.search.database import open_database

            return open_database(url)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return _open_journal(journal_path(folder, name))
        except OSError as error:
            raise CacheError(f"cannot keep studies in {folder}: {error.strerror}") from error


def check_storage(url: str) -> None:
    """Refuse a database that cannot be opened, before a study of it is.

    Raises:
        StudyError: the URL is none, or the database cannot be opened.
        MissingDependencyError: the database's driver is not installed.
    """
    from autotune.search.database import open_database

    with quiet():
        close_storage(open_database(url))


@contextmanager
def storage_errors(name: str) -> Iterator[None]:
    """Report faults of a study's storage in one line.

    Raises:
        CacheError: it cannot be written, or is gone.
        StudyError: what it holds is damaged.
    """
    try:
        yield
    except AutotuneError:
        raise
    except optuna.exceptions.StorageInternalError as error:
        reason = first_line(error.__cause__ or error)
        raise CacheError(
            f"the storage of study {name!r} failed: {reason}; check it and resume"
        ) from error
    except FileNotFoundError as error:
        raise CacheError(
            f"the storage of study {name!r} was removed meanwhile: start again"
        ) from error
    except _DAMAGED as error:
        frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
        modules = (str(frame.f_globals.get("__name__")) for frame in frames)
        if not any(module.startswith("optuna.storages") for module in modules):
            raise
        raise StudyError(
            f"what is stored of study {name!r} is damaged ({type(error).__name__}: "
            f"{first_line(error)}): choose another name with --study; it was left as it is"
        ) from error


def journal_path(folder: Path, name: str) -> Path:
    """The journal file of a study."""
    return folder / f"{slug(name)}.log"


def close_storage(storage: BaseStorage) -> None:
    """Close the connections to a database."""
    storage.remove_session()


def slug(name: str) -> str:
    """A file name for a study: the name itself where that is safe, else made unique by digest."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:80]
    if safe == name:
        return safe
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{safe}-{digest}".strip("-")


class _Journal(JournalFileBackend):
    """Optuna's journal file, which survives a write that was cut off.

    A writer killed in mid-line, or a full disk, leaves a line without its end. Optuna skips it
    until somebody appends to it, and can never read the file again after that.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._guard = JournalLock(path)
        super().__init__(str(path), self._guard)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append records; those of a trial are safe on the disk once it has ended.

        A trial writes some twenty times. To wait for the disk each time, as Optuna does, takes
        longer than most trials do, and only a machine that loses its power would know the
        difference.
        """
        text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        try:
            self._append(text.encode(), wait=any(map(_ends_trial, logs)))
        except FileNotFoundError:
            raise
        except OSError as error:
            with contextlib.suppress(OSError):
                self.cut_torn_line()
            raise CacheError(
                f"cannot write the study {self._path}: {error.strerror}; what it holds is kept"
            ) from error

    def _append(self, content: bytes, *, wait: bool) -> None:
        if not self._path.exists():
            raise FileNotFoundError(self._path)  # and not begun in the middle
        with self._locked(), self._path.open("ab") as file:
            file.write(content)
            if wait:
                file.flush()
                os.fsync(file.fileno())

    def remove_unless_shared(self) -> None:
        """Remove the file, if all that is in it was written by one worker: this one."""
        with self._locked():
            lines = self._path.read_bytes().splitlines()
            if len({json.loads(line)["worker_id"] for line in lines}) <= 1:
                self._path.unlink()

    def cut_torn_line(self) -> None:
        """Remove an unfinished last line, if it is one of ours."""
        with self._locked(), self._path.open("rb+") as file:
            start, line = _last_line(self._path)
            if line and not line.endswith(b"\n") and _is_record_start(line):
                file.truncate(start)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._guard.acquire()
        try:
            yield
        finally:
            self._guard.release()


def _ends_trial(log: Mapping[str, Any]) -> bool:
    """Is a record that of the end of a trial?"""
    state = log.get("state")
    return state is not None and TrialState(state).is_finished()


class StudyJournal(JournalStorage):
    """The storage of one study in a journal file."""

    def __init__(self, journal: _Journal) -> None:
        self._journal = journal
        super().__init__(journal)

    def remove_unless_shared(self) -> None:
        """Remove the file of a study without trials, unless another worker has opened it, too."""
        with contextlib.suppress(OSError, *_DAMAGED):  # then it stays
            self._journal.remove_unless_shared()


def _open_journal(path: Path) -> StudyJournal:
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise StudyError(
            f"{path} is not a file of its own: remove it, or choose another study name"
        )
    journal = _Journal(path)
    _, line = _last_line(path)
    if line and not line.endswith(b"\n"):
        if not _is_record_start(line):
            raise _corrupt(path, "its last line is cut off")
        journal.cut_torn_line()
    elif line:
        # Optuna does not report a last line that is no record; the next append would hide it.
        try:
            json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _corrupt(path, "its last line is not JSON") from error
    try:
        return StudyJournal(journal)
    except _DAMAGED as error:
        raise _corrupt(path, f"{type(error).__name__}: {error}") from error


def _corrupt(path: Path, why: str) -> StudyError:
    return StudyError(
        f"{path} is not a readable study journal ({' '.join(why.split())}): move it away, or "
        "use another study name; the file was left as it is"
    )


def _is_record_start(line: bytes) -> bool:
    return line.startswith(_RECORD_START) or _RECORD_START.startswith(line)


def _last_line(path: Path) -> tuple[int, bytes]:
    """Where the last line begins, and the line with its end if it has one."""
    chunk = 1 << 16
    with path.open("rb") as file:
        end = file.seek(0, 2)
        start, tail = end, b""
        while start > 0:
            start = max(0, start - chunk)
            file.seek(start)
            tail = file.read(end - start)
            # The last byte may be the line's own end.
            cut = tail.rfind(b"\n", 0, len(tail) - 1)
            if cut >= 0:
                return start + cut + 1, tail[cut + 1 :]
    return 0, tail
