"""At which numbers of observations a model is fitted anew."""

from __future__ import annotations

FIRST_FIT = 4
"""Observations before there is a model."""

LONGEST_STEP = 64
"""Observations after which a model is fitted anew, at the latest."""

_GROWTH = 1.25


def refit_at(count: int) -> int:
    """The last of these numbers up to `count`; the first one where `count` is less.

    They depend on nothing but the count, so that a study that is resumed fits its models to the
    same observations as one that was never interrupted.
    """
    number = FIRST_FIT
    while (following := min(int(number * _GROWTH) + 1, number + LONGEST_STEP)) <= count:
        number = following
    return min(number, max(count, 1))
