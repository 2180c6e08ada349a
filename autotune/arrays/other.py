"""Arrays of any library that has DLPack or ``__cuda_array_interface__``, read without it."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from autotune.arrays.device import DeviceArray, whole_strides
from autotune.arrays.library import Library, refuse_host
from autotune.core.dtypes import ELEMENTS, from_dlpack, from_typestr
from autotune.core.errors import OperandError
from autotune.operations.parts import strides_of

CUDA_DEVICES = (2, 13)
"""Kinds of device whose memory a CUDA kernel can be given: its own, and managed memory."""

HOST = 1
"""The kind of device that is the host."""

_VERSION = (1, 0)
_READ_ONLY = 1


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("kind", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (
        ("tensor", _Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)

_get_name = ctypes.pythonapi.PyCapsule_GetName
_get_name.restype = ctypes.c_char_p
_get_name.argtypes = (ctypes.py_object,)


@dataclass(frozen=True, slots=True)
class Exported:
    """An array as its library exports it.

    Attributes:
        address: of the first element.
        shape: elements along every dimension.
        strides: in elements; None means that rows lie one after the other.
        dtype: name of the element type.
        device: number of the device.
        read_only: whether it must not be written.
        capsule: while this lives, so does the memory.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str
    device: int
    read_only: bool
    capsule: object


def export(array: Any, stream: int) -> Exported:
    """Ask an array's library for it, so that a stream may use it; nothing waits on the host.

    Args:
        array: has ``__dlpack__``.
        stream: handle of the stream that the array is used on.

    Raises:
        BufferError: the library does not export it, or says nothing that is understood.
    """
    # To DLPack, 0 is ambiguous, and 1 the default stream that all others wait for.
    options: dict[str, Any] = {"stream": stream or 1}
    try:
        capsule = array.__dlpack__(**options, max_version=_VERSION)
    except TypeError:  # of a library from before versions
        capsule = array.__dlpack__(**options)
    name = _get_name(capsule)
    pointer = _get_pointer(capsule, name)
    if name == b"dltensor_versioned":
        versioned = _Versioned.from_address(pointer)
        if versioned.major != _VERSION[0]:
            raise BufferError(f"DLPack version {versioned.major} is not understood")
        tensor, read_only = versioned.tensor, bool(versioned.flags & _READ_ONLY)
    elif name == b"dltensor":
        tensor, read_only = _Managed.from_address(pointer).tensor, False
    else:
        raise BufferError(f"the capsule must be a DLPack tensor, is {name!r}")
    dimensions = range(tensor.dimensions)
    return Exported(
        address=(tensor.data or 0) + tensor.offset,
        shape=tuple(tensor.shape[i] for i in dimensions),
        strides=tuple(tensor.strides[i] for i in dimensions) if tensor.strides else None,
        dtype=from_dlpack(tensor.kind, tensor.bits, tensor.lanes),
        device=tensor.device_id,
        read_only=read_only,
        capsule=capsule,
    )


class OtherArrays(Library):
    """Arrays of JAX, Numba, PyCUDA and any library that exports its memory."""

    ordered: ClassVar[bool] = False
    name = "another library"

    def memory_of(self, array: Any) -> str:
        if hasattr(array, "__cuda_array_interface__"):
            return "gpu"
        place = getattr(array, "__dlpack_device__", None)
        return "host" if place is None or int(place()[0]) == HOST else "gpu"

    def describe(
        self, name: str, array: Any, stream: int, device_of: Callable[[int], int | None]
    ) -> DeviceArray:
        place = getattr(array, "__dlpack_device__", None)
        if place is not None and int(place()[0]) not in CUDA_DEVICES:
            refuse_host(name, array)
        if place is not None:
            return _from_dlpack(name, array, stream)
        try:
            interface = getattr(array, "__cuda_array_interface__", None)
        except (RuntimeError, TypeError) as error:
            raise OperandError(f"{name} does not show its memory: {error}") from error
        device = None if interface is None else device_of(int(interface["data"][0]))
        if device is None:
            refuse_host(name, array)
        return _from_interface(name, interface, device)

    def current_stream(self, array: Any) -> int:
        interface = getattr(array, "__cuda_array_interface__", None)
        stream = interface.get("stream") if isinstance(interface, dict) else None
        return int(stream or 0)

    def empty(
        self, like: Any, shape: tuple[int, ...], dtype: str, stream: int | None = None
    ) -> Any:
        root = type(like).__module__.partition(".")[0]
        if root == "numba":
            return sys.modules["numba"].cuda.device_array(shape, ELEMENTS[dtype].numpy)
        if root == "pycuda":
            return type(like)(shape, ELEMENTS[dtype].numpy)
        raise OperandError(
            f"arrays of {root} are not allocated here: pass out=, an array of PyTorch, CuPy, "
            "Numba or PyCUDA, say"
        )

    def for_kernel(self, array: Any) -> Any:
        """Those of JAX on the host as arrays of NumPy, which cannot be written."""
        return np.asarray(array) if _is_jaxs(array) else array

    def from_kernel(self, array: Any, like: Any) -> Any:
        return sys.modules["jax"].numpy.asarray(array) if _is_jaxs(like) else array

    def is_exact(self, array: Any) -> bool:
        return False


def _is_jaxs(array: Any) -> bool:
    return type(array).__module__.partition(".")[0] in ("jax", "jaxlib")


def _from_dlpack(name: str, array: Any, stream: int) -> DeviceArray:
    try:
        exported = export(array, stream)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise OperandError(f"{name} is not exported by its library: {error}") from error
    # JAX never writes its arrays, which its exports do not say.
    return DeviceArray(
        address=exported.address,
        shape=exported.shape,
        strides=exported.strides or strides_of(exported.shape),
        dtype=exported.dtype,
        device=exported.device,
        read_only=exported.read_only or _is_jaxs(array),
        keep=exported.capsule,
    )


def _from_interface(name: str, interface: Any, device: int) -> DeviceArray:
    address, read_only = interface["data"]
    shape, typestr = tuple(interface["shape"]), interface["typestr"]
    dtype, strides = from_typestr(typestr), interface.get("strides")
    elements = (
        strides_of(shape) if strides is None else whole_strides(name, strides, int(typestr[2:]))
    )
    return DeviceArray(
        int(address), shape, elements, dtype, device, bool(read_only), interface.get("stream")
    )
