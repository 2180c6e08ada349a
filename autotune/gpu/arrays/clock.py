"""The time that one call of a program takes a GPU, by events on the stream of its operands.

A call that finds the stream idle is over before the next one is launched: between two events
lies what the host takes, not the GPU. So a kernel that does nothing comes first. While the GPU
spends some tens of microseconds on it, the host enqueues the call, whose kernels then follow each
other at once, as they do in a CUDA graph.
"""

from __future__ import annotations

import functools
import math
import struct
import time
from typing import TYPE_CHECKING, Any

from autotune.arrays.libraries import library_of
from autotune.core import session
from autotune.core.dtypes import ELEMENTS
from autotune.gpu.driver import activated, device_of, driver, driver_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.arrays.device import DeviceArray
    from autotune.gpu.interface import Event, Run
    from autotune.serving.clock import Reading

_DELAY_CYCLES = 150_000
"""Clock cycles for which the GPU is held at first: 75 us at 2 GHz."""

_MOST_CYCLES = 2_000_000

_HIGHEST_CLOCK = 2.2e9
"""Cycles per second that no multiprocessor exceeds: a GPU is held no shorter than this says."""

_CACHE_BYTES = 128 * 2**20
"""Memory to read until no level-2 cache holds anything else."""

_TOGETHER = 3
"""Calls that are timed together, where caches have nothing of their operands, or all."""

_VECTOR_BYTES = 16
"""Bytes that a thread reads at a time."""

_AWAKE_S = 1.0
"""Seconds after a call for which clocks of a GPU stay high, as they are in a program."""

_READS_TO_WAKE = 500
"""Times that memory is read until they are: some 30 ms."""

_LATE = 0.02
"""Of a time, the longest part that the GPU may have waited for the host."""


class DeviceClock:
    """See `autotune.serving.clock.Clock`."""

    waits = False

    def __init__(self) -> None:
        self._cycles = _DELAY_CYCLES
        self._awake_s = -math.inf

    def runs(self, like: Any) -> bool:
        """See `Clock.runs`."""
        return not driver().is_capturing(library_of(like).current_stream(like))

    def time(self, call: Callable[[], Any], like: Any, *, twice: bool) -> tuple[Any, Reading]:
        """See `Clock.time`: caches are as the program has them, and no call is made again."""
        library = library_of(like)
        stream = library.current_stream(like)
        device = library.describe("a", like, stream, device_of).device
        cycles = self._cycles
        with activated(device):
            delay(device)(struct.pack("<Q", cycles), stream)
            begin_s = time.perf_counter()
            begin = driver().mark(stream, timed=True)
        result = call()
        with activated(device):
            end = driver().mark(stream, timed=True)
        late_s = self._late_s(begin_s, cycles)
        return result, functools.partial(_seconds, device, begin, end, late_s)

    def time_cold(self, call: Callable[[], Any], like: Any, *, again: bool) -> tuple[float, ...]:
        """See `Clock.time_cold`: other memory is read before each call, and alone for comparison.

        Then `like` is read, since a layer's input has just been computed. Reading leaves caches
        without anything that must be written back. The GPU is held until all is enqueued, so that
        kernels follow each other as they do in a program.
        """
        library = library_of(like)
        stream = library.current_stream(like)
        other = library.empty(like, (_CACHE_BYTES // 4,), "float32")
        places = [library.describe("a", each, stream, device_of) for each in (other, like)]
        device, cycles = places[0].device, self._cycles
        everything = [struct.pack("<QQ", *_whole(place)) for place in places]

        def read() -> None:
            with activated(device):
                for each in everything:
                    reader(device)(each, stream)

        def run(*calls: Callable[[], Any], times: int = _TOGETHER) -> Event:
            for _ in range(times):
                for each in calls:
                    each()
            with activated(device):
                return driver().mark(stream, timed=True)

        if time.monotonic() - self._awake_s > _AWAKE_S:
            run(read, times=_READS_TO_WAKE)
        with activated(device):
            delay(device)(struct.pack("<Q", cycles), stream)
        begin_s = time.perf_counter()
        first, begin, end = run(read), run(read), run(read, call)
        last = run(call) if again else end
        is_late = self._late_s(begin_s, cycles) > 0
        with activated(device):
            driver().finish(stream)
            self._awake_s = time.monotonic()
            alone, both = begin.time_since(first), end.time_since(begin)
            warm = last.time_since(end)
        found = (both - alone, warm) if again else (both - alone,)
        if is_late or min(found) <= 0:
            return (math.nan,)
        return tuple(each / _TOGETHER / 1e3 for each in found)

    def _late_s(self, begin_s: float, cycles: int) -> float:
        """Seconds by which the host was too slow for a delay; the next one is longer then."""
        late_s = time.perf_counter() - begin_s - cycles / _HIGHEST_CLOCK
        if late_s > 0:
            self._cycles = max(self._cycles, min(2 * cycles, _MOST_CYCLES))
        return late_s


@session.cached()
def delay(device: int) -> Run:
    """``run(cycles, stream)`` on a device: the GPU does nothing for so many clock cycles.

    Args:
        device: the driver's number; its context is current.
    """
    return driver().delay()


@session.cached()
def reader(device: int) -> Run:
    """``run(address and bytes, stream)`` on a device: so much memory is read.

    Args:
        device: the driver's number; its context is current.
    """
    return driver().reader()


def _whole(place: DeviceArray) -> tuple[int, int]:
    """Address and bytes of the memory that an array lies in, as far as they are whole vectors."""
    steps = [(n - 1) * step for n, step in zip(place.shape, place.strides, strict=True)]
    begin, end = sum(min(each, 0) for each in steps), sum(max(each, 0) for each in steps)
    itemsize = ELEMENTS[place.dtype].itemsize
    first = -(-(place.address + begin * itemsize) // _VECTOR_BYTES) * _VECTOR_BYTES
    behind = (place.address + (end + 1) * itemsize) // _VECTOR_BYTES * _VECTOR_BYTES
    return first, max(behind - first, 0)


def _seconds(device: int, begin: Event, end: Event, late_s: float) -> tuple[float] | None:
    with activated(device):
        try:
            if not end.query():
                return None
            seconds = end.time_since(begin) / 1e3
        except driver_errors():
            return (math.nan,)
    return (math.nan if late_s > _LATE * seconds else seconds,)
