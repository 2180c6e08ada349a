"""Memory of a rank's GPU, pinned memory beside it, and copies between them, in order."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.distributed.mpi.gpu.order import Machine, Order, span_of
from autotune.gpu.matrix import DeviceMatrix

_STAGING_STEP = 1 << 20
"""Pinned memory is allocated in multiples of so many bytes, so that near sizes share it."""


class GpuMemory:
    """Matrices of a rank's GPU; copies and sums are enqueued, each behind uses of its memory."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.order = Order(machine)
        self._free: defaultdict[int, list[NDArray[np.uint8]]] = defaultdict(list)
        self._lent: dict[int, NDArray[np.uint8]] = {}
        self._kept: dict[int, NDArray[np.uint8]] = {}

    def add(self, other: DeviceMatrix, out: DeviceMatrix, beta: float) -> None:
        """Enqueue ``out = other + beta out``; where beta is 0, `out` is not read."""
        stream = self.machine.compute
        with self.order.on(stream, reads=[other.span], writes=[out.span]):
            self.machine.accumulate(out, other, beta, stream)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> DeviceMatrix:
        """New memory on the device."""
        kind = np.dtype(dtype)
        size = max(1, int(np.prod(shape))) * kind.itemsize
        memory = self.machine.allocate(self.machine.ordinal, size)
        return self.at(int(memory), shape, kind, memory)

    def at(self, address: int, shape: tuple[int, ...], dtype: Any, keep: object) -> DeviceMatrix:
        """Contiguous memory on the device that somebody else has allocated."""
        ordinal, kind = self.machine.ordinal, np.dtype(dtype)
        return DeviceMatrix.dense(ordinal, address, shape, kind, keep, self.copy)

    def copy(self, target: DeviceMatrix, source: DeviceMatrix | NDArray[Any]) -> None:
        """Enqueue a copy, from the device or from pinned memory of the host."""
        if isinstance(source, np.ndarray):
            source = DeviceMatrix.of_host(source)
        if target.shape != source.shape or target.dtype != source.dtype:
            raise ValueError(f"{target!r} cannot be copied from {source!r}")
        if target.size:
            stream = self.machine.transfer
            with self.order.on(stream, reads=[source.span], writes=[target.span]):
                self.machine.copy(target, source, stream)

    def download(self, source: DeviceMatrix, target: NDArray[Any]) -> None:
        """Enqueue a copy of a contiguous matrix to pinned memory of the host."""
        self.copy(DeviceMatrix.of_host(target), source.reshape(target.shape))

    def host(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Pinned memory to be written by the host: the same for the next of its size."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        room = _room(size)
        if room not in self._kept:
            self._kept[room] = self.machine.pinned(room, "uint8")
        array: NDArray[Any] = self._kept[room][:size].view(dtype).reshape(shape)
        self.order.settle(span_of(array), writes=True)
        return array

    def fetch(self, matrix: DeviceMatrix) -> NDArray[Any]:
        """A copy of a contiguous matrix on the host, once everything has been done.

        It is valid until the next of its size.
        """
        array = self.host(matrix.shape, matrix.dtype)
        self.download(matrix, array)
        self.synchronize()
        return array

    def upload(self, values: NDArray[Any]) -> DeviceMatrix:
        """A new matrix with values of the host."""
        matrix = self.empty(values.shape, values.dtype)
        pinned = self.host(values.shape, values.dtype)
        pinned[...] = values
        matrix[...] = pinned
        return matrix

    def lend(self, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Pinned memory for one message, which the host may write; see `give_back`."""
        size = count * dtype.itemsize
        room = _room(size)
        free = self._free[room]
        memory = free.pop(0) if free else self.machine.pinned(room, "uint8")
        self.order.settle(span_of(memory), writes=True)
        self._lent[memory.ctypes.data] = memory
        return memory[:size].view(dtype)

    def give_back(self, *lent: NDArray[Any]) -> None:
        """Take memory of `lend` back; copies from and to it may still be under way."""
        for array in lent:
            memory = self._lent.pop(array.ctypes.data)
            self._free[memory.nbytes].append(memory)

    def synchronize(self) -> None:
        """Wait until everything has been done."""
        for stream in (self.machine.compute, self.machine.transfer):
            self.machine.finish(stream)
        self.order.forget()
        self.machine.reuse_events()

    def close(self) -> None:
        """Give code and pinned memory back, once everything has been done.

        Plans must have been freed first. A matrix of `empty` lives on for as long as it is held.
        """
        self.synchronize()
        for pinned in (self._free, self._lent, self._kept):
            pinned.clear()
        self.machine.close()


def _room(size: int) -> int:
    return -(-max(size, 1) // _STAGING_STEP) * _STAGING_STEP
