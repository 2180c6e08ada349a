"""Calls while CUDA graphs are being captured, by this thread or by any other one.

A capture in PyTorch's mode forbids, in every thread of the process, what might wait for the GPU:
loading a module, allocating, asking after an event. The engine's own work of that kind is no part
of anybody's graph, and the driver lets it pass in a thread whose mode is relaxed.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import TYPE_CHECKING, Any

from autotune.core import session
from autotune.gpu.nvidia.device.identity import load_driver
from autotune.gpu.nvidia.driver.interface import DriverError

if TYPE_CHECKING:
    from collections.abc import Iterator

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_ACTIVE = 1  # CU_STREAM_CAPTURE_STATUS_ACTIVE


@contextlib.contextmanager
def relaxed() -> Iterator[None]:
    """Whatever is done here invalidates nobody's capture."""
    driver = load_driver()
    mode = driver.CUstreamCaptureMode(_RELAXED)
    _, before = driver.cuThreadExchangeStreamCaptureMode(mode)
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(before)


def is_capturing(stream: int) -> bool:
    """Whether what comes to a stream, given by its handle, is captured and does not run."""
    status = ctypes.c_int()
    refused = _capture_function("cuStreamIsCapturing")(
        ctypes.c_void_p(stream), ctypes.byref(status)
    )
    # The default stream cannot be captured, and refuses to be asked meanwhile.
    return refused == 0 and status.value == _ACTIVE


def capture_of(stream: int) -> int | None:
    """Which capture a stream is in, by its number; None where what comes to it runs.

    Args:
        stream: the stream's handle.
    """
    status = ctypes.c_int()
    number = ctypes.c_uint64()
    refused = _capture_function("cuStreamGetCaptureInfo_v2")(
        ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number), None, None, None
    )
    return number.value if refused == 0 and status.value == _ACTIVE else None


@session.cached()
def _capture_function(name: str) -> Any:
    """The driver's own function: the bindings' make objects of everything."""
    return getattr(ctypes.CDLL("libcuda.so.1"), name)


def enqueue_zeros(address: int, size: int, stream: int) -> None:
    """Set memory to zero in the order of a stream; in a capture that is a node of the graph.

    Args:
        address: of device memory.
        size: bytes, whole words of four.
        stream: the stream's handle.

    Raises:
        DriverError: the driver refuses.
    """
    (status,) = load_driver().cuMemsetD32Async(address, 0, size // 4, stream)
    if int(status) != 0:
        raise DriverError(f"{status.name}: cuMemsetD32Async failed")


class GraphMemory:
    """Memory of one captured call: the graph's own, allocated and freed by nodes of it.

    Every replay allocates it before the kernels and frees it after them, wherever the graph is
    launched, and nothing is left when the graph is destroyed.

    Args:
        stream: handle of the stream that is being captured.
    """

    def __init__(self, stream: int) -> None:
        self._stream = stream
        self._addresses: list[Any] = []

    def allocate(self, stream: int, name: str, size: int, zeroed: int) -> int:
        """Bytes of memory, from here to `free` in the order of the stream.

        Args:
            stream: the same.
            name: what it is for.
            size: bytes.
            zeroed: bytes, from the start on, that are to be zero.

        Raises:
            DriverError: the device has no memory pools.
        """
        driver = load_driver()
        status, address = driver.cuMemAllocAsync(max(size, 1), stream)
        if int(status) != 0:
            raise DriverError(f"{status.name}: cuMemAllocAsync failed in a capture ({name})")
        self._addresses.append(address)
        if zeroed:
            enqueue_zeros(int(address), zeroed, stream)
        return int(address)

    def free(self) -> None:
        """Enqueue that all of it is free again."""
        driver = load_driver()
        for address in self._addresses:
            driver.cuMemFreeAsync(address, self._stream)
        self._addresses.clear()
