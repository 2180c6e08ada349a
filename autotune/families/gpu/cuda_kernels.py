"""The kernels of an emitted CUDA source, by name."""

from __future__ import annotations

import re

_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ATTRIBUTE = re.compile(r"__(?!global__)\w+__\s*\((?:[^()]|\([^()]*\))*\)|\[\[.*?\]\]", re.DOTALL)
_KERNEL = re.compile(r"__global__([^;{}()]*?)\b(\w+)\s*\(")


def kernels_of(text: str) -> tuple[str, ...]:
    """Names of the ``__global__`` functions of a source, in their order."""
    plain = _ATTRIBUTE.sub(" ", _COMMENTS.sub(" ", text))
    return tuple(dict.fromkeys(name for _, name in _KERNEL.findall(plain)))
