"""Interface of a GPU's driver, which all vendors' answer.

What concerns a device is done in the context that is current in this thread; a device's context is
shared with CuPy, PyTorch and Numba.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from autotune.core.errors import LaunchError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from autotune.families.gpu.launch import LaunchStep
    from autotune.serving.recorded import DriverFunctions, RecordedStep

STATIC_SHARED_BYTES = 48 * 1024
"""Shared memory that every kernel may have; for more, the driver is asked first."""

MAP_BYTES = 128
"""Of a tensor map."""

MAP_ALIGNMENT = 64
"""Bytes: of a tensor map, wherever it lies."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """A matrix that hardware (TMA) copies in boxes, as a tensor map describes it.

    Attributes:
        dtype: element type.
        rows: of the matrix, as stored.
        columns: elements of a row, one after the other.
        box: rows and columns of a box.
        swizzle: bytes of the rows within which a box is permuted in shared memory: 0, 32, 64, 128.
        rounded: "tf32" rounds elements of 32 bits to that on their way; empty leaves them.
        matrices: of a stack, whose map has three dimensions; 0 where it is no stack.
    """

    dtype: str
    rows: int
    columns: int
    box: tuple[int, int]
    swizzle: int
    rounded: str = ""
    matrices: int = 0


class DriverError(LaunchError):
    """An error of the driver, named: "CUDA_ERROR_OUT_OF_MEMORY: cuMemAlloc failed"."""


class Memory(Protocol):
    """Memory of a device, given back with the object; its number is the address."""

    def __int__(self) -> int: ...

    def free(self) -> None:
        """Give it back now."""


class Stream(Protocol):
    """A stream, destroyed with the object."""

    @property
    def handle(self) -> int:
        """The driver's own."""

    def synchronize(self) -> object:
        """Wait, on the host, for all that is on it."""

    def wait_for_event(self, event: Any) -> object:
        """Let what comes later wait for an event of any device's stream."""


class Event(Protocol):
    """An event, destroyed with the object."""

    def record(self, stream: Any = None) -> object:
        """Let it come to pass when all that is on the stream now is done."""

    def query(self) -> bool:
        """Has it come to pass?"""

    def synchronize(self) -> object:
        """Wait for it on the host."""

    def time_since(self, earlier: Any) -> float:
        """Milliseconds between two events."""


class Graph(Protocol):
    """Recorded launches."""

    def replay(self) -> None:
        """Enqueue all of them on the stream that they were recorded on."""

    def close(self) -> None:
        """Free the graph."""


Run: TypeAlias = "Callable[[bytes, Stream | int | None], None]"
"""``run(arguments, stream)``: enqueues kernels, all with the same packed arguments, on a stream
of this driver, on one of another library's by its handle, or, for None, on the default one."""


class Module(Protocol):
    """A binary, loaded into the context that was current."""

    def runner(self, steps: Sequence[LaunchStep], places: Sequence[int] = ()) -> Run:
        """A launcher of kernels of this binary, one after the other.

        Args:
            steps: which, and how.
            places: where each argument begins in the packed ones; left out where they are packed
                as the kernels have them. Those that are aligned to 64 bytes need it: compilers
                align them from where the device keeps arguments, which no caller knows.

        Raises one of `Driver.errors` when there is no such kernel, or when it may not have that
        much shared memory.
        """

    def recorded(
        self, steps: Sequence[LaunchStep]
    ) -> tuple[DriverFunctions, tuple[RecordedStep, ...]]:
        """The same kernels for others, and what they launch them by; raises as `runner` does."""

    def unload(self) -> None:
        """Free the code."""


class Driver(Protocol):
    """A vendor's driver. Nothing is enqueued on a stream unless a method says so.

    Streams are the driver's own objects; where a method takes a handle, it may be that of any
    library's stream.

    Attributes:
        name: of the implementation, for people.
        errors: types of the errors that its calls raise.
    """

    name: str
    errors: tuple[type[Exception], ...]

    def describe(self, error: Exception) -> str:
        """An error in one line that begins with its name."""

    def enter(self, ordinal: int) -> None:
        """Make a device's context current; it is kept for the life of this process."""

    def leave(self) -> None:
        """Make the context current that was so before."""

    def context(self, ordinal: int) -> int:
        """Handle of a device's context."""

    def is_current(self, ordinal: int) -> bool:
        """Is a device's context current in this thread, whoever made it so?"""

    def relaxed(self) -> contextlib.AbstractContextManager[None]:
        """A stretch in which nothing that this thread does invalidates anybody's capture."""

    def synchronize(self) -> None:
        """Wait for everything on the device."""

    def free_bytes(self) -> int:
        """Memory of the device that nobody has."""

    def allocate(self, size: int) -> Memory:
        """Bytes of the device's memory."""

    def upload(self, target: int, values: NDArray[Any]) -> None:
        """Copy a contiguous array of the host to an address."""

    def download(self, values: NDArray[Any], source: int) -> None:
        """Copy what lies at an address into a contiguous array, once kernels before are done."""

    def duplicate(self, target: int, source: int, size: int) -> None:
        """Copy bytes within the device."""

    def clear(self, target: int, words: int) -> None:
        """Set so many words of 32 bits to zero."""

    def device_of(self, address: int) -> int | None:
        """The number of the device that an address belongs to; None for host memory."""

    def stream(self, *, blocking: bool = True, urgent: bool = False) -> Stream:
        """A new stream; work on the default stream waits for one that blocks, and it for that.

        The blocks of an urgent one get multiprocessors before others'.
        """

    def event(self, *, timed: bool = True) -> Event:
        """A new event."""

    def mark(self, handle: int, *, timed: bool = False) -> Event:
        """An event that comes to pass when all that is on any library's stream now is done."""

    def wait_for(self, handle: int, event: Event) -> None:
        """Let what comes to any library's stream later wait for an event of `mark`."""

    def finish(self, handle: int) -> None:
        """Wait, on the host, for all that is on any library's stream."""

    def is_capturing(self, handle: int) -> bool:
        """Is what comes to a stream captured, so that it does not run?"""

    def capture_of(self, handle: int) -> int | None:
        """The number of the capture that a stream is in; None where what comes to it runs."""

    def record(self, enqueue: Callable[[], None], stream: Stream) -> Graph:
        """A graph of what is enqueued on a stream; nothing of it runs now."""

    def enqueue_zeros(self, address: int, size: int, handle: int) -> None:
        """Enqueue that so many bytes, whole words of four, become zero."""

    def watch_graph(self, handle: int) -> Callable[[], bool]:
        """Watch the graph that a stream is captured into.

        The function returned says true, once, when the graph and all that was instantiated from
        it are gone.
        """

    def load(self, binary: bytes) -> Module:
        """Load a binary."""

    def delay(self) -> Run:
        """A kernel that ends once the clock has advanced by its one argument, of 64 bits."""

    def reader(self) -> Run:
        """A kernel that reads memory: an address and a number of bytes, of 64 bits each."""

    def tensor_map(self, boxes: Boxes, address: int, leading: int, apart: int = 0) -> bytes:
        """The tensor map of a matrix or a stack.

        That lies at an address, with so many elements from row to row, and from matrix to matrix;
        0 says that all matrices are the first one.
        """

    def pinned(self, count: int, dtype: Any) -> tuple[NDArray[Any], Memory]:
        """Page-locked elements of host memory, for all devices, and what gives them back."""

    def lock(self, address: int, size: int) -> bool:
        """Page-lock memory of the host where it is, for all devices; False where refused."""

    def unlock(self, address: int) -> None:
        """Undo that."""

    def is_locked(self, address: int) -> bool:
        """Is memory of the host page-locked?"""

    def copy_rows(
        self,
        target: tuple[int, int],
        source: tuple[int, int],
        row_bytes: int,
        rows: int,
        stream: Any,
    ) -> None:
        """Enqueue a copy of rows between the host and a device, or within a device.

        Target and source are the address of the first row, and bytes from one to the next.
        """

    def copy_across(
        self,
        target: tuple[int, int],
        source: tuple[int, int],
        row_bytes: int,
        rows: int,
        devices: tuple[int, int],
        stream: Any,
    ) -> None:
        """The same from device to device: those of target and source, by the driver's numbers."""

    def let_reach(self, ordinal: int) -> None:
        """Let the current device read another one's memory, where the hardware can."""
