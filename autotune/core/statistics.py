"""Medians of timings and how well they are known, without assuming a distribution."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


WIDE = 0.10
"""Half the width of a median's interval, relative to the median, beyond which it is noise."""


def thinned(samples: Sequence[float], most: int) -> tuple[float, ...]:
    """At most so many of the samples, evenly spaced from the first to the last, to seven digits.

    Seven digits tell nanoseconds apart in samples of some milliseconds.
    """
    if len(samples) > most:
        step = (len(samples) - 1) / max(1, most - 1)
        samples = [samples[round(step * number)] for number in range(most)]
    return tuple(float(f"{each:.7g}") for each in samples)


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """A nonparametric confidence interval of the median: two order statistics.

    The number of samples below the true median is binomial(n, 1/2) whatever the distribution,
    so the samples ranked r and n + 1 - r enclose it with probability 1 - 2 P(X < r). Timings are
    neither normal nor symmetric, which is why Hoefler and Belli ("Scientific Benchmarking of
    Parallel Computing Systems", SC15, section 3.1.3) recommend it; the ranks are those of
    David and Nagaraja, "Order Statistics", 3rd edition, section 7.1.

    Fewer than six samples cannot reach 95 %: smallest and largest come back, which is the best
    they can say.

    Args:
        samples: independent measurements, in any order.
        confidence: the least probability that the interval holds the true median.

    Returns:
        Its lower and upper end, in the unit of the samples.

    Raises:
        ValueError: there are no samples, or `confidence` is not between 0 and 1.
    """
    if not samples:
        raise ValueError("the median of no samples is not defined: give at least one")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
    ordered = sorted(samples)
    rank = _rank(len(ordered), confidence)
    return ordered[rank - 1], ordered[len(ordered) - rank]


def half_width(median: float, interval: tuple[float, float]) -> float:
    """Half the width of an interval, as a fraction of the median."""
    low, high = interval
    return (high - low) / 2 / median


def half_width_text(share: float) -> str:
    """A half width in words: "±0.4%", "less than ±0.1%", "more than ±100%"."""
    if share > 1:
        return "more than ±100%"
    return "less than ±0.1%" if share < 5e-4 else f"±{share:.1%}"


@functools.lru_cache
def _rank(count: int, confidence: float) -> int:
    """The largest rank r >= 1 with P(X < r) <= (1 - confidence) / 2, X binomial(count, 1/2)."""
    tail = (1 - confidence) / 2
    log_half_power = count * math.log(0.5)
    below = 0.0
    rank = 0
    while rank < count // 2:
        # Logarithms, since 0.5**count underflows for long series.
        log_choose = math.lgamma(count + 1) - math.lgamma(rank + 1) - math.lgamma(count - rank + 1)
        below += math.exp(log_choose + log_half_power)
        if below > tail:
            break
        rank += 1
    return max(rank, 1)
