"""How promising a configuration is."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LEAST_VARIANCE = np.float32(1e-10)

_FAR = -30.0
_NEAR = 30.0
_STEP = 1 / 64
"""Where the tabulated function begins and ends, and how finely it is tabulated."""


def log_expected_improvement(
    mean: NDArray[np.float32], variance: NDArray[np.float32], best: float
) -> NDArray[np.float32]:
    """Logarithm of the expected improvement on `best`, where small is good.

    The logarithm keeps its order where the improvement itself underflows, so that a search that
    has nearly converged still knows the most promising point (Ament et al., "Unexpected
    improvements to expected improvement for Bayesian optimization", 2023).
    """
    deviation = np.sqrt(np.maximum(variance, _LEAST_VARIANCE))
    z = (np.float32(best) - mean) / deviation
    # A table, since there is one value for every configuration of the space.
    values, slopes = _table()
    place = (np.clip(z, _FAR, _NEAR - _STEP) - np.float32(_FAR)) * np.float32(1 / _STEP)
    index = place.astype(np.int32)
    improvement = values[index] + slopes[index] * (place - index)
    beyond = np.nonzero(z < _FAR)[0]
    improvement[beyond] = _log_tail(z[beyond].astype(np.float64))
    improvement += np.log(deviation)
    return np.asarray(improvement)


@cache
def _table() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """log(phi(z) + z Phi(z)), z in steps, and its increments."""
    from scipy.special import erfcx, ndtr

    z = np.arange(_FAR, _NEAR + _STEP, _STEP)
    low, high = np.minimum(z, -1.0), np.maximum(z, -1.0)
    # Here the two terms cancel, and their ratio to phi does not underflow.
    ratio = np.log1p(low * math.sqrt(math.pi / 2) * erfcx(-low / math.sqrt(2)))
    below = ratio - 0.5 * low * low - 0.5 * math.log(2 * math.pi)
    above = np.log(np.exp(-0.5 * high * high) / math.sqrt(2 * math.pi) + high * ndtr(high))
    values = np.where(z > -1.0, above, below)
    return values[:-1].astype(np.float32), np.diff(values).astype(np.float32)


def _log_tail(z: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same for z far below 0, to the leading order in 1 / z."""
    return np.asarray(-0.5 * z * z - 2 * np.log(-z) - 0.5 * math.log(2 * math.pi))
