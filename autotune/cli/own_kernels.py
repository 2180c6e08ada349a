"""Kernels of one's own on a command line: by name, as ``module:function``, or by their file."""

from __future__ import annotations

import contextlib
import re
import sys
from argparse import Namespace
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.core.errors import AutotuneError, InputError, UnknownNameError
from autotune.core.paths import CacheLocations

if TYPE_CHECKING:
    from autotune.own import OwnKernel
    from autotune.store import StoredMeasurement, TuningRecord

_OBJECT = re.compile(r"(?:[A-Za-z_][\w.]*|.+\.py):[A-Za-z_][\w.]*", re.ASCII)
_FOLDER = re.compile(r"(\w+)-[0-9a-f]{16}", re.ASCII)


def place_own_kernels(args: Namespace) -> None:
    """Put the folders of the kernels that a command names among its families.

    Those are named by ``module:function`` or ``file.py:function``, wherever a family, an operation
    or a folder may be, or by the names of such as the cache has; of several with one name it is
    the one used last, but of a record or a study the one that it was made from. What the user's
    folders define is taken from there. A command that names none, and lists or checks what there
    is, has all of the cache.

    Args:
        args: of a command; names and ``families`` are changed.

    Raises:
        InputError: there is no such module, or no such kernel in it.
        UnknownNameError: what a record was made from is not there any more.
    """
    if not hasattr(args, "families"):
        return
    known = _cached(args.cache)
    folders: dict[str, Path] = {}

    def named(text: str) -> str:
        if _OBJECT.fullmatch(text):
            kernel = _imported(text)
            folders[kernel.name] = kernel.folder
            known[kernel.name] = [kernel.folder, *known.get(kernel.name, [])]
            return kernel.name
        if text in known:
            folders.setdefault(text, known[text][0])
        return text

    given = [each for each in args.families if each.exists()]
    for each in args.families:
        if each not in given:
            before = len(folders)
            named(str(each))
            given += [each] if len(folders) == before else []
    for key in ("operation", "family", "record", "studies"):
        value = getattr(args, key, None)
        if isinstance(value, str):
            setattr(args, key, named(value))
        elif value:
            setattr(args, key, [named(each) for each in value])
    record, studies = getattr(args, "record", None), getattr(args, "studies", None) or []
    made = [*_made(args.cache, record, studies, known)] if known and (record or studies) else []
    anything = record or made or given or folders or getattr(args, "operation", None)
    if not (anything or hasattr(args, "shape")):
        folders.update(_readable(known))
    defined = _defined(given) if folders or made else set()
    for each in made:
        if (each.operation, each.candidate.family) not in defined:
            origin = _origin(each, known[each.operation])
            if record is not None and not origin:
                raise UnknownNameError(
                    f"record {record} must have its files in a folder {each.operation}-* of "
                    f"{known[each.operation][0].parent}, and no such folder is what it was made "
                    "from: name one with --families, or tune again"
                )
            folders |= origin
    placed = [folder for name, folder in folders.items() if (name, name) not in defined]
    args.families = [*given, *placed]


def _cached(cache: str | None) -> dict[str, list[Path]]:
    """The folders of kernels in the cache by name: of each those that were used last first."""
    root = CacheLocations.at(cache).root / "own"
    found = [each for each in root.glob("*-*") if _FOLDER.fullmatch(each.name)]
    found.sort(key=lambda each: each.stat().st_mtime_ns, reverse=True)
    known: dict[str, list[Path]] = {}
    for each in found:
        known.setdefault(each.name.rpartition("-")[0], []).append(each)
    return known


def unused_folders(
    cache: str | None, records: Iterable[TuningRecord], before: float
) -> list[Path]:
    """The folders of kernels in the cache that nobody has used since, and that no record is of.

    Args:
        cache: the user's.
        records: those that stay.
        before: seconds since the epoch.
    """
    known = _cached(cache)
    of_digests = {each.family_digest: each for each in records if each.operation in known}
    origins = [_origin(each, known[each.operation]) for each in of_digests.values()]
    kept = {folder for origin in origins for folder in origin.values()}
    every = (folder for folders in known.values() for folder in folders)
    return [each for each in every if each not in kept and each.stat().st_mtime < before]


def _defined(given: Sequence[Path]) -> set[tuple[str, str]]:
    """Operation and name of the families in folders of the user's."""
    from autotune.targets.families import own_families

    return {(each.operation, each.name) for each in own_families(given)}


def _imported(text: str) -> OwnKernel:
    """A kernel by its module, or file, and name; modules are those that Python finds from here."""
    from autotune.checking import imported
    from autotune.own import OwnKernel

    place, _, path = text.rpartition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: object = imported(place)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError, OSError) as error:
        raise InputError(f"{text} cannot be found: {error}") from error
    if not isinstance(found, OwnKernel):
        raise InputError(f"{text} must be a kernel of autotune.kernel, got {type(found).__name__}")
    return found


def _made(
    cache: str | None, record: str | None, studies: Sequence[str], known: Container[str]
) -> Iterator[TuningRecord | StoredMeasurement]:
    """The record that a command names, or what is stored of studies, of kernels that are known."""
    from autotune.cli.records import find_record, user_cache

    stored = user_cache(cache)
    found: list[TuningRecord | StoredMeasurement] = []
    with contextlib.suppress(AutotuneError):  # which the command tells
        found += [] if record is None else [find_record(stored, record)]
        for text in studies:
            found += stored.measurements(study=text)[:1] or [find_record(stored, text)]
    yield from (each for each in found if each.operation in known)


def _origin(made: TuningRecord | StoredMeasurement, folders: Sequence[Path]) -> dict[str, Path]:
    """The folder that a record was made from, by its name; of a study one that computes the same.

    There may be none any more.
    """
    from autotune.targets.families import load_families

    digest: str | None = getattr(made, "family_digest", None)
    for folder in folders:
        with contextlib.suppress(AutotuneError, KeyError):  # of another version, it may be
            families = load_families(target=made.target, operation=made.operation, extra=[folder])
            family = families[made.candidate.family]
            family.defined.without_formula(made.problem)
            if digest in (None, family.digest):
                return {made.operation: folder}
    return {}


def _readable(known: Mapping[str, Sequence[Path]]) -> Iterator[tuple[str, Path]]:
    """Names and folders of kernels, as they were used last, that this version can read."""
    from autotune.core.toml_table import Table
    from autotune.families.operation_file import OPERATION_FILE, read_operation

    for name, (folder, *_) in known.items():
        try:
            read_operation(Table.read(folder / OPERATION_FILE))
        except AutotuneError:
            continue
        yield name, folder
