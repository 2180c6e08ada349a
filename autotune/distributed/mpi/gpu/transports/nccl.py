"""Messages between GPUs by NCCL, enqueued like copies; MPI only introduces the ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from autotune.distributed.mpi.gpu.memory import GpuMemory
from autotune.distributed.mpi.gpu.order import Collective
from autotune.distributed.mpi.gpu.transports.base import Communicator, Request, summand
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
