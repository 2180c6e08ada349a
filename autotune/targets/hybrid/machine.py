"""The GPUs of this host as emitted programs see them: memory, streams, events and products."""

from __future__ import annotations

import contextlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from autotune.core.dtypes import DTYPES
from autotune.families.launch import LaunchStep
from autotune.targets.cuda.driver.context import activated, driver_errors
from autotune.targets.cuda.driver.interface import DeviceRows, driver

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from numpy.typing import NDArray

    from autotune.targets.hybrid.products import Products

_BLOCK = (256, 1, 1)
_GRID = (8, 512, 1)


@dataclass(frozen=True, slots=True)
class DeviceMatrix:
    """A row-major matrix in the memory of a GPU, or a part of one.

    Attributes:
        device: the machine's number of the GPU.
        address: of its first element.
        rows: how many it has.
        columns: how many it has.
        stride: elements from one row to the next.
        itemsize: bytes per element.
    """

    device: int
    address: int
    rows: int
    columns: int
    stride: int
    itemsize: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.rows, self.columns

    @property
    def contiguous(self) -> bool:
        """Whether its rows follow each other without a gap."""
        return self.stride == self.columns or self.rows <= 1

    @property
    def bytes(self) -> DeviceRows:
        """Its rows as the driver copies them."""
        itemsize = self.itemsize
        pitch, row_bytes = self.stride * itemsize, self.columns * itemsize
        return DeviceRows(self.device, self.address, pitch, row_bytes, self.rows)

    def __getitem__(self, where: slice | tuple[slice, slice]) -> DeviceMatrix:
        """Some of its rows, or of its rows and columns, as NumPy would give them."""
        rows, columns = where if isinstance(where, tuple) else (where, slice(None))
        top, bottom, _ = rows.indices(self.rows)
        left, right, _ = columns.indices(self.columns)
        start = self.address + (top * self.stride + left) * self.itemsize
        return DeviceMatrix(
            self.device, start, bottom - top, right - left, self.stride, self.itemsize
        )


class Machine(Protocol):
    """What emitted programs use. A matrix is a `DeviceMatrix`, or a NumPy array on the host.

    What goes to a stream is done in order; the call does not wait for it, except that copies of
    pageable host memory may. All of it may be called from several threads.
    """

    devices: int

    def here(self, device: int) -> contextlib.AbstractContextManager[None]:
        """Make a GPU current in this thread."""
        ...

    def stream(self, device: int) -> Any:
        """A new stream of a GPU."""
        ...

    def memory(self, device: int, rows: int, columns: int) -> Any:
        """A new matrix on a GPU, with nothing in it yet."""
        ...

    def pinned(self, count: int) -> NDArray[Any]:
        """Page-locked memory of the host, for so many elements."""
        ...

    def lock(self, array: NDArray[Any]) -> Any:
        """Page-lock an array where it is; what `unlock` is given."""
        ...

    def unlock(self, locked: Any) -> None:
        """Undo that."""
        ...

    def is_locked(self, array: NDArray[Any]) -> bool:
        """Whether an array is page-locked: copies of it are made by the GPU alone."""
        ...

    def copy(self, target: Any, source: Any, stream: Any) -> None:
        """Copy a matrix, on a stream of a GPU that one of them is on."""
        ...

    def multiply(self, a: Any, b: Any, c: Any, alpha: float, beta: float, stream: Any) -> None:
        """``c = alpha a b + beta c``, all on the GPU of the stream; zero means c is not read."""
        ...

    def kernel(self, source: str, name: str) -> Callable[[Any, Any, Any], None]:
        """A kernel of the program's own: ``run(target, source, stream)``."""
        ...

    def record(self, stream: Any) -> Any:
        """An event that comes to pass when all that is on the stream now is done."""
        ...

    def wait(self, stream: Any, event: Any) -> None:
        """Let what comes on a stream later wait for an event of any GPU's stream."""
        ...

    def finish(self, what: Any) -> None:
        """Wait, on the host, for an event or for all that is on a stream."""
        ...

    def reuse_events(self) -> None:
        """All events so far have come to pass, and nobody asks for them any more."""
        ...

    def free(self, what: Any) -> None:
        """Give back a stream, a matrix or page-locked memory."""
        ...


class GpuMachine:
    """The GPUs of this host. See `Machine`; `close` frees what has not been freed.

    Args:
        devices: how many to use; the driver's first ones.
        dtype: of all matrices.
        products: what multiplies within a GPU; closed with the machine.

    Raises:
        MissingDependencyError: the driver or its bindings are missing.
    """

    def __init__(self, devices: int, dtype: str, products: Products) -> None:
        self.devices = devices
        self._dtype = np.dtype(dtype)
        self._itemsize = DTYPES[dtype].itemsize
        self._products = products
        self._driver = driver()
        self._held: dict[int, tuple[int, Any]] = {}  # memory by address, or identity on the host
        # What nobody holds is destroyed, with PyCUDA in whatever context is current then: all of
        # this is held until `close`, and used again.
        self._streams: dict[int, tuple[int, Any]] = {}  # with their devices, by identity
        self._idle_streams: list[list[Any]] = [[] for _ in range(devices)]
        self._idle_events: list[list[Any]] = [[] for _ in range(devices)]
        self._used_events: list[list[Any]] = [[] for _ in range(devices)]
        self._functions: dict[tuple[int, str], Any] = {}  # by device and source
        self._let_reach()

    def here(self, device: int) -> contextlib.AbstractContextManager[None]:
        """See `Machine.here`."""
        return activated(device)

    def stream(self, device: int) -> Any:
        """See `Machine.stream`."""
        if self._idle_streams[device]:
            return self._idle_streams[device].pop()
        with activated(device):
            stream = self._driver.stream(blocking=False)
        self._streams[id(stream)] = device, stream
        return stream

    def memory(self, device: int, rows: int, columns: int) -> DeviceMatrix:
        """See `Machine.memory`; rows start at multiples of 16 bytes."""
        unit = 16 // self._itemsize
        stride = -(-columns // unit) * unit
        with activated(device):
            allocation = self._driver.allocate(max(1, rows * stride * self._itemsize))
        made = DeviceMatrix(device, int(allocation), rows, columns, stride, self._itemsize)
        self._held[made.address] = device, allocation
        return made

    def pinned(self, count: int) -> NDArray[Any]:
        """See `Machine.pinned`."""
        with activated(0):
            elements, memory = self._driver.pinned(count, self._dtype)
        self._held[id(elements)] = 0, memory
        return elements

    def lock(self, array: NDArray[Any]) -> Any:
        """See `Machine.lock`; None where the driver refuses, which costs speed alone."""
        rows, columns = array.shape
        size = (rows - 1) * array.strides[0] + columns * self._itemsize
        address = array.ctypes.data
        with activated(0):
            return address if self._driver.lock(address, size) else None

    def unlock(self, locked: Any) -> None:
        """See `Machine.unlock`."""
        if locked is not None:
            with activated(0):
                self._driver.unlock(locked)

    def is_locked(self, array: NDArray[Any]) -> bool:
        """See `Machine.is_locked`."""
        return self._driver.is_locked(array.ctypes.data)

    def copy(self, target: Any, source: Any, stream: Any) -> None:
        """See `Machine.copy`."""
        rows, columns = target.shape
        if rows * columns == 0:
            return
        if not isinstance(source, DeviceMatrix):
            self._driver.copy_in(target.bytes, source, stream)
        elif isinstance(target, DeviceMatrix):
            self._driver.copy_across(target.bytes, source.bytes, stream)
        else:
            self._driver.copy_out(target, source.bytes, stream)

    def multiply(self, a: Any, b: Any, c: Any, alpha: float, beta: float, stream: Any) -> None:
        """See `Machine.multiply`."""
        launch = self._products.launch(c.device, a.rows, a.columns, b.columns)
        launch(a.address, a.stride, b.address, b.stride, c.address, c.stride, alpha, beta, stream)

    def kernel(self, source: str, name: str) -> Callable[[Any, Any, Any], None]:
        """See `Machine.kernel`: ``(target, stride, source, stride, rows, columns)``."""
        if (0, source) not in self._functions:
            cubin = self._products.compile(source, name)
            step = LaunchStep(name, _GRID, _BLOCK)
            for device in range(self.devices):
                with activated(device):
                    self._functions[device, source] = self._driver.load(cubin).runner([step])

        def run(target: DeviceMatrix, other: DeviceMatrix, stream: Any) -> None:
            places = target.address, target.stride, other.address, other.stride
            arguments = struct.pack("PqPqqq", *places, *target.shape)
            self._functions[target.device, source](arguments, stream)

        return run

    def record(self, stream: Any) -> Any:
        """See `Machine.record`; the stream's GPU is current."""
        device, _ = self._streams[id(stream)]
        try:
            event = self._idle_events[device].pop()
        except IndexError:
            event = self._driver.event(timed=False)
        event.record(stream)
        self._used_events[device].append(event)
        return event

    def wait(self, stream: Any, event: Any) -> None:
        """See `Machine.wait`."""
        stream.wait_for_event(event)

    def finish(self, what: Any) -> None:
        """See `Machine.finish`."""
        what.synchronize()

    def reuse_events(self) -> None:
        """See `Machine.reuse_events`."""
        for idle, used in zip(self._idle_events, self._used_events, strict=True):
            idle.extend(used)
            used.clear()

    def free(self, what: Any) -> None:
        """See `Machine.free`."""
        if id(what) in self._streams:
            self._idle_streams[self._streams[id(what)][0]].append(what)
            return
        key = what.address if isinstance(what, DeviceMatrix) else id(what)
        device, memory = self._held.pop(key)
        with activated(device):
            memory.free()

    def close(self) -> None:
        """Free everything; plans must have been freed first."""
        self._products.close()
        for device, memory in self._held.values():
            with activated(device):
                memory.free()
        self._held.clear()
        for device in range(self.devices):
            with activated(device):
                self._idle_events[device].clear()
                self._used_events[device].clear()
                self._idle_streams[device].clear()
                self._streams = {k: v for k, v in self._streams.items() if v[0] != device}
                self._functions = {k: v for k, v in self._functions.items() if k[0] != device}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None or not issubclass(kind, driver_errors()):
            self.close()

    def _let_reach(self) -> None:
        """Let every GPU reach the memory of every other one, where the hardware can."""
        for device in range(self.devices):
            with activated(device):
                for other in range(self.devices):
                    if other != device:
                        self._driver.let_reach(other)
