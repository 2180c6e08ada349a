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


def find_families(extra: Iterable[str | os.PathLike[str]] = ()) -> list[KernelFamily]:
    """Every family: the shipped ones, those in `extra` folders and in `$AUTOTUNE_FAMILIES`.

    A folder of families has a ``search_spaces`` and a ``templates`` tree, as this project has,
    or simply both kinds of file side by side. Its templates may include the shipped partials.

    Raises:
        FamilyError: a file does not fit the format, a folder holds no family, or two files
            define the same one.
    """
    shipped = data_dir("templates")
    families = [
        read_family(path, (shipped,)) for path in sorted(data_dir("search_spaces").rglob("*.toml"))
    ]
    for folder in _folders(extra):
        families += [read_family(path, (*places, shipped)) for path, places in _files(folder)]
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


def _files(folder: Path) -> Iterator[tuple[Path, tuple[Path, ...]]]:
    """The family files of a folder, each with the places its template may be in."""
    tree = folder / "search_spaces"
    paths = sorted(tree.rglob("*.toml") if tree.is_dir() else folder.glob("*.toml"))
    if not paths:
        raise FamilyError(f"{folder} must be a folder with kernel families (*.toml), has none")
    for path in paths:
        yield path, ((folder / "templates",) if tree.is_dir() else (folder,))
