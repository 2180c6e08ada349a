"""Models of what was observed: how fast the candidates are, and whether they work."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autotune.search.model.gaussian import Posterior, fit
from autotune.search.model.scoring import (
    LONGEST_STEP,
    informative,
    log_expected_improvement,
    refit_at,
    response,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from autotune.search.model.candidates import Candidates
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


_MOST_FITTED = 120
"""Observations that the kernel's parameters are fitted to."""

_MOST_KEPT = 256
"""Observations that a model begins with."""

_CAUTION = 2.0
"""Power of the probability of success. More than 1: nothing is ever measured where all fails, so
that the improvement expected there stays what the best measured configurations promise."""

_MOST_PENDING = 64
"""Running trials that are taken into account."""


class Surrogate:
    """What is known of the candidates, as a function of the observations in their order.

    The kernel is fitted when it is built; later observations change the posterior only. So its
    state depends on nothing but the observations, however many are told at a time.

    Args:
        candidates: what may be proposed.
        success: of these candidates; it may know the first observations already.
        describe: what the model sees of rows.
        groups: for each column of the features, the parameter that it belongs to.
        observed: row and value (None for failures) of every trial up to the last success that
            counts for the fit.
    """

    def __init__(
        self,
        candidates: Candidates,
        success: SuccessModel,
        describe: Callable[[Sequence[int]], Points],
        groups: NDArray[np.int64],
        observed: Sequence[tuple[int, float | None]],
    ) -> None:
        self.candidates = candidates
        self.describe = describe
        self._values: list[float] = [value for _, value in observed if value is not None]
        self._rows: list[int] = [row for row, value in observed if value is not None]
        self._pending: list[int] = []
        values = np.array(self._values)
        self._kept = informative(values, _MOST_KEPT)
        fitted = informative(values, _MOST_FITTED)
        kernel = fit(describe([self._rows[at] for at in fitted]), response(values)[fitted], groups)
        points = describe([self._rows[at] for at in self._kept])
        capacity = len(self._kept) + LONGEST_STEP + _MOST_PENDING
        self._posterior = Posterior(kernel, candidates.points, points, capacity)
        self._success = success
        for row, value in observed[len(success) :]:
            success.observe(describe([row]), value is not None)

    def observe(self, row: int, value: float | None) -> None:
        """Take note of one trial more."""
        point = self.describe([row])
        self._success.observe(point, value is not None)
        if value is None:
            return
        at = len(self._kept)
        if self._pending[:1] == [row]:
            self._pending.pop(0)
        else:
            self._posterior.truncate(at)
            self._pending.clear()
            self._posterior.append(point)
        self._posterior.settle(at + 1)
        self._kept.append(len(self._values))
        self._values.append(value)
        self._rows.append(row)
        if value == min(self._values):
            self._widen(row)

    def expect(self, pending: Sequence[int]) -> None:
        """Take note of which trials are running now."""
        wanted = list(pending[:_MOST_PENDING])
        pairs = enumerate(zip(wanted, self._pending, strict=False))
        shared = min(len(wanted), len(self._pending))
        same = next((at for at, (new, old) in pairs if new != old), shared)
        self._posterior.truncate(len(self._kept) + same)
        for row in wanted[same:]:
            self._posterior.append(self.describe([row]))
        self._pending = wanted

    @property
    def best_row(self) -> int:
        """The row with the smallest value."""
        return self._rows[int(np.argmin(self._values))]

    def scores(self) -> NDArray[np.float32]:
        """How promising each candidate is: log expected improvement, and chance of success."""
        responses = response(np.array(self._values))[self._kept]
        best = float(self._posterior.fitted(responses).min())
        mean = self._posterior.mean(responses)
        improvement = log_expected_improvement(mean, self._posterior.variance, best)
        return np.asarray(improvement + _CAUTION * self._success.log_probability())

    def _widen(self, row: int) -> None:
        if self.candidates.whole:
            return
        self._posterior.truncate(len(self._kept))
        self._pending.clear()
        added = self.candidates.widen(row)
        self._posterior.widen(added)
        self._success.widen(added)
