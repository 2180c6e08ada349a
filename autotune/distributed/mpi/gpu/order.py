"""The order of what two streams of a rank's GPU, and the host, do with the same memory."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from autotune.distributed.machine.interface import Enqueues

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mpi4py.MPI import Intracomm
    from numpy.typing import NDArray

    from autotune.gpu.matrix import Bytes, DeviceMatrix


class Machine(Enqueues, Protocol):
    """A GPU as one rank uses it: memory, two streams, and the product.

    Streams and events are whatever the machine takes them for.
    """

    compute: Any
    """The stream that multiplies."""

    transfer: Any
    """The stream that copies."""

    ordinal: int
    """The driver's number of the GPU."""

    def allocate(self, device: int, size: int) -> Any:
        """Bytes on the device; `int` of it is their address, and they live as long as it does."""
        ...

    def pinned(self, count: int, dtype: Any) -> NDArray[Any]:
        """Memory of the host that the device copies from and to by itself."""
        ...

    def is_past(self, event: Any) -> bool:
        """Whether an event has come to pass."""
        ...

    def close(self) -> None:
        """Unload code and free pinned memory."""
        ...

    def expose(self, matrix: DeviceMatrix) -> object:
        """A contiguous matrix as a CUDA-aware MPI takes it."""
        ...

    def accumulate(
        self, out: DeviceMatrix, other: DeviceMatrix | None, beta: float, stream: Any
    ) -> None:
        """Enqueue ``out = other + beta out``; where beta is 0, `out` is not read."""
        ...

    def nccl(self, mpi: Intracomm) -> Collective:
        """An NCCL communicator of the same ranks; all of them make it, or have made it before."""
        ...

    def nccl_group(self) -> contextlib.AbstractContextManager[object]:
        """NCCL's calls in the body are one: none waits for another of them."""
        ...


class Collective(Protocol):
    """NCCL's communicator: each call enqueues a part of a group on a stream.

    Messages are an address, a count of elements and the name of their type.
    """

    def broadcast(
        self, sent: int, received: int, count: int, dtype: str, root: int, stream: Any
    ) -> None:
        """From the root's `sent` to everybody's `received`."""
        ...

    def reduce(
        self, sent: int, received: int, count: int, dtype: str, root: int, stream: Any
    ) -> None:
        """The sum of everybody's `sent` to the root's `received`."""
        ...

    def send(self, sent: int, count: int, dtype: str, peer: int, stream: Any) -> None:
        """One half of a message."""
        ...

    def receive(self, received: int, count: int, dtype: str, peer: int, stream: Any) -> None:
        """The other half."""
        ...


@dataclass(frozen=True, slots=True)
class _Use:
    """What a stream does with some bytes, until its event."""

    span: Bytes
    writes: bool
    stream: Any
    event: Any

    def conflicts(self, span: Bytes, writes: bool) -> bool:
        return (self.writes or writes) and self.span[0] < span[1] and span[0] < self.span[1]


class Order:
    """Who must wait for whom: uses of the same bytes keep the order in which they were asked for.

    Uses that only read are in nobody's way. What a use covers is known by addresses, so that
    slots of one buffer are apart, and views of one matrix are not.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._uses: list[_Use] = []

    @contextlib.contextmanager
    def on(
        self, stream: Any, *, reads: Sequence[Bytes] = (), writes: Sequence[Bytes] = ()
    ) -> Iterator[None]:
        """Enqueue the body's work on a stream, behind what other streams do with these bytes."""
        mine = [(span, False) for span in reads] + [(span, True) for span in writes]
        for use in self._uses:
            if use.stream is not stream and any(use.conflicts(*each) for each in mine):
                self._machine.wait(stream, use.event)
        yield
        event = self._machine.record(stream)
        fresh = [_Use(span, writing, stream, event) for span, writing in mine]
        self._uses = [
            use
            for use in self._uses
            if not self._machine.is_past(use.event)
            and not any(_supersedes(new, use) for new in fresh)
        ]
        self._uses += fresh

    def settle(self, span: Bytes, *, writes: bool) -> None:
        """Wait on the host until it may read some bytes, or write them."""
        for use in self._uses:
            if use.conflicts(span, writes):
                self._machine.finish(use.event)

    def forget(self) -> None:
        """All of it has come to pass."""
        self._uses.clear()


def _supersedes(new: _Use, old: _Use) -> bool:
    """Whether waiting for a new use is waiting for an old one too."""
    return (
        new.stream is old.stream
        and (new.writes or not old.writes)
        and new.span[0] <= old.span[0]
        and old.span[1] <= new.span[1]
    )


def span_of(array: NDArray[Any]) -> Bytes:
    """The bytes of a contiguous array of the host."""
    address = array.ctypes.data
    return address, address + array.nbytes
