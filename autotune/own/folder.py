"""The folder of a kernel of one's own: an ordinary family, written once and never changed."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from autotune.core.errors import CacheError
from autotune.core.paths import NO_SPACE, CacheLocations, check_trusted, no_space, private_folder

_DIGITS = 16


def write_folder(name: str, files: Mapping[str, str], cache: str | Path | None) -> Path:
    """The folder with these files, below the cache: ``own/<name>-<digest>``.

    It appears at once and whole, whichever of several processes makes it.

    Args:
        name: the kernel's.
        files: texts by file name.
        cache: the user's cache; None takes the default place.

    Raises:
        CacheError: it cannot be written, others may write it, or it is not as it was written.
    """
    content = {each: text.encode() for each, text in files.items()}
    digest = hashlib.sha256()
    for each in sorted(content):
        digest.update(f"{each}\0{len(content[each])}\0".encode() + content[each])
    root = CacheLocations.at(cache).root / "own"
    folder = root / f"{name}-{digest.hexdigest()[:_DIGITS]}"
    if not folder.is_dir():
        _write(private_folder(root), folder, content)
    _check(folder, content)
    return folder


def _write(root: Path, folder: Path, content: Mapping[str, bytes]) -> None:
    try:
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=root))
        try:
            for each, body in content.items():
                (made / each).write_bytes(body)
            try:
                made.rename(folder)
            except OSError:
                if not folder.is_dir():  # another process was not faster
                    raise
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except OSError as error:
        reason = no_space(folder) if error.errno in NO_SPACE else f"{error.strerror or error}"
        raise CacheError(f"cannot write the kernel's folder {folder}: {reason}") from error


def _check(folder: Path, content: Mapping[str, bytes]) -> None:
    """Programs are made of what is in there: it must be what was written."""
    remedy = f"remove {folder}, and it is written anew"
    try:
        check_trusted(folder)
        found = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    except OSError as error:
        raise CacheError(f"{folder} cannot be read ({error.strerror}): {remedy}") from error
    for name in sorted({*found, *content}):
        if found.get(name) != content.get(name):
            raise CacheError(f"{name} in {folder} was changed after it was written: {remedy}")
