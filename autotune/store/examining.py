"""Looking at the places of the cache and of the layers under it, for ``autotune doctor``."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from typing import TYPE_CHECKING

from autotune.core.check import Check, Status, attempt
from autotune.core.errors import InputError
from autotune.core.paths import (
    NO_SPACE,
    NOWHERE,
    CacheLocations,  # a process of its own is asked by the types of `cache_checks`
    can_write,
    check_trusted,
    no_space,
    others_who_write,
)
from autotune.store.cache import TuningCache
from autotune.store.interchange import parse_line, read_lines
from autotune.store.sources import layer_database, layer_paths

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LITTLE = 200 << 20
"""Bytes of free space below which a run of some length may fill the disk."""

_PROBE = 1 << 20
_WAIT_S = 2.0
_ELSEWHERE = "give another folder with --cache or AUTOTUNE_CACHE"


def cache_checks(place: CacheLocations) -> list[Check]:
    """Checks of a cache; nothing is made or changed that stays.

    It may hang where a file system does.
    """
    checks = [attempt("folder", lambda: _folder(place.root))]
    if place.root.is_dir():
        checks += _openness(place.root)
        checks.append(attempt("programs", lambda: _programs(place.programs)))
    database = attempt("database", lambda: _database(place.database))
    checks.append(database)
    if database.status is Status.OK and place.database.exists() and can_write(place.root):
        checks.append(attempt("locks", lambda: _locks(place.database)))
    return checks


def layer_checks() -> list[Check]:
    """Checks of each read-only layer."""
    return [attempt("layer", functools.partial(_layer, path)) for path in layer_paths()]


def _folder(root: Path) -> Check:
    """Where it is, and whether there is room to write."""
    if root.is_relative_to(NOWHERE):
        return Check.problem("folder", "this user has no home folder", _ELSEWHERE)
    there = next(each for each in (root, *root.parents) if os.path.lexists(each))
    if not there.is_dir():
        return Check.problem("folder", f"{there} is not a folder", _ELSEWHERE)
    if not can_write(there):
        return Check.note(
            "folder",
            f"{there} cannot be written: what is there serves, and nothing is stored",
            f"to tune, {_ELSEWHERE}",
        )
    free = shutil.disk_usage(there).free
    if there != root:
        return _room(f"{root}, made when something is stored", free)
    try:
        with tempfile.TemporaryFile(dir=root) as file:
            file.write(bytes(_PROBE))
            os.fsync(file.fileno())
    except OSError as error:
        if error.errno in NO_SPACE:
            told, _, remedy = no_space(root / "file").partition(": ")
            return Check.problem("folder", told, remedy)
        return Check.problem(
            "folder", f"{root} cannot be written: {error.strerror or error}", _ELSEWHERE
        )
    return _room(str(root), free)


def _room(folder: str, free: int) -> Check:
    """A folder that can be written, and how much."""
    if free < LITTLE:
        return Check.note(
            "folder",
            f"{folder}; only {free / 2**20:.0f} MiB free",
            f"free some space, or {_ELSEWHERE}",
        )
    return Check.ok("folder", f"{folder}; {free / 2**30:.1f} GiB free")


def _openness(root: Path) -> Iterator[Check]:
    """A check that nobody else may change the folder; none where nobody may."""
    if (who := others_who_write(root)) is not None:
        yield Check.note(
            "privacy",
            f"{root}, which {who}: others may put records and binaries there",
            f"chmod go-w {root}, or {_ELSEWHERE}",
        )


def _programs(programs: Path) -> Check:
    """A check that programs may be run from their folders.

    Raises:
        CacheError: somebody else may change them.
    """
    if not programs.exists():
        return Check.ok("programs", "none yet")
    folders = [programs, *(each for each in programs.iterdir() if each.is_dir())]
    for folder in folders:
        check_trusted(folder)
    return Check.ok("programs", f"{programs} is as private as it must be")


def _database(path: Path) -> Check:
    """A check that it can be read, and is sound.

    Raises:
        CacheError: it cannot be read, or is no cache.
    """
    if not path.exists():
        return Check.ok("database", f"none yet at {path}: `autotune tune` makes one")
    cache = TuningCache(path, timeout_s=_WAIT_S)
    count = len(cache.documents())
    damage = cache.damage()
    if damage:
        more = f", and {len(damage) - 1} more" if len(damage) > 1 else ""
        return Check.problem(
            "database",
            f"{path} is damaged ({damage[0]}{more})",
            "export what can be read (`autotune cache export FILE`), move the database away, "
            "and import the file",
        )
    return Check.ok("database", f"sound, {count} {'record' if count == 1 else 'records'}")


def _locks(path: Path) -> Check:
    """A check that no other process writes without end.

    Raises:
        CacheError: one is.
    """
    TuningCache(path, timeout_s=_WAIT_S).check_free()
    return Check.ok("locks", "no other process is in the way")


def _layer(path: Path) -> Check:
    """A check that a layer is there and can be read.

    Raises:
        CacheError: its database cannot be read.
        InputError: a file of records cannot be read.
    """
    database = layer_database(path)
    if database.is_file():
        cache = TuningCache(database, timeout_s=_WAIT_S, read_only=True)
        damage = cache.damage()
        if damage:
            return Check.problem("layer", f"{database} is damaged ({damage[0]})", "replace it")
        return Check.ok("layer", f"{database}, {len(cache.documents())} records")
    if path.is_dir():
        files = sorted(path.glob("*/*.jsonl"))
    elif path.suffix == ".jsonl" and path.is_file():
        files = [path]
    else:
        return Check.note(
            "layer", f"{path} is not there, and left out", "mend or unset AUTOTUNE_RECORDS"
        )
    good, bad = 0, []
    for file in files:
        for number, line in read_lines(file):
            try:
                parse_line(line)
                good += 1
            except InputError as error:
                bad.append(f"{file}:{number}: {error}")
    if bad:
        return Check.note(
            "layer",
            f"{path}: {len(bad)} of {good + len(bad)} lines are left out ({bad[0]})",
            "export it again",
        )
    return Check.ok("layer", f"{path}, {good} records and portfolios")
