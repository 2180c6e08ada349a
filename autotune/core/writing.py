"""Writing a file so that what it held before is lost only once the new content is whole."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path

from autotune.core.errors import AutotuneError

DATABASE = b"SQLite format 3"
"""The beginning of an SQLite database: a cache, or studies."""


def check_lines(path: Path) -> None:
    """Refuse a file that lines must not be added to.

    Raises:
        OSError: it is a database, or cannot be read.
    """
    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(DATABASE)) == DATABASE:
                raise FileExistsError(errno.EEXIST, "it is an SQLite database")


def write_file(path: Path, content: bytes) -> None:
    """Write a file, which is replaced as a whole or not at all.

    A device or a pipe cannot be replaced, nor what lies in a folder that may not be changed; a
    link is not meant to be. They are written to.

    Raises:
        OSError: it cannot be written.
    """
    in_place = path.is_symlink() or (path.exists() and not path.is_file())
    if in_place or (path.exists() and not os.access(path.parent, os.W_OK | os.X_OK)):
        path.write_bytes(content)
        return
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".autotune.") as folder:
        temporary = Path(folder, "content")
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # a replaced file may be empty after a loss of power
        if path.exists():
            shutil.copymode(path, temporary)
        temporary.replace(path)


def deliver(path: Path, content: bytes, failure: type[AutotuneError] = AutotuneError) -> None:
    """Write a file that somebody asked for; see `write_file`.

    Raises:
        AutotuneError: it cannot be written; of the kind that `failure` says.
    """
    try:
        write_file(path, content)
    except OSError as error:
        raise failure(f"cannot write {path}: {error.strerror or error}") from error
