"""CuPy's arrays, which behave like NumPy's, in the memory of GPUs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.arrays.device import DeviceArray, whole_strides
from autotune.arrays.library import core_of
from autotune.arrays.numpy import NumpyArrays, one_line
from autotune.core.dtypes import DTYPES, ELEMENTS
from autotune.core.errors import OperandError, OperandTypeError

if TYPE_CHECKING:
    from autotune.arrays.library import Descriptor, Place, Reader
    from autotune.arrays.shapes import Factor


class CupyArrays(NumpyArrays):
    """Arrays of CuPy.

    Args:
        module: the package `cupy`.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self.name = f"CuPy {module.__version__}"
        self.kinds = (module.ndarray,)
        self._current = module.cuda.get_current_stream

    def memory_of(self, array: Any) -> str:
        return "gpu"

    def reader(self, shape: tuple[int, int], dtype: str) -> Reader:
        wanted = ELEMENTS[dtype].numpy
        itemsize = wanted.itemsize
        row_bytes = shape[1] * itemsize

        def read(array: Any) -> Place | None:
            if array.shape != shape or array.dtype != wanted:
                return None
            row, step = array.strides
            if step != itemsize or row < row_bytes or row % itemsize:
                return None
            data = array.data
            return data.ptr, row // itemsize, data.device_id

        return read

    def describe(
        self, name: str, array: Any, stream: int, device_of: Callable[[int], int | None]
    ) -> DeviceArray:
        return DeviceArray(
            address=array.data.ptr,
            shape=array.shape,
            strides=whole_strides(name, array.strides, array.dtype.itemsize),
            dtype=array.dtype.name if array.dtype.isnative else array.dtype.str,
            device=array.data.device_id,
        )

    def current_stream(self, array: Any) -> int:
        return int(self._current(array.data.device_id).ptr)

    def empty(
        self, like: Any, shape: tuple[int, ...], dtype: str, stream: int | None = None
    ) -> Any:
        cuda, device = self.module.cuda, like.data.device_id
        with contextlib.ExitStack() as stack:
            if cuda.runtime.getDevice() != device:
                stack.enter_context(cuda.Device(device))
            if stream is not None:  # every stream has a pool of its own
                stack.enter_context(cuda.ExternalStream(stream, device))
            return self.module.empty(shape, ELEMENTS[dtype].numpy)

    def multiply_plain(self, a: Any, b: Any, out: Any, alpha: float, beta: float) -> Any:
        with a.device:
            product = self.module.matmul(a, b)
            if alpha != 1:
                product *= alpha
            if out is None:
                return product
            if beta != 0:
                product += beta * out
            out[...] = product
            return out

    def is_exact(self, array: Any) -> bool:
        return os.environ.get("CUPY_TF32", "") in ("", "0")

    def multiplies_stacks(self, a: Any, b: Any) -> bool:
        """Both are stacks: a launch for each product is no match for one for all."""
        return bool(a.ndim > 2 and b.ndim > 2)

    def batches(self, a: Descriptor, work: int) -> bool:
        return True

    def describe_fast(self, array: Any) -> tuple[Any, ...]:
        return array.shape, array.strides, array.dtype, array.data.device_id

    def memory(self, a: Descriptor, b: Descriptor) -> str | None:
        if a.place != b.place:
            raise OperandError(
                f"a and b must be on one device, got devices {a.place} and {b.place}"
            )
        return "gpu"

    def dtype(self, a: Descriptor, b: Descriptor) -> str | None:
        """CuPy promotes as NumPy does."""
        try:
            result = np.promote_types(a.dtype, b.dtype)
        except TypeError as error:
            raise OperandTypeError(one_line(error)) from error
        return result.name if result.name in DTYPES else None

    def matrices(self, array: Any, factor: Factor, dtype: str) -> Any:
        if not factor.copied:
            return super().matrices(array, factor, dtype)
        with array.device:
            return super().matrices(array, factor, dtype)

    def aligned(self, array: Any) -> Any:
        return array if array.data.ptr % array.dtype.itemsize == 0 else array.copy()

    def scale_in_place(self, array: Any, factor: float) -> None:
        with array.device:
            super().scale_in_place(array, factor)

    def scalar(self, result: Any) -> Any:
        return result

    def _product(self, a: Any, b: Any, out: Any) -> Any:
        with a.device:
            result = self.module.matmul(a, b)
            # CuPy does not mind an output that overlaps what it reads.
            return result if out is None else self.store(out, result, 0, core_of(a, b))
