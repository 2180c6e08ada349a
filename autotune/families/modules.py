"""Emitted modules of Python, imported by their paths."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from typing import TYPE_CHECKING

from autotune.core import session
from autotune.core.errors import AutotuneError, CacheError, CompileError
from autotune.core.file_lock import alone
from autotune.core.forking import LOADING
from autotune.core.paths import NO_SPACE, no_space
from autotune.families.compiled_files import CompiledFiles

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

_MODULES: dict[Path, ModuleType] = session.keep("emitted modules", {}, lasting=True)
"""The emitted modules of this process, by path. They stay, as modules do."""


def load_module(path: Path) -> ModuleType:
    """Import an emitted module by its path, which compiles it or loads what was compiled.

    It is imported once, however many threads ask for it.

    Raises:
        CompileError: it does not import; the message is the compiler's, in one line.
    """
    module = _MODULES.get(path)
    if module is None:
        with LOADING:
            module = _MODULES.get(path)
            if module is None:
                module = _MODULES[path] = _import(path)
    return module


def _import(path: Path) -> ModuleType:
    name = f"autotune_program_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise CompileError(f"{path} must be a Python module with the suffix .py")
    module = importlib.util.module_from_spec(spec)
    # What Numba loads from its file cache refers to the module by name.
    sys.modules[name] = module
    try:
        with alone(path):
            compiled = CompiledFiles(path)
            compiled.check()
            spec.loader.exec_module(module)
            compiled.note()
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, AutotuneError) or not isinstance(error, Exception):
            raise
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            raise CacheError(f"cannot keep what {path} compiles to: {no_space(path)}") from error
        # What a compiler raises for bad source is not a closed set of types.
        raise CompileError(
            f"{path.name} does not compile: {one_line(error)}{_line_of(path, error)}"
        ) from error
    return module


def _line_of(path: Path, error: Exception) -> str:
    """The line of a module that a compiler's error names, as it stands there."""
    found = re.search(rf'File "[^"]*{re.escape(path.name)}", line (\d+)', str(error))
    if found is None:
        return ""
    line = path.read_text(encoding="utf-8").splitlines()[int(found[1]) - 1]
    return f": {line.strip()}"


def one_line(error: Exception) -> str:
    """A compiler's error in one line, without the excerpts of the source that follow."""
    # Numba prefixes the reason with the name of the pass.
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line and not line.startswith(("Failed in", "-"))]
    text = re.sub(r'File "[^"]*", (line \d+):', r"(\1)", " ".join(told[:2]))
    return f"{type(error).__name__}: {text[:300]}"
