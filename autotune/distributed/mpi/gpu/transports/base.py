"""Communicators whose messages are matrices of GPUs, over an MPI that knows of them or does not.

Their methods are those of mpi4py's communicators, as far as plans use them: a message is a list of
a contiguous matrix, counts where they differ from rank to rank, and the MPI datatype.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from autotune.distributed.mpi.gpu.order import span_of

if TYPE_CHECKING:
    import numpy as np
    from mpi4py.MPI import Intracomm
    from numpy.typing import NDArray

    from autotune.distributed.mpi.gpu.order import Machine, Order
    from autotune.gpu.matrix import DeviceMatrix

PIECE_BYTES = 8 << 20
"""A staged broadcast goes in pieces: while one is sent, the next is copied from the GPU, and the
one before to it."""


class Request:
    """A message under way.

    Attributes:
        comm: the communicator it belongs to.
    """

    def __init__(
        self,
        comm: Communicator,
        post: Callable[[], object],
        finish: Callable[[], object] = lambda: None,
    ) -> None:
        self.comm = comm
        self.post = post
        self.finish = finish


class Memory(Protocol):
    """What transports need of a rank's GPU: memory, and copies in order (`GpuRank`)."""

    machine: Machine
    order: Order

    def add(self, other: DeviceMatrix, out: DeviceMatrix, beta: float) -> None:
        """Enqueue ``out = other + beta out``."""
        ...

    def download(self, source: DeviceMatrix, target: NDArray[Any]) -> None:
        """Enqueue a copy to pinned memory of the host."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: Any) -> DeviceMatrix:
        """New memory on the device."""
        ...

    def lend(self, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Pinned memory for one message."""
        ...

    def give_back(self, lent: NDArray[Any]) -> None:
        """Take memory of `lend` back."""
        ...

    def synchronize(self) -> None:
        """Wait until everything has been done."""
        ...


class Communicator(ABC):
    """Ranks that pass matrices of their GPUs; see `mpi4py.MPI.Comm` for what the methods do.

    Args:
        gpu: this rank's.
        mpi: the same ranks as MPI sees them.

    Attributes:
        mpi: the same ranks, for messages from the memory of the host.
        rank: this rank's number.
        size: how many ranks there are.
    """

    def __init__(self, gpu: Memory, mpi: Intracomm) -> None:
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
        """Give the communicator back."""
        self.mpi.Free()

    def Bcast(self, message: Sequence[Any], root: int = 0) -> None:
        """Broadcast."""
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
        """Send and receive."""
        self.complete([self.Irecv(received, source), self.Isend(sent, dest)])

    @staticmethod
    def complete(requests: Sequence[Request]) -> None:
        """Post all the messages that have not been posted, then finish them."""
        for request in requests:
            request.post()
        for request in requests:
            request.finish()

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
        """Add up on rank 0; what is sent there may be ``MPI.IN_PLACE``."""

    @abstractmethod
    def Reduce_scatter(
        self, sent: Sequence[Any], received: Sequence[Any], counts: Sequence[int]
    ) -> None:
        """Add up, and leave so many elements of the sum on each rank."""


class Direct(Communicator):
    """MPI is given addresses in the GPUs.

    It knows nothing of streams: the host waits until a matrix may be used before it is passed on.
    """

    def Ibcast(self, message: Sequence[Any], root: int = 0) -> Request:
        """See `Communicator.Ibcast`."""
        if self.size == 1 or not message[0].size:
            return nothing(self)
        given = self._given(message, writes=self.rank != root)
        return _begun(self, self.mpi.Ibcast(given, root))

    def Isend(self, message: Sequence[Any], dest: int) -> Request:
        """See `Communicator.Isend`."""
        if not message[0].size:
            return nothing(self)
        return _begun(self, self.mpi.Isend(self._given(message, writes=False), dest))

    def Irecv(self, message: Sequence[Any], source: int) -> Request:
        """See `Communicator.Irecv`."""
        if not message[0].size:
            return nothing(self)
        return _begun(self, self.mpi.Irecv(self._given(message, writes=True), source))

    def Allgatherv(self, sent: Sequence[Any], received: Sequence[Any]) -> None:
        """See `Communicator.Allgatherv`."""
        given = self._given(sent, writes=False)
        self.mpi.Allgatherv(given, self._given(received, writes=True))

    def Reduce(self, sent: Any, received: Sequence[Any] | None) -> None:
        """See `Communicator.Reduce`."""
        given = self._given(sent, writes=False) if isinstance(sent, Sequence) else sent
        self.mpi.Reduce(given, None if received is None else self._given(received, writes=True))

    def Reduce_scatter(
        self, sent: Sequence[Any], received: Sequence[Any], counts: Sequence[int]
    ) -> None:
        """See `Communicator.Reduce_scatter`."""
        given = self._given(sent, writes=False)
        self.mpi.Reduce_scatter(given, self._given(received, writes=True), counts)

    def _given(self, message: Sequence[Any], *, writes: bool) -> list[Any]:
        """The message with what MPI takes for the matrix, once that may be used."""
        matrix, *rest = message
        self.gpu.order.settle(matrix.span, writes=writes)
        return [self.gpu.machine.expose(matrix), *rest]


class Staged(Communicator):
    """MPI is given copies in pinned memory of the host."""

    def Ibcast(self, message: Sequence[Any], root: int = 0) -> Request:
        """See `Communicator.Ibcast`."""
        matrix, datatype = message
        if self.size == 1 or not matrix.size:
            return nothing(self)
        copy = self.gpu.lend(matrix.size, matrix.dtype)
        flat = matrix.reshape((matrix.size,))
        step = PIECE_BYTES // matrix.dtype.itemsize
        pieces = [slice(start, start + step) for start in range(0, matrix.size, step)]
        if self.rank == root:
            for piece in pieces:
                self.gpu.download(flat[piece], copy[piece])

        def finish() -> None:
            for piece in pieces:
                if self.rank == root:
                    self._settle(copy[piece])
                self.mpi.Bcast([copy[piece], datatype], root)
                if self.rank != root:
                    flat[piece] = copy[piece]
            self.gpu.give_back(copy)

        return Request(self, lambda: None, finish)

    def Isend(self, message: Sequence[Any], dest: int) -> Request:
        """See `Communicator.Isend`."""
        matrix, datatype = message
        copy = self._copy_of(matrix)
        under_way: list[Any] = []

        def post() -> None:
            self._settle(copy)
            under_way.append(self.mpi.Isend([copy, datatype], dest))

        def finish() -> None:
            under_way[0].Wait()
            self.gpu.give_back(copy)

        return Request(self, post, finish)

    def Irecv(self, message: Sequence[Any], source: int) -> Request:
        """See `Communicator.Irecv`."""
        matrix, datatype = message
        copy = self.gpu.lend(matrix.size, matrix.dtype)
        under_way = self.mpi.Irecv([copy, datatype], source)

        def finish() -> None:
            under_way.Wait()
            self._store(matrix, copy)
            self.gpu.give_back(copy)

        return Request(self, lambda: None, finish)

    def Allgatherv(self, sent: Sequence[Any], received: Sequence[Any]) -> None:
        """See `Communicator.Allgatherv`."""
        matrix, datatype = sent
        whole, counts, _ = received
        copy = self._copy_of(matrix)
        copies = self.gpu.lend(whole.size, whole.dtype)
        self._settle(copy)
        self.mpi.Allgatherv([copy, datatype], [copies, counts, datatype])
        self._store(whole, copies)
        self.gpu.give_back(copy)
        self.gpu.give_back(copies)

    def Reduce(self, sent: Any, received: Sequence[Any] | None) -> None:
        """See `Communicator.Reduce`."""
        message = sent if isinstance(sent, Sequence) else received
        assert message is not None
        matrix, datatype = message
        copy = self._copy_of(matrix)
        total = self.gpu.lend(matrix.size, matrix.dtype)
        self._settle(copy)
        self.mpi.Reduce([copy, datatype], [total, datatype] if self.rank == 0 else None)
        if received is not None:
            self._store(received[0], total)
        self.gpu.give_back(copy)
        self.gpu.give_back(total)

    def Reduce_scatter(
        self, sent: Sequence[Any], received: Sequence[Any], counts: Sequence[int]
    ) -> None:
        """See `Communicator.Reduce_scatter`."""
        matrix, datatype = sent
        mine = received[0]
        copy = self._copy_of(matrix)
        part = self.gpu.lend(mine.size, mine.dtype)
        self._settle(copy)
        self.mpi.Reduce_scatter([copy, datatype], [part, datatype], counts)
        self._store(mine, part)
        self.gpu.give_back(copy)
        self.gpu.give_back(part)

    def _copy_of(self, matrix: DeviceMatrix) -> NDArray[Any]:
        """A copy of a matrix, on its way to the host."""
        copy = self.gpu.lend(matrix.size, matrix.dtype)
        self.gpu.download(matrix, copy)
        return copy

    def _store(self, matrix: DeviceMatrix, copy: NDArray[Any]) -> None:
        matrix[...] = copy.reshape(matrix.shape)

    def _settle(self, copy: NDArray[Any]) -> None:
        """Wait until a copy is here."""
        self.gpu.order.settle(span_of(copy), writes=False)


def nothing(comm: Communicator) -> Request:
    """A message without content."""
    return Request(comm, lambda: None)


def _begun(comm: Communicator, request: Any) -> Request:
    """A message that MPI has under way."""
    return Request(comm, lambda: None, request.Wait)
