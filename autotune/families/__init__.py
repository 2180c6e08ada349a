"""Kernel families: two files each, from which source text, a search space and launches follow.

A family's TOML file is read, never executed; its template becomes source text, the same for the
same configuration wherever it is rendered. What that source is written in, a `Language` says,
which each target states of itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.faces import lazily

if TYPE_CHECKING:
    from autotune.families.catalog import catalog as catalog
    from autotune.families.catalog import find_families as find_families
    from autotune.families.catalog import find_operation as find_operation
    from autotune.families.catalog import load_families as load_families
    from autotune.families.catalog import select_families as select_families
    from autotune.families.family import KernelFamily as KernelFamily
    from autotune.families.gpu.launch import Binary as Binary
    from autotune.families.index import Families as Families
    from autotune.families.languages import Language as Language
    from autotune.families.languages import language_of as language_of
    from autotune.families.program_cache import ProgramCache as ProgramCache
    from autotune.families.reading import read_family as read_family
    from autotune.families.rendering import Source as Source
    from autotune.families.rendering import render as render

_HOMES = {
    "Binary": "gpu.launch",
    "Families": "index",
    "KernelFamily": "family",
    "Language": "languages",
    "ProgramCache": "program_cache",
    "Source": "rendering",
    "catalog": "catalog",
    "find_families": "catalog",
    "find_operation": "catalog",
    "language_of": "languages",
    "load_families": "catalog",
    "read_family": "reading",
    "render": "rendering",
    "select_families": "catalog",
}

__all__ = [*_HOMES]
__getattr__ = lazily(__name__, _HOMES)
