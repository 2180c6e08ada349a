"""The probability that a configuration compiles, runs and is right."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autotune.search.model.covariance import fit
from autotune.search.model.posterior import Posterior
from autotune.search.model.schedule import LONGEST_STEP, refit_at

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from autotune.search.model.features import Points

_MOST_LEARNED = 160
"""Observations that a fit begins with: the latest, which are where the search is."""

_LEAST = 1e-4
"""Probability below which nothing is thought to be."""


class SuccessModel:
    """Learns from failures: a Gaussian process on +1 for success and -1 for failure.

    Failures come of exhausted resources, which are products of powers of parameters: beside the
    kernel's other terms there is one that is linear in the features, so that a limit seen in one
    place holds beyond it. Regression on labels is cheap, and as good a classifier as any here
    (Rasmussen and Williams, "Gaussian Processes for Machine Learning", section 6.5).

    Args:
        candidates: where the probability is wanted.
        groups: for each column of the features, the parameter that it belongs to.
    """

    def __init__(self, candidates: Points, groups: NDArray[np.int64]) -> None:
        self._candidates = _linear(candidates)
        self._groups = groups
        self._points = self._candidates[:0]
        self._labels: list[float] = []
        # Nothing is computed before the first failure: many spaces have none.
        self._posterior: Posterior | None = None
        self._start = 0
        self._fitted = 0
        self._overall = 0.0

    def __len__(self) -> int:
        return len(self._labels)

    def observe(self, point: Points, succeeded: bool) -> None:
        """Take note of one observation; `point` is a single one."""
        self._points = self._points + _linear(point)
        self._labels.append(1.0 if succeeded else -1.0)

    def widen(self, candidates: Points) -> None:
        """Add candidates after those there are."""
        self._candidates = self._candidates + _linear(candidates)
        self._posterior = None

    def log_probability(self) -> NDArray[np.float32] | float:
        """Logarithm of the probability of success of every candidate; 0 before any failure."""
        from scipy.special import ndtr

        if -1.0 not in self._labels:
            return 0.0
        posterior, overall = self._updated(), self._overall
        labels = np.array(self._labels[self._start :])
        mean = posterior.mean(labels - overall) + np.float32(overall)
        deviation = np.sqrt(np.maximum(posterior.variance, 0.0) + np.float32(posterior.noise))
        return np.asarray(np.log(np.maximum(ndtr(mean / deviation), np.float32(_LEAST))))

    def _updated(self) -> Posterior:
        fitted = refit_at(len(self))
        if self._posterior is None or fitted > self._fitted:
            self._start = max(0, fitted - _MOST_LEARNED)
            points = self._points[self._start : fitted]
            labels = np.array(self._labels[self._start : fitted])
            # The overall rate as it is at a fit stands for what is far away until the next one.
            overall = self._overall = float(np.mean(self._labels[:fitted]))
            kernel = fit(points, labels - overall, self._groups, weight=0.0)
            capacity = len(points) + LONGEST_STEP
            self._posterior = Posterior(kernel, self._candidates, points, capacity)
            self._fitted = fitted
        for at in range(self._start + len(self._posterior), len(self)):
            self._posterior.append(self._points[at : at + 1])
        self._posterior.settle(len(self._posterior))
        return self._posterior


def _linear(points: Points) -> Points:
    """The same points, with their features as terms of a linear kernel."""
    width = max(1, len(points.features))
    return replace(points, expectations=(2.0 * points.features - 1.0) / np.sqrt(np.float32(width)))
