"""Compiling emitted modules in worker processes, which fills Numba's file cache."""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

from autotune.core import session
from autotune.core.errors import CompileError
from autotune.cpu.numba_start import import_numba
from autotune.families.compiled_files import CompiledFiles
from autotune.families.modules import load_module

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Compiled:
    """A module in Numba's file cache.

    Attributes:
        seconds: processor time spent; next to none when it was there before.
        error: the compiler's reason, when it refused.
    """

    seconds: float
    error: str = ""


def is_compiled(path: Path) -> bool:
    """Whether Numba's file cache has a module, as far as can be seen without Numba."""
    return CompiledFiles(path).made_by(_numba_version())


@session.cached()
def _numba_version() -> str:
    return metadata.version("numba")


def compile_worker() -> Callable[[Path], Compiled]:
    """Entry of a worker that compiles the modules it is given the paths of."""
    import_numba()  # now, so that it is no part of any candidate's time
    return compile_module


def compile_module(path: Path) -> Compiled:
    """Import a module, which fills Numba's file cache beside it."""
    start = time.process_time()
    error = ""
    try:
        load_module(path)
    except CompileError as refused:
        error = str(refused)
    return Compiled(time.process_time() - start, error)
