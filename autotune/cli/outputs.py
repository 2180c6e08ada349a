"""Files that a command is to write: checked before any work, and written after all of it.

Nothing that a command reads, and nothing that is stored, is ever a file to write.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.core.errors import AutotuneError, InputError
from autotune.core.paths import CacheLocations, data_dir, expanded
from autotune.core.writing import DATABASE

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Mapping

_STORED = {DATABASE: "is an SQLite database", b'{"op_code":': "is a study's journal"}
"""The beginnings of files that others than this command write to, and their kinds."""

_BESIDE = ("-wal", "-shm", "-journal")
"""The suffixes of the files that SQLite puts beside a database."""

_OF_CACHES = ("studies", "programs", "presets", "own")
"""Folders of a cache."""

_OF_FAMILIES = (".toml", ".j2")
"""The suffixes of files that families are made of."""


def check_outputs(
    outputs: Mapping[str, Path | None],
    args: argparse.Namespace,
    inputs: Iterable[str | os.PathLike[str]] = (),
) -> None:
    """Refuse to write over what is read or stored, and where nothing can be written.

    Nothing is created or changed. Paths that lead to the same file are the same, whether through
    symbolic or hard links.

    Args:
        outputs: what is to be written, by what it is in words; None where it is not asked for.
        args: parsed options: cache, storage, and folders of families.
        inputs: other files that the command reads.

    Raises:
        InputError: a file may not be written; the message says why.
    """
    wanted = {what: path for what, path in outputs.items() if path is not None}
    if not wanted:
        return
    for (one, path), (other, second) in combinations(wanted.items(), 2):
        if _same(path, second):
            raise InputError(f"{one} and {other} cannot both be {path}: choose another name")
    place = CacheLocations.at(args.cache)
    read = [*map(Path, inputs), *_storage(args), *_listed("AUTOTUNE_GPUS")]
    for what, path in wanted.items():
        try:
            reason = (
                _reason_stored(path, place)
                or ("this command reads" if any(_same(path, each) for each in read) else None)
                or _reason_family(path, args)
            )
            if reason is None:
                _try_out(path)
        except (OSError, ValueError) as error:  # a null byte in a path is no OSError
            raise InputError(
                f"cannot write {path} ({getattr(error, 'strerror', None) or error}): name a file "
                f"for {what} in a folder that you can write"
            ) from error
        if reason is not None:
            raise InputError(f"{what} would replace {path}, which {reason}: choose another name")


def attempted(path: Path | None, write: Callable[[Path], None]) -> AutotuneError | None:
    """Write a file that was asked for; what is told after the result where that fails."""
    if path is None:
        return None
    try:
        write(path)
    except AutotuneError as error:
        return error
    return None


def _reason_stored(path: Path, place: CacheLocations) -> str | None:
    """Why a path is a cache's, or that of another place where things are kept."""
    own = (place.database, *(Path(f"{place.database}{end}") for end in _BESIDE))
    real = Path(os.path.realpath(path))
    folders = (Path(os.path.realpath(place.root / name)) for name in _OF_CACHES)
    if any(_same(path, each) for each in own) or any(map(real.is_relative_to, folders)):
        return f"belongs to the cache at {place.root}"
    if (found := _stored(real)) is not None:
        return found
    for end in _BESIDE:
        if real.name.endswith(end) and _stored(real.with_name(real.name.removesuffix(end))):
            return "belongs to an SQLite database"
    return None


def _stored(path: Path) -> str | None:
    """The kind of a file that others write to; None of any other, and where there is none."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        begin = file.read(max(map(len, _STORED)))
    return next((what for start, what in _STORED.items() if begin.startswith(start)), None)


def _reason_family(path: Path, args: argparse.Namespace) -> str | None:
    """Why a path is a file of a family, shipped or one's own."""
    if path.suffix not in _OF_FAMILIES or not path.is_file():
        return None
    given = [*getattr(args, "families", ()), *_listed("AUTOTUNE_FAMILIES")]
    for folder in (*given, data_dir("search_spaces"), data_dir("templates")):
        if any(_same(path, each) for end in _OF_FAMILIES for each in folder.rglob(f"*{end}")):
            return f"belongs to the families in {folder}"
    return None


def _listed(variable: str) -> list[Path]:
    """The paths that a variable of the environment lists."""
    listed = os.environ.get(variable, "").split(os.pathsep)
    return [expanded(each) for each in listed if each]


def _storage(args: argparse.Namespace) -> Iterator[Path]:
    """The file behind ``--storage``, whether it is there yet or not."""
    storage = getattr(args, "storage", None)
    if storage is not None and not Path(storage).is_dir():
        from autotune.search.database import file_of

        if (path := file_of(storage)) is not None:
            yield path


def _same(one: Path, other: Path) -> bool:
    """Return whether two paths lead, or would lead, to the same file."""
    if one.exists() and other.exists():
        return one.samefile(other)
    return os.path.realpath(one) == os.path.realpath(other)


def _try_out(path: Path) -> None:
    """Find out whether a file can be written, and leave everything as it is.

    Raises:
        OSError: it cannot.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:  # also where a link leads to nothing yet
        with tempfile.TemporaryFile(dir=Path(os.path.realpath(path)).parent):
            return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if stat.S_ISREG(mode):
        path.open("r+b").close()
    elif not os.access(path, os.W_OK):  # to open a device or a pipe may have consequences
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
