"""NVIDIA's compilers, by the target whose sources they compile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.gpu.nvidia import numba_compiler
from autotune.gpu.nvidia.cubin import read_cubin
from autotune.gpu.nvidia.nvrtc import compile_cuda, nvrtc_label, nvrtc_version

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from autotune.families.rendering import Source
    from autotune.gpu.vendor import Compiled, Compiler


class _Nvrtc:
    """CUDA C++, by NVRTC."""

    read = staticmethod(read_cubin)

    def load(self) -> object:
        return nvrtc_version()

    def label(self, source: Source) -> str:
        return nvrtc_label(source.text)

    def compile(self, source: Source, path: Path, architecture: str) -> Compiled:
        return compile_cuda(source.text, architecture)


class _Numba:
    """Python, by Numba-CUDA and nvJitLink."""

    read = staticmethod(read_cubin)

    def load(self) -> object:
        return numba_compiler.load_numba()

    def label(self, source: Source) -> str:
        return numba_compiler.label()

    def compile(self, source: Source, path: Path, architecture: str) -> Compiled:
        return numba_compiler.compile_numba(path, source.entry, architecture)


COMPILERS: Mapping[str, Compiler] = {"cuda": _Nvrtc(), "numba-cuda": _Numba()}
