"""Until when a run may take: one clock that everything waits by."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Deadline:
    """The time of one run: made when it begins, and asked by all that wait on its behalf.

    Some of the time is kept in reserve for what comes last: `remaining_s` leaves it alone.

    A request to stop (Ctrl-C) moves the end nearer while somebody waits, so waiting code looks
    again every now and then.

    A run that is one of many has a goal besides: it plans to end by then, and may go on to the end
    until it has something to show.

    Args:
        seconds: how long the run may take; infinite where only trials count.
        clock: seconds from a fixed point.
        goal_s: how long it is meant to take; None is as long as it may.
        grace_s: seconds beyond the goal that what comes last may take.

    Attributes:
        limit_s: the seconds given.
        goal_s: how long the run is meant to take.
        reserve_s: seconds that are kept for what comes last.
    """

    def __init__(
        self,
        seconds: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
        goal_s: float | None = None,
        grace_s: float = 0.0,
    ) -> None:
        self.limit_s = seconds
        self.goal_s = seconds if goal_s is None else min(goal_s, seconds)
        self.reserve_s = 0.0
        self._grace_s = grace_s
        self._clock = clock
        self._begun = clock()
        self._end = self._begun + seconds
        self._goal = self._begun + self.goal_s

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began."""
        return self._clock() - self._begun

    @property
    def left_s(self) -> float:
        """Seconds until the end, the reserve included; never below zero."""
        return max(0.0, self._end - self._clock())

    @property
    def remaining_s(self) -> float:
        """Seconds that may be waited now, the reserve left alone; never below zero."""
        return max(0.0, self._end - self.reserve_s - self._clock())

    @property
    def planned_s(self) -> float:
        """Seconds to plan with: what remains until the goal; never below zero."""
        return max(0.0, min(self._end, self._goal) - self.reserve_s - self._clock())

    @property
    def expected_s(self) -> float:
        """Seconds until the goal, the reserve included; never below zero."""
        return max(0.0, min(self._end, self._goal) - self._clock())

    @property
    def over(self) -> bool:
        """True if nothing may be begun or waited for any more."""
        return self.remaining_s == 0

    def within(self, seconds: float) -> float:
        """So many seconds, or what remains if that is less."""
        return min(seconds, self.remaining_s)

    def settle(self, more_s: float) -> None:
        """There is something to show: the goal is the end from now on.

        Args:
            more_s: seconds that are well spent before the reserve, should the goal be past.
        """
        self._goal = max(self._goal, self._clock() + self.reserve_s + more_s)
        self._end = min(self._end, self._goal + self._grace_s)

    def hasten(self, seconds: float, grace_s: float) -> None:
        """Have the run end within so many seconds.

        Args:
            seconds: from now to the end.
            grace_s: how much of it remains, at least, for what is being waited for.
        """
        self._end = min(self._end, self._clock() + seconds)
        self.reserve_s = max(0.0, min(self.reserve_s, seconds - grace_s))

    @contextmanager
    def keeping(self, seconds: float) -> Iterator[None]:
        """Keep so many seconds more in reserve inside the block."""
        self.reserve_s += seconds
        try:
            yield
        finally:
            # A stop in between may have taken the reserve back.
            self.reserve_s = max(0.0, self.reserve_s - seconds)
