"""What plans of a rank with a GPU are given: memory, copies, products, and communicators."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.targets.mpi.gpu.matrix import GpuMatrix, Order, span_of
from autotune.targets.mpi.gpu.transports.base import Direct, Staged
from autotune.targets.mpi.gpu.transports.nccl import Nccl
from autotune.targets.mpi.gpu.transports.shared import Shared

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mpi4py.MPI import Intracomm
    from numpy.typing import NDArray

    from autotune.targets.mpi.gpu.matrix import Machine
    from autotune.targets.mpi.gpu.transports.base import Communicator, Request

_STAGING_STEP = 1 << 20
"""Pinned memory is allocated in multiples of so many bytes, so that near sizes share it."""

TRANSPORTS: Mapping[str, type[Communicator]] = {
    "staged": Staged,
    "shared": Shared,
    "direct": Direct,
    "nccl": Nccl,
}
"""How blocks travel between the memories of GPUs."""


class GpuRank:
    """``local(a, b, out, alpha, beta)`` on matrices of a rank's GPU, and all that goes with it.

    Products and copies are enqueued, each behind those that use the same memory; `synchronize`
    waits for them.

    Args:
        machine: the GPU.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.order = Order(machine)
        self._free: defaultdict[int, list[NDArray[np.uint8]]] = defaultdict(list)
        self._lent: dict[int, NDArray[np.uint8]] = {}
        self._kept: dict[int, NDArray[np.uint8]] = {}

    def __call__(
        self,
        a: GpuMatrix,
        b: GpuMatrix,
        out: GpuMatrix,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        """Enqueue ``out = alpha a b + beta out``; rows may lie apart."""
        stream = self.machine.compute
        with self.order.on(stream, reads=[a.span, b.span], writes=[out.span]):
            self.machine.multiply(a, b, out, alpha, beta)

    def scale(self, out: GpuMatrix, beta: float) -> None:
        """Enqueue ``out = beta out``; where beta is 0, `out` is not read."""
        with self.order.on(self.machine.compute, writes=[out.span]):
            self.machine.accumulate(out, None, beta)

    def add(self, other: GpuMatrix, out: GpuMatrix, beta: float) -> None:
        """Enqueue ``out = other + beta out``; where beta is 0, `out` is not read."""
        with self.order.on(self.machine.compute, reads=[other.span], writes=[out.span]):
            self.machine.accumulate(out, other, beta)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> GpuMatrix:
        """New memory on the device."""
        kind = np.dtype(dtype)
        size = max(1, int(np.prod(shape))) * kind.itemsize
        memory = self.machine.allocate(size)
        return GpuMatrix(int(memory), shape, kind, self.copy, memory)

    def at(self, address: int, shape: tuple[int, ...], dtype: Any, keep: object) -> GpuMatrix:
        """Memory on the device that somebody else has allocated; contiguous."""
        return GpuMatrix(address, shape, np.dtype(dtype), self.copy, keep)

    def copy(self, target: GpuMatrix, source: GpuMatrix | NDArray[Any]) -> None:
        """Enqueue a copy, from the device or from pinned memory of the host."""
        if isinstance(source, np.ndarray):
            source = self.at(source.ctypes.data, source.shape, source.dtype, source)
        if target.shape != source.shape or target.dtype != source.dtype:
            raise ValueError(f"{target!r} cannot be copied from {source!r}")
        if not target.size:
            return
        if target.contiguous and source.contiguous:
            row_bytes, rows = target.nbytes, 1
            pitches = row_bytes, row_bytes
        else:
            itemsize = target.dtype.itemsize
            rows, row_bytes = target.shape[0], target.shape[1] * itemsize
            pitches = target.strides[0] * itemsize, source.strides[0] * itemsize
        stream = self.machine.transfer
        with self.order.on(stream, reads=[source.span], writes=[target.span]):
            to, of = (target.address, pitches[0]), (source.address, pitches[1])
            self.machine.copy(stream, to, of, row_bytes, rows)

    def download(self, source: GpuMatrix, target: NDArray[Any]) -> None:
        """Enqueue a copy of a contiguous matrix to pinned memory of the host."""
        stream = self.machine.transfer
        with self.order.on(stream, reads=[source.span], writes=[span_of(target)]):
            if source.size:
                to, of = (target.ctypes.data, source.nbytes), (source.address, source.nbytes)
                self.machine.copy(stream, to, of, source.nbytes, 1)

    def host(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Pinned memory to be written by the host: the same for the next of its size."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        room = -(-max(size, 1) // _STAGING_STEP) * _STAGING_STEP
        if room not in self._kept:
            self._kept[room] = self.machine.pinned(room)
        array: NDArray[Any] = self._kept[room][:size].view(dtype).reshape(shape)
        self.order.settle(span_of(array), writes=True)
        return array

    def fetch(self, matrix: GpuMatrix) -> NDArray[Any]:
        """A copy of a contiguous matrix on the host, once everything has been done.

        It is valid until the next of its size.
        """
        array = self.host(matrix.shape, matrix.dtype)
        self.download(matrix, array)
        self.synchronize()
        return array

    def upload(self, values: NDArray[Any]) -> GpuMatrix:
        """A new matrix with values of the host."""
        matrix = self.empty(values.shape, values.dtype)
        pinned = self.host(values.shape, values.dtype)
        pinned[...] = values
        matrix[...] = pinned
        return matrix

    def lend(self, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Pinned memory for one message, which the host may write; see `give_back`."""
        size = count * dtype.itemsize
        room = -(-max(size, 1) // _STAGING_STEP) * _STAGING_STEP
        free = self._free[room]
        memory = free.pop(0) if free else self.machine.pinned(room)
        self.order.settle(span_of(memory), writes=True)
        self._lent[memory.ctypes.data] = memory
        return memory[:size].view(dtype)

    def give_back(self, lent: NDArray[Any]) -> None:
        """Take memory of `lend` back; copies from and to it may still be under way."""
        memory = self._lent.pop(lent.ctypes.data)
        self._free[memory.nbytes].append(memory)

    def communicator(self, comm: Intracomm, transport: str) -> Communicator:
        """A communicator whose messages are matrices of GPUs."""
        return TRANSPORTS[transport](self, comm)

    def wait(self, requests: Sequence[Request]) -> None:
        """Complete what was begun: what was to be received may then be used.

        On the device, that is: what comes later in a stream finds it.
        """
        if requests:
            requests[0].comm.complete(requests)

    def synchronize(self) -> None:
        """Wait until everything has been done."""
        self.machine.drain()
        self.order.forget()
