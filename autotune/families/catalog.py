"""The kernel families there are: the shipped ones and the user's own."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.core.arguments import paths, text, texts
from autotune.core.errors import FamilyError, InputError, UnknownNameError
from autotune.core.facts import stamps_of
from autotune.core.paths import data_dir, expanded
from autotune.core.printable import shown
from autotune.core.suggestions import did_you_mean, must_be
from autotune.families.index import Families, FamilyEntry, FamilyFile, Indexed, index
from autotune.families.operation_file import OPERATION_FILE, product_files
from autotune.operations.layers import LAYERS, built_in
from autotune.operations.problem import GEMM, OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from autotune.families.family import KernelFamily, Language
    from autotune.operations.operation import Operation

_SPACES = "search_spaces"

FRAGMENTS = ("schedule",)
"""Folders of a tree of search spaces that hold what families include."""


def find_families(
    extra: Iterable[str | os.PathLike[str]] = (),
    layer: str | None = None,
    *,
    languages: Mapping[str, Language],
) -> list[KernelFamily]:
    """Every family: the shipped ones, those that targets of other packages bring, the user's.

    The user's are in `extra` folders and in those that `$AUTOTUNE_FAMILIES` lists.

    A folder of families has a ``search_spaces`` and a ``templates`` tree, as this project has,
    or simply both kinds of file side by side. Its files may include the shipped partials and
    fragments. What is in a folder `FRAGMENTS` of a tree is there for including, not a family.

    An operation that is gemm with an epilogue has the families of gemm that compute such ones,
    beside those of its own. Of layers, which are many, only one by name has them.

    Args:
        extra: folders of families.
        layer: a layer's name; its families are among them.
        languages: of the targets there are, by name.

    Raises:
        FamilyError: a file does not fit the format, a folder holds no family, or two files
            define the same one.
    """
    folders = _with_brought(extra, languages.values())
    found = index([*_shipped("*", "*"), *_own(folders)], languages)
    products = {**_products(folders), **(_products((), layer) if layer in LAYERS else {})}
    found += _with_epilogue(found, products, languages)
    return [each.read() for each in _unique(found)]


def own_families(
    extra: Iterable[str | os.PathLike[str]] = (), *, languages: Mapping[str, Language]
) -> list[FamilyEntry]:
    """Entries of the families that are not shipped; as `find_families`."""
    files = [*_own(_with_brought(extra, languages.values()))]
    return [each.entry for each in index(files, languages)]


def catalog(
    target: str,
    operation: str = "gemm",
    extra: Iterable[str | os.PathLike[str]] = (),
    keep: Path | None = None,
    *,
    languages: Mapping[str, Language],
    strict: bool = True,
) -> Families:
    """The families of one operation on one target, by name, each read when it is asked for.

    Args:
        target: what they run on.
        operation: what they compute.
        extra: as for `find_families`.
        keep: a folder where the digests of their files are kept for other processes.
        languages: of the targets, by name; the target's at least.
        strict: whether files of targets that `languages` lacks are refused, not passed over.

    Raises:
        FamilyError: as `find_families`; of the shipped families only these are looked at.
        UnknownNameError: `languages` lacks the target.
    """
    folders = _with_brought(extra, [languages[target]])
    own = [*_own(folders)]
    found = index([*_shipped(operation, target), *own], languages, keep, strict=strict)
    products = {} if operation in OPERATIONS else _products(folders, operation)
    if products:
        files = [*_shipped(GEMM.name, target), *own]
        factors = index(files, languages, keep, strict=strict)
        found += _with_epilogue(factors, products, languages, keep)
    return Families(
        {
            each.entry.name: each
            for each in _unique(found)
            if (each.entry.target, each.entry.operation) == (target, operation)
        }
    )


def operation_of(families: Mapping[str, KernelFamily], name: str) -> Operation:
    """The operation called `name`, of which `families` are.

    Raises:
        UnknownNameError: there is no family for it, and so nobody who defines it.
    """
    if name in OPERATIONS:
        return OPERATIONS[name]
    return _only({family.defined for family in families.values()}, name)


def _only(defined: set[Operation], name: str) -> Operation:
    """The one definition that there is of an operation."""
    if len(defined) != 1:
        state = "no family" if not defined else "families that disagree"
        meant = did_you_mean(name, [*OPERATIONS, *LAYERS])
        raise UnknownNameError(
            f"operation {name!r} has {state} to define it here: name its folder with "
            f"--families{meant}"
        )
    return defined.pop()


def find_operation(
    name: str,
    folders: Iterable[str | os.PathLike[str]] = (),
    target: str | None = None,
    *,
    languages: Mapping[str, Language],
) -> Operation:
    """The operation called `name`: a shipped one, or one that the families in `folders` are of.

    Args:
        name: the operation's.
        folders: folders of families of the user's own, beside $AUTOTUNE_FAMILIES and what targets
            of other packages bring.
        target: a target that its families are for; None looks at those for any.
        languages: of the targets there are, by name.

    Raises:
        InputError: the name is no text.
        UnknownNameError: there are no families of it, or they disagree about it.
        FamilyError: as `find_families`.
    """
    if (known := built_in(text("operation", name))) is not None:
        return known
    able = languages.values() if target is None else [languages[target]]
    folders = _with_brought(folders, able)
    defined = {
        each.read().defined
        for each in _unique(index([*_shipped(name, target or "*"), *_own(folders)], languages))
        if each.entry.operation == name and target in (None, each.entry.target)
    }
    return _only(defined | {*_products(folders, name).values()}, name)


def select_families(
    families: Mapping[str, KernelFamily], names: Sequence[str]
) -> dict[str, KernelFamily]:
    """The families called `names`, in that order; all of them when there are no names.

    Raises:
        UnknownNameError: there is no such family; the message lists those there are.
    """
    names = texts("families", names)
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
            folder = expanded(place).resolve()
            found = folder.is_dir()
        except (OSError, RuntimeError, InputError) as error:  # a loop of links, say
            raise FamilyError(f"{shown(str(place))}{origin} cannot be found: {error}") from error
        if not found:
            raise FamilyError(f"{place}{origin} must be a folder with kernel families (*.toml)")
        if folder not in seen:
            seen.add(folder)
            yield folder


def _shipped(operation: str, target: str) -> list[FamilyFile]:
    """The shipped families; each lies in a folder of its operation and target."""
    templates, spaces = data_dir("templates"), data_dir("search_spaces")
    paths = sorted(spaces.glob(f"{operation}/{target}/*.toml"))
    return [FamilyFile(path, (templates,), (spaces,), shipped=True) for path in paths]


def _own(extra: Iterable[str | os.PathLike[str]]) -> Iterator[FamilyFile]:
    """The user's families."""
    templates, spaces = data_dir("templates"), data_dir("search_spaces")
    for folder in _folders(extra):
        tree = folder / _SPACES
        paths = _family_files(tree if tree.is_dir() else folder)
        if not paths and not product_files(folder):
            raise FamilyError(f"{folder} must be a folder with kernel families (*.toml), has none")
        own = (folder / "templates", tree) if tree.is_dir() else (folder, folder)
        # A new file may be found before one that was: any change in there counts.
        around = stamps_of(path for path in sorted(_around(folder)) if path.is_file())
        for path in paths:
            yield FamilyFile(path, (own[0], templates), (own[1], spaces), around)


def _with_brought(
    extra: Iterable[str | os.PathLike[str]], languages: Iterable[Language]
) -> list[str | os.PathLike[str]]:
    """The folders that targets of other packages bring, and others."""
    brought = (folder for language in languages for folder in language.folders)
    return [*brought, *paths("extra_families", extra)]


def _products(
    extra: Iterable[str | os.PathLike[str]], name: str | None = None
) -> Mapping[Path | str, Operation]:
    """Operations that are gemm with an epilogue: one by name, or all of the user's by file.

    A layer is one by its name alone.
    """
    if name is not None and name in LAYERS:
        return {name: LAYERS[name].operation}
    return {
        path: operation
        for folder in _folders(extra)
        for path, operation in product_files(folder).items()
        if name in (None, operation.name)
    }


def _with_epilogue(
    found: Iterable[Indexed],
    products: Iterable[Path | str],
    languages: Mapping[str, Language],
    keep: Path | None = None,
) -> list[Indexed]:
    """Families of gemm as those of operations that they compute with an epilogue."""
    able = [
        each.file for each in found if each.entry.operation == GEMM.name and each.entry.epilogue
    ]
    files = [replace(file, operation=path) for path in products for file in able]
    return index(files, languages, keep)


def _around(folder: Path) -> Iterator[Path]:
    if not (folder / _SPACES).is_dir():
        yield from folder.glob("*")  # flat, and whatever else may lie below
        return
    for name in ("templates", _SPACES):
        yield from (folder / name).rglob("*")


def _unique(found: list[Indexed]) -> list[Indexed]:
    """The same, once it is sure that no two files define one family."""
    origins: dict[tuple[str, str, str], Path] = {}
    for each in found:
        entry, path = each.entry, each.file.path
        first = origins.setdefault((entry.operation, entry.target, entry.name), path)
        if first != path:
            raise FamilyError(
                f"{path}: there is a family {entry.name!r} for {entry.operation} on "
                f"{entry.target} already, in {first}: rename one of them"
            )
    return found


def _family_files(folder: Path) -> list[Path]:
    """The family files of a tree of search spaces, or of a flat folder."""
    files = folder.rglob("*.toml") if folder.name == _SPACES else folder.glob("*.toml")
    return sorted(
        path for path in files if path.parent.name not in FRAGMENTS and path.name != OPERATION_FILE
    )
