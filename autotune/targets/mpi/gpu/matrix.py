"""Matrices in a rank's GPU, and the order of what two streams and the host do with them."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mpi4py.MPI import Intracomm
    from numpy.typing import NDArray

Bytes: TypeAlias = tuple[int, int]
"""Address of the first byte, and one past the last."""


class Machine(Protocol):
    """A GPU as one rank uses it: memory, two streams, and the product.

    Streams and events are whatever the machine takes them for. Nothing but `settle` and `drain`
    waits on the host.
    """

    compute: Any
    """The stream that multiplies."""

    transfer: Any
    """The stream that copies."""

    def allocate(self, size: int) -> Any:
        """Bytes on the device; `int` of it is their address, and they live as long as it does."""
        ...

    def pinned(self, size: int) -> NDArray[np.uint8]:
        """Bytes of the host that the device copies from and to by itself."""
        ...

    def pin(self, address: int, size: int) -> None:
        """Have the device copy from and to these bytes of the host by itself."""
        ...

    def unpin(self, address: int) -> None:
        """Leave them to the host again."""
        ...

    def copy(
        self,
        stream: Any,
        target: tuple[int, int],
        source: tuple[int, int],
        row_bytes: int,
        rows: int,
    ) -> None:
        """Copy rows between any two memories; both sides are an address and bytes per row."""
        ...

    def record(self, stream: Any) -> Any:
        """An event: all that is on the stream now."""
        ...

    def follow(self, stream: Any, event: Any) -> None:
        """Let what comes next on a stream wait for an event."""
        ...

    def is_past(self, event: Any) -> bool:
        """Whether an event has come to pass."""
        ...

    def settle(self, event: Any) -> None:
        """Wait for an event."""
        ...

    def drain(self) -> None:
        """Wait for everything."""
        ...

    def expose(self, matrix: GpuMatrix) -> object:
        """A contiguous matrix as a CUDA-aware MPI takes it."""
        ...

    def multiply(
        self, a: GpuMatrix, b: GpuMatrix, out: GpuMatrix, alpha: float, beta: float
    ) -> None:
        """Enqueue ``out = alpha a b + beta out`` on the compute stream."""
        ...

    def accumulate(self, out: GpuMatrix, other: GpuMatrix | None, beta: float) -> None:
        """Enqueue ``out = other + beta out`` there; where beta is 0, `out` is not read."""
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
                self._machine.follow(stream, use.event)
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
                self._machine.settle(use.event)

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


class GpuMatrix:
    """A view of row-major elements on the device, with as much of NumPy's ways as plans need.

    Slices and integers select; storing into a selection enqueues a copy, from the device or from
    pinned memory of the host.

    Attributes:
        address: of the first element.
        shape: elements along every dimension.
        strides: elements from one to the next along every dimension.
        dtype: of the elements.
    """

    __slots__ = ("_copy", "_keep", "address", "dtype", "shape", "strides")

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        copy: Callable[[GpuMatrix, GpuMatrix | NDArray[Any]], None],
        keep: object,
        strides: tuple[int, ...] | None = None,
    ) -> None:
        self.address = address
        self.shape = shape
        self.dtype = dtype
        self.strides = _dense(shape) if strides is None else strides
        self._copy = copy
        self._keep = keep

    @property
    def size(self) -> int:
        """How many elements there are."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * self.dtype.itemsize

    @property
    def contiguous(self) -> bool:
        """Whether one element comes right after the other."""
        dense = _dense(self.shape)
        return self.size <= 1 or all(
            length <= 1 or own == wanted
            for length, own, wanted in zip(self.shape, self.strides, dense, strict=True)
        )

    @property
    def span(self) -> Bytes:
        """The bytes from the first element to the last."""
        if not self.size:
            return self.address, self.address
        last = sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))
        return self.address, self.address + (last + 1) * self.dtype.itemsize

    def __getitem__(self, key: Any) -> GpuMatrix:
        keys = key if isinstance(key, tuple) else (key,)
        keys += (slice(None),) * (len(self.shape) - len(keys))
        address, shape, strides = self.address, [], []
        for each, length, stride in zip(keys, self.shape, self.strides, strict=True):
            if isinstance(each, slice):
                first, last, _ = each.indices(length)
                shape.append(max(0, last - first))
                strides.append(stride)
            else:
                first = range(length)[each]
            address += first * stride * self.dtype.itemsize
        return GpuMatrix(address, tuple(shape), self.dtype, self._copy, self._keep, tuple(strides))

    def __setitem__(self, key: Any, values: GpuMatrix | NDArray[Any]) -> None:
        self._copy(self if key is ... else self[key], values)

    def reshape(self, *shape: Any) -> GpuMatrix:
        """The same elements in another shape.

        Raises:
            ValueError: there are more or fewer of them, or rows lie apart.
        """
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        if math.prod(wanted) != self.size or not self.contiguous:
            raise ValueError(f"a contiguous matrix of {wanted} elements is needed, got {self!r}")
        return GpuMatrix(self.address, wanted, self.dtype, self._copy, self._keep)

    def __repr__(self) -> str:
        return f"GpuMatrix({self.shape}, {self.dtype}, strides {self.strides})"


def span_of(array: NDArray[Any]) -> Bytes:
    """The bytes of a contiguous array of the host."""
    address = array.ctypes.data
    return address, address + array.nbytes


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * shape[axis]
    return tuple(strides)
