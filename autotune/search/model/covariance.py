"""The covariance of configurations, and how its parameters follow from observations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from autotune.search.model.features import Points

Floats = NDArray[np.floating]

WEIGHT_MEAN = 0.5
WEIGHT_VARIANCE = np.float32(1.0)
"""Of the weight that a prior's standardised expectation has."""

NUGGET = 1e-6
"""Added to the noise: what keeps the covariance of equal points positive definite."""

_COMMON = 0.3
"""Part of the effects that all points share: what the mean of the responses may be off by."""

_TYPICAL_LENGTH = 0.55
_TYPICAL_SIGNAL = 0.6
_TYPICAL_EFFECTS = 1.0
_TYPICAL_NOISE = 1e-3
_FIRST_NOISE = 1e-2
_NOISE_SPREAD = 1.5
_LENGTHS = (-3.0, 4.0)
_VARIANCES = (-6.0, 4.0)
_NOISES = (-9.0, 0.0)
"""Bounds of the logarithms of length scales, of the two variances, and of the noise."""

_ITERATIONS = 25


@dataclass(frozen=True, slots=True)
class Scaled:
    """Points prepared for one kernel.

    Attributes:
        features: over their length scales, shape (columns, points).
        squares: the sum over each point's squared features.
        levels: as those of `Points`.
        expectations: as those of `Points`.
    """

    features: NDArray[np.float32]
    squares: NDArray[np.float32]
    levels: NDArray[np.int32]
    expectations: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.squares)

    def __getitem__(self, part: slice) -> Scaled:
        return Scaled(
            self.features[:, part],
            self.squares[part],
            self.levels[:, part],
            self.expectations[:, part],
        )

    def __add__(self, other: Scaled) -> Scaled:
        return Scaled(
            np.concatenate([self.features, other.features], axis=1),
            np.concatenate([self.squares, other.squares]),
            np.concatenate([self.levels, other.levels], axis=1),
            np.concatenate([self.expectations, other.expectations], axis=1),
        )


@dataclass(frozen=True, slots=True)
class Kernel:
    """A Matern-3/2 kernel with a length scale per parameter, plus effects, plus priors' weights.

    The effects are those of an analysis of variance, of single values and of pairs: their
    covariance is a polynomial in the share of parameters on which two points agree. They carry
    what is true of a value wherever it stands, also for parameters whose numbers mean nothing.
    What a prior expects enters linearly, with a weight that is normally distributed, so that
    observations can overrule it.

    Attributes:
        scales: one over the length scale, for each column of the features.
        signal: variance of the smooth part.
        effects: variance of the effects.
        noise: variance of what is measured around them.
        weight: expected weight of a prior.
    """

    scales: NDArray[np.float64]
    signal: float
    effects: float
    noise: float
    weight: float = WEIGHT_MEAN

    def prior_mean(self, points: Points | Scaled) -> NDArray[np.float32]:
        """Response that the priors alone lead one to expect."""
        return np.asarray(np.float32(self.weight) * points.expectations.sum(axis=0))

    def scaled(self, points: Points) -> Scaled:
        """Prepare points for `covariance`."""
        features = points.features * self.scales.astype(np.float32)[:, None]
        squares = np.einsum("ij,ij->j", features, features)
        return Scaled(features, squares, points.levels, points.expectations)

    def covariance(self, some: Scaled, others: Scaled) -> NDArray[np.float32]:
        """Covariances of points with others, shape (some, others)."""
        r = some.features.T @ others.features
        r *= -2.0
        r += some.squares[:, None]
        r += others.squares
        np.maximum(r, 0.0, out=r)
        r *= 3.0
        np.sqrt(r, out=r)
        agreement = np.zeros_like(r)
        for mine, theirs in zip(some.levels, others.levels, strict=True):
            agreement += mine[:, None] == theirs
        agreement /= max(1, len(some.levels))
        covariance = np.float32(self.signal) * _matern(r, np.exp(-r))
        covariance += np.float32(self.effects) * _effects(agreement)
        if len(some.expectations):
            covariance += WEIGHT_VARIANCE * (some.expectations.T @ others.expectations)
        return np.asarray(covariance)

    def variances(self, points: Scaled) -> NDArray[np.float32]:
        """Prior variance at each point, without noise."""
        weights = WEIGHT_VARIANCE * np.square(points.expectations).sum(axis=0)
        return np.asarray(weights + np.float32(self.signal + self.effects))


def _matern(r: Floats, decay: Floats) -> Floats:
    return np.asarray((1.0 + r) * decay)


def _effects(agreement: Floats) -> Floats:
    """Correlation of points that agree on a share of their parameters."""
    return np.asarray(_COMMON + (1.0 - _COMMON) * 0.5 * (agreement + agreement * agreement))


def fit(
    points: Points,
    responses: NDArray[np.float64],
    groups: NDArray[np.int64],
    weight: float = WEIGHT_MEAN,
) -> Kernel:
    """The most probable kernel, given observations.

    Maximises the marginal likelihood times a prior on each parameter (log-normal, of length scales
    around half of a parameter's range), from the prior's mode: the result depends on the
    observations alone, not on earlier fits. See Rasmussen and Williams, "Gaussian Processes for
    Machine Learning", section 5.4.

    Args:
        points: the observed ones.
        responses: standardised.
        groups: for each column of the features, the parameter whose length scale it has.
        weight: expected weight of a prior.
    """
    from scipy.optimize import minimize

    deviations = responses - weight * points.expectations.sum(axis=0)
    evidence = _Evidence(points, deviations, groups)
    count = evidence.count
    start = np.append(
        np.full(count, math.log(_TYPICAL_LENGTH)),
        [math.log(_TYPICAL_SIGNAL), math.log(_TYPICAL_EFFECTS), math.log(_FIRST_NOISE)],
    )
    found = minimize(
        evidence.negative,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=[*[_LENGTHS] * count, _VARIANCES, _VARIANCES, _NOISES],
        options={"maxiter": _ITERATIONS},
    ).x
    signal, effects, noise = np.exp(found[count:]).tolist()
    return Kernel(np.exp(-found[:count])[groups], signal, effects, noise, weight)


class _Evidence:
    """The negative logarithm of the posterior density of a kernel's parameters."""

    def __init__(
        self, points: Points, responses: NDArray[np.float64], groups: NDArray[np.int64]
    ) -> None:
        self.count = int(groups.max()) + 1
        self._middle = np.full(self.count + 3, math.log(_TYPICAL_LENGTH))
        self._middle[-3:] = np.log([_TYPICAL_SIGNAL, _TYPICAL_EFFECTS, _TYPICAL_NOISE])
        self._spread = np.append(np.ones(self.count + 2), _NOISE_SPREAD)
        self._responses = responses
        self._pairs = np.triu_indices(len(points), 1)
        first, second = self._pairs
        features = points.features.astype(np.float64)
        self._squares = np.zeros((self.count, len(first)))
        np.add.at(self._squares, groups, (features[:, first] - features[:, second]) ** 2)
        agreement = (points.levels[:, first] == points.levels[:, second]).mean(axis=0)
        self._effects = _effects(agreement)
        expected = points.expectations.astype(np.float64)
        weights = float(WEIGHT_VARIANCE) * (expected.T @ expected)
        self._weights, self._own_weights = weights[self._pairs], weights.diagonal()

    def negative(self, logs: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Value and gradient, in logarithms of length scales, variances and noise."""
        from scipy.linalg import lapack

        inverse = np.exp(-2.0 * logs[: self.count])
        signal, effects, noise = np.exp(logs[self.count :]).tolist()
        r = np.sqrt(3.0 * (inverse @ self._squares))
        decay = np.exp(-r)
        size = len(self._responses)
        smooth, common = signal * _matern(r, decay), effects * self._effects
        covariance = np.zeros((size, size), order="F")
        covariance[self._pairs[1], self._pairs[0]] = smooth + common + self._weights
        own = signal + effects + noise + NUGGET
        covariance[np.diag_indices(size)] = own + self._own_weights
        factor, failed = lapack.dpotrf(covariance, lower=1, overwrite_a=1)
        if failed:
            return 1e10, np.zeros_like(logs)
        weights, _ = lapack.dpotrs(factor, self._responses, lower=1)
        value = 0.5 * float(self._responses @ weights) + float(np.log(factor.diagonal()).sum())
        precision, _ = lapack.dpotri(factor, lower=1)
        # d value / d covariance, twice; by symmetry the pairs below the diagonal count double.
        below = precision[self._pairs[1], self._pairs[0]]
        slope = below - weights[self._pairs[0]] * weights[self._pairs[1]]
        trace = float(precision.diagonal().sum() - weights @ weights)
        bend = 3.0 * signal * decay
        gradient = np.empty_like(logs)
        gradient[: self.count] = (self._squares @ (slope * bend)) * inverse
        gradient[-3] = slope @ smooth + 0.5 * signal * trace
        gradient[-2] = slope @ common + 0.5 * effects * trace
        gradient[-1] = 0.5 * noise * trace
        # The priors of the logarithms are normal.
        away = (logs - self._middle) / self._spread
        return value + 0.5 * float(away @ away), gradient + away / self._spread
