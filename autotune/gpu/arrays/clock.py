"""The time that one call of a program takes a GPU, by events on the stream of its operands.

A call that finds the stream idle is over before the next one is launched: between two events
lies what the host takes, not the GPU. So a kernel that does nothing comes first. While the GPU
spends some tens of microseconds on it, the host enqueues the call, whose kernels then follow each
other at once, as they do in a CUDA graph.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
import time
from typing import TYPE_CHECKING, Any

from autotune.arrays.libraries import library_of
from autotune.core import session
from autotune.families.gpu.launch import LaunchStep
from autotune.gpu.arrays.kernel import describe
from autotune.gpu.nvidia.device.identity import load_driver
from autotune.gpu.nvidia.driver.capture import is_capturing
from autotune.gpu.nvidia.driver.context import activated
from autotune.gpu.nvidia.driver.modules import LoadedModule
from autotune.gpu.nvidia.driver.owned import Owned, call

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.gpu.nvidia.driver.interface import Run
    from autotune.serving.clock import Reading

_HELD_CYCLES = 150_000
"""Clock cycles for which the GPU is held at first: 75 us at 2 GHz."""

_MOST_CYCLES = 1_000_000

_HIGHEST_CLOCK = 2.2e9
"""Cycles per second that no multiprocessor exceeds: a GPU is held no shorter than this says."""

_LATE = 0.02
"""Of a time, the longest part that the GPU may have waited for the host."""

_HOLD = b"""\
.version 6.0
.target sm_60
.address_size 64

// Ends once the multiprocessor's clock has advanced by `cycles`.
.visible .entry hold(.param .u64 cycles)
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
\0"""


class DeviceClock:
    """See `autotune.serving.clock.Clock`."""

    def __init__(self) -> None:
        self._cycles = _HELD_CYCLES

    def runs(self, like: Any) -> bool:
        """See `Clock.runs`."""
        return not is_capturing(library_of(like).current_stream(like))

    def time(self, call: Callable[[], Any], like: Any, *, twice: bool) -> tuple[Any, Reading]:
        """See `Clock.time`: caches are as the program has them, and no call is made again."""
        stream = library_of(like).current_stream(like)
        device = describe("a", like, stream).device
        cycles = self._cycles
        with activated(device):
            hold(device)(struct.pack("<Q", cycles), stream)
            begin_s = time.perf_counter()
            begin = _recorded(stream)
        result = call()
        with activated(device):
            end = _recorded(stream)
        late_s = time.perf_counter() - begin_s - cycles / _HIGHEST_CLOCK
        if late_s > 0:  # a slow host: hold the GPU longer, the next time
            self._cycles = min(2 * cycles, _MOST_CYCLES)
        return result, functools.partial(_seconds, device, begin, end, late_s)


@session.cached()
def hold(device: int) -> Run:
    """``run(cycles, stream)`` on a device: the GPU does nothing for so many clock cycles.

    Args:
        device: the driver's number; its context is current.
    """
    return LoadedModule(_HOLD).runner([LaunchStep("hold", (1, 1, 1), (1, 1, 1))])


def _recorded(stream: int) -> Owned:
    """An event that comes to pass with what is on a stream now."""
    event = int(call("cuEventCreate", 0))
    call("cuEventRecord", event, stream)
    return Owned(event, "cuEventDestroy")


def _seconds(device: int, begin: Owned, end: Owned, late_s: float) -> tuple[float] | None:
    with activated(device):
        milliseconds = ctypes.c_float()
        status = _elapsed()(
            ctypes.byref(milliseconds), ctypes.c_void_p(int(begin)), ctypes.c_void_p(int(end))
        )
    if status == int(load_driver().CUresult.CUDA_ERROR_NOT_READY):
        return None
    seconds = milliseconds.value / 1e3
    return (math.nan if status or late_s > _LATE * seconds else seconds,)


@session.cached()
def _elapsed() -> Any:
    return ctypes.CDLL("libcuda.so.1").cuEventElapsedTime
