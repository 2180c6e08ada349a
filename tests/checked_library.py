"""Parts of emitted CUDA C++ as a library of the host that checks what is undefined as it runs."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

COMPILER = shutil.which("c++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")

FLAGS = ("-std=c++20", "-O1", "-fsanitize=undefined", "-fno-sanitize-recover=all", "-pthread")


def checked_library(text: str, folder: Path) -> ctypes.CDLL:
    """A C++20 source, compiled; what is undefined, as a misaligned access, ends the process."""
    source, shared = folder / "source.cpp", folder / "library.so"
    source.write_text(text)
    command = [str(COMPILER), *FLAGS, "-shared", "-fPIC", str(source), "-o", str(shared)]
    subprocess.run(command, check=True, capture_output=True)
    return ctypes.CDLL(str(shared))
