"""A rank's GPU as plans are given it, and messages through NCCL or memory that ranks share.

`Shared` copies a message from one GPU into the shared memory and from there to the others; MPI
only says when. Memory of the host that several processes see: Hoefler et al., "MPI + MPI: a new
hybrid approach to parallel programming with MPI plus shared memory", Computing 95, 2013.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from autotune.core.errors import LaunchError
from autotune.distributed.mpi.gpu.communicators import (
    Communicator,
    Direct,
    Request,
    Staged,
    summand,
)
from autotune.distributed.mpi.gpu.memory import Collective, GpuMemory, span_of
from autotune.gpu.matrix import Bytes, DeviceMatrix

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm


class Nccl(Communicator):
    """NCCL moves the matrices, on the stream of copies; the host never waits.

    Its communicator is made by the first message, and kept by the machine. All of a rank's are on
    one stream, and every rank has its messages in the same order: that is NCCL's condition for
    several communicators.
    """

    def __init__(self, gpu: GpuMemory, mpi: Intracomm) -> None:
        super().__init__(gpu, mpi)
        self._made: Collective | None = None

    def Ibcast(self, message: Sequence[Any], root: int = 0) -> Request:
        matrix = message[0]
        if self.size > 1 and matrix.size:
            spans = [matrix.span]
            own = self.rank == root
            with self._enqueued(reads=spans if own else [], writes=[] if own else spans) as add:
                add("broadcast", matrix.address, matrix.address, matrix, root)
        return Request(self)

    def Isend(self, message: Sequence[Any], dest: int) -> Request:
        matrix = message[0]
        return _Half(self, matrix, dest, "send") if matrix.size else Request(self)

    def Irecv(self, message: Sequence[Any], source: int) -> Request:
        matrix = message[0]
        return _Half(self, matrix, source, "receive") if matrix.size else Request(self)

    @staticmethod
    def complete(requests: Sequence[Request]) -> None:
        """Enqueue all halves of messages as one group: they wait for each other."""
        halves = [half for half in requests if isinstance(half, _Half)]
        if not halves:
            return
        gpu = halves[0].comm.gpu
        reads = [half.matrix.span for half in halves if half.kind == "send"]
        writes = [half.matrix.span for half in halves if half.kind == "receive"]
        stream = gpu.machine.transfer
        collectives = [half.owner.collective for half in halves]
        with gpu.order.on(stream, reads=reads, writes=writes), gpu.machine.nccl_group():
            for half, collective in zip(halves, collectives, strict=True):
                matrix = half.matrix
                call = getattr(collective, half.kind)
                call(matrix.address, matrix.size, matrix.dtype.name, half.peer, stream)

    def Allgatherv(self, sent: Sequence[Any], received: Sequence[Any]) -> None:
        own, (whole, counts, _) = sent[0], received
        with self._enqueued(reads=[own.span], writes=[whole.span]) as add:
            for root, part in enumerate(_parts(whole, counts)):
                if part.size:
                    source = own.address if root == self.rank else part.address
                    add("broadcast", source, part.address, part, root)

    def Reduce(self, sent: Any, received: Sequence[Any] | None) -> None:
        matrix: DeviceMatrix = summand(sent, received)[0]
        total = matrix if received is None else received[0]
        if not matrix.size:
            return
        writes = [] if received is None else [total.span]
        with self._enqueued(reads=[matrix.span], writes=writes) as add:
            add("reduce", matrix.address, total.address, matrix, 0)

    def Reduce_scatter(
        self, sent: Sequence[Any], received: Sequence[Any], counts: Sequence[int]
    ) -> None:
        whole, mine = sent[0], received[0]
        with self._enqueued(reads=[whole.span], writes=[mine.span]) as add:
            for root, part in enumerate(_parts(whole, counts)):
                if part.size:
                    add("reduce", part.address, mine.address, part, root)

    @property
    def collective(self) -> Collective:
        """NCCL's communicator of these ranks; made by all of them together."""
        if self._made is None:
            self._made = self.gpu.machine.nccl(self.mpi)
        return self._made

    @contextlib.contextmanager
    def _enqueued(
        self, *, reads: Sequence[Bytes], writes: Sequence[Bytes]
    ) -> Iterator[Callable[..., None]]:
        """A group of calls on the stream of copies, behind what uses the same memory."""
        machine, collective = self.gpu.machine, self.collective
        stream = machine.transfer

        def add(call: str, sent: int, received: int, part: DeviceMatrix, root: int) -> None:
            enqueue = getattr(collective, call)
            enqueue(sent, received, part.size, part.dtype.name, root, stream)

        with self.gpu.order.on(stream, reads=reads, writes=writes), machine.nccl_group():
            yield add


class _Half(Request):
    """One side of a message, enqueued with the others that it waits for."""

    def __init__(self, comm: Nccl, matrix: DeviceMatrix, peer: int, kind: str) -> None:
        super().__init__(comm)
        self.owner = comm
        self.matrix = matrix
        self.peer = peer
        self.kind = kind


def _parts(whole: DeviceMatrix, counts: Sequence[int]) -> list[DeviceMatrix]:
    """Consecutive parts of a matrix, of so many elements."""
    flat = whole.reshape((whole.size,))
    parts, last = [], 0
    for count in counts:
        first, last = last, last + count
        parts.append(flat[first:last])
    return parts


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


TRANSPORTS: Mapping[str, type[Communicator]] = {
    "staged": Staged,
    "shared": Shared,
    "direct": Direct,
    "nccl": Nccl,
}
"""Ways of a block from one GPU's memory to another's."""


class GpuRank(GpuMemory):
    """``local(a, b, out, alpha, beta)`` on matrices of a rank's GPU, and all that goes with it.

    Products and copies are enqueued; `synchronize` waits for them.
    """

    def __call__(
        self,
        a: DeviceMatrix,
        b: DeviceMatrix,
        out: DeviceMatrix,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        """Enqueue ``out = alpha a b + beta out``; rows may lie apart."""
        stream = self.machine.compute
        with self.order.on(stream, reads=[a.span, b.span], writes=[out.span]):
            self.machine.multiply(a, b, out, alpha, beta, stream)

    def scale(self, out: DeviceMatrix, beta: float) -> None:
        """Enqueue ``out = beta out``; where beta is 0, `out` is not read."""
        stream = self.machine.compute
        with self.order.on(stream, writes=[out.span]):
            self.machine.accumulate(out, None, beta, stream)

    def communicator(self, comm: Intracomm, transport: str) -> Communicator:
        """A communicator whose messages are matrices of GPUs."""
        return TRANSPORTS[transport](self, comm)

    def wait(self, requests: Sequence[Request]) -> None:
        """Complete messages: later work of a stream finds them on the device."""
        if requests:
            requests[0].comm.complete(requests)
