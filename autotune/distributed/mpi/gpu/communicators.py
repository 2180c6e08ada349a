"""Communicators whose messages are matrices of GPUs, over an MPI that knows of them or does not.

Their methods are those of mpi4py's communicators, as far as plans use them: a message is a list of
a contiguous matrix, counts where they differ from rank to rank, and the MPI datatype.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from autotune.distributed.mpi.gpu.memory import GpuMemory, span_of
from autotune.gpu.matrix import DeviceMatrix

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

PIECE_BYTES = 8 << 20
"""A broadcast by the host goes in pieces: while one is sent, the next is copied from the GPU, and
the one before to it."""


def _nothing() -> None:
    """Leave a step of a message out."""


class Request:
    """A message under way; one without steps has no content.

    Args:
        comm: the communicator it belongs to.
        post: sends or receives it.
        finish: waits for it.
    """

    def __init__(
        self,
        comm: Communicator,
        post: Callable[[], object] = _nothing,
        finish: Callable[[], object] = _nothing,
    ) -> None:
        self.comm = comm
        self.post = post
        self.finish = finish


class Communicator(ABC):
    """Ranks that pass matrices of their GPUs; see `mpi4py.MPI.Comm` for what the methods do.

    Args:
        gpu: this rank's.
        mpi: the same ranks as MPI sees them, for messages from the memory of the host.
    """

    def __init__(self, gpu: GpuMemory, mpi: Intracomm) -> None:
        self.gpu = gpu
        self.mpi = mpi
        self.rank: int = mpi.rank
        self.size: int = mpi.size

    def Split(self, color: int, key: int = 0) -> Any:
        """Communicators of the ranks with the same colour; MPI's null one for an undefined one."""
        from mpi4py import MPI

        part: Any = self.mpi.Split(color, key)
        return part if part == MPI.COMM_NULL else type(self)(self.gpu, part)

    def Free(self) -> None:
        self.mpi.Free()

    def Bcast(self, message: Sequence[Any], root: int = 0) -> None:
        self.complete([self.Ibcast(message, root)])

    def Sendrecv(
        self,
        sent: Sequence[Any],
        dest: int,
        sendtag: int,
        received: Sequence[Any],
        source: int,
        recvtag: int,
    ) -> None:
        self.complete([self.Irecv(received, source), self.Isend(sent, dest)])

    @staticmethod
    def complete(requests: Sequence[Request]) -> None:
        """Post all the messages that have not been posted, then finish them."""
        for request in requests:
            request.post()
        for request in requests:
            request.finish()

    def settle(self, copy: NDArray[Any]) -> None:
        """Wait until a copy has arrived on the host."""
        self.gpu.order.settle(span_of(copy), writes=False)

    def broadcast_pieces(
        self,
        matrix: DeviceMatrix,
        root: int,
        copy: NDArray[Any],
        pass_on: Callable[[NDArray[Any]], object],
        give_back: Callable[[], object],
    ) -> Request:
        """Begin to broadcast through a copy on the host, in pieces.

        Args:
            matrix: this rank's.
            root: has the content.
            copy: memory of the host for all of it.
            pass_on: brings a piece of the root's copy to those of all ranks.
            give_back: leaves the copy to others.
        """
        flat = matrix.reshape((matrix.size,))
        step = PIECE_BYTES // matrix.dtype.itemsize
        pieces = [slice(start, start + step) for start in range(0, matrix.size, step)]
        if self.rank == root:
            for piece in pieces:
                self.gpu.download(flat[piece], copy[piece])

        def finish() -> None:
            for piece in pieces:
                if self.rank == root:
                    self.settle(copy[piece])
                pass_on(copy[piece])
                if self.rank != root:
                    flat[piece] = copy[piece]
            give_back()

        return Request(self, finish=finish)

    @abstractmethod
    def Ibcast(self, message: Sequence[Any], root: int = 0) -> Request:
        """Begin to broadcast."""

    @abstractmethod
    def Isend(self, message: Sequence[Any], dest: int) -> Request:
        """Begin to send."""

    @abstractmethod
    def Irecv(self, message: Sequence[Any], source: int) -> Request:
        """Begin to receive."""

    @abstractmethod
    def Allgatherv(self, sent: Sequence[Any], received: Sequence[Any]) -> None:
        """Gather everybody's matrix on all ranks, one after the other."""

    @abstractmethod
    def Reduce(self, sent: Any, received: Sequence[Any] | None) -> None:
        """Add up on rank 0, where ``MPI.IN_PLACE`` may be sent."""

    @abstractmethod
    def Reduce_scatter(
        self, sent: Sequence[Any], received: Sequence[Any], counts: Sequence[int]
    ) -> None:
        """Add up, and leave so many elements of the sum on each rank."""


def summand(sent: Any, received: Sequence[Any] | None) -> Sequence[Any]:
    """This rank's message of a `Reduce`, which is in place on rank 0."""
    message: Sequence[Any] | None = sent if isinstance(sent, Sequence) else received
    assert message is not None
    return message


class Direct(Communicator):
    """MPI is given addresses in the GPUs.

    It knows nothing of streams: the host waits until a matrix may be used before it is passed on.
    """

    def Ibcast(self, message: Sequence[Any], root: int = 0) -> Request:
        if self.size == 1 or not message[0].size:
            return Request(self)
        given = self._given(message, writes=self.rank != root)
        return Request(self, finish=self.mpi.Ibcast(given, root).Wait)

    def Isend(self, message: Sequence[Any], dest: int) -> Request:
        if not message[0].size:
            return Request(self)
        return Request(self, finish=self.mpi.Isend(self._given(message), dest).Wait)

    def Irecv(self, message: Sequence[Any], source: int) -> Request:
        if not message[0].size:
            return Request(self)
        given = self._given(message, writes=True)
        return Request(self, finish=self.mpi.Irecv(given, source).Wait)

    def Allgatherv(self, sent: Sequence[Any], received: Sequence[Any]) -> None:
        self.mpi.Allgatherv(self._given(sent), self._given(received, writes=True))

    def Reduce(self, sent: Any, received: Sequence[Any] | None) -> None:
        given = self._given(sent) if isinstance(sent, Sequence) else sent
        self.mpi.Reduce(given, None if received is None else self._given(received, writes=True))

    def Reduce_scatter(
        self, sent: Sequence[Any], received: Sequence[Any], counts: Sequence[int]
    ) -> None:
        given = self._given(sent)
        self.mpi.Reduce_scatter(given, self._given(received, writes=True), counts)

    def _given(self, message: Sequence[Any], *, writes: bool = False) -> list[Any]:
        """The message as MPI takes it, once its matrix may be used."""
        matrix, *rest = message
        self.gpu.order.settle(matrix.span, writes=writes)
        return [self.gpu.machine.expose(matrix), *rest]


class Staged(Communicator):
    """MPI is given copies in pinned memory of the host."""

    def Ibcast(self, message: Sequence[Any], root: int = 0) -> Request:
        matrix, datatype = message
        if self.size == 1 or not matrix.size:
            return Request(self)
        copy = self.gpu.lend(matrix.size, matrix.dtype)
        return self.broadcast_pieces(
            matrix,
            root,
            copy,
            lambda piece: self.mpi.Bcast([piece, datatype], root),
            lambda: self.gpu.give_back(copy),
        )

    def Isend(self, message: Sequence[Any], dest: int) -> Request:
        matrix, datatype = message
        copy = self._copy_of(matrix)
        under_way: list[Any] = []

        def post() -> None:
            self.settle(copy)
            under_way.append(self.mpi.Isend([copy, datatype], dest))

        def finish() -> None:
            under_way[0].Wait()
            self.gpu.give_back(copy)

        return Request(self, post, finish)

    def Irecv(self, message: Sequence[Any], source: int) -> Request:
        matrix, datatype = message
        copy = self.gpu.lend(matrix.size, matrix.dtype)
        under_way = self.mpi.Irecv([copy, datatype], source)

        def finish() -> None:
            under_way.Wait()
            self._store(matrix, copy)

        return Request(self, finish=finish)

    def Allgatherv(self, sent: Sequence[Any], received: Sequence[Any]) -> None:
        matrix, datatype = sent
        whole, counts, _ = received
        copy, copies = self._copy_of(matrix), self.gpu.lend(whole.size, whole.dtype)
        self.settle(copy)
        self.mpi.Allgatherv([copy, datatype], [copies, counts, datatype])
        self._store(whole, copies)
        self.gpu.give_back(copy)

    def Reduce(self, sent: Any, received: Sequence[Any] | None) -> None:
        matrix, datatype = summand(sent, received)
        copy, total = self._copy_of(matrix), self.gpu.lend(matrix.size, matrix.dtype)
        self.settle(copy)
        self.mpi.Reduce([copy, datatype], [total, datatype] if self.rank == 0 else None)
        if received is not None:
            self._store(received[0], total)
        else:
            self.gpu.give_back(total)
        self.gpu.give_back(copy)

    def Reduce_scatter(
        self, sent: Sequence[Any], received: Sequence[Any], counts: Sequence[int]
    ) -> None:
        matrix, datatype = sent
        mine = received[0]
        copy, part = self._copy_of(matrix), self.gpu.lend(mine.size, mine.dtype)
        self.settle(copy)
        self.mpi.Reduce_scatter([copy, datatype], [part, datatype], counts)
        self._store(mine, part)
        self.gpu.give_back(copy)

    def _copy_of(self, matrix: DeviceMatrix) -> NDArray[Any]:
        """A copy of a matrix, on its way to the host."""
        copy = self.gpu.lend(matrix.size, matrix.dtype)
        self.gpu.download(matrix, copy)
        return copy

    def _store(self, matrix: DeviceMatrix, copy: NDArray[Any]) -> None:
        """Bring a copy to the GPU, and its memory back."""
        matrix[...] = copy.reshape(matrix.shape)
        self.gpu.give_back(copy)
