"""A model of what was observed, kept for the candidates that may be next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.search.model.acquisition import log_expected_improvement
from autotune.search.model.covariance import fit
from autotune.search.model.posterior import Posterior
from autotune.search.model.response import informative, response
from autotune.search.model.schedule import LONGEST_STEP

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from autotune.search.model.candidates import Candidates
    from autotune.search.model.features import Points
    from autotune.search.model.success import SuccessModel

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

    Attributes:
        candidates: the same.
        describe: the same.
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
        kernel = fit(
            describe([self._rows[each] for each in fitted]), response(values)[fitted], groups
        )
        points = describe([self._rows[each] for each in self._kept])
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
        same = 0
        while same < min(len(wanted), len(self._pending)) and wanted[same] == self._pending[same]:
            same += 1
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
