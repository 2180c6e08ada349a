"""Kernel families of all targets that there are: `autotune.families.catalog`, with languages."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from autotune.families import catalog as families
from autotune.families import reading
from autotune.families.catalog import operation_of as operation_of
from autotune.families.catalog import select_families as select_families
from autotune.targets.registry import LANGUAGES

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from autotune.families.family import KernelFamily
    from autotune.operations.operation import Operation

find_families = functools.partial(families.find_families, languages=LANGUAGES)
own_families = functools.partial(families.own_families, languages=LANGUAGES)
catalog = functools.partial(families.catalog, languages=LANGUAGES)
read_family = functools.partial(reading.read_family, languages=LANGUAGES)


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
