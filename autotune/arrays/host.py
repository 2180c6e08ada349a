"""Operands in the memory of the host, checked before anything can go wrong in native code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.core.dtypes import ELEMENTS
from autotune.core.errors import OperandError
from autotune.operations.calls import check_unread, out_overlaps, outputs_of_call
from autotune.operations.parts import plain_strides

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from autotune.operations.parts import Array
    from autotune.operations.problem import Problem


def check_operands(
    problem: Problem, inputs: Sequence[Any], out: Any, scalars: Mapping[str, float]
) -> list[NDArray[Any]]:
    """Validate host operands; all of them in the operation's order, outputs too.

    Args:
        problem: shapes and dtypes that the operands must have.
        inputs: as stored, in the operation's order.
        out: the output, or several; None allocates them.
        scalars: those that do not have their defaults: where they say that the output is read,
            it must be there.

    Raises:
        OperandError: a wrong type, shape, dtype or memory layout; an output that is read-only or
            overlaps another operand; no output where it is read.
    """
    outs = outputs_of_call(problem.defined, out)
    given, made = iter(inputs), iter(outs)
    found: list[tuple[str, Array, Any]] = []
    for operand, stored in zip(problem.defined.operands, problem.operands, strict=True):
        name = operand.name.lower()
        if not operand.written or operand.read:
            array = next(given)
        else:
            name = "out" if len(outs) == 1 else name
            array = next(made)
            if array is None:
                check_unread(problem.defined, scalars)
                array = np.empty(stored.shape, ELEMENTS[stored.dtype].numpy)
            elif not operand.shape and getattr(array, "shape", None) == ():
                array = array.reshape(1)
        _check(name, array, stored)
        found.append((name, stored, array))
    for place, (name, stored, output) in enumerate(found):
        if not stored.written:
            continue
        if not output.flags.writeable:
            raise OperandError(f"{name} is read-only: pass an array that may be written")
        if element_strides(output) is None:
            raise OperandError(
                f"{name} must be row-major with contiguous rows, got strides {output.strides}: "
                f"pass np.ascontiguousarray({name}) and copy back"
            )
        for other, (called, _, array) in enumerate(found):
            if other != place:
                check_apart(output, called, array, name)
    return [array for _, _, array in found]


def on_host(array: Any) -> NDArray[Any]:
    """An array of any library as one of NumPy's, in the memory of the host.

    Raises:
        OperandError: NumPy has no such elements.
    """
    for name in ("detach", "cpu", "get"):  # of PyTorch, and of CuPy
        array = getattr(array, name, lambda same=array: same)()
    try:
        return np.ascontiguousarray(array)
    except (TypeError, ValueError) as error:
        raise OperandError(f"operands to tune on must be such as NumPy has: {error}") from error


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
            f"{name} must have dtype {dtype} in native byte order, got {array.dtype}: "
            f"convert it with .astype({dtype!r})"
        )
    if not array.flags.aligned:
        raise OperandError(f"{name} is not aligned to its items: copy it with numpy.array")


def check_apart(out: NDArray[Any], name: str, given: NDArray[Any], called: str = "out") -> None:
    """Refuse an output that shares an element with another operand.

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
        raise out_overlaps(name, called)
