"""Packages whose names are imported from their modules when they are first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazily(
    package: str, homes: Mapping[str, str], *, root: str | None = None
) -> Callable[[str], Any]:
    """A module's ``__getattr__`` that imports what the package re-exports on first use.

    Args:
        package: the package's name.
        homes: the module that each name is from, below `root`.
        root: the package that holds the modules; `package` itself if None.
    """

    def getter(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{root or package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return getter
