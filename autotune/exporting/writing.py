"""A folder that is written as a whole, or not at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping


def check_folder(folder: Path) -> None:
    """Check that a folder may be written: it is not there, or is empty.

    Raises:
        InputError: it may not; the message says why.
    """
    try:
        if folder.is_dir():
            if any(folder.iterdir()):
                raise InputError(f"{folder} must be a new or an empty folder, and has files in it")
            if folder.samefile(Path.cwd()):
                raise InputError(
                    f"{folder} is the current folder, which cannot be replaced: name another one"
                )
        elif folder.exists() or folder.is_symlink():
            raise InputError(f"{folder} must be a new or an empty folder, and is something else")
    except OSError as error:
        raise InputError(f"{folder} must be a folder to write to: {error.strerror}") from error


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a new or empty folder, whose parents are made where they are missing.

    They are written beside it, and take its place all at once.

    Args:
        folder: which one.
        files: contents by name.

    Raises:
        InputError: the folder may not be written; nothing is left.
    """
    check_folder(folder)
    folder = folder.absolute()
    draft = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft.mkdir()
        try:
            for name, content in files.items():
                (draft / name).write_bytes(content)
            draft.replace(folder)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from error
