"""The kernel families there are: the shipped ones and the user's own."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.errors import FamilyError, UnknownNameError
from autotune.family_files import read_family
from autotune.paths import data_dir

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from autotune.family import KernelFamily
    from autotune.product import Operation

FRAGMENTS = ("schedule",)
"""Folders of a tree of search spaces that hold what families include."""


def find_families(extra: Iterable[str | os.PathLike[str]] = ()) -> list[KernelFamily]:
    """Every family: the shipped ones, those in `extra` folders and in `$AUTOTUNE_FAMILIES`.

    A folder of families has a ``search_spaces`` and a ``templates`` tree, as this project has,
    or simply both kinds of file side by side. Its files may include the shipped partials and
    fragments. What is in a folder `FRAGMENTS` of a tree is there for including, not a family.

    Raises:
        FamilyError: a file does not fit the format, a folder holds no family, or two files
            define the same one.
    """
    templates, spaces = data_dir("templates"), data_dir("search_spaces")
    families = [read_family(path, (templates,), (spaces,)) for path in _family_files(spaces)]
    for folder in _folders(extra):
        tree = folder / "search_spaces"
        paths = _family_files(tree) if tree.is_dir() else sorted(folder.glob("*.toml"))
        if not paths:
            raise FamilyError(f"{folder} must be a folder with kernel families (*.toml), has none")
        own = (folder / "templates", tree) if tree.is_dir() else (folder, folder)
        families += [read_family(path, (own[0], templates), (own[1], spaces)) for path in paths]
    origins: dict[tuple[str, str, str], Path] = {}
    for family in families:
        first = origins.setdefault((family.operation, family.target, family.name), family.path)
        if first != family.path:
            raise FamilyError(
                f"{family.path}: there is a family {family.name!r} for {family.operation} on "
                f"{family.target} already, in {first}: rename one of them"
            )
    return families


def load_families(
    *, target: str, operation: str = "gemm", extra: Iterable[str | os.PathLike[str]] = ()
) -> dict[str, KernelFamily]:
    """The families of one operation on one target, by name.

    Raises:
        FamilyError: as `find_families`.
    """
    return {
        family.name: family
        for family in find_families(extra)
        if family.target == target and family.operation == operation
    }


def operation_of(families: Mapping[str, KernelFamily], name: str) -> Operation | None:
    """The operation called `name`, of which `families` are; None for gemm.

    Raises:
        UnknownNameError: there is no family for it, and so nobody who defines it.
    """
    if name == "gemm":
        return None
    defined = {family.defines for family in families.values()} - {None}
    if len(defined) != 1:
        state = "no family" if not defined else "families that disagree"
        raise UnknownNameError(
            f"operation {name!r} has {state} to define it here: name its folder with --families"
        )
    return defined.pop()


def find_operation(
    name: str, folders: Iterable[str | os.PathLike[str]], target: str = "cpu"
) -> Operation:
    """The operation called `name` that the families in `folders` define.

    Raises:
        UnknownNameError: none does, or the engine knows that operation itself.
        FamilyError: as `find_families`.
    """
    defined = operation_of(load_families(target=target, operation=name, extra=folders), name)
    if defined is None:
        raise UnknownNameError(f"operation {name!r} needs no definition: use autotune.Gemm")
    return defined


def select_families(
    families: Mapping[str, KernelFamily], names: Sequence[str]
) -> dict[str, KernelFamily]:
    """The families called `names`, in that order; all of them when there are no names.

    Raises:
        UnknownNameError: there is no such family; the message lists those there are.
    """
    for name in names:
        if name not in families:
            close = difflib.get_close_matches(name, families, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            known = ", ".join(families) or "(none found)"
            raise UnknownNameError(f"family must be one of {known}, got {name!r}{hint}")
    return {name: families[name] for name in names or families}


def _folders(extra: Iterable[str | os.PathLike[str]]) -> Iterator[Path]:
    """The folders to search beside the shipped one, each once."""
    listed = os.environ.get("AUTOTUNE_FAMILIES", "").split(os.pathsep)
    places = [(Path(folder), "") for folder in extra]
    places += [(Path(folder), " (from $AUTOTUNE_FAMILIES)") for folder in listed if folder]
    seen: set[Path] = set()
    for place, origin in places:
        folder = place.expanduser().resolve()
        if not folder.is_dir():
            raise FamilyError(f"{place}{origin} must be a folder with kernel families (*.toml)")
        if folder not in seen:
            seen.add(folder)
            yield folder


def _family_files(tree: Path) -> list[Path]:
    """The family files of a tree of search spaces."""
    return sorted(path for path in tree.rglob("*.toml") if path.parent.name not in FRAGMENTS)
