"""A Gaussian process over configurations: its kernel, fitted, and its posterior."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.search.model.features import Groups, Points

Floats = NDArray[np.floating]

WEIGHT_MEAN = 0.5
WEIGHT_VARIANCE = np.float32(1.0)
"""Of the weight that a prior's standardised expectation has."""

NUGGET = 1e-6
"""Added to the noise: what keeps the covariance of equal points positive definite."""

_COMMON = 0.3
"""Part of the effects that all points share: what the mean of the responses may be off by."""

_LENGTH_OF_TWO, _SHORTENING = 2.0, 0.6
"""Typical length scale of a parameter with two values, and the power by which it falls with their
number: those of 16 recorded spaces, where parameters with few values mattered little."""

_TYPICAL_SIGNAL = 0.6
_TYPICAL_EFFECTS = 0.14
_TYPICAL_NOISE = 1e-3
_FIRST_NOISE = 1e-2
_NOISE_SPREAD = 1.5
_LENGTHS = (-3.0, 4.0)
_VARIANCES = (-6.0, 4.0)
_NOISES = (-9.0, 0.0)
"""Bounds of the logarithms of length scales, of the two variances, and of the noise."""

_ITERATIONS = 25

_ROWS = 64
"""Points that are compared with all others at once."""

_SQRT_3 = math.sqrt(3.0)


@dataclass(frozen=True, slots=True)
class Scaled(Points):
    """Points prepared for one kernel.

    Features are over their length scales, times the root of 3 of the kernel's formula.

    Attributes:
        squares: shape (points,).
    """

    squares: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A Matern-3/2 kernel with a length scale per parameter, plus effects, plus priors' weights.

    The effects are those of an analysis of variance, of single values and of pairs: their
    covariance is a polynomial in the share of parameters on which two points agree. They carry
    what is true of a value wherever it stands, also for parameters whose numbers mean nothing.
    What a prior expects enters linearly, with a weight that is normally distributed, so that
    observations can overrule it.

    The signal, the effects and the noise around them are variances; the weight is a prior's
    expected one.
    """

    scales: NDArray[np.float64]  # one over the length scale, by column of the features
    signal: float
    effects: float
    noise: float
    weight: float = WEIGHT_MEAN

    def prior_mean(self, points: Points) -> NDArray[np.float32]:
        """Response that the priors alone lead one to expect."""
        return np.asarray(np.float32(self.weight) * points.expectations.sum(axis=0))

    def scaled(self, points: Points) -> Scaled:
        """Prepare points for `covariance`."""
        features = points.features * (_SQRT_3 * self.scales).astype(np.float32)[:, None]
        squares = np.einsum("ij,ij->j", features, features)
        return Scaled(features, points.levels, points.expectations, squares)

    def covariance(self, some: Scaled, others: Scaled) -> NDArray[np.float32]:
        """Covariances of points with others, shape (some, others)."""
        r = (np.float32(-2.0) * some.features).T @ others.features
        r += some.squares[:, None]
        r += others.squares
        np.maximum(r, 0.0, out=r)
        np.sqrt(r, out=r)
        agreement = np.empty(r.shape, dtype=np.min_scalar_type(len(some.levels)))
        for start in range(0, len(r), _ROWS):
            mine = some.levels[:, start : start + _ROWS, None]
            # As bytes they are not converted for the sum.
            same = (mine == others.levels[:, None]).view(np.uint8)
            np.add.reduce(same, out=agreement[start : start + _ROWS], dtype=agreement.dtype)
        covariance = _effects(agreement / np.float32(max(1, len(some.levels))))
        covariance *= np.float32(self.effects)
        decay = np.exp(-r)
        r += 1.0
        decay *= r
        decay *= np.float32(self.signal)
        covariance += decay
        if len(some.expectations):
            covariance += WEIGHT_VARIANCE * (some.expectations.T @ others.expectations)
        return np.asarray(covariance)

    def variances(self, points: Scaled) -> NDArray[np.float32]:
        """Prior variance at the points, without noise."""
        weights = WEIGHT_VARIANCE * np.square(points.expectations).sum(axis=0)
        return np.asarray(weights + np.float32(self.signal + self.effects))


def _matern(r: Floats, decay: Floats) -> Floats:
    return np.asarray((1.0 + r) * decay)


def _effects(agreement: Floats) -> Floats:
    """Correlation of points that agree on a share of their parameters."""
    pairs = agreement * agreement
    pairs += agreement
    pairs *= 0.5 * (1.0 - _COMMON)
    pairs += _COMMON
    return np.asarray(pairs)


def fit(
    points: Points,
    responses: NDArray[np.float64],
    groups: Groups,
    weight: float = WEIGHT_MEAN,
    lengths: Mapping[str, float] = MappingProxyType({}),
) -> Kernel:
    """The most probable kernel, given observations.

    Maximises the marginal likelihood times a prior on each parameter (log-normal, around what is
    typical of recorded spaces), from the prior's mode: the result depends on the observations
    alone, not on earlier fits. See Rasmussen and Williams, "Gaussian Processes for
    Machine Learning", section 5.4.

    Responses are standardised; `groups` are those of the `FeatureMap`, a length scale each;
    `weight` is the expected weight of a prior, and `lengths` are expected of parameters instead of
    what is typical.
    """
    from scipy.optimize import minimize

    deviations = responses - weight * points.expectations.sum(axis=0)
    evidence = _Evidence(points, deviations, groups, lengths)
    count = evidence.count
    start = np.append(evidence.middle[:-1], math.log(_FIRST_NOISE))
    found = minimize(
        evidence.negative,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=[*[_LENGTHS] * count, _VARIANCES, _VARIANCES, _NOISES],
        options={"maxiter": _ITERATIONS},
    ).x
    signal, effects, noise = np.exp(found[count:]).tolist()
    return Kernel(np.exp(-found[:count])[groups.columns], signal, effects, noise, weight)


class _Evidence:
    """The negative logarithm of the posterior density of a kernel's parameters."""

    def __init__(
        self,
        points: Points,
        responses: NDArray[np.float64],
        groups: Groups,
        lengths: Mapping[str, float],
    ) -> None:
        self.count = len(groups.names)
        usual = _LENGTH_OF_TWO * (groups.values / 2) ** -_SHORTENING
        known = map(lengths.get, groups.names, usual)
        typical = [*known, _TYPICAL_SIGNAL, _TYPICAL_EFFECTS, _TYPICAL_NOISE]
        self.middle: NDArray[np.float64] = np.log(typical)
        self._spread = np.append(np.ones(self.count + 2), _NOISE_SPREAD)
        self._responses = responses
        self._pairs = np.triu_indices(len(points), 1)
        first, second = self._pairs
        features = points.features.astype(np.float64)
        self._squares = np.zeros((self.count, len(first)))
        np.add.at(self._squares, groups.columns, (features[:, first] - features[:, second]) ** 2)
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
        away = (logs - self.middle) / self._spread
        return value + 0.5 * float(away @ away), gradient + away / self._spread


class Posterior:
    """Mean and variance at every candidate, given where observations were made.

    With covariance K = L L^T of the observations and k of observations with candidates, it keeps
    the rows of L^-1 k: an observation adds one row to them and to L, at a cost of one pass over
    what is kept. The variance is k(x, x) less the squares of a candidate's column, and the mean is
    L^-1 y times it, so that observations may be rescaled at any time (Osborne et al., "Gaussian
    processes for global optimization", 2008).

    The variance does not depend on what is observed. So points whose values are still to come are
    added like any other, and taken away again with `truncate`.

    Args:
        kernel: fixed for the life of this object.
        candidates: where the posterior is wanted.
        observed: the points it begins with, at least one.
        capacity: how many points there can be, all in all.
    """

    def __init__(
        self, kernel: Kernel, candidates: Points, observed: Points, capacity: int
    ) -> None:
        self._kernel = kernel
        self._candidates = kernel.scaled(candidates)
        self._points = kernel.scaled(observed[:0])
        self._factor = np.zeros((capacity, capacity))
        self._rows = np.empty((capacity, len(candidates)), dtype=np.float32)
        self._variances = [kernel.variances(self._candidates)]
        self.append(observed)
        self.settle(len(observed))

    def __len__(self) -> int:
        return len(self._points)

    def append(self, points: Points) -> None:
        """Add where observations were made, or will be."""
        kernel, old, new = self._kernel, len(self), len(self) + len(points)
        scaled = kernel.scaled(points)
        shared = kernel.covariance(self._points, scaled).astype(np.float64)
        left = _solved(self._factor[:old, :old], shared).T
        own = kernel.covariance(scaled, scaled).astype(np.float64) - left @ left.T
        own.flat[:: len(points) + 1] += kernel.noise + NUGGET
        factor = lower_factor(own)
        self._factor[old:new, :old] = left
        self._factor[old:new, old:new] = factor
        left, factor = left.astype(np.float32), factor.astype(np.float32)
        rows = kernel.covariance(scaled, self._candidates)
        rows -= left @ self._rows[:old]
        rows = _divided(rows, factor)
        self._rows[old:new] = rows
        self._variances.append(self._variances[-1] - np.einsum("ij,ij->j", rows, rows))
        self._points = self._points + scaled

    def truncate(self, count: int) -> None:
        """Forget the points after the first `count`, which were appended one by one."""
        if count < len(self):
            del self._variances[count - len(self) :]
            self._points = self._points[:count]

    def settle(self, count: int) -> None:
        """Promise not to truncate below the first `count` points."""
        self._variances = self._variances[count - len(self) - 1 :]

    def watch(self, candidates: Points) -> None:
        """Have other candidates in place of those there are; all points must be settled."""
        self._candidates, self._rows = self._candidates[:0], self._rows[:, :0]
        self._variances = [self._variances[-1][:0]]
        self.widen(candidates)

    def widen(self, candidates: Points) -> None:
        """Add candidates after those there are; all points must be settled."""
        scaled, count, before = self._kernel.scaled(candidates), len(self), len(self._candidates)
        shared = self._kernel.covariance(self._points, scaled)
        added = _divided(shared, self._factor[:count, :count].astype(np.float32))
        variance = self._kernel.variances(scaled) - np.einsum("ij,ij->j", added, added)
        rows = np.empty((len(self._rows), before + len(candidates)), dtype=np.float32)
        rows[:count, :before] = self._rows[:count]
        rows[:count, before:] = added
        self._rows = rows
        self._candidates = self._candidates + scaled
        self._variances = [np.concatenate([self._variances[-1], variance])]

    def mean(self, responses: NDArray[np.float64]) -> NDArray[np.float32]:
        """Mean at every candidate, given the responses at the first points."""
        count = len(responses)
        weights = self._whitened(responses).astype(np.float32)
        return np.asarray(weights @ self._rows[:count] + self._kernel.prior_mean(self._candidates))

    def covariance(self, positions: Sequence[int]) -> NDArray[np.float64]:
        """Covariances of some candidates, given all points."""
        some, rows = self._candidates[positions], self._rows[: len(self), positions]
        return (self._kernel.covariance(some, some) - rows.T @ rows).astype(np.float64)

    def predict(self, points: Points, responses: NDArray[np.float64]) -> NDArray[np.float64]:
        """Mean at any points, given the responses at the first points."""
        scaled = self._kernel.scaled(points)
        shared = self._kernel.covariance(self._points[: len(responses)], scaled)
        return np.asarray(self._weights(responses) @ shared + self._kernel.prior_mean(scaled))

    def fitted(self, responses: NDArray[np.float64]) -> NDArray[np.float64]:
        """Mean at the first points themselves: the responses less what is taken for noise."""
        return responses - self.noise * self._weights(responses)

    @property
    def noise(self) -> float:
        """Variance of an observation around the function."""
        return self._kernel.noise + NUGGET

    @property
    def variance(self) -> NDArray[np.float32]:
        """Variance at every candidate, given all points; rounding may leave it below 0."""
        return self._variances[-1]

    def _whitened(self, responses: NDArray[np.float64]) -> NDArray[np.float64]:
        """L^-1 times the responses' deviations from the prior mean."""
        count = len(responses)
        deviations = responses - self._kernel.prior_mean(self._points[:count])
        return _solved(self._factor[:count, :count], deviations)

    def _weights(self, responses: NDArray[np.float64]) -> NDArray[np.float64]:
        """K^-1 times the same."""
        factor = self._factor[: len(responses), : len(responses)]
        return _solved(factor, self._whitened(responses), trans="T")


def _solved(factor: NDArray[Any], right: NDArray[Any], trans: str = "N") -> NDArray[Any]:
    """The right side divided by a lower triangular factor, or by its transpose."""
    from scipy.linalg import solve_triangular

    found = solve_triangular(factor, right, lower=True, trans=trans, check_finite=False)
    return np.asarray(found)


def _divided(rows: Floats, factor: Floats) -> NDArray[np.float32]:
    """The same in place, for many right sides one after the other in memory."""
    from scipy.linalg.blas import strsm

    # Transposed, both are as Fortran has them, and nothing is copied.
    return np.asarray(strsm(1.0, factor.T, rows.T, side=1, overwrite_b=1).T)


def lower_factor(covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    """The lower factor; more noise is assumed where rounding has left a matrix indefinite."""
    from scipy.linalg import LinAlgError, cholesky

    noise = 0.0
    while True:
        try:
            noisy = covariance + noise * np.eye(len(covariance))
            return np.asarray(cholesky(noisy, lower=True, check_finite=False))
        except LinAlgError:
            noise = max(1e-6, 10 * noise)
