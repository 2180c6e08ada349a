"""NVIDIA's driver by PyCUDA: contexts, memory, copies that wait, streams and events.

The bindings load and launch binaries, and copy on streams: PyCUDA makes no object of a stream that
another library has made.
"""

from __future__ import annotations

import atexit
import weakref
from typing import TYPE_CHECKING, Any

import pycuda.driver as pycuda

from autotune.core import session
from autotune.gpu.interface import DriverError
from autotune.gpu.nvidia.bindings import BindingsDriver
from autotune.gpu.nvidia.calls import relaxed
from autotune.gpu.nvidia.device import load_driver

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING


def make() -> PycudaDriver:
    """The driver, as `autotune.gpu.nvidia.vendor` wants it."""
    pycuda.init()
    return PycudaDriver()


class PycudaDriver(BindingsDriver):
    """See `autotune.gpu.interface.Driver`, also for every method."""

    name = "PyCUDA"
    errors = (pycuda.Error, DriverError)

    def describe(self, error: Exception) -> str:
        text = super().describe(error)
        if isinstance(error, DriverError):
            return text
        # PyCUDA writes "cuMemAlloc failed: out of memory", perhaps with " - " and a log after it.
        told = text.removesuffix(" -").partition(" failed: ")[2].partition(" - ")[0]
        name = _names_by_text().get(told, type(error).__name__)
        return f"{name}: {text.removesuffix(' -')}"[:300]

    def enter(self, ordinal: int) -> None:
        self._primary(ordinal).push()

    def leave(self) -> None:
        pycuda.Context.pop()

    def context(self, ordinal: int) -> int:
        return int(self._primary(ordinal).handle)

    def synchronize(self) -> None:
        pycuda.Context.synchronize()

    def free_bytes(self) -> int:
        return int(pycuda.mem_get_info()[0])

    def allocate(self, size: int) -> Any:
        return _PycudaMemory(pycuda.mem_alloc(size))

    def upload(self, target: int, values: NDArray[Any]) -> None:
        pycuda.memcpy_htod(target, values)

    def download(self, values: NDArray[Any], source: int) -> None:
        pycuda.memcpy_dtoh(values, source)

    def duplicate(self, target: int, source: int, size: int) -> None:
        pycuda.memcpy_dtod(target, source, size)

    def clear(self, target: int, words: int) -> None:
        pycuda.memset_d32(target, 0, words)

    def stream(self, *, blocking: bool = True, urgent: bool = False) -> Any:
        """See `Driver.stream`; PyCUDA's have no priorities."""
        if urgent:
            return super().stream(blocking=blocking, urgent=urgent)
        return pycuda.Stream(0 if blocking else _NON_BLOCKING)

    def event(self, *, timed: bool = True) -> Any:
        flags = pycuda.event_flags
        return pycuda.Event(flags.DEFAULT if timed else flags.DISABLE_TIMING)

    def pinned(self, count: int, dtype: Any) -> tuple[NDArray[Any], Any]:
        flags = pycuda.host_alloc_flags.PORTABLE
        memory: NDArray[Any] = pycuda.pagelocked_empty(count, dtype, mem_flags=flags)
        return memory, memory.base

    def _primary(self, ordinal: int) -> Any:
        with self._lock:
            context = self._contexts.get(ordinal)
            if context is None:
                context = pycuda.Device(ordinal).retain_primary_context()
                # PyCUDA releases a primary context when told to. Its destructor takes it for one
                # of its own, and the driver refuses to destroy that.
                atexit.register(context.detach)
                self._contexts[ordinal] = context
            return context


class _PycudaMemory:
    """See `autotune.gpu.interface.Memory`."""

    def __init__(self, allocation: Any) -> None:
        self._address = int(allocation)
        self._release = weakref.finalize(self, _drop, [allocation])
        self._release.atexit = False

    def __int__(self) -> int:
        return self._address

    def free(self) -> None:
        """Give it back now."""
        self._release()


def _drop(held: list[Any]) -> None:
    """Have PyCUDA give back what only this holds, whoever captures a graph meanwhile."""
    with relaxed():
        held.clear()


@session.cached()
def _names_by_text() -> Mapping[str, str]:
    library = load_driver()
    names: dict[str, str] = {}
    for result in library.CUresult:
        status, text = library.cuGetErrorString(result)
        if int(status) == 0 and text is not None:
            names[text.decode()] = result.name
    return names
