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

from autotune.targets.mpi.gpu.matrix import GpuMatrix


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


class Allocation:
    def __init__(self, size: int) -> None:
        self.bytes = np.full(size, 255, "uint8")

    def __int__(self) -> int:
        return int(self.bytes.ctypes.data)


class SlowMachine:
    """See `autotune.targets.mpi.gpu.matrix.Machine`."""

    def __init__(self) -> None:
        self.compute = Stream()
        self.transfer = Stream()
        self._group: list[Callable[[], list[MPI.Request]]] = []

    def allocate(self, size: int) -> Allocation:
        return Allocation(size)

    def pinned(self, size: int) -> NDArray[np.uint8]:
        return np.full(size, 255, "uint8")

    def pin(self, address: int, size: int) -> None:
        ctypes.string_at(address, size)  # it has to be there

    def unpin(self, address: int) -> None:
        pass

    def copy(
        self,
        stream: Stream,
        target: tuple[int, int],
        source: tuple[int, int],
        row_bytes: int,
        rows: int,
    ) -> None:
        def work() -> None:
            for row in range(rows):
                to, of = target[0] + row * target[1], source[0] + row * source[1]
                ctypes.memmove(to, of, row_bytes)

        stream.add(work)

    def record(self, stream: Stream) -> tuple[Stream, int]:
        return stream, stream.asked

    def follow(self, stream: Stream, event: tuple[Stream, int]) -> None:
        stream.add(lambda: self.settle(event))

    def is_past(self, event: tuple[Stream, int]) -> bool:
        stream, count = event
        return stream.done >= count

    def settle(self, event: tuple[Stream, int]) -> None:
        stream, count = event
        stream.catch_up(count)

    def drain(self) -> None:
        for stream in (self.compute, self.transfer):
            stream.catch_up(stream.asked)

    def expose(self, matrix: GpuMatrix) -> NDArray[Any]:
        assert matrix.contiguous
        return values(matrix).reshape(-1)

    def multiply(
        self, a: GpuMatrix, b: GpuMatrix, out: GpuMatrix, alpha: float, beta: float
    ) -> None:
        def work() -> None:
            c = values(out)
            c[...] = alpha * (values(a) @ values(b)) + (beta * c if beta else 0)

        self.compute.add(work)

    def accumulate(self, out: GpuMatrix, other: GpuMatrix | None, beta: float) -> None:
        def work() -> None:
            c = values(out)
            c[...] = (0 if other is None else values(other)) + (beta * c if beta else 0)

        self.compute.add(work)

    def nccl(self, mpi: MPI.Intracomm) -> MpiForNccl:
        return MpiForNccl(mpi, self)

    @contextlib.contextmanager
    def nccl_group(self) -> Iterator[None]:
        group = self._group = []
        yield
        self.transfer.add(lambda: MPI.Request.Waitall([r for call in group for r in call()]))


class MpiForNccl:
    """See `autotune.targets.mpi.gpu.matrix.Collective`: by MPI, when the stream comes to it."""

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


def values(matrix: GpuMatrix) -> NDArray[Any]:
    """A matrix as NumPy's."""
    if not matrix.size:
        return np.empty(matrix.shape, matrix.dtype)
    low, high = matrix.span
    flat = at(low, (high - low) // matrix.dtype.itemsize, matrix.dtype.name)
    strides = [stride * matrix.dtype.itemsize for stride in matrix.strides]
    return np.lib.stride_tricks.as_strided(flat, matrix.shape, strides)
