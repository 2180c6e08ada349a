"""Arrays of any library that has DLPack or ``__cuda_array_interface__``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, ClassVar

from autotune.arrays.device import DeviceArray, contiguous, whole_strides
from autotune.arrays.dlpack import CUDA_DEVICES, HOST, export
from autotune.arrays.library import Library, refuse_host
from autotune.core.dtypes import DTYPES, from_typestr
from autotune.core.errors import OperandError


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
            return sys.modules["numba"].cuda.device_array(shape, DTYPES[dtype].numpy)
        if root == "pycuda":
            return type(like)(shape, DTYPES[dtype].numpy)
        raise OperandError(
            f"arrays of {root} are not allocated here: pass out=, an array of PyTorch, CuPy, "
            "Numba or PyCUDA, say"
        )

    def is_exact(self, array: Any) -> bool:
        return False


def _from_dlpack(name: str, array: Any, stream: int) -> DeviceArray:
    try:
        exported = export(array, stream)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise OperandError(f"{name} is not exported by its library: {error}") from error
    # JAX never writes its arrays, which its exports do not say.
    immutable = type(array).__module__.partition(".")[0] in ("jax", "jaxlib")
    return DeviceArray(
        address=exported.address,
        shape=exported.shape,
        strides=exported.strides or contiguous(exported.shape),
        dtype=exported.dtype,
        device=exported.device,
        read_only=exported.read_only or immutable,
        keep=exported.capsule,
    )


def _from_interface(name: str, interface: Any, device: int) -> DeviceArray:
    address, read_only = interface["data"]
    shape, typestr = tuple(interface["shape"]), interface["typestr"]
    dtype, strides = from_typestr(typestr), interface.get("strides")
    elements = (
        contiguous(shape) if strides is None else whole_strides(name, strides, int(typestr[2:]))
    )
    return DeviceArray(
        int(address), shape, elements, dtype, device, bool(read_only), interface.get("stream")
    )
