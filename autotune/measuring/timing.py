"""Timing of calls until the median is known well enough or the time is spent."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.core.measurement import Series
from autotune.core.statistics import median, median_interval

if TYPE_CHECKING:
    from autotune.operations.poke import Poke

BATCH_S = 20e-6
"""Calls shorter than this are timed several at a time, so that the clock's resolution and the
loop around them do not count."""

MIN_SPAN_S = 0.01
"""The least time a series spans: neighbouring calls agree more than they would a moment later."""

POKE_SHARE = 0.1
"""Of the time of a series, what goes to changing operands between its samples."""

MIN_CALLS = 5
"""Samples behind any median, unless the deadline comes first."""

Clock = Callable[[], int]
"""Nanoseconds from a fixed point."""


def never(low_s: float) -> bool:
    """No interval says enough: there is no race to lose."""
    return False


def timed(call: Callable[[], object], clock: Clock = time.perf_counter_ns) -> float:
    """Seconds that one call takes."""
    start = clock()
    call()
    return (clock() - start) / 1e9


@dataclass(slots=True)
class Stop:
    """When a series has samples enough.

    That is once the 95% confidence interval of the median is narrower than `interval` times the
    median, or `enough` (both after `MIN_SPAN_S` at the earliest), or after `budget_s` seconds and
    at least `MIN_CALLS` samples, or after `deadline_s` seconds and at least one sample.

    Attributes:
        budget_s: seconds to spend.
        interval: relative width of the confidence interval that is narrow enough.
        deadline_s: seconds after which even `MIN_CALLS` do not matter.
        enough: whether the interval with this lower end, in seconds, says enough.
        growth: how many times the samples of one look at the interval the next one needs.
    """

    budget_s: float
    interval: float
    deadline_s: float
    enough: Callable[[float], bool] = never
    growth: float = 1.0
    _next_look: int = MIN_CALLS + 1  # the fewest samples that can give a 95% interval

    def done(self, samples: Sequence[float], spent_s: float) -> bool:
        """True if the series ends after these samples, which took so many seconds."""
        if spent_s >= self.deadline_s:
            return True
        if spent_s >= self.budget_s and len(samples) >= MIN_CALLS:
            return True
        if len(samples) < self._next_look or spent_s < min(MIN_SPAN_S, self.budget_s):
            return False
        self._next_look = math.ceil(self.growth * len(samples))
        low, high = median_interval(samples)
        return high - low <= self.interval * median(samples) or self.enough(low)


class Poking:
    """Pokes before some samples: the first one, and then ever fewer, a tenth of the time at most.

    Args:
        poke: what changes the operands; None changes nothing.
    """

    def __init__(self, poke: Poke | None) -> None:
        self._poke = poke
        self._next = 0
        self._spent_s = 0.0
        self._elapsed_s = math.inf
        self._begun = False

    def begin(self, samples: int, expected_s: float) -> None:
        """Poke, if it is time after so many samples; the next one follows at once."""
        if self._poke is None or samples < self._next:
            return
        if self._spent_s > POKE_SHARE * self._elapsed_s:
            return
        self._next = 3 * samples + 1
        start = time.perf_counter()
        self._poke.begin(expected_s)
        self._spent_s += time.perf_counter() - start
        self._begun = True

    def end(self, elapsed_s: float) -> None:
        """Check the operands after the sample, if there was a poke before it."""
        if self._begun and self._poke is not None:
            self._poke.end()
            self._begun = False
        self._elapsed_s = elapsed_s


def time_calls(
    call: Callable[[], object],
    *,
    expected_s: float,
    budget_s: float,
    interval: float,
    deadline_s: float,
    enough: Callable[[float], bool] = never,
    poke: Poke | None = None,
    clock: Clock = time.perf_counter_ns,
) -> Series:
    """Time a call that has been warmed up, until `Stop` says that it is enough.

    What the clock hardly sees is timed again, twice as often.

    Args:
        call: the call.
        expected_s: about how long it takes.
        budget_s: see `Stop`.
        interval: see `Stop`.
        deadline_s: see `Stop`.
        enough: see `Stop`.
        poke: changes operands before some of the samples; its own time does not count in any.
        clock: in nanoseconds.
    """
    batch = max(1, math.ceil(BATCH_S / max(expected_s, 1e-9)))
    samples: list[float] = []
    start = clock()
    # Sorting at every sample would cost more than short calls do.
    stop = Stop(budget_s, interval, deadline_s, enough, growth=1.2)
    poking = Poking(poke)
    while True:
        poking.begin(len(samples), expected_s)
        before = clock()
        for _ in range(batch):
            call()
        now = clock()
        poking.end((now - start) / 1e9)
        span_s = max(now - before, 1) / 1e9
        elapsed_s = (now - start) / 1e9
        if span_s < BATCH_S / 2 and elapsed_s < deadline_s:
            # Something held up the call that told what to expect, or the clock is coarse.
            batch *= 2
            samples.clear()
            continue
        samples.append(span_s / batch)
        if stop.done(samples, elapsed_s):
            break
    return Series(median(samples), median_interval(samples), len(samples) * batch)
