"""Operands in the memory of the host, checked before anything can go wrong in native code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.core.dtypes import DTYPES
from autotune.core.errors import OperandError
from autotune.operations.calls import check_unread, out_overlaps
from autotune.operations.parts import plain_strides

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from autotune.operations.parts import Array
    from autotune.operations.problem import Problem


def check_operands(
    problem: Problem,
    inputs: Sequence[Any],
    out: NDArray[Any] | None,
    scalars: Mapping[str, float],
) -> NDArray[Any]:
    """Validate host operands and return the array that the result goes to.

    Args:
        problem: shapes and dtypes that the operands must have.
        inputs: as stored, in the operation's order.
        out: the output; None allocates it.
        scalars: those that do not have their defaults: where they say that the output is read,
            it must be there.

    Raises:
        OperandError: a wrong type, shape, dtype or memory layout; `out` that is read-only or
            overlaps an input; no `out` where it is read.
    """
    output = next(operand for operand in problem.operands if operand.written)
    wanted = [operand for operand in problem.operands if not operand.written]
    for operand, given in zip(wanted, inputs, strict=True):
        _check(operand.name.lower(), given, operand)
    if out is None:
        check_unread(problem.defined, scalars)
        return np.empty(output.shape, DTYPES[output.dtype].numpy)
    _check("out", out, output)
    if not out.flags.writeable:
        raise OperandError("out is read-only: pass an array that may be written")
    if element_strides(out) is None:
        raise OperandError(
            f"out must be row-major with contiguous rows, got strides {out.strides}: "
            "pass np.ascontiguousarray(out) and copy back"
        )
    for operand, given in zip(wanted, inputs, strict=True):
        check_apart(out, operand.name.lower(), given)
    return out


PLAIN: set[type] = {np.ndarray, np.memmap}
"""Types of arrays that mean no more than their elements; other subclasses mean more."""


def check_plain(name: str, array: NDArray[Any]) -> None:
    """Refuse an array that means more than its elements: a mask or a unit would be lost.

    Raises:
        OperandError: it does; the message says how to pass the elements.
    """
    if type(array) in PLAIN:
        return
    filled = f"{name}.filled(value), or " if isinstance(array, np.ma.MaskedArray) else ""
    raise OperandError(
        f"{name} must be a plain NumPy array, got {type(array).__name__}, of which only the "
        f"elements would be used: pass {filled}{name}.view(numpy.ndarray)"
    )


def element_strides(array: NDArray[Any]) -> tuple[int, ...] | None:
    """Elements from one to the next along every dimension, the outermost first.

    None where the last dimension is not contiguous, or rows are not whole elements apart.
    """
    steps = [divmod(stride, array.itemsize) for stride in array.strides]
    if any(rest and size > 1 for (_, rest), size in zip(steps, array.shape, strict=True)):
        return None
    return plain_strides(array.shape, [step for step, _ in steps])


def _check(name: str, array: Any, wanted: Array) -> None:
    shape, dtype = wanted.shape, wanted.dtype
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
    check_plain(name, array)
    if array.shape != shape:
        raise OperandError(f"{name} must have shape {shape}, got {array.shape}")
    if array.dtype.name != dtype or not array.dtype.isnative:
        raise OperandError(
            f"{name} must have dtype {dtype} in native byte order, got {array.dtype.str}: "
            f"convert it with .astype({dtype!r})"
        )
    if not array.flags.aligned:
        raise OperandError(f"{name} is not aligned to its items: copy it with numpy.array")


def check_apart(out: NDArray[Any], name: str, given: NDArray[Any]) -> None:
    """Refuse an output that shares an element with an input.

    Raises:
        OperandError: it does.
    """
    if not np.may_share_memory(out, given):
        return
    # Exact for interleaved views too; the bound keeps odd strides from taking for ever.
    limit: Any = 10_000
    try:
        shared = np.shares_memory(out, given, max_work=limit)
    except np.exceptions.TooHardError:
        shared = True
    if shared:
        raise out_overlaps(name)
