"""Kernel families of all targets that there are: `autotune.families.catalog`, with languages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.families import catalog as families
from autotune.families import reading
from autotune.families.catalog import operation_of as operation_of
from autotune.families.catalog import select_families as select_families
from autotune.targets.registry import LANGUAGES

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable
    from pathlib import Path

    from autotune.families.family import KernelFamily
    from autotune.families.index import Families
    from autotune.operations.operation import Operation


def find_families(extra: Iterable[str | os.PathLike[str]] = ()) -> list[KernelFamily]:
    """See `autotune.families.catalog.find_families`."""
    return families.find_families(extra, languages=LANGUAGES)


def catalog(
    target: str, operation: str = "gemm", extra: Iterable[str | os.PathLike[str]] = ()
) -> Families:
    """See `autotune.families.catalog.catalog`."""
    return families.catalog(target, operation, extra, languages=LANGUAGES)


def load_families(
    *, target: str, operation: str = "gemm", extra: Iterable[str | os.PathLike[str]] = ()
) -> dict[str, KernelFamily]:
    """The families of one operation on one target, by name, all of them read.

    Raises:
        FamilyError: as `catalog`.
    """
    return dict(catalog(target, operation, extra))


def find_operation(
    name: str,
    folders: Iterable[str | os.PathLike[str]] = (),
    target: str | None = None,
) -> Operation:
    """See `autotune.families.catalog.find_operation`."""
    return families.find_operation(name, folders, target, languages=LANGUAGES)


def read_family(
    path: Path,
    template_folders: tuple[Path, ...],
    fragment_folders: tuple[Path, ...] = (),
    operation_file: Path | None = None,
) -> KernelFamily:
    """See `autotune.families.reading.read_family`."""
    return reading.read_family(
        path, template_folders, fragment_folders, operation_file, languages=LANGUAGES
    )
