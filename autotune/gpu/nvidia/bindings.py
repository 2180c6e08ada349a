"""NVIDIA's driver by its own Python bindings, which are a wheel."""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.core.dtypes import ELEMENTS
from autotune.families.gpu.launch import LaunchStep
from autotune.gpu.interface import MAP_ALIGNMENT, MAP_BYTES, DriverError
from autotune.gpu.nvidia.calls import LoadedModule, Owned, call, function, handle, relaxed
from autotune.gpu.nvidia.device import load_driver

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable

    from numpy.typing import NDArray

    from autotune.gpu.interface import Boxes, Run, Stream

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING
_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE
_ACTIVE = 1  # CU_STREAM_CAPTURE_STATUS_ACTIVE
_NO_DESTRUCTOR_SYNC = 1  # CU_USER_OBJECT_NO_DESTRUCTOR_SYNC
_MOVE = 1  # CU_GRAPH_USER_OBJECT_MOVE
_SEMAPHORE_BYTES = 64  # at least those of a sem_t
_NO_PEERS = (
    "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
    "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
)

# Of tensor maps.
_ROUNDED = {"tf32": 11}  # CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # CU_TENSOR_MAP_SWIZZLE_...
_NOT_INTERLEAVED = 0  # CU_TENSOR_MAP_INTERLEAVE_NONE
_WHOLE_LINES = 2  # CU_TENSOR_MAP_L2_PROMOTION_L2_128B
_ZEROS = 0  # CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE: zeros stand beyond the matrix

_OF_CLOCKS = b"""\
.version 6.0
.target sm_60
.address_size 64

// Ends once the multiprocessor's clock has advanced by `cycles`.
.visible .entry delay(.param .u64 cycles)
{
    .reg .u64 %limit, %begin, %now;
    .reg .pred %early;
    ld.param.u64 %limit, [cycles];
    mov.u64 %begin, %clock64;
wait:
    mov.u64 %now, %clock64;
    sub.u64 %now, %now, %begin;
    setp.lt.u64 %early, %now, %limit;
    @%early bra wait;
    ret;
}

// Reads `size` bytes from `address` on, 16 at a time.
.visible .entry read(.param .u64 address, .param .u64 size)
{
    .reg .u64 %begin, %place, %end, %step;
    .reg .u32 %thread, %blocks, %width, %sum, %a, %b, %c, %d;
    .reg .pred %over, %unlikely;
    ld.param.u64 %begin, [address];
    ld.param.u64 %end, [size];
    add.u64 %end, %end, %begin;
    mov.u32 %width, %ntid.x;
    mov.u32 %blocks, %ctaid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %thread, %blocks, %width, %thread;
    mul.wide.u32 %place, %thread, 16;
    add.u64 %place, %place, %begin;
    mov.u32 %blocks, %nctaid.x;
    mul.lo.u32 %width, %width, %blocks;
    mul.wide.u32 %step, %width, 16;
    mov.u32 %sum, 0;
more:
    setp.ge.u64 %over, %place, %end;
    @%over bra done;
    ld.global.v4.u32 {%a, %b, %c, %d}, [%place];
    add.u32 %sum, %sum, %a;
    add.u32 %sum, %sum, %b;
    add.u32 %sum, %sum, %c;
    add.u32 %sum, %sum, %d;
    add.u64 %place, %place, %step;
    bra more;
done:
    // A use of the sum, without which nothing would be read; what is there is nobody's.
    setp.eq.u32 %unlikely, %sum, 0x9e3779b9;
    @%unlikely st.global.u32 [%begin], %sum;
    ret;
}
\0"""

_READ_BLOCKS, _READ_THREADS = 1024, 256


def make() -> BindingsDriver:
    """The driver, as `autotune.gpu.nvidia.vendor` wants it."""
    return BindingsDriver()


class BindingsDriver:
    """See `autotune.gpu.interface.Driver`, also for every method."""

    name = "cuda-bindings"
    errors: tuple[type[Exception], ...] = (DriverError,)

    def __init__(self) -> None:
        self._contexts: dict[int, Any] = {}
        self._lock = threading.Lock()

    def describe(self, error: Exception) -> str:
        return " ".join(str(error).split())

    def enter(self, ordinal: int) -> None:
        call("cuCtxPushCurrent", self.context(ordinal))

    def leave(self) -> None:
        call("cuCtxPopCurrent")

    def context(self, ordinal: int) -> int:
        with self._lock:
            if ordinal not in self._contexts:
                device = call("cuDeviceGet", ordinal)
                self._contexts[ordinal] = int(call("cuDevicePrimaryCtxRetain", device))
            return int(self._contexts[ordinal])

    def is_current(self, ordinal: int) -> bool:
        status, current = load_driver().cuCtxGetCurrent()
        return int(status) == 0 and int(current) == self.context(ordinal)

    def relaxed(self) -> contextlib.AbstractContextManager[None]:
        return relaxed()

    def synchronize(self) -> None:
        call("cuCtxSynchronize")

    def free_bytes(self) -> int:
        return int(call("cuMemGetInfo")[0])

    def allocate(self, size: int) -> Any:
        return Owned(int(call("cuMemAlloc", size)), "cuMemFree")

    def upload(self, target: int, values: NDArray[Any]) -> None:
        call("cuMemcpyHtoD", target, values.ctypes.data, values.nbytes)

    def download(self, values: NDArray[Any], source: int) -> None:
        call("cuMemcpyDtoH", values.ctypes.data, source, values.nbytes)

    def duplicate(self, target: int, source: int, size: int) -> None:
        call("cuMemcpyDtoD", target, source, size)

    def clear(self, target: int, words: int) -> None:
        call("cuMemsetD32", target, 0, words)

    def device_of(self, address: int) -> int | None:
        driver = load_driver()
        attributes = driver.CUpointer_attribute
        status, kind = driver.cuPointerGetAttribute(
            attributes.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, driver.CUdeviceptr(address)
        )
        if int(status) != 0 or int(kind) != int(driver.CUmemorytype.CU_MEMORYTYPE_DEVICE):
            return None
        ordinal = ctypes.c_int()
        # The function of the bindings says 0 for the ordinal of every device.
        refused = function("cuPointerGetAttribute")(
            ctypes.byref(ordinal),
            int(attributes.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL),
            ctypes.c_uint64(address),
        )
        return None if refused else ordinal.value

    def stream(self, *, blocking: bool = True, urgent: bool = False) -> Any:
        level = call("cuCtxGetStreamPriorityRange")[1] if urgent else 0
        return _Stream(0 if blocking else _NON_BLOCKING, level)

    def event(self, *, timed: bool = True) -> Any:
        return _Event(0 if timed else _NO_TIMING)

    def mark(self, handle: int, *, timed: bool = False) -> Any:
        return _Event(0 if timed else _NO_TIMING).record(handle)

    def wait_for(self, handle: int, event: Any) -> None:
        call("cuStreamWaitEvent", handle, int(event), 0)

    def finish(self, handle: int) -> None:
        call("cuStreamSynchronize", handle)

    def is_capturing(self, handle: int) -> bool:
        status = ctypes.c_int()
        refused = function("cuStreamIsCapturing")(ctypes.c_void_p(handle), ctypes.byref(status))
        # The default stream cannot be captured, and refuses to be asked meanwhile.
        return refused == 0 and status.value == _ACTIVE

    def capture_of(self, handle: int) -> int | None:
        found = _capture(handle)
        return None if found is None else found[0]

    def record(self, enqueue: Callable[[], None], stream: Stream) -> _Graph:
        return _Graph(enqueue, stream)

    def enqueue_zeros(self, address: int, size: int, handle: int) -> None:
        call("cuMemsetD32Async", address, 0, size // 4, handle)

    def watch_graph(self, handle: int) -> Callable[[], bool]:
        """See `Driver.watch_graph`: the graph owns a semaphore, which the driver posts at its end.

        Its destructor runs in a thread of the driver's, where no Python may.
        """
        captured = _capture(handle)
        if captured is None:
            raise DriverError(f"stream {handle} is not captured: it has no graph to watch")
        libc = ctypes.CDLL(None)
        libc.calloc.restype = ctypes.c_void_p
        semaphore = ctypes.c_void_p(libc.calloc(1, _SEMAPHORE_BYTES))  # zeros: nobody posted it
        owned, once = ctypes.c_void_p(), ctypes.c_uint(1)
        made = ctypes.byref(owned), semaphore, libc.sem_post, once
        _checked("cuUserObjectCreate", *made, _NO_DESTRUCTOR_SYNC)
        _checked("cuGraphRetainUserObject", captured[1], owned, once, _MOVE)
        return lambda: libc.sem_trywait(semaphore) == 0

    def load(self, binary: bytes) -> LoadedModule:
        return LoadedModule(binary)

    def delay(self) -> Run:
        return LoadedModule(_OF_CLOCKS).runner([LaunchStep("delay", (1, 1, 1), (1, 1, 1))])

    def reader(self) -> Run:
        step = LaunchStep("read", (_READ_BLOCKS, 1, 1), (_READ_THREADS, 1, 1))
        return LoadedModule(_OF_CLOCKS).runner([step])

    def tensor_map(self, boxes: Boxes, address: int, leading: int, apart: int = 0) -> bytes:
        """See `Driver.tensor_map`; the host alone writes it, in whatever context or capture.

        Raises:
            DriverError: the driver refuses it: the address or the rows are not whole 16 bytes
                (`autotune.families.gpu.launch.ROW_BYTES`), or there is no such box.
        """
        row = ELEMENTS[boxes.dtype]
        kind = _ROUNDED[boxes.rounded] if boxes.rounded else row.tensor_map
        raw = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT)
        skipped = -ctypes.addressof(raw) % MAP_ALIGNMENT
        # Dimensions are told from the innermost one on, whose stride is that of an element.
        extents, strides, box = [boxes.columns, boxes.rows], [leading], [*boxes.box[::-1]]
        if boxes.matrices:
            # Maps know no distance of zero: a matrix that all have in common is a stack of one.
            extents.append(boxes.matrices if apart else 1)
            strides.append(apart or leading)
            box.append(1)
        rank = len(extents)
        status = function("cuTensorMapEncodeTiled")(
            ctypes.c_void_p(ctypes.addressof(raw) + skipped),
            kind,
            rank,
            ctypes.c_void_p(address),
            (ctypes.c_uint64 * rank)(*extents),
            (ctypes.c_uint64 * (rank - 1))(*(each * row.itemsize for each in strides)),
            (ctypes.c_uint32 * rank)(*box),
            (ctypes.c_uint32 * rank)(*[1] * rank),
            _NOT_INTERLEAVED,
            _SWIZZLES[boxes.swizzle],
            _WHOLE_LINES,
            _ZEROS,
        )
        if status:
            name = load_driver().CUresult(status).name
            raise DriverError(f"{name}: cuTensorMapEncodeTiled failed for {boxes}")
        return raw.raw[skipped : skipped + MAP_BYTES]

    def pinned(self, count: int, dtype: Any) -> tuple[NDArray[Any], Any]:
        kind = np.dtype(dtype)
        size = max(1, count * kind.itemsize)
        memory = Owned(int(call("cuMemHostAlloc", size, _PORTABLE)), "cuMemFreeHost")
        return np.asarray(_HostElements(memory, count, kind)), memory

    def lock(self, address: int, size: int) -> bool:
        (status,) = load_driver().cuMemHostRegister(address, size, _PORTABLE)
        return int(status) == 0

    def unlock(self, address: int) -> None:
        load_driver().cuMemHostUnregister(address)

    def is_locked(self, address: int) -> bool:
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
        # There is one address space: the driver sees from an address which memory it is in.
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
        (status,) = load_driver().cuCtxEnablePeerAccess(self.context(ordinal), 0)
        if int(status) != 0 and status.name not in _NO_PEERS:
            raise DriverError(f"{status.name}: cuCtxEnablePeerAccess failed")


def _capture(handle: int) -> tuple[int, ctypes.c_void_p] | None:
    """The number and the graph of the capture that a stream is in."""
    status, number, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
    places = ctypes.byref(status), ctypes.byref(number), ctypes.byref(graph), None, None
    refused = function("cuStreamGetCaptureInfo_v2")(ctypes.c_void_p(handle), *places)
    return (number.value, graph) if refused == 0 and status.value == _ACTIVE else None


def _checked(name: str, *arguments: Any) -> None:
    """Call a function of the driver with objects of ctypes.

    Raises:
        DriverError: it fails.
    """
    status = function(name)(*arguments)
    if status:
        raise DriverError(f"{load_driver().CUresult(status).name}: {name} failed")


class _Stream(Owned):
    """See `autotune.gpu.interface.Stream`."""

    def __init__(self, flags: int, level: int) -> None:
        super().__init__(int(call("cuStreamCreateWithPriority", flags, level)), "cuStreamDestroy")
        self.handle = int(self)

    def synchronize(self) -> None:
        call("cuStreamSynchronize", self.handle)

    def wait_for_event(self, event: _Event) -> None:
        call("cuStreamWaitEvent", self.handle, int(event), 0)


class _Event(Owned):
    """See `autotune.gpu.interface.Event`."""

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


class _Graph:
    """See `autotune.gpu.interface.Graph`."""

    def __init__(self, enqueue: Callable[[], None], stream: Stream) -> None:
        driver = load_driver()
        self._stream = stream.handle
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        call("cuStreamBeginCapture", self._stream, mode)
        try:
            enqueue()
        finally:
            # Also after a failed launch: a stream that is being recorded runs nothing.
            recorded = call("cuStreamEndCapture", self._stream)
        try:
            self._executable = call("cuGraphInstantiate", recorded, 0)
        finally:
            driver.cuGraphDestroy(recorded)

    def replay(self) -> None:
        call("cuGraphLaunch", self._executable, self._stream)

    def close(self) -> None:
        load_driver().cuGraphExecDestroy(self._executable)


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
