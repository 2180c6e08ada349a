"""Scores of configurations: measured values as the model wants them, and what is promising."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

_GOOD = 0.3
"""Share of the values that are told apart in full."""

_NARROWEST = 1e-3
"""Spread of log values below which differences are taken for noise."""


def response(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standardised responses to values of which small ones are good.

    Values above 0 are replaced by their logarithms. Beyond the best third the excess is compressed
    logarithmically: how bad bad configurations are matters little, and must not set the scale.

    Values are finite, at least one. Responses have mean 0 and, unless all are equal, standard
    deviation 1.
    """
    logs = np.log(values) if values.min() > 0 else values / max(1e-300, np.abs(values).max())
    middle = np.quantile(logs, _GOOD)
    width = max(float(middle - logs.min()), _NARROWEST)
    excess = np.maximum(logs - middle, 0.0)
    squeezed = np.minimum(logs, middle) + width * np.log1p(excess / width)
    spread = float(squeezed.std())
    return np.asarray((squeezed - squeezed.mean()) / (spread if spread > 1e-9 else 1.0))


def informative(values: NDArray[np.float64], most: int) -> list[int]:
    """Positions of values to learn from: the better half of `most`, and a spread of the rest."""
    if len(values) <= most:
        return list(range(len(values)))
    order = np.argsort(values, kind="stable")
    rest = order[most // 2 :]
    spread = rest[np.linspace(0, len(rest) - 1, most - most // 2).astype(np.int64)]
    return sorted([*order[: most // 2].tolist(), *spread.tolist()])


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
