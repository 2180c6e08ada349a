"""Prices from measurements: non-negative least squares of relative errors, drawn to a prior."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autotune.model.terms import TERMS

if TYPE_CHECKING:
    from numpy.typing import NDArray

PRIOR_WEIGHT = 0.1
"""What the prior counts for: as much as a tenth of a measurement for each of its terms."""

_ROBUST_ROUNDS = 4
_TOLERATED = 0.15
"""Relative errors beyond this count less and less: a disturbed moment is no price."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """Prices, and how well they tell the times that they were fitted to.

    Attributes:
        prices: seconds per term.
        spread: standard deviation of the logarithm of measured over predicted times, of which
            each was predicted without itself.
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
    reweighted), and prices that no measurement speaks of stay near the prior's.

    Args:
        counted: terms, shape (observations, terms).
        seconds: measured times, shape (observations,).
        weights: what each counts for, shape (observations,).
        prior: expected prices, shape (terms,); None expects nothing.

    Raises:
        ValueError: there are no observations.
    """
    if not len(seconds):
        raise ValueError("prices need at least one measurement")
    relative = counted / seconds[:, None]
    expected = np.zeros(len(TERMS)) if prior is None else np.asarray(prior, np.float64)
    # A term is measured in what it contributes where it contributes most.
    largest = relative.max(axis=0)
    scale = np.where(largest > 0, largest, 1.0)
    pull = np.sqrt(PRIOR_WEIGHT) * np.eye(len(TERMS))
    strengths = np.sqrt(weights)
    robust = np.ones(len(seconds))
    prices = expected
    for _ in range(_ROBUST_ROUNDS):
        rows = relative / scale * (strengths * robust)[:, None]
        system = np.vstack([rows, pull])
        wanted = np.concatenate([strengths * robust, pull @ (expected * scale)])
        prices = _non_negative(system, wanted) / scale
        errors = np.abs(relative @ prices - 1.0)
        robust = np.sqrt(np.minimum(1.0, _TOLERATED / np.maximum(errors, 1e-12)))
    predicted = np.maximum(counted @ prices, 1e-300)
    logs = np.log(seconds / predicted)
    # As many prices as are not zero were free to fit the same data.
    free = min(int(np.count_nonzero(prices)), len(seconds) - 1)
    inflation = len(seconds) / max(1, len(seconds) - free)
    spread = float(np.sqrt(np.average(logs**2, weights=weights) * inflation))
    return Fitted(prices, max(spread, _LEAST_SPREAD))


_LEAST_SPREAD = 0.01
"""Nobody knows a time better: clocks and neighbours differ from day to day."""


def _non_negative(system: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.optimize import nnls  # importing it takes longer than loading a kernel may

    solution, _ = nnls(system, wanted)
    return np.asarray(solution, dtype=np.float64)
