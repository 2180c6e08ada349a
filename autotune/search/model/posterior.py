"""The posterior of a Gaussian process at all candidates, one observation at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.search.model.covariance import NUGGET

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from autotune.search.model.covariance import Kernel
    from autotune.search.model.features import Points

_BLOCK = 8192
"""Candidates that are solved for together: what is kept of a block stays in the cache."""


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
        from scipy.linalg import solve_triangular

        kernel, old, new = self._kernel, len(self), len(self) + len(points)
        scaled = kernel.scaled(points)
        shared = kernel.covariance(self._points, scaled).astype(np.float64)
        left = solve_triangular(self._factor[:old, :old], shared, lower=True, check_finite=False).T
        own = kernel.covariance(scaled, scaled).astype(np.float64) - left @ left.T
        own.flat[:: len(points) + 1] += kernel.noise + NUGGET
        factor = _cholesky(own)
        self._factor[old:new, :old] = left
        self._factor[old:new, old:new] = factor
        left, factor = left.astype(np.float32), factor.astype(np.float32)
        variance = self._variances[-1].copy()
        for start in range(0, len(variance), _BLOCK):
            block = slice(start, start + _BLOCK)
            rows = kernel.covariance(scaled, self._candidates[block])
            rows -= left @ self._rows[:old, block]
            if len(points) > 1:
                rows = solve_triangular(factor, rows, lower=True, check_finite=False)
            else:
                rows /= factor
            self._rows[old:new, block] = rows
            variance[block] -= np.einsum("ij,ij->j", rows, rows)
        self._variances.append(variance)
        self._points = self._points + scaled

    def truncate(self, count: int) -> None:
        """Forget the points after the first `count`, which were appended one by one."""
        if count < len(self):
            del self._variances[count - len(self) :]
            self._points = self._points[:count]

    def settle(self, count: int) -> None:
        """Promise not to truncate below the first `count` points."""
        self._variances = self._variances[count - len(self) - 1 :]

    def widen(self, candidates: Points) -> None:
        """Add candidates after those there are; all points must be settled."""
        from scipy.linalg import solve_triangular

        scaled, count, before = self._kernel.scaled(candidates), len(self), len(self._candidates)
        added = solve_triangular(
            self._factor[:count, :count].astype(np.float32),
            self._kernel.covariance(self._points, scaled),
            lower=True,
            check_finite=False,
        )
        rows = np.empty((len(self._rows), before + len(candidates)), dtype=np.float32)
        rows[:count, :before] = self._rows[:count]
        rows[:count, before:] = added
        variance = self._kernel.variances(scaled) - np.einsum("ij,ij->j", added, added)
        self._rows = rows
        self._candidates = self._candidates + scaled
        self._variances = [np.concatenate([self._variances[-1], variance])]

    def mean(self, responses: NDArray[np.float64]) -> NDArray[np.float32]:
        """Mean at every candidate, given the responses at the first points."""
        count = len(responses)
        weights = self._whitened(responses).astype(np.float32)
        return np.asarray(weights @ self._rows[:count] + self._kernel.prior_mean(self._candidates))

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
        from scipy.linalg import solve_triangular

        count = len(responses)
        deviations = responses - self._kernel.prior_mean(self._points[:count])
        factor = self._factor[:count, :count]
        return np.asarray(solve_triangular(factor, deviations, lower=True, check_finite=False))

    def _weights(self, responses: NDArray[np.float64]) -> NDArray[np.float64]:
        """K^-1 times the same."""
        from scipy.linalg import solve_triangular

        factor = self._factor[: len(responses), : len(responses)]
        whitened = self._whitened(responses)
        return np.asarray(
            solve_triangular(factor, whitened, lower=True, trans="T", check_finite=False)
        )


def _cholesky(covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    """The lower factor; more noise is assumed where rounding has left a matrix indefinite."""
    from scipy.linalg import LinAlgError, cholesky

    noise = 0.0
    while True:
        try:
            noisy = covariance + noise * np.eye(len(covariance))
            return np.asarray(cholesky(noisy, lower=True, check_finite=False))
        except LinAlgError:
            noise = max(1e-6, 10 * noise)
