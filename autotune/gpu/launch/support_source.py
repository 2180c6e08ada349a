"""The source of the kernels that the engine itself runs, for the element types of one problem."""

from __future__ import annotations

from importlib import resources

from autotune.core.dtypes import DTYPES
from autotune.families.gpu.cuda_source import includes
from autotune.families.rendering import Source


def support_source(dtype: str, out_dtype: str | None = None) -> Source:
    """The source of the kernels.

    Args:
        dtype: element type of the operands.
        out_dtype: element type of results; None means `dtype`.
    """
    result, word = DTYPES[out_dtype or DTYPES[dtype].result], DTYPES[dtype].word
    text = resources.files("autotune.gpu.launch").joinpath("support.cu").read_text()
    types = f"typedef {result.c_type} T;\ntypedef {word.c_type} WORD;\n"
    return Source(f"{includes(result)}{types}\n{text}", "transpose", (), "cuda")
