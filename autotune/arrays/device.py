"""Operands in a GPU's memory: where they lie, whether they fit, and streams of any library."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autotune.core.dtypes import ELEMENTS
from autotune.core.errors import OperandError
from autotune.operations.parts import plain_strides, strides_of

LEADING_LIMIT = 2**31
"""Kernels count elements from one row to the next in 32 bits."""


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """An array in the memory of a GPU.

    Attributes:
        address: of the first element.
        shape: elements along every dimension.
        strides: elements from one to the next along every dimension.
        dtype: name of the element type.
        device: the driver's number of the device.
        read_only: whether it must not be written.
        stream: handle of the stream that still works on it; None when none does.
        keep: what keeps the memory alive, where holding the array itself does not.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: int
    read_only: bool = False
    stream: int | None = None
    keep: object = None


def check_place(
    name: str,
    array: DeviceArray,
    shape: tuple[int, ...],
    dtype: str,
    *,
    written: bool,
    packed: bool = False,
) -> tuple[int, tuple[int, ...]]:
    """Address and strides of an operand, all but the last, once it fits.

    Args:
        name: of the operand, for messages.
        array: the operand.
        shape: what it must have.
        dtype: what it must have.
        written: whether the kernel writes it.
        packed: whether its rows must follow each other.

    Raises:
        OperandError: a wrong shape, dtype or memory layout, or a read-only array to be written.
            Arrays whose rows are not contiguous are not copied behind the caller's back.
    """
    if tuple(array.shape) != shape:
        raise OperandError(f"{name} must have shape {shape}, got {tuple(array.shape)}")
    if not array.address:
        raise OperandError(
            f"{name} has no memory of its own, but stands for a tensor: pass what it holds"
        )
    if array.dtype != dtype:
        raise OperandError(f"{name} must have dtype {dtype}, got {array.dtype}: convert it first")
    if written and array.read_only:
        raise OperandError(f"{name} is read-only: pass an array that may be written")
    strides = plain_strides(shape, array.strides, shared=not written)
    if strides is None:
        raise OperandError(
            f"{name} must be row-major with contiguous rows, got strides {array.strides} in "
            "elements: pass a contiguous copy"
            + ("" if written else ", or for a transposed view a problem with that layout")
        )
    if packed and strides != strides_of(shape):
        raise OperandError(
            f"{name} must have rows that follow each other, got strides {array.strides} in "
            "elements: pass a contiguous copy, or have the kernel take ld"
            f"{name}, its leading dimension"
        )
    if len(shape) > 1 and strides[-2] >= LEADING_LIMIT:
        raise OperandError(f"{name} must have rows less than {LEADING_LIMIT} elements apart")
    if array.address % ELEMENTS[dtype].itemsize:
        raise OperandError(f"{name} is not aligned to its items: pass a copy")
    return array.address, strides[:-1]


def overlap(
    at_x: tuple[int, int, int],
    x_shape: tuple[int, int],
    at_y: tuple[int, int, int],
    y_shape: tuple[int, int],
    itemsize: int,
) -> bool:
    """True if two matrices share an element.

    Args:
        at_x: address, leading dimension and device of one.
        x_shape: its shape.
        at_y: of the other.
        y_shape: of the other.
        itemsize: bytes per element.
    """
    (x, x_leading, _), (x_rows, x_columns) = at_x, x_shape
    (y, y_leading, _), (y_rows, y_columns) = at_y, y_shape
    x_end = x + ((x_rows - 1) * x_leading + x_columns) * itemsize
    y_end = y + ((y_rows - 1) * y_leading + y_columns) * itemsize
    if x_end <= y or y_end <= x:
        return False
    if x_leading != y_leading:
        return True
    # Columns of one array side by side: the address ranges overlap, the rows do not.
    period = x_leading * itemsize
    shift = (y - x) % period
    return shift < x_columns * itemsize or shift + y_columns * itemsize > period


def whole_strides(name: str, strides: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Strides in elements, from those in bytes.

    Raises:
        OperandError: they are not whole.
    """
    if any(stride % itemsize for stride in strides):
        raise OperandError(f"{name} must have strides in whole elements, got {strides} bytes")
    return tuple(stride // itemsize for stride in strides)


def stream_handle(stream: Any) -> int:
    """The driver's handle of a stream of any library.

    Args:
        stream: the handle itself; a stream of PyTorch, CuPy, Numba or PyCUDA; or anything with
            ``__cuda_stream__``.

    Raises:
        OperandError: it is no stream.
    """
    if isinstance(stream, int) and not isinstance(stream, bool) and stream >= 0:
        return stream
    for attribute in ("cuda_stream", "ptr", "__cuda_stream__", "handle"):
        found = getattr(stream, attribute, None)
        if found is None:
            continue
        if attribute == "__cuda_stream__":
            _, found = found() if callable(found) else found
        with contextlib.suppress(TypeError, ValueError):
            return int(getattr(found, "value", found) or 0)
    raise OperandError(
        "stream must be a handle (int), a stream of PyTorch, CuPy, Numba or PyCUDA, or have "
        f"__cuda_stream__; got {stream!r:.80}"
    )
