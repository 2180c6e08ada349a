"""Prices from measurements: non-negative least squares of relative errors, drawn to a prior."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autotune.model.terms import TERMS

if TYPE_CHECKING:
    from numpy.typing import NDArray

PRIOR_WEIGHT = 0.04
"""The weight of an expected price, as a measurement: one that is off by half of itself is as
strange as a measurement that is off by a tenth."""

ABSENT_WEIGHT = 0.1
"""The same for a price that is expected to be zero, in what its term contributes where it
contributes most."""

LAST_LIKE_FULL = 1.0
"""The same for a step of the last wave that costs something else than one of a full wave: two
units take a place as long whether others follow them or not, and many programs are timed on small
problems alone, which have no full wave."""

DOUBTFUL = 3.0
"""Measurements that an unknown program's spread counts for: few that fit say little."""

UNKNOWN_SPREAD = 0.3
"""The difference of a family's programs from their expectation."""

_FULL, _LAST = map(TERMS.index, ("steps of full waves", "steps of the last wave"))
_ROBUST_ROUNDS = 4
_TOLERATED = 0.15
"""Relative errors beyond this count less and less: a disturbed moment is no price."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """Prices, and how well they tell the times that they were fitted to.

    Attributes:
        prices: seconds per term.
        spread: standard deviation of the logarithm of measured over predicted times, for problems
            that were not measured.
    """

    prices: NDArray[np.float64]
    spread: float


def fit(
    counted: NDArray[np.float64],
    seconds: NDArray[np.float64],
    weights: NDArray[np.float64],
    prior: NDArray[np.float64] | None = None,
) -> Fitted:
    """The prices that explain times best.

    The sum of squared relative errors is least, with what is far off counting less (iteratively
    reweighted). Prices are held near the prior's, each in proportion to itself: a term that is
    hardly seen in the measurements may be most of the time elsewhere.

    Args:
        counted: terms, shape (observations, terms).
        seconds: measured times, shape (observations,).
        weights: what each counts for, shape (observations,).
        prior: expected prices, shape (terms,); None expects none.

    Raises:
        ValueError: there are no observations.
    """
    if not len(seconds):
        raise ValueError("prices need at least one measurement")
    relative = counted / seconds[:, None]
    expected = np.zeros(len(TERMS)) if prior is None else np.asarray(prior, np.float64)
    largest = relative.max(axis=0)
    contributed = np.where(largest > 0, largest, 1.0)
    unit = np.where(expected > 0, expected, 1.0 / contributed)
    pull = np.diag(np.sqrt(np.where(expected > 0, PRIOR_WEIGHT, ABSENT_WEIGHT)))
    pulled = pull @ np.where(expected > 0, 1.0, 0.0)
    if expected[_FULL] > 0 and expected[_LAST] > 0:
        tie = np.zeros(len(TERMS))
        tie[[_FULL, _LAST]] = [-1.0, expected[_LAST] / expected[_FULL]]
        pull = np.vstack([pull, math.sqrt(LAST_LIKE_FULL) * tie])
        pulled = np.append(pulled, 0.0)
    strengths = np.sqrt(weights)
    robust = np.ones(len(seconds))
    prices = expected
    for _ in range(_ROBUST_ROUNDS):
        rows = relative * unit * (strengths * robust)[:, None]
        system = np.vstack([rows, pull])
        wanted = np.concatenate([strengths * robust, pulled])
        prices = _non_negative(system, wanted) * unit
        errors = np.abs(relative @ prices - 1.0)
        robust = np.sqrt(np.minimum(1.0, _TOLERATED / np.maximum(errors, 1e-12)))
    logs = np.log(seconds / np.maximum(counted @ prices, 1e-300))
    count = float(weights.sum())
    used = rows.T @ rows
    free = float(np.trace(np.linalg.solve(used + pull.T @ pull, used)))  # what the data decided
    inflation = count / max(count - free, _LEAST_KNOWN * count)
    told = float(weights @ logs**2) * inflation
    spread = math.sqrt((DOUBTFUL * UNKNOWN_SPREAD**2 + told) / (DOUBTFUL + count))
    return Fitted(prices, spread)


_LEAST_KNOWN = 0.25
"""Of the measurements, what is taken to check prices, however many of these are free."""


def _non_negative(system: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.optimize import nnls  # importing it takes longer than loading a kernel may

    solution, _ = nnls(system, wanted)
    return np.asarray(solution, dtype=np.float64)
