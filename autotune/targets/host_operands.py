"""Checking the operands of a kernel call, before anything can go wrong in native code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.core.errors import OperandError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from autotune.operations.problem import Gemm


def check_operands(
    problem: Gemm, a: Any, b: Any, out: NDArray[Any] | None, beta: float
) -> NDArray[Any]:
    """Validate host operands and return the array that C goes to.

    Args:
        problem: sizes, dtype and layout that the operands must have.
        a: A as stored: M x N, or N x M where the layout says transposed.
        b: B as stored: N x K, or K x N where the layout says transposed.
        out: C, M x K; None allocates it.
        beta: scales what `out` holds; anything but zero needs `out`.

    Raises:
        OperandError: a wrong type, shape, dtype or memory layout; `out` that is read-only or
            overlaps an input; a nonzero `beta` without `out`.
    """
    _check("a", a, problem.a_shape, problem.dtype)
    _check("b", b, problem.b_shape, problem.dtype)
    if out is None:
        if beta != 0:
            raise OperandError(f"beta = {beta} scales what out holds: pass out=, or use beta = 0")
        return np.empty(problem.c_shape, problem.result_dtype)
    _check("out", out, problem.c_shape, problem.result_dtype)
    if not out.flags.writeable:
        raise OperandError("out is read-only: pass an array that may be written")
    if not rows_are_contiguous(out):
        raise OperandError(
            f"out must be row-major with contiguous rows, got strides {out.strides}: "
            "pass np.ascontiguousarray(out) and copy back"
        )
    for name, operand in (("a", a), ("b", b)):
        if np.may_share_memory(out, operand) and _overlaps(out, operand):
            raise OperandError(f"out overlaps {name} in memory: pass a separate array as out")
    return out


def rows_are_contiguous(array: NDArray[Any]) -> bool:
    """Whether a 2-D array is row-major with unit inner stride and rows that do not overlap."""
    rows, columns = array.shape
    row_stride, column_stride = array.strides
    return (columns == 1 or column_stride == array.itemsize) and (
        rows == 1 or row_stride >= columns * array.itemsize
    )


def _check(name: str, array: Any, shape: tuple[int, int], dtype: str) -> None:
    if not isinstance(array, np.ndarray):
        if hasattr(array, "__cuda_array_interface__") or getattr(array, "is_cuda", False):
            raise OperandError(
                f"{name} must be a NumPy array for this target, got {type(array).__name__} in "
                'the memory of a GPU: load the kernel with target="cuda", or copy it to the host'
            )
        raise OperandError(
            f"{name} must be a NumPy array for this target, got {type(array).__name__}: "
            "convert it with numpy.asarray"
        )
    if array.shape != shape:
        raise OperandError(f"{name} must have shape {shape}, got {array.shape}")
    if array.dtype.name != dtype or not array.dtype.isnative:
        raise OperandError(
            f"{name} must have dtype {dtype} in native byte order, got {array.dtype.str}: "
            f"convert it with .astype({dtype!r})"
        )
    if not array.flags.aligned:
        raise OperandError(f"{name} is not aligned to its items: copy it with numpy.array")


def _overlaps(x: NDArray[Any], y: NDArray[Any]) -> bool:
    # Exact for interleaved views too; the bound keeps odd strides from taking for ever.
    limit: Any = 10_000
    try:
        return np.shares_memory(x, y, max_work=limit)
    except np.exceptions.TooHardError:
        return True
