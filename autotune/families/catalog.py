"""The kernel families there are: the shipped ones and the user's own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.core.errors import FamilyError, UnknownNameError
from autotune.core.facts import stamps_of
from autotune.core.paths import data_dir
from autotune.core.printable import shown
from autotune.core.suggestions import must_be
from autotune.families.index import Families, FamilyEntry, FamilyFile, entries_of
from autotune.families.languages import language_of, target_names
from autotune.families.operation_file import OPERATION_FILE
from autotune.operations.problem import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from autotune.families.family import KernelFamily
    from autotune.operations.operation import Operation

_SPACES = "search_spaces"

FRAGMENTS = ("schedule",)
"""Folders of a tree of search spaces that hold what families include."""


def find_families(extra: Iterable[str | os.PathLike[str]] = ()) -> list[KernelFamily]:
    """Every family: the shipped ones, those that targets of other packages bring, the user's.

    The user's are in `extra` folders and in those that `$AUTOTUNE_FAMILIES` lists.

    A folder of families has a ``search_spaces`` and a ``templates`` tree, as this project has,
    or simply both kinds of file side by side. Its files may include the shipped partials and
    fragments. What is in a folder `FRAGMENTS` of a tree is there for including, not a family.

    Raises:
        FamilyError: a file does not fit the format, a folder holds no family, or two files
            define the same one.
    """
    brought = [folder for each in target_names() for folder in language_of(each).folders]
    files = [*_shipped("*", "*"), *_own([*brought, *extra])]
    return [entry.read() for entry in _unique(entries_of(files))]


def catalog(
    target: str,
    operation: str = "gemm",
    extra: Iterable[str | os.PathLike[str]] = (),
    keep: Path | None = None,
) -> Families:
    """The families of one operation on one target, by name, each read when it is asked for.

    Args:
        target: what they run on.
        operation: what they compute.
        extra: as for `find_families`.
        keep: a folder where the digests of their files are kept for other processes.

    Raises:
        FamilyError: as `find_families`; of the shipped families only these are looked at.
    """
    files = [*_shipped(operation, target), *_own([*language_of(target).folders, *extra])]
    return Families(
        {
            entry.name: entry
            for entry in _unique(entries_of(files, keep))
            if (entry.target, entry.operation) == (target, operation)
        }
    )


def load_families(
    *, target: str, operation: str = "gemm", extra: Iterable[str | os.PathLike[str]] = ()
) -> dict[str, KernelFamily]:
    """The families of one operation on one target, by name.

    Raises:
        FamilyError: as `catalog`.
    """
    return dict(catalog(target, operation, extra))


def operation_of(families: Mapping[str, KernelFamily], name: str) -> Operation:
    """The operation called `name`, of which `families` are.

    Raises:
        UnknownNameError: there is no family for it, and so nobody who defines it.
    """
    if name in OPERATIONS:
        return OPERATIONS[name]
    defined = {family.defined for family in families.values()}
    if len(defined) != 1:
        state = "no family" if not defined else "families that disagree"
        raise UnknownNameError(
            f"operation {name!r} has {state} to define it here: name its folder with --families"
        )
    return defined.pop()


def find_operation(
    name: str,
    folders: Iterable[str | os.PathLike[str]] = (),
    target: str | None = None,
) -> Operation:
    """The operation called `name` that the families in `folders` are of.

    Args:
        name: the operation's.
        folders: folders of families of the user's own, beside $AUTOTUNE_FAMILIES.
        target: a target that its families are for; None looks at those for any.

    Raises:
        UnknownNameError: there are no families of it, or they disagree about it.
        FamilyError: as `find_families`.
    """
    if name in OPERATIONS:
        return OPERATIONS[name]
    entries = _unique(entries_of([*_own(folders)]))
    wanted = [e for e in entries if e.operation == name and target in (None, e.target)]
    return operation_of({f"{each.target} {each.name}": each.read() for each in wanted}, name)


def select_families(
    families: Mapping[str, KernelFamily], names: Sequence[str]
) -> dict[str, KernelFamily]:
    """The families called `names`, in that order; all of them when there are no names.

    Raises:
        UnknownNameError: there is no such family; the message lists those there are.
    """
    for name in names:
        if name not in families:
            raise UnknownNameError(must_be("family", name, families or ["(none found)"]))
    return {name: families[name] for name in names or families}


def _folders(extra: Iterable[str | os.PathLike[str]]) -> Iterator[Path]:
    """The folders to search beside the shipped one, each once."""
    listed = os.environ.get("AUTOTUNE_FAMILIES", "").split(os.pathsep)
    places = [(Path(folder), "") for folder in extra]
    places += [(Path(folder), " (from $AUTOTUNE_FAMILIES)") for folder in listed if folder]
    seen: set[Path] = set()
    for place, origin in places:
        try:
            folder = place.expanduser().resolve()
        except (OSError, RuntimeError) as error:  # a loop of links, a user who is not there
            raise FamilyError(f"{shown(str(place))}{origin} cannot be found: {error}") from error
        if not folder.is_dir():
            raise FamilyError(f"{place}{origin} must be a folder with kernel families (*.toml)")
        if folder not in seen:
            seen.add(folder)
            yield folder


def _shipped(operation: str, target: str) -> Iterator[FamilyFile]:
    """The shipped families; each lies in a folder of its operation and target."""
    templates, spaces = data_dir("templates"), data_dir("search_spaces")
    for path in sorted(spaces.glob(f"{operation}/{target}/*.toml")):
        yield FamilyFile(path, (templates,), (spaces,))


def _own(extra: Iterable[str | os.PathLike[str]]) -> Iterator[FamilyFile]:
    """The user's families."""
    templates, spaces = data_dir("templates"), data_dir("search_spaces")
    for folder in _folders(extra):
        tree = folder / _SPACES
        paths = _family_files(tree if tree.is_dir() else folder)
        if not paths:
            raise FamilyError(f"{folder} must be a folder with kernel families (*.toml), has none")
        own = (folder / "templates", tree) if tree.is_dir() else (folder, folder)
        # A new file may be found before one that was: any change in there counts.
        around = stamps_of(path for path in sorted(_around(folder)) if path.is_file())
        for path in paths:
            yield FamilyFile(path, (own[0], templates), (own[1], spaces), around)


def _around(folder: Path) -> Iterator[Path]:
    if not (folder / _SPACES).is_dir():
        yield from folder.glob("*")  # flat, and whatever else may lie below
        return
    for name in ("templates", _SPACES):
        yield from (folder / name).rglob("*")


def _unique(entries: Iterable[FamilyEntry]) -> Iterator[FamilyEntry]:
    origins: dict[tuple[str, str, str], Path] = {}
    for entry in entries:
        path = entry.file.path
        first = origins.setdefault((entry.operation, entry.target, entry.name), path)
        if first != path:
            raise FamilyError(
                f"{path}: there is a family {entry.name!r} for {entry.operation} on "
                f"{entry.target} already, in {first}: rename one of them"
            )
        yield entry


def _family_files(folder: Path) -> list[Path]:
    """The family files of a tree of search spaces, or of a flat folder."""
    files = folder.rglob("*.toml") if folder.name == _SPACES else folder.glob("*.toml")
    return sorted(
        path for path in files if path.parent.name not in FRAGMENTS and path.name != OPERATION_FILE
    )
