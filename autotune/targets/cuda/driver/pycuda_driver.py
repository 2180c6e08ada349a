"""NVIDIA's driver by PyCUDA: contexts, memory, copies, modules, launches, streams and events.

PyCUDA makes no object of a stream that another library has made. A binary that is launched on such
a stream is loaded by the bindings as well, when that first happens.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pycuda.driver as pycuda

from autotune.targets.cuda.driver.bindings import BindingsDriver
from autotune.targets.cuda.driver.capture import relaxed
from autotune.targets.cuda.driver.interface import STATIC_SHARED_BYTES, DeviceRows, DriverError
from autotune.targets.cuda.driver.modules import LoadedModule, Runner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from autotune.families.launch import LaunchStep

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING


def make() -> PycudaDriver:
    """The driver, as `autotune.targets.cuda.driver.interface.driver` wants it."""
    pycuda.init()
    return PycudaDriver()


class PycudaDriver(BindingsDriver):
    """As `interface.Driver` says; page-locking in place is the bindings'."""

    name = "PyCUDA"
    errors = (pycuda.Error, DriverError)

    def enter(self, ordinal: int) -> None:
        """See `Driver.enter`."""
        self._primary(ordinal).push()

    def leave(self) -> None:
        """See `Driver.leave`."""
        pycuda.Context.pop()

    def context(self, ordinal: int) -> int:
        """See `Driver.context`."""
        return int(self._primary(ordinal).handle)

    def synchronize(self) -> None:
        """See `Driver.synchronize`."""
        pycuda.Context.synchronize()

    def free_bytes(self) -> int:
        """See `Driver.free_bytes`."""
        return int(pycuda.mem_get_info()[0])

    def allocate(self, size: int) -> Any:
        """See `Driver.allocate`."""
        return _PycudaMemory(pycuda.mem_alloc(size))

    def upload(self, target: int, values: NDArray[Any]) -> None:
        """See `Driver.upload`."""
        pycuda.memcpy_htod(target, values)

    def download(self, values: NDArray[Any], source: int) -> None:
        """See `Driver.download`."""
        pycuda.memcpy_dtoh(values, source)

    def duplicate(self, target: int, source: int, size: int) -> None:
        """See `Driver.duplicate`."""
        pycuda.memcpy_dtod(target, source, size)

    def clear(self, target: int, words: int) -> None:
        """See `Driver.clear`."""
        pycuda.memset_d32(target, 0, words)

    def stream(self, *, blocking: bool = True, urgent: bool = False) -> Any:
        """See `Driver.stream`; PyCUDA's have no priorities."""
        if urgent:
            return super().stream(blocking=blocking, urgent=urgent)
        return pycuda.Stream(0 if blocking else _NON_BLOCKING)

    def event(self, *, timed: bool = True) -> Any:
        """See `Driver.event`."""
        flags = pycuda.event_flags
        return pycuda.Event(flags.DEFAULT if timed else flags.DISABLE_TIMING)

    def load(self, cubin: bytes) -> Any:
        """See `Driver.load`."""
        return _PycudaModule(cubin)

    def pinned(self, count: int, dtype: Any) -> tuple[NDArray[Any], Any]:
        """See `Driver.pinned`."""
        flags = pycuda.host_alloc_flags.PORTABLE
        memory: NDArray[Any] = pycuda.pagelocked_empty(count, dtype, mem_flags=flags)
        return memory, memory.base

    def copy_in(self, target: DeviceRows, source: NDArray[Any], stream: Any) -> None:
        """See `Driver.copy_in`."""
        if target.flat and source.flags.c_contiguous:
            pycuda.memcpy_htod_async(target.address, source, stream)
            return
        copy = pycuda.Memcpy2D()
        copy.set_dst_device(target.address)
        copy.dst_pitch = target.pitch
        copy.set_src_host(source)
        copy.src_pitch = source.strides[0] if target.rows > 1 else target.row_bytes
        copy.width_in_bytes, copy.height = target.row_bytes, target.rows
        copy(stream)

    def copy_out(self, target: NDArray[Any], source: DeviceRows, stream: Any) -> None:
        """See `Driver.copy_out`."""
        if source.flat and target.flags.c_contiguous:
            pycuda.memcpy_dtoh_async(target, source.address, stream)
            return
        copy = pycuda.Memcpy2D()
        copy.set_src_device(source.address)
        copy.src_pitch = source.pitch
        copy.set_dst_host(target)
        copy.dst_pitch = target.strides[0] if source.rows > 1 else source.row_bytes
        copy.width_in_bytes, copy.height = source.row_bytes, source.rows
        copy(stream)

    def copy_across(self, target: DeviceRows, source: DeviceRows, stream: Any) -> None:
        """See `Driver.copy_across`."""
        there, here = self._primary(target.device), self._primary(source.device)
        if target.flat and source.flat:
            size = target.rows * target.row_bytes
            pycuda.memcpy_peer_async(target.address, source.address, size, there, here, stream)
            return
        copy = pycuda.Memcpy3DPeer()
        copy.set_src_device(source.address)
        copy.set_src_context(here)
        copy.src_pitch, copy.src_height = source.pitch, source.rows
        copy.set_dst_device(target.address)
        copy.set_dst_context(there)
        copy.dst_pitch, copy.dst_height = target.pitch, target.rows
        copy.width_in_bytes, copy.height, copy.depth = target.row_bytes, target.rows, 1
        copy(stream)

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
    """See `autotune.targets.cuda.driver.interface.Memory`."""

    def __init__(self, allocation: Any) -> None:
        self._address = int(allocation)
        self._release = weakref.finalize(self, _drop, [allocation])
        self._release.atexit = False

    def __int__(self) -> int:
        return self._address

    def free(self) -> None:
        """Give it back now."""
        self._release()


class _PycudaModule:
    """See `autotune.targets.cuda.driver.interface.Module`."""

    def __init__(self, cubin: bytes) -> None:
        self._cubin = cubin
        # PyCUDA unloads a binary with the last function of it.
        self._held: list[Any] = [pycuda.module_from_buffer(cubin)]
        self._release = weakref.finalize(self, _drop, self._held)
        self._release.atexit = False
        self._foreign: LoadedModule | None = None
        self._lock = threading.Lock()

    def runner(self, steps: Sequence[LaunchStep]) -> _PycudaRunner:
        """See `Module.runner`."""
        attribute = pycuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
        launches: list[tuple[Callable[..., None], LaunchStep]] = []
        for step in steps:
            function = self._held[0].get_function(step.kernel)
            if step.shared_bytes > STATIC_SHARED_BYTES:
                function.set_attribute(attribute, step.shared_bytes)
            launches.append((function._launch_kernel, step))
        self._held.append(launches)
        return _PycudaRunner(self, steps, launches)

    def foreign(self) -> LoadedModule:
        """The same binary for streams of other libraries, loaded when first asked for."""
        with self._lock:
            if self._foreign is None:
                self._foreign = LoadedModule(self._cubin)
            return self._foreign

    def unload(self) -> None:
        """See `Module.unload`."""
        self._release()
        if self._foreign is not None:
            self._foreign.unload()


class _PycudaRunner(Runner):
    """See `autotune.targets.cuda.driver.interface.Run`."""

    def __init__(
        self,
        module: _PycudaModule,
        steps: Sequence[LaunchStep],
        launches: Sequence[tuple[Callable[..., None], LaunchStep]],
    ) -> None:
        super().__init__()
        self._module = module
        self._steps = steps
        self._launches = launches

    def on_own(self, arguments: bytes, stream: Any) -> None:
        """See `Runner.on_own`."""
        for launch, step in self._launches:
            launch(step.grid, step.block, arguments, step.shared_bytes, stream)

    def late(self) -> Sequence[tuple[int, LaunchStep]]:
        """See `Runner.late`."""
        with relaxed():
            return self._module.foreign().functions(self._steps)


def _drop(held: list[Any]) -> None:
    """Have PyCUDA give back what only this holds, whoever captures a graph meanwhile."""
    with relaxed():
        for launches in held[1:]:
            launches.clear()
        held.clear()
