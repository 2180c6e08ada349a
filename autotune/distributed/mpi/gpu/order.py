"""The order of work on the same memory, by two streams of a rank's GPU and by the host."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from autotune.distributed.machine.interface import Enqueues
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
