"""Matrices in the memory of a GPU, with as much of NumPy's ways as emitted programs need."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from autotune.arrays.device import overlap
from autotune.operations.calls import out_overlaps
from autotune.operations.parts import strides_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Bytes: TypeAlias = tuple[int, int]
"""Address of the first byte, and one past the last."""

Store: TypeAlias = "Callable[[DeviceMatrix, DeviceMatrix | NDArray[Any]], None]"
"""``store(target, source)``: what storing into a selection of a matrix does."""

HOST = -1
"""The device of what lies in the memory of the host."""


@dataclass(frozen=True, slots=True)
class DeviceMatrix:
    """A view of row-major elements.

    Slices and integers select. Storing into a selection enqueues a copy, where whoever has made
    the matrix says how.

    Attributes:
        device: the driver's number of the GPU; `HOST` for memory of the host.
        address: of the first element.
        shape: elements along every dimension.
        strides: elements from one to the next along every dimension.
        dtype: of the elements.
        keep: what the memory belongs to.
        store: how values are stored.
    """

    device: int
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    keep: object = field(default=None, repr=False, compare=False)
    store: Store | None = field(default=None, repr=False, compare=False)

    @classmethod
    def dense(
        cls,
        device: int,
        address: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        keep: object = None,
        store: Store | None = None,
    ) -> DeviceMatrix:
        """One element right after the other."""
        return cls(device, address, shape, strides_of(shape), dtype, keep, store)

    @classmethod
    def of_host(cls, array: NDArray[Any]) -> DeviceMatrix:
        """An array of the host; its rows are contiguous."""
        size = array.itemsize
        strides = tuple(stride // size for stride in array.strides)
        return cls(HOST, array.ctypes.data, array.shape, strides, array.dtype, array)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * self.dtype.itemsize

    @property
    def stride(self) -> int:
        """Elements from one row to the next."""
        return self.strides[0] if self.shape[0] > 1 else max(1, self.shape[1])

    @property
    def contiguous(self) -> bool:
        """Does one element come right after the other?"""
        return self.size <= 1 or all(
            length <= 1 or own == wanted
            for length, own, wanted in zip(
                self.shape, self.strides, strides_of(self.shape), strict=True
            )
        )

    @property
    def span(self) -> Bytes:
        """The bytes from the first element to the last."""
        if not self.size:
            return self.address, self.address
        last = sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))
        return self.address, self.address + (last + 1) * self.dtype.itemsize

    @property
    def _place(self) -> tuple[tuple[int, int, int], tuple[int, int]]:
        """Address, leading dimension and device, and the shape, of a matrix."""
        rows, columns = self.shape
        return (self.address, self.stride, self.device), (rows, columns)

    def __getitem__(self, key: Any) -> DeviceMatrix:
        keys = key if isinstance(key, tuple) else (key,)
        keys += (slice(None),) * (len(self.shape) - len(keys))
        start, shape, strides = 0, [], []
        for each, length, stride in zip(keys, self.shape, self.strides, strict=True):
            if isinstance(each, slice):
                first, last, step = each.indices(length)
                if step != 1:
                    raise IndexError(f"slices of GPU matrices have step 1, got {step}")
                shape.append(max(0, last - first))
                strides.append(stride)
            else:
                first = range(length)[each]
            start += first * stride
        address = self.address + start * self.dtype.itemsize
        return self._view(address, tuple(shape), tuple(strides))

    def __setitem__(self, key: Any, values: DeviceMatrix | NDArray[Any]) -> None:
        if self.store is None:
            raise TypeError(f"{self!r} is read and written by kernels and copies alone")
        self.store(self if key is ... else self[key], values)

    def reshape(self, *shape: Any) -> DeviceMatrix:
        """The same elements in another shape.

        Raises:
            ValueError: there are more or fewer of them, or rows lie apart.
        """
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        if math.prod(wanted) != self.size or not self.contiguous:
            raise ValueError(f"a contiguous matrix of {wanted} elements is needed, got {self!r}")
        return self._view(self.address, wanted, strides_of(wanted))

    def _view(
        self, address: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> DeviceMatrix:
        return DeviceMatrix(
            self.device, address, shape, strides, self.dtype, self.keep, self.store
        )


def check_apart(out: DeviceMatrix, **given: DeviceMatrix) -> None:
    """Refuse an output that shares an element with an input.

    Args:
        out: a matrix with contiguous rows.
        given: others of its element type, by their names.

    Raises:
        OperandError: it does.
    """
    for name, each in given.items():
        near = out.device == each.device and out.size and each.size
        if near and overlap(*out._place, *each._place, out.dtype.itemsize):
            raise out_overlaps(name)
