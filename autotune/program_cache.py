"""Emitted sources on disk: tracebacks show them, and compilers cache their work beside them."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.errors import CacheError
from autotune.paths import private_folder

if TYPE_CHECKING:
    from autotune.rendering import Source


_SUFFIXES = {"cuda": ".cu"}


class ProgramCache:
    """A folder of emitted sources, ``<target>/<family>_<digest>.py``, private to its owner.

    What compilers make of them lies beside them. CUDA sources end in ``.cu``.

    The sources are run, so the folder is trusted code: one that others may write is refused.

    Attributes:
        folder: where the sources go; created when the first one is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, source: Source, family_name: str) -> Path:
        """Where a source is, or would be written."""
        suffix = _SUFFIXES.get(source.target, ".py")
        return self.folder / source.target / f"{family_name}_{source.digest[:16]}{suffix}"

    def binary(self, source: Source, family_name: str, variant: str) -> Path:
        """Where something that a compiler made of a source is, or would be kept.

        Args:
            source: what was compiled.
            family_name: whose source it is.
            variant: for what and with what it was compiled, and its suffix.
        """
        return self.path(source, family_name).with_suffix(f".{variant}")

    def write(self, source: Source, family_name: str) -> Path:
        """Make sure that a source is on disk and return its path.

        A file that holds the source already is left as it is: Numba recompiles when the time or
        the size of a file changes. A file that holds anything else is replaced. Either way the
        file appears whole or not at all, however many processes write it at once.

        Raises:
            CacheError: the folder cannot be written, or others can write it.
        """
        path = self.path(source, family_name)
        self.keep(path, source.text.encode())
        return path

    def keep(self, path: Path, content: bytes) -> None:
        """Make sure that a file of this folder has a content; see `write`.

        Raises:
            CacheError: the folder cannot be written, or others can write it.
        """
        private_folder(path.parent)
        try:
            for folder in (self.folder, path.parent):
                _check_private(folder)
            if not _holds(path, content):
                _publish(path, content)
        except OSError as error:
            raise CacheError(
                f"cannot write the program {path} ({error.strerror or error}): "
                "free some space, or give a writable folder with --cache or AUTOTUNE_CACHE"
            ) from error


def _check_private(folder: Path) -> None:
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise CacheError(
            f"programs are run from {folder}, which others can write (owner {status.st_uid}, "
            f"mode {status.st_mode & 0o777:o}): make it yours with mode 700, or give another "
            "folder with --cache or AUTOTUNE_CACHE"
        )


def _holds(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except FileNotFoundError:
        return False


def _publish(path: Path, content: bytes) -> None:
    """Write a temporary file and give it the final name in one step."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        # Where the name is taken a link fails, and the first writer's file stays; compiled code is
        # keyed by its time. Some file systems have no links at all.
        with contextlib.suppress(OSError):
            path.hardlink_to(temporary)
        if not _holds(path, content):
            temporary.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
