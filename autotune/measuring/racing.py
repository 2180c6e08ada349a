"""Racing: spending no more time on a candidate than it takes to see that it does not win.

A candidate is measured against the best one so far. What is known of its median after some runs
is a confidence interval, and only that interval's lower end counts against it; no distribution of
the timings is assumed. The idea is that of Maron and Moore, "Hoeffding races" (NIPS 1993), with
order statistics in place of Hoeffding's bound, which needs a bounded range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

FIRST_RUNS = 2
"""Runs after which a candidate may be abandoned: the first one meets cold caches."""

BEHIND_SHARE = 0.2
"""Of how much slower a candidate is when it is abandoned, what suffices to time it no further."""

PROBE_RATIO = 8.0
"""A candidate that is this much slower than the best on a smaller problem, for the same work, is
not run on the problem: small operands fit the caches better, so large ones would be no faster."""


def never(low_s: float) -> bool:
    """No interval says enough, whatever its lower end: whoever has no race to lose."""
    return False


@dataclass(frozen=True, slots=True)
class Race:
    """A candidate against the best so far.

    Attributes:
        best_s: the best median so far, in seconds; None while there is none, and nobody loses.
        ratio: a candidate is abandoned when its first runs are all this much slower.
    """

    best_s: float | None
    ratio: float

    @property
    def limit_s(self) -> float:
        """What every one of the first runs must exceed for a candidate to be abandoned."""
        return math.inf if self.best_s is None else self.ratio * self.best_s

    def lost(self, first_s: Sequence[float]) -> bool:
        """Whether the first runs show that a candidate need not be timed.

        The smallest of k independent runs is a lower bound of the median with confidence
        1 - 2**-k whatever their distribution. Two runs are few, so the bound must be far away:
        a candidate that is as fast as the best is abandoned only if `FIRST_RUNS` runs in a row
        take `ratio` times its own median.

        Args:
            first_s: seconds of the first runs.
        """
        return min(first_s) > self.limit_s

    def behind(self, low_s: float) -> bool:
        """Whether a candidate that is being timed need not be known more exactly.

        It is once the 95% confidence interval of its median lies above the best by more than
        measurements differ from day to day. The candidate was verified and timed: its
        measurement stands, with the wider interval.

        Args:
            low_s: lower end of that interval, in seconds.
        """
        if self.best_s is None:
            return False
        return low_s > (1 + BEHIND_SHARE * (self.ratio - 1)) * self.best_s

    def reason(self, first_s: Sequence[float]) -> str:
        """One line that says why a candidate was abandoned."""
        ratio = min(first_s) / (self.best_s or math.inf)
        return f"{ratio:.2f} times the best in its first runs (limit {self.ratio:g})"
