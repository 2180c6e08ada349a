"""Clocks and energy of a GPU, read while it computes."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.gpu.vendor import Monitor
    from autotune.measuring.messages import Series

CLOCK, ENERGY = "sm_clock_mhz", "energy_j"

PAUSE_S = 0.01
"""Time between two looks: to read a GPU's energy takes NVML milliseconds."""


class Reading(NamedTuple):
    """A look at a GPU.

    Attributes:
        at_s: when, in seconds from a fixed point.
        clock_mhz: of the multiprocessors; None where the GPU does not tell.
        joules: used since a fixed point; None likewise.
    """

    at_s: float
    clock_mhz: float | None
    joules: float | None


class GpuWatch:
    """Observes "sm_clock_mhz", "watts" and "joules" of a call, as far as the GPU tells them.

    A thread looks, since the one that launches must not wait.

    Args:
        monitor: reads the GPU.
        clock: seconds from a fixed point.
    """

    def __init__(self, monitor: Monitor, clock: Callable[[], float] = time.monotonic) -> None:
        self._monitor = monitor
        self._clock = clock
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._seen: list[Reading] = []

    def start(self) -> None:
        """Calls begin."""
        self._seen = [self._look()]
        self._over.clear()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Calls have ended."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def read(self, series: Series) -> Mapping[str, float]:
        """Mean clock and power, and the energy of a call of the median's time."""
        observed: dict[str, float] = {}
        clocks = [look.clock_mhz for look in self._seen if look.clock_mhz]
        if clocks:
            observed[CLOCK] = fmean(clocks)
        if watts := mean_power(self._seen):
            observed |= {"watts": watts, "joules": watts * series.median_s}
        return observed

    def _watch(self) -> None:
        while not self._over.wait(PAUSE_S):
            self._seen.append(self._look())

    def _look(self) -> Reading:
        told = self._monitor.read((CLOCK, ENERGY))
        clock, joules = (told.get(name) for name in (CLOCK, ENERGY))
        return Reading(
            self._clock(),
            None if clock is None else float(clock),
            None if joules is None else float(joules),
        )


def mean_power(seen: Sequence[Reading]) -> float | None:
    """Watts between the first and the last change of the counter; None without two of them.

    Counters of energy move in steps (on an H100 every 100 ms): from any moment to any other they
    are off by a step, from one change to another by the time between two looks.
    """
    changes = [
        (later.at_s, later.joules)
        for earlier, later in itertools.pairwise(seen)
        if None not in (earlier.joules, later.joules) and later.joules != earlier.joules
    ]
    if len(changes) < 2:
        return None
    (begun_s, begun), (ended_s, ended) = changes[0], changes[-1]
    assert begun is not None
    assert ended is not None
    return (ended - begun) / (ended_s - begun_s) if ended > begun else None
