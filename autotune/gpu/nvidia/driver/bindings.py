"""NVIDIA's driver by its own Python bindings, which are a wheel."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.gpu.nvidia.device.identity import load_driver
from autotune.gpu.nvidia.driver.interface import DriverError
from autotune.gpu.nvidia.driver.modules import LoadedModule, handle
from autotune.gpu.nvidia.driver.owned import Owned, call
from autotune.gpu.nvidia.driver.tensor_maps import encoded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from autotune.gpu.nvidia.driver.interface import Boxes

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING
_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE
_NO_PEERS = (
    "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
    "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
)


def make() -> BindingsDriver:
    """The driver, as `autotune.gpu.nvidia.driver.interface.driver` wants it."""
    return BindingsDriver()


class BindingsDriver:
    """See `autotune.gpu.nvidia.driver.interface.Driver`."""

    name = "cuda-bindings"
    errors: tuple[type[Exception], ...] = (DriverError,)

    def __init__(self) -> None:
        self._contexts: dict[int, Any] = {}
        self._lock = threading.Lock()

    def enter(self, ordinal: int) -> None:
        """See `Driver.enter`."""
        call("cuCtxPushCurrent", self.context(ordinal))

    def leave(self) -> None:
        """See `Driver.leave`."""
        call("cuCtxPopCurrent")

    def context(self, ordinal: int) -> int:
        """See `Driver.context`."""
        with self._lock:
            if ordinal not in self._contexts:
                device = call("cuDeviceGet", ordinal)
                self._contexts[ordinal] = int(call("cuDevicePrimaryCtxRetain", device))
            return int(self._contexts[ordinal])

    def synchronize(self) -> None:
        """See `Driver.synchronize`."""
        call("cuCtxSynchronize")

    def free_bytes(self) -> int:
        """See `Driver.free_bytes`."""
        return int(call("cuMemGetInfo")[0])

    def allocate(self, size: int) -> Any:
        """See `Driver.allocate`."""
        return Owned(int(call("cuMemAlloc", size)), "cuMemFree")

    def upload(self, target: int, values: NDArray[Any]) -> None:
        """See `Driver.upload`."""
        call("cuMemcpyHtoD", target, values.ctypes.data, values.nbytes)

    def download(self, values: NDArray[Any], source: int) -> None:
        """See `Driver.download`."""
        call("cuMemcpyDtoH", values.ctypes.data, source, values.nbytes)

    def duplicate(self, target: int, source: int, size: int) -> None:
        """See `Driver.duplicate`."""
        call("cuMemcpyDtoD", target, source, size)

    def clear(self, target: int, words: int) -> None:
        """See `Driver.clear`."""
        call("cuMemsetD32", target, 0, words)

    def stream(self, *, blocking: bool = True, urgent: bool = False) -> Any:
        """See `Driver.stream`; the blocks of an urgent one get multiprocessors before others'."""
        level = call("cuCtxGetStreamPriorityRange")[1] if urgent else 0
        return _Stream(0 if blocking else _NON_BLOCKING, level)

    def event(self, *, timed: bool = True) -> Any:
        """See `Driver.event`."""
        return _Event(0 if timed else _NO_TIMING)

    def load(self, cubin: bytes) -> Any:
        """See `Driver.load`."""
        return LoadedModule(cubin)

    def tensor_map(self, boxes: Boxes, address: int, leading: int) -> bytes:
        """See `Driver.tensor_map`."""
        return encoded(boxes, address, leading)

    def pinned(self, count: int, dtype: Any) -> tuple[NDArray[Any], Any]:
        """See `Driver.pinned`; the array keeps the memory as well."""
        kind = np.dtype(dtype)
        size = max(1, count * kind.itemsize)
        memory = Owned(int(call("cuMemHostAlloc", size, _PORTABLE)), "cuMemFreeHost")
        return np.asarray(_HostElements(memory, count, kind)), memory

    def lock(self, address: int, size: int) -> bool:
        """See `Driver.lock`."""
        (status,) = load_driver().cuMemHostRegister(address, size, _PORTABLE)
        return int(status) == 0

    def unlock(self, address: int) -> None:
        """See `Driver.unlock`."""
        load_driver().cuMemHostUnregister(address)

    def is_locked(self, address: int) -> bool:
        """See `Driver.is_locked`."""
        driver = load_driver()
        attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        status, kind = driver.cuPointerGetAttribute(attribute, address)
        return int(status) == 0 and int(kind) == int(driver.CUmemorytype.CU_MEMORYTYPE_HOST)

    def copy_rows(
        self,
        target: tuple[int, int],
        source: tuple[int, int],
        row_bytes: int,
        rows: int,
        stream: Any,
    ) -> None:
        """See `Driver.copy_rows`.

        There is one address space: the driver sees from an address which memory it is in.
        """
        if rows == 1 or target[1] == source[1] == row_bytes:
            call("cuMemcpyAsync", target[0], source[0], rows * row_bytes, handle(stream))
            return
        driver = load_driver()
        what = driver.CUDA_MEMCPY2D()
        what.srcMemoryType = what.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_UNIFIED
        what.dstDevice, what.dstPitch = target
        what.srcDevice, what.srcPitch = source
        what.WidthInBytes, what.Height = row_bytes, rows
        call("cuMemcpy2DAsync", what, handle(stream))

    def copy_across(
        self,
        target: tuple[int, int],
        source: tuple[int, int],
        row_bytes: int,
        rows: int,
        devices: tuple[int, int],
        stream: Any,
    ) -> None:
        """See `Driver.copy_across`."""
        there, here = map(self.context, devices)
        if rows == 1 or target[1] == source[1] == row_bytes:
            ends = target[0], there, source[0], here
            call("cuMemcpyPeerAsync", *ends, rows * row_bytes, handle(stream))
            return
        driver = load_driver()
        what = driver.CUDA_MEMCPY3D_PEER()
        what.srcMemoryType = what.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        what.srcDevice, what.srcPitch = source
        what.dstDevice, what.dstPitch = target
        what.srcContext, what.dstContext = driver.CUcontext(here), driver.CUcontext(there)
        what.srcHeight = what.dstHeight = what.Height = rows
        what.WidthInBytes, what.Depth = row_bytes, 1
        call("cuMemcpy3DPeerAsync", what, handle(stream))

    def let_reach(self, ordinal: int) -> None:
        """See `Driver.let_reach`."""
        (status,) = load_driver().cuCtxEnablePeerAccess(self.context(ordinal), 0)
        if int(status) != 0 and status.name not in _NO_PEERS:
            raise DriverError(f"{status.name}: cuCtxEnablePeerAccess failed")


class _Stream(Owned):
    """See `autotune.gpu.nvidia.driver.interface.Stream`."""

    def __init__(self, flags: int, level: int) -> None:
        super().__init__(int(call("cuStreamCreateWithPriority", flags, level)), "cuStreamDestroy")
        self.handle = int(self)

    def synchronize(self) -> None:
        call("cuStreamSynchronize", self.handle)

    def wait_for_event(self, event: _Event) -> None:
        call("cuStreamWaitEvent", self.handle, int(event), 0)


class _Event(Owned):
    """See `autotune.gpu.nvidia.driver.interface.Event`."""

    def __init__(self, flags: int) -> None:
        super().__init__(int(call("cuEventCreate", flags)), "cuEventDestroy")

    def record(self, stream: Any = None) -> _Event:
        call("cuEventRecord", int(self), handle(stream))
        return self

    def query(self) -> bool:
        driver = load_driver()
        (status,) = driver.cuEventQuery(int(self))
        if status == driver.CUresult.CUDA_ERROR_NOT_READY:
            return False
        if int(status) != 0:
            raise DriverError(f"{status.name}: cuEventQuery failed")
        return True

    def synchronize(self) -> None:
        call("cuEventSynchronize", int(self))

    def time_since(self, earlier: _Event) -> float:
        return float(call("cuEventElapsedTime", int(earlier), int(self)))


class _HostElements:
    """Elements in memory of the host, as NumPy takes them."""

    def __init__(self, memory: Owned, count: int, kind: np.dtype[Any]) -> None:
        self._memory = memory
        self.__array_interface__ = {
            "version": 3,
            "shape": (count,),
            "typestr": kind.str,
            "data": (int(memory), False),
        }
