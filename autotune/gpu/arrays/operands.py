"""Operands in a GPU's memory: where they lie, and whether they fit.

Arrays of PyTorch and CuPy are read through their own attributes, which takes a fraction of a
microsecond; those of any other library through DLPack or ``__cuda_array_interface__``. No library
is imported: an array of it is only there if its library is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from autotune.core.dtypes import DTYPES, from_typestr
from autotune.core.errors import OperandError
from autotune.gpu.arrays.dlpack import CUDA_DEVICES, export
from autotune.operations.parts import plain_strides

if TYPE_CHECKING:
    from collections.abc import Callable

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


def describe(
    name: str, array: Any, stream: int, device_of: Callable[[int], int | None]
) -> DeviceArray:
    """An array of any library, through DLPack or ``__cuda_array_interface__``.

    Args:
        name: of the operand, for messages.
        array: what was passed.
        stream: handle of the stream that it is going to be used on.
        device_of: the device that an address belongs to.

    Raises:
        OperandError: it is no array, or not in the memory of a GPU.
    """
    place = getattr(array, "__dlpack_device__", None)
    if place is not None and int(place()[0]) not in CUDA_DEVICES:
        refuse_host(name, array)
    if place is not None:
        return _from_dlpack(name, array, stream)
    try:
        interface = getattr(array, "__cuda_array_interface__", None)
    except (RuntimeError, TypeError) as error:
        raise OperandError(f"{name} does not show its memory: {error}") from error
    if interface is None:
        refuse_host(name, array)
    return _from_interface(name, array, interface, device_of)


def refuse_host(name: str, array: object) -> NoReturn:
    """Say that an operand is not in the memory of a GPU."""
    kind = f"{type(array).__module__.partition('.')[0]}.{type(array).__name__}"
    raise OperandError(
        f"{name} must be in the memory of a GPU, got {kind} in host memory: copy it there, or "
        'load the kernel with target="cpu"'
    )


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
    strides = plain_strides(shape, array.strides)
    if strides is None:
        raise OperandError(
            f"{name} must be row-major with contiguous rows, got strides {array.strides} in "
            "elements: pass a contiguous copy"
            + ("" if written else ", or for a transposed view a problem with that layout")
        )
    if packed and strides != contiguous(shape):
        raise OperandError(
            f"{name} must have rows that follow each other, got strides {array.strides} in "
            "elements: pass a contiguous copy, or have the kernel take ld"
            f"{name}, its leading dimension"
        )
    if len(shape) > 1 and strides[-2] >= LEADING_LIMIT:
        raise OperandError(f"{name} must have rows less than {LEADING_LIMIT} elements apart")
    if array.address % DTYPES[dtype].itemsize:
        raise OperandError(f"{name} is not aligned to its items: pass a copy")
    return array.address, strides[:-1]


def overlap(
    at_x: tuple[int, int, int],
    x_shape: tuple[int, int],
    at_y: tuple[int, int, int],
    y_shape: tuple[int, int],
    itemsize: int,
) -> bool:
    """Whether two matrices share an element.

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


def _from_dlpack(name: str, array: Any, stream: int) -> DeviceArray:
    try:
        exported = export(array, stream)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise OperandError(f"{name} is not exported by its library: {error}") from error
    return DeviceArray(
        address=exported.address,
        shape=exported.shape,
        strides=exported.strides or contiguous(exported.shape),
        dtype=exported.dtype,
        device=exported.device,
        read_only=exported.read_only or _is_immutable(array),
        keep=exported.capsule,
    )


def _from_interface(
    name: str, array: Any, interface: Any, device_of: Callable[[int], int | None]
) -> DeviceArray:
    address, read_only = interface["data"]
    shape = tuple(interface["shape"])
    typestr = interface["typestr"]
    dtype = from_typestr(typestr)
    strides = interface.get("strides")
    if strides is None:
        elements = contiguous(shape)
    else:
        itemsize = int(typestr[2:])
        if any(stride % itemsize for stride in strides):
            raise OperandError(f"{name} must have strides in whole elements, got {strides} bytes")
        elements = tuple(stride // itemsize for stride in strides)
    device = device_of(int(address))
    if device is None:
        refuse_host(name, array)
    return DeviceArray(
        int(address), shape, elements, dtype, device, bool(read_only), interface.get("stream")
    )


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Elements from one to the next along every dimension, where nothing lies between rows."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _is_immutable(array: object) -> bool:
    """Whether a library never writes its arrays, which its exports do not say."""
    return type(array).__module__.partition(".")[0] in ("jax", "jaxlib")
