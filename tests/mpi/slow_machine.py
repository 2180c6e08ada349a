"""A stand-in for a rank's GPU on NumPy: streams do nothing until somebody has to wait for them.

Work is then done as late as its order allows, so that whoever forgets to wait finds old values,
and NaNs in memory that nothing has been written to.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from autotune.gpu.matrix import DeviceMatrix


class Stream:
    """Work that has been asked for, oldest first."""

    def __init__(self) -> None:
        self.work: deque[Callable[[], object]] = deque()
        self.done = 0
        self.asked = 0

    def add(self, work: Callable[[], object]) -> None:
        self.work.append(work)
        self.asked += 1

    def catch_up(self, count: int) -> None:
        while self.done < count:
            self.done += 1  # first: work may wait for another stream, never for this one
            self.work.popleft()()


class Event:
    """What a stream had been asked for."""

    def __init__(self, stream: Stream, count: int) -> None:
        self.stream = stream
        self.count = count
        self.reused = False

    def check(self) -> None:
        assert not self.reused, "an event of an earlier call"


class Allocation:
    def __init__(self, size: int) -> None:
        self.bytes = np.full(size, 255, "uint8")

    def __int__(self) -> int:
        return int(self.bytes.ctypes.data)


class SlowMachine:
    """See `autotune.distributed.mpi.gpu.memory.Machine`."""

    def __init__(self) -> None:
        self.compute = Stream()
        self.transfer = Stream()
        self.ordinal = 0
        self.closed = False
        self._events: list[Event] = []
        self._group: list[Callable[[], list[MPI.Request]]] = []

    def allocate(self, device: int, size: int) -> Allocation:
        assert device == self.ordinal
        return Allocation(size)

    def pinned(self, count: int, dtype: str) -> NDArray[Any]:
        return np.full(count * np.dtype(dtype).itemsize, 255, "uint8").view(dtype)

    def lock(self, array: NDArray[Any]) -> int:
        ctypes.string_at(array.ctypes.data, array.nbytes)  # it has to be there
        return array.ctypes.data

    def unlock(self, locked: int) -> None:
        pass

    def copy(self, target: DeviceMatrix, source: DeviceMatrix, stream: Stream) -> None:
        stream.add(lambda: np.copyto(values(target), values(source)))

    def record(self, stream: Stream) -> Event:
        event = Event(stream, stream.asked)
        self._events.append(event)
        return event

    def wait(self, stream: Stream, event: Event) -> None:
        event.check()
        stream.add(lambda: self.finish(event))

    def is_past(self, event: Event) -> bool:
        event.check()
        return event.stream.done >= event.count

    def finish(self, what: Event | Stream) -> None:
        if isinstance(what, Stream):
            what.catch_up(what.asked)
        else:
            what.stream.catch_up(what.count)

    def reuse_events(self) -> None:
        for event in self._events:
            assert self.is_past(event), "an event that has not come to pass is used again"
            event.reused = True
        self._events.clear()

    def close(self) -> None:
        assert not self.compute.work, "code is still in use"
        assert not self.transfer.work, "memory is still in use"
        self.closed = True

    def expose(self, matrix: DeviceMatrix) -> NDArray[Any]:
        assert matrix.contiguous
        return values(matrix).reshape(-1)

    def multiply(
        self,
        a: DeviceMatrix,
        b: DeviceMatrix,
        c: DeviceMatrix,
        alpha: float,
        beta: float,
        stream: Stream,
    ) -> None:
        def work() -> None:
            out = values(c)
            out[...] = alpha * (values(a) @ values(b)) + (beta * out if beta else 0)

        stream.add(work)

    def accumulate(
        self, out: DeviceMatrix, other: DeviceMatrix | None, beta: float, stream: Stream
    ) -> None:
        def work() -> None:
            c = values(out)
            c[...] = (0 if other is None else values(other)) + (beta * c if beta else 0)

        stream.add(work)

    def nccl(self, mpi: MPI.Intracomm) -> MpiForNccl:
        return MpiForNccl(mpi, self)

    @contextlib.contextmanager
    def nccl_group(self) -> Iterator[None]:
        group = self._group = []
        yield
        self.transfer.add(lambda: MPI.Request.Waitall([r for call in group for r in call()]))


class MpiForNccl:
    """See `autotune.distributed.mpi.gpu.memory.Collective`: by MPI, when it is its turn."""

    def __init__(self, mpi: MPI.Intracomm, machine: SlowMachine) -> None:
        self._mpi = mpi.Dup()
        self._machine = machine

    def broadcast(
        self, sent: int, received: int, count: int, dtype: str, root: int, stream: Stream
    ) -> None:
        def call() -> list[MPI.Request]:
            message = at(received, count, dtype)
            if self._mpi.rank == root:
                message[...] = at(sent, count, dtype)
            return [self._mpi.Ibcast(message, root)]

        self._machine._group.append(call)

    def reduce(
        self, sent: int, received: int, count: int, dtype: str, root: int, stream: Stream
    ) -> None:
        def call() -> list[MPI.Request]:
            total = at(received, count, dtype) if self._mpi.rank == root else None
            return [self._mpi.Ireduce(at(sent, count, dtype).copy(), total, root=root)]

        self._machine._group.append(call)

    def send(self, sent: int, count: int, dtype: str, peer: int, stream: Stream) -> None:
        self._machine._group.append(lambda: [self._mpi.Isend(at(sent, count, dtype), peer)])

    def receive(self, received: int, count: int, dtype: str, peer: int, stream: Stream) -> None:
        self._machine._group.append(lambda: [self._mpi.Irecv(at(received, count, dtype), peer)])


def at(address: int, count: int, dtype: str) -> NDArray[Any]:
    """Elements of the memory of the host, by address."""
    raw = (ctypes.c_uint8 * (count * np.dtype(dtype).itemsize)).from_address(address)
    return np.frombuffer(raw, dtype)


def values(matrix: DeviceMatrix) -> NDArray[Any]:
    """A matrix as NumPy's."""
    if not matrix.size:
        return np.empty(matrix.shape, matrix.dtype)
    low, high = matrix.span
    flat = at(low, (high - low) // matrix.dtype.itemsize, matrix.dtype.name)
    strides = [stride * matrix.dtype.itemsize for stride in matrix.strides]
    return np.lib.stride_tricks.as_strided(flat, matrix.shape, strides)
