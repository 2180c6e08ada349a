"""The element of a result that is farthest from what it should be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Deviation:
    """The element of a result that is farthest off.

    Attributes:
        error: relative to what is allowed; 1 is the limit, NaN where the result is NaN and must
            not be.
        place: its indices; None where no single element is known to be off.
        found: its value.
        expected: what it should be.
    """

    error: float
    place: tuple[int, ...] | None = None
    found: float = math.nan
    expected: float = math.nan


def largest_deviation(
    values: NDArray[Any], expected: NDArray[Any], allowed: NDArray[Any]
) -> Deviation:
    """The element that is farthest off.

    Where NaN or infinity is expected, or more than the type of the values holds, the same must be
    there.

    Args:
        values: what was computed.
        expected: what it should be, in float64.
        allowed: how far each element may be off.
    """
    numbers = values.astype(np.float64, copy=False)
    with np.errstate(all="ignore"):
        error = np.abs(numbers - expected)
        # Where nothing may be off nothing is, as above the diagonal of a triangle.
        exact = (allowed == 0) & (error == 0)
        relative = np.divide(error, allowed, out=error)
        relative[np.broadcast_to(exact, relative.shape)] = 0
        largest = float(relative.max())
        if largest <= 1:
            return Deviation(largest)
        # What the type cannot hold as a number is compared as it holds it.
        stored = expected.astype(values.dtype).astype(np.float64)
        beyond = ~np.isfinite(stored)
        same = beyond & ((stored == numbers) | np.isnan(stored) & np.isnan(numbers))
        relative[beyond & ~(relative <= 1)] = np.inf
        # How far a number may be off is not known where terms that it does not show are infinite.
        relative[same | ~beyond & np.isnan(allowed) & np.isfinite(numbers)] = 0
    worst = np.where(np.isnan(relative), np.inf, relative).argmax()
    place = tuple(map(int, np.unravel_index(worst, relative.shape)))
    return Deviation(float(relative[place]), place, float(numbers[place]), float(expected[place]))
