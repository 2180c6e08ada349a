"""Work in order on streams of any library, without waiting for any of it on the host."""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from typing import Any

from autotune.core import session
from autotune.core.errors import LaunchError
from autotune.gpu.nvidia.device.identity import load_driver
from autotune.gpu.nvidia.driver.capture import capture_of, is_capturing
from autotune.gpu.nvidia.driver.context import activated
from autotune.gpu.nvidia.driver.interface import DriverError
from autotune.gpu.nvidia.driver.owned import call


def device_of(address: int) -> int | None:
    """The driver's number of the device that an address belongs to; None for host memory."""
    driver = load_driver()
    attributes = driver.CUpointer_attribute
    kind = driver.cuPointerGetAttribute(
        attributes.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, driver.CUdeviceptr(address)
    )
    if int(kind[0]) != 0 or int(kind[1]) != int(driver.CUmemorytype.CU_MEMORYTYPE_DEVICE):
        return None
    ordinal = ctypes.c_int()
    status = _pointer_attribute()(
        ctypes.byref(ordinal),
        int(attributes.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL),
        ctypes.c_uint64(address),
    )
    return ordinal.value if status == 0 else None


@session.cached()
def _pointer_attribute() -> Any:
    """The driver's own function: that of the bindings says 0 for the ordinal of every device."""
    return ctypes.CDLL("libcuda.so.1").cuPointerGetAttribute


def wait(ordinal: int, stream: int, other: int) -> None:
    """Let what is enqueued on a stream from now on wait for what is on another one now.

    A graph waits for nothing outside of it: where one of the streams is being captured, and the
    other not, or for another graph, this does nothing.

    Args:
        ordinal: the driver's number of the device.
        stream: handle of the stream that waits.
        other: handle of the stream that it waits for.

    Raises:
        LaunchError: the driver refuses one of the streams.
    """
    with activated(ordinal):
        if capture_of(stream) != capture_of(other):
            return
        event = _record(other)
        _call("cuStreamWaitEvent", stream, event, 0)
        _call("cuEventDestroy", event)  # the driver frees it when it has come to pass


def finish(ordinal: int, stream: int) -> None:
    """Wait, on the host, for all that is on a stream now.

    Args:
        ordinal: the driver's number of the device.
        stream: handle of the stream.

    Raises:
        LaunchError: the driver refuses the stream, or what was on it has failed.
    """
    with activated(ordinal):
        _call("cuStreamSynchronize", stream)


class Retained:
    """Keeps objects alive until what was enqueued on a stream when they came is done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: deque[tuple[Any, object]] = deque()

    def hold(self, ordinal: int, stream: int, objects: object) -> None:
        """Keep `objects`; let go of those that came before and are done with.

        What a graph works on while it is replayed is its owner's to keep: a call that is captured
        holds nothing.

        Raises:
            LaunchError: the driver refuses the stream.
        """
        driver = load_driver()
        with self._lock, activated(ordinal):
            if is_capturing(stream):
                return
            self._held.append((_record(stream), objects))
            for _ in range(len(self._held)):
                event, kept = self._held.popleft()
                if driver.cuEventQuery(event)[0] == driver.CUresult.CUDA_ERROR_NOT_READY:
                    self._held.append((event, kept))
                else:
                    _call("cuEventDestroy", event)


def _record(stream: int) -> Any:
    event = _call("cuEventCreate", int(load_driver().CUevent_flags.CU_EVENT_DISABLE_TIMING))
    _call("cuEventRecord", event, stream)
    return event


def _call(name: str, *arguments: Any) -> Any:
    try:
        return call(name, *arguments)
    except DriverError as error:
        raise LaunchError(f"{error}: is the stream still there?") from error
