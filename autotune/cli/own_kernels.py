"""Kernels of one's own on a command line: by name, or as ``module:function``."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.core.errors import AutotuneError, InputError
from autotune.core.paths import CacheLocations

if TYPE_CHECKING:
    from autotune.own import OwnKernel

_OBJECT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", re.ASCII)
_FOLDER = re.compile(r"(\w+)-[0-9a-f]{16}", re.ASCII)


def place_own_kernels(args: Namespace) -> None:
    """Put the folders of the kernels that a command names among its families.

    Those are named by ``module:function``, wherever a family, an operation or a folder may be, or
    by the names of such as the cache has; of several with one name it is the one written last. A
    command that names none, and lists or checks what there is, has all of the cache.

    Args:
        args: of a command; names and ``families`` are changed.

    Raises:
        InputError: there is no such module, or no such kernel in it.
    """
    if not hasattr(args, "families"):
        return
    known = _cached(args.cache)
    folders: dict[Path, None] = {}

    def named(text: str) -> str:
        if _OBJECT.fullmatch(text):
            kernel = _imported(text)
            folders[kernel.folder] = None
            return kernel.name
        if text in known:
            folders[known[text]] = None
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
    if getattr(args, "record", None):
        folders.update(dict.fromkeys(_of_record(args, known)))
    elif not (given or folders or getattr(args, "operation", None) or hasattr(args, "shape")):
        folders.update(dict.fromkeys(_readable(known)))
    args.families = [*given, *folders]


def _cached(cache: str | None) -> dict[str, Path]:
    """The folders of kernels in the cache by name: of each the one that was written last."""
    root = CacheLocations.at(cache).root / "own"
    found = [each for each in root.glob("*-*") if _FOLDER.fullmatch(each.name)]
    found.sort(key=lambda each: each.stat().st_mtime)
    return {each.name.rpartition("-")[0]: each for each in found}


def _imported(text: str) -> OwnKernel:
    """A kernel by its module and name; modules are those that Python finds from here."""
    from autotune.own import OwnKernel

    module, _, path = text.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise InputError(f"{text} cannot be found: {error}") from error
    if not isinstance(found, OwnKernel):
        raise InputError(f"{text} must be a kernel of autotune.kernel, got {type(found).__name__}")
    return found


def _of_record(args: Namespace, known: dict[str, Path]) -> Iterator[Path]:
    """The folder of the kernel that a record is of, if there is one."""
    from autotune.cli.records import find_record, user_cache

    operation = ""
    with contextlib.suppress(AutotuneError):  # which the command tells
        operation = find_record(user_cache(args.cache), args.record).operation
    if operation in known:
        yield known[operation]


def _readable(known: dict[str, Path]) -> Iterator[Path]:
    """The folders that this version of the package can read."""
    from autotune.core.toml_table import Table
    from autotune.families.operation_file import OPERATION_FILE, read_operation

    for folder in known.values():
        try:
            read_operation(Table.read(folder / OPERATION_FILE))
        except AutotuneError:
            continue
        yield folder
