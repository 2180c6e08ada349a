"""Messages between GPUs of one node through pinned memory that its ranks share.

A message is copied from one GPU into the shared memory and from there to the others; MPI only says
when. Memory of the host that several processes see: Hoefler et al., "MPI + MPI: a new hybrid
approach to parallel programming with MPI plus shared memory", Computing 95, 2013.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from autotune.core.errors import LaunchError
from autotune.distributed.mpi.gpu.memory import GpuMemory
from autotune.distributed.mpi.gpu.order import span_of
from autotune.distributed.mpi.gpu.transports.base import Communicator, Request, summand
from autotune.gpu.matrix import DeviceMatrix

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

_STEP = 1 << 20
"""Bytes for a rank are allocated in multiples of this, so that near sizes share memory."""


class Shared(Communicator):
    """Ranks of one node, which share the memory that their messages are staged in.

    Every message is a matter of all ranks: each `Irecv` belongs to the next `Isend`, which all
    of them make.
    """

    def __init__(self, gpu: GpuMemory, mpi: Intracomm) -> None:
        super().__init__(gpu, mpi)
        self._free: defaultdict[int, list[_Slot]] = defaultdict(list)
        self._slots: list[_Slot] = []
        self._sent: _Slot | None = None
        self._others: dict[tuple[int, ...], DeviceMatrix] = {}

    def Free(self) -> None:
        """Give the communicator and the memory back."""
        self.gpu.synchronize()
        while self._slots:
            slot = self._slots.pop()
            self.gpu.machine.unlock(slot.locked)
            slot.window.Free()
        super().Free()

    def Ibcast(self, message: Sequence[Any], root: int = 0) -> Request:
        matrix = message[0]
        if self.size == 1 or not matrix.size:
            return Request(self)
        slot = self._take(-(-matrix.nbytes // self.size))
        copy = slot.elements(0, matrix.size, matrix.dtype)
        return self.broadcast_pieces(
            matrix, root, copy, lambda piece: slot.window.Fence(), lambda: self._give(slot)
        )

    def Isend(self, message: Sequence[Any], dest: int) -> Request:
        slot = self._sent = self._put(message[0])
        return Request(self, lambda: self._meet(slot), lambda: self._give(slot))

    def Irecv(self, message: Sequence[Any], source: int) -> Request:
        matrix = message[0]

        def finish() -> None:
            assert self._sent is not None
            sent = self._sent.part(source, matrix.size, matrix.dtype)
            matrix[...] = sent.reshape(matrix.shape)

        return Request(self, finish=finish)

    def Allgatherv(self, sent: Sequence[Any], received: Sequence[Any]) -> None:
        own, (whole, counts, _) = sent[0], received
        slot = self._take(-(-whole.nbytes // self.size))
        mine = slot.elements(sum(counts[: self.rank]), own.size, own.dtype)
        self.gpu.download(own, mine)
        self.settle(mine)
        slot.window.Fence()
        whole[...] = slot.elements(0, whole.size, whole.dtype).reshape(whole.shape)
        self._give(slot)

    def Reduce(self, sent: Any, received: Sequence[Any] | None) -> None:
        matrix = summand(sent, received)[0]
        slot = self._put(matrix)
        self._meet(slot)
        if received is not None:
            for peer in range(1, self.size):
                self._add(slot.part(peer, matrix.size, matrix.dtype), received[0])
        self._give(slot)

    def Reduce_scatter(
        self, sent: Sequence[Any], received: Sequence[Any], counts: Sequence[int]
    ) -> None:
        whole, mine = sent[0], received[0]
        first = sum(counts[: self.rank])
        span = slice(first, first + mine.size)
        slot = self._put(whole)
        self._meet(slot)
        mine[...] = whole.reshape((whole.size,))[span].reshape(mine.shape)
        for peer in range(self.size):
            if peer != self.rank:
                self._add(slot.part(peer, whole.size, whole.dtype)[span], mine)
        self._give(slot)

    def _put(self, matrix: DeviceMatrix) -> _Slot:
        """Memory in which this rank's part gets a matrix; all ranks do it."""
        slot = self._take(matrix.nbytes)
        self.gpu.download(matrix, slot.part(self.rank, matrix.size, matrix.dtype))
        return slot

    def _add(self, copy: NDArray[Any], total: DeviceMatrix) -> None:
        """Add the matrix of another rank."""
        if total.shape not in self._others:
            self._others[total.shape] = self.gpu.empty(total.shape, total.dtype)
        other = self._others[total.shape]
        other[...] = copy.reshape(total.shape)
        self.gpu.add(other, total, 1.0)

    def _meet(self, slot: _Slot) -> None:
        """Wait until all ranks have put their matrices there."""
        self.settle(slot.memory)
        slot.window.Fence()

    def _take(self, size: int) -> _Slot:
        """Memory that nobody uses any more, with so many bytes for each rank, or more."""
        from mpi4py import MPI

        room = -(-self.mpi.allreduce(max(size, 1), MPI.MAX) // _STEP) * _STEP
        if self._free[room]:
            slot = self._free[room].pop(0)
            self.gpu.order.settle(span_of(slot.memory), writes=True)
            slot.window.Fence()
            return slot
        window = MPI.Win.Allocate_shared(room, 1, comm=self.mpi)
        first: Any = window.Shared_query(0)[0]
        memory = np.frombuffer(first, "uint8")
        if memory.size < room * self.size:  # the first rank's part: the others' follow it
            memory = np.lib.stride_tricks.as_strided(memory, (room * self.size,), (1,))
        locked = self.gpu.machine.lock(memory)
        if locked is None:
            raise LaunchError(
                f"the GPU's driver does not page-lock {memory.nbytes} bytes of the host"
            )
        self._slots.append(_Slot(window, memory, room, locked))
        return self._slots[-1]

    def _give(self, slot: _Slot) -> None:
        """Leave memory to a later message; copies from it may still be under way."""
        self._free[slot.room].append(slot)


@dataclass(frozen=True, slots=True, eq=False)
class _Slot:
    """Shared memory for one message at a time, a part of `room` bytes for each rank.

    `window` owns it; `locked` unlocks its pages.
    """

    window: Any
    memory: NDArray[np.uint8]
    room: int
    locked: Any

    def elements(self, first: int, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Some elements of a message that takes all of the memory."""
        itemsize = dtype.itemsize
        return self.memory[first * itemsize : (first + count) * itemsize].view(dtype)

    def part(self, rank: int, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """The first elements of a rank's part."""
        return self.memory[rank * self.room :][: count * dtype.itemsize].view(dtype)
