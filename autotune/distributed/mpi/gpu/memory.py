"""Memory of a rank's GPU, pinned memory beside it, and the order of work on both."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autotune.distributed.machine import Enqueues
from autotune.gpu.matrix import Bytes, DeviceMatrix

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm


class Machine(Enqueues, Protocol):
    """A GPU as one rank uses it: memory, two streams, and the product.

    Attributes:
        compute: the stream that multiplies.
        transfer: the stream that copies.
        ordinal: the driver's number of the GPU.
    """

    compute: Any
    transfer: Any
    ordinal: int

    def allocate(self, device: int, size: int) -> Any:
        """Bytes on the device; `int` of it is their address, and they live as long as it does."""

    def pinned(self, count: int, dtype: Any) -> NDArray[Any]:
        """Memory of the host that the device copies from and to by itself."""

    def is_past(self, event: Any) -> bool:
        """Tell whether an event has come to pass."""

    def close(self) -> None:
        """Unload code and free pinned memory."""

    def expose(self, matrix: DeviceMatrix) -> object:
        """A contiguous matrix as a CUDA-aware MPI takes it."""

    def accumulate(
        self, out: DeviceMatrix, other: DeviceMatrix | None, beta: float, stream: Any
    ) -> None:
        """Enqueue ``out = other + beta out``; where beta is 0, `out` is not read."""

    def nccl(self, mpi: Intracomm) -> Collective:
        """An NCCL communicator of the same ranks; all of them make it, or have made it before."""

    def nccl_group(self) -> contextlib.AbstractContextManager[object]:
        """A group of NCCL's calls, in the body: none waits for another of them."""


class Collective(Protocol):
    """NCCL's communicator: each call enqueues a part of a group on a stream.

    Messages are an address, a count of elements and the name of their type.
    """

    def broadcast(
        self, sent: int, received: int, count: int, dtype: str, root: int, stream: Any
    ) -> None:
        """Send the root's `sent` to everybody's `received`."""

    def reduce(
        self, sent: int, received: int, count: int, dtype: str, root: int, stream: Any
    ) -> None:
        """Send the sum of everybody's `sent` to the root's `received`."""

    def send(self, sent: int, count: int, dtype: str, peer: int, stream: Any) -> None:
        """Enqueue one half of a message."""

    def receive(self, received: int, count: int, dtype: str, peer: int, stream: Any) -> None:
        """Enqueue the other half."""


@dataclass(frozen=True, slots=True)
class _Use:
    """A stream's use of some bytes, until its event."""

    span: Bytes
    writes: bool
    stream: Any
    event: Any

    def conflicts(self, span: Bytes, writes: bool) -> bool:
        return (self.writes or writes) and self.span[0] < span[1] and span[0] < self.span[1]

    def supersedes(self, old: _Use) -> bool:
        """Waiting for this use is waiting for an old one, too."""
        return (
            self.stream is old.stream
            and (self.writes or not old.writes)
            and self.span[0] <= old.span[0]
            and old.span[1] <= self.span[1]
        )


class Order:
    """Keeps uses of the same bytes in the order in which they were asked for.

    Uses that only read are in nobody's way. A use covers addresses, so that slots of one buffer
    are apart, and views of one matrix are not.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._uses: list[_Use] = []

    @contextlib.contextmanager
    def on(
        self, stream: Any, *, reads: Sequence[Bytes] = (), writes: Sequence[Bytes] = ()
    ) -> Iterator[None]:
        """Enqueue the body's work on a stream, behind other streams' uses of these bytes."""
        mine = [(span, False) for span in reads] + [(span, True) for span in writes]
        for use in self._uses:
            if use.stream is not stream and any(use.conflicts(*wanted) for wanted in mine):
                self._machine.wait(stream, use.event)
        yield
        event = self._machine.record(stream)
        fresh = [_Use(span, writing, stream, event) for span, writing in mine]
        self._uses = [
            use
            for use in self._uses
            if not self._machine.is_past(use.event)
            and not any(new.supersedes(use) for new in fresh)
        ]
        self._uses += fresh

    def settle(self, span: Bytes, *, writes: bool) -> None:
        """Wait on the host until it may read some bytes, or write them."""
        for use in self._uses:
            if use.conflicts(span, writes):
                self._machine.finish(use.event)

    def forget(self) -> None:
        """Drop all uses: they have come to pass."""
        self._uses.clear()


def span_of(array: NDArray[Any]) -> Bytes:
    """The bytes of a contiguous array of the host."""
    address = array.ctypes.data
    return address, address + array.nbytes


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
