"""What the engine asks of NVIDIA's driver, and who asks it: PyCUDA where it is, else the bindings.

One interface with two implementations, chosen here and nowhere else. Contexts, memory, streams
and events are PyCUDA's where it is. Binaries, launches, copies on streams, capture modes and
graphs are the bindings' in either case: there is one way to launch a kernel.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from autotune.core import session
from autotune.core.errors import LaunchError, MissingDependencyError
from autotune.gpu.nvidia.device.identity import load_driver

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from autotune.families.gpu.launch import LaunchStep

STATIC_SHARED_BYTES = 48 * 1024
"""Shared memory that every kernel may have; for more, the driver is asked first."""


MAP_BYTES = 128
"""Of a tensor map."""

MAP_ALIGNMENT = 64
"""Bytes: of a tensor map, wherever it lies."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """How hardware (TMA) copies a matrix, as a tensor map says it.

    Attributes:
        dtype: element type.
        rows: of the matrix, as stored.
        columns: elements of a row, one after the other.
        box: rows and columns of a box.
        swizzle: bytes of the rows within which a box is permuted in shared memory: 0, 32, 64, 128.
        rounded: "tf32" rounds elements of 32 bits to that on their way; empty leaves them.
    """

    dtype: str
    rows: int
    columns: int
    box: tuple[int, int]
    swizzle: int
    rounded: str = ""


class DriverError(LaunchError):
    """An error of the driver, from the bindings: "CUDA_ERROR_OUT_OF_MEMORY: cuMemAlloc failed"."""


class Memory(Protocol):
    """Memory of a device, given back with the object; its number is the address."""

    def __int__(self) -> int:
        """The address."""
        ...

    def free(self) -> None:
        """Give it back now."""
        ...


class Stream(Protocol):
    """A stream, destroyed with the object."""

    @property
    def handle(self) -> int:
        """The driver's own."""
        ...

    def synchronize(self) -> object:
        """Wait, on the host, for all that is on it."""
        ...

    def wait_for_event(self, event: Any) -> object:
        """Let what comes later wait for an event of any device's stream."""
        ...


class Event(Protocol):
    """An event, destroyed with the object."""

    def record(self, stream: Any = None) -> object:
        """Let it come to pass when all that is on the stream now is done."""
        ...

    def query(self) -> bool:
        """Whether it has come to pass."""
        ...

    def synchronize(self) -> object:
        """Wait for it on the host."""
        ...

    def time_since(self, earlier: Any) -> float:
        """Milliseconds between two events."""
        ...


Run: TypeAlias = "Callable[[bytes, Stream | int | None], None]"
"""``run(arguments, stream)``: enqueues kernels, all with the same packed arguments, on a stream
of this driver, on one of another library's by its handle, or, for None, on the default one."""


class Module(Protocol):
    """A binary, loaded into the context that was current."""

    def runner(self, steps: Sequence[LaunchStep], places: Sequence[int] = ()) -> Run:
        """What launches kernels of this binary, one after the other.

        Args:
            steps: which, and how.
            places: where each argument begins in the packed ones; left out where they are packed
                as the kernels have them. Those that are aligned to 64 bytes need it: compilers
                align them from where the device keeps arguments, which no caller knows.

        Raises one of `Driver.errors` when there is no such kernel, or when it may not have that
        much shared memory.
        """
        ...

    def unload(self) -> None:
        """Free the code."""
        ...


class Driver(Protocol):
    """NVIDIA's driver; a device's primary context is shared with CuPy, PyTorch and Numba.

    What concerns a device is done in the context that is current in this thread. Nothing is
    enqueued on streams unless a method says so.

    Attributes:
        name: of the implementation, for people.
        errors: what its calls raise.
    """

    name: str
    errors: tuple[type[Exception], ...]

    def enter(self, ordinal: int) -> None:
        """Make a device's primary context current; it is kept for the life of this process."""
        ...

    def leave(self) -> None:
        """Make the context current that was so before."""
        ...

    def context(self, ordinal: int) -> int:
        """Handle of a device's primary context."""
        ...

    def synchronize(self) -> None:
        """Wait for everything on the device."""
        ...

    def free_bytes(self) -> int:
        """Memory of the device that nobody has."""
        ...

    def allocate(self, size: int) -> Memory:
        """Bytes of the device's memory."""
        ...

    def upload(self, target: int, values: NDArray[Any]) -> None:
        """Copy a contiguous array of the host to an address."""
        ...

    def download(self, values: NDArray[Any], source: int) -> None:
        """Copy what lies at an address into a contiguous array, once kernels before are done."""
        ...

    def duplicate(self, target: int, source: int, size: int) -> None:
        """Copy bytes within the device."""
        ...

    def clear(self, target: int, words: int) -> None:
        """Set so many words of 32 bits to zero."""
        ...

    def stream(self, *, blocking: bool = True, urgent: bool = False) -> Stream:
        """A new stream; work on the default stream waits for one that blocks, and it for that.

        The blocks of an urgent one get multiprocessors before others'.
        """
        ...

    def event(self, *, timed: bool = True) -> Event:
        """A new event."""
        ...

    def load(self, cubin: bytes) -> Module:
        """Load a binary."""
        ...

    def tensor_map(self, boxes: Boxes, address: int, leading: int) -> bytes:
        """What hardware is told of a matrix: its address, and elements from row to row."""
        ...

    def pinned(self, count: int, dtype: Any) -> tuple[NDArray[Any], Memory]:
        """Page-locked elements of host memory, for all devices, and what gives them back."""
        ...

    def lock(self, address: int, size: int) -> bool:
        """Page-lock memory of the host where it is, for all devices; False where refused."""
        ...

    def unlock(self, address: int) -> None:
        """Undo that."""
        ...

    def is_locked(self, address: int) -> bool:
        """Whether memory of the host is page-locked."""
        ...

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
        ...

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
        ...

    def let_reach(self, ordinal: int) -> None:
        """Let the current device read another one's memory, where the hardware can."""
        ...


def has_pycuda() -> bool:
    """Whether PyCUDA is installed; it may not start."""
    try:
        return importlib.util.find_spec("pycuda.driver") is not None
    except ModuleNotFoundError:
        return False


@session.cached()
def driver() -> Driver:
    """The implementation that this process uses.

    Raises:
        MissingDependencyError: the driver or its bindings are missing, or PyCUDA is installed and
            does not start.
    """
    load_driver()  # says clearly what is wrong where there is no driver
    module = "pycuda_driver" if has_pycuda() else "bindings"
    try:
        made: Driver = importlib.import_module(f"autotune.gpu.nvidia.driver.{module}").make()
    except ImportError as error:
        raise MissingDependencyError(
            f"PyCUDA is installed and does not start ({' '.join(str(error).split())}): install "
            "it again, or pip uninstall pycuda, since it is not needed"
        ) from error
    return made
