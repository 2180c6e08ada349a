"""Observers: counters that are read beside timed calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from autotune.core.measurement import Series


class Observer(Protocol):
    """Watches one series of calls after the other."""

    def start(self) -> None:
        """Calls begin."""
        ...

    def stop(self) -> None:
        """Calls have ended."""
        ...

    def read(self, series: Series) -> Mapping[str, float]:
        """Observations of one call of the series between start and stop, by name."""
        ...


class EnergyObserver:
    """Observes "watts" and "joules": mean power while calls run, and that over the median call.

    Args:
        joules: reads a counter of energy, in joules.
        clock: seconds from a fixed point.
    """

    def __init__(
        self, joules: Callable[[], float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._joules = joules
        self._clock = clock
        self._watts = 0.0

    def start(self) -> None:
        """Read the counter."""
        self._begun = self._joules(), self._clock()

    def stop(self) -> None:
        """Read it again."""
        joules, seconds = self._joules() - self._begun[0], self._clock() - self._begun[1]
        self._watts = joules / seconds

    def read(self, series: Series) -> Mapping[str, float]:
        """Power, and energy of a call."""
        return {"watts": self._watts, "joules": self._watts * series.median_s}
