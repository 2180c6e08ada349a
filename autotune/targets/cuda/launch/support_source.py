"""The source of the kernels that the engine itself runs, for one element type."""

from __future__ import annotations

from importlib import resources

from autotune.families.rendering import Source

_TYPES = {"float32": ("float", "unsigned int"), "float64": ("double", "unsigned long long")}


def support_source(dtype: str) -> Source:
    """The source of the kernels for one element type."""
    element, word = _TYPES[dtype]
    text = resources.files("autotune.targets.cuda.launch").joinpath("support.cu").read_text()
    return Source(f"typedef {element} T;\ntypedef {word} WORD;\n\n{text}", "inspect", (), "cuda")
