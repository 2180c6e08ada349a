"""Priors: what is expected of configurations before any is measured, and how far to trust it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.core.configuration import Candidate, Value
from autotune.core.errors import InputError
from autotune.search.claims import StudySpace
from autotune.search.model.features import (
    LARGEST_LISTED,
    FeatureMap,
    Points,
    drawn_rows,
    programs,
)
from autotune.search.model.gaussian import Posterior, fit, left_out
from autotune.search.model.surrogate import informative, response

_MOST_SMOOTHED = 256
_MOST_FITTED = 120
"""Measurements of a prior that its process, and the process's kernel, are fitted to."""

Expectation: TypeAlias = Callable[[Sequence[int]], NDArray[np.float64]]
"""Expected logarithms of times at some rows, up to a factor and a constant; NaN: no idea."""

Estimate: TypeAlias = Callable[[Mapping[str, NDArray[np.generic]]], NDArray[np.float64]]
"""The same from columns of parameter values, by name."""

_DOUBT = 0.5
"""Probability of the model without priors beyond which none is believed."""

_SAYS_NOTHING = 1e-9
"""Spread of an expectation, relative to the mean, below which there is none."""


def standardised(expectation: Expectation, rows: Sequence[int]) -> Expectation:
    """The expectation with mean 0 and standard deviation 1 over `rows`; 0 where it has no idea."""
    expected = expectation(rows)
    known = expected[np.isfinite(expected)]
    middle = float(known.mean()) if len(known) else 0.0
    spread = float(known.std()) if len(known) else 0.0
    scale = 1.0 / spread if spread > _SAYS_NOTHING * max(1.0, abs(middle)) else 0.0

    def scaled(rows: Sequence[int]) -> NDArray[np.float64]:
        found = (expectation(rows) - middle) * scale
        return np.where(np.isfinite(found), found, 0.0)

    return scaled


class Prior(Protocol):
    """Expects something of configurations, right or wrong.

    Its scale does not matter: the sampler standardises what is expected over the space and learns
    from measurements what weight it deserves, which may be none or negative.
    """

    def over(self, space: StudySpace) -> Expectation:
        """The expectation of the rows of a space."""
        ...


class MeasuredPrior:
    """Expects what was measured elsewhere: for another problem size, or on another device.

    A configuration that was measured there is expected to be as it was; of the others a Gaussian
    process has an opinion. Parameters are matched by name, so that the spaces may differ in
    values, in restrictions, and in parameters that one of them lacks.

    Args:
        measurements: points of some space, configurations or candidates, with their times in any
            unit; at least two. The process is fitted to the better half of 256 and a spread of
            the rest.

    Raises:
        InputError: there are fewer than two, or a time is not a finite number.
    """

    def __init__(
        self, measurements: Iterable[tuple[Candidate | Mapping[str, Value], float]]
    ) -> None:
        known = list(measurements)
        times = np.array([time for _, time in known], dtype=np.float64)
        if len(known) < 2 or not np.isfinite(times).all():
            raise InputError(
                f"a prior needs at least two measurements with finite times, got {len(known)}: "
                "leave out failures, or the prior"
            )
        self._points = [point for point, _ in known]
        self._responses = response(times)

    def over(self, space: StudySpace) -> Expectation:
        """The measurements at the rows of a space, and the process's mean elsewhere."""
        features = FeatureMap(space, self._points)
        known = features.of_points(self._points)
        chosen = informative(self._responses, _MOST_SMOOTHED)
        points, responses = known[chosen], self._responses[chosen]
        some = informative(responses, _MOST_FITTED)
        kernel = fit(points[some], responses[some], features.groups)
        posterior = Posterior(kernel, points[:0], points, len(points))
        # Rows are those that were measured if they agree on all that both spaces have.
        shared = np.array([bool((levels >= 0).any()) for levels in known.levels])
        keys, places = np.unique(programs(known, shared), return_inverse=True)
        measured = np.bincount(places, self._responses) / np.bincount(places)

        def expectation(rows: Sequence[int]) -> NDArray[np.float64]:
            found = features.of(rows)
            expected = posterior.predict(found, responses)
            wanted = programs(found, shared)
            places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            return np.where(keys[places] == wanted, measured[places], expected)

        return expectation


class EstimatedPrior:
    """Expects what a formula says: a model of occupancy, traffic and waves, say.

    Args:
        estimates: expected logarithms of times from columns of parameter values, by family; for
            a space that is no union, by the empty name. What has no estimate, or one that is not
            finite, is expected to be like the mean of the rest.
    """

    def __init__(self, estimates: Mapping[str, Estimate]) -> None:
        self._estimates = dict(estimates)

    def over(self, space: StudySpace) -> Expectation:
        """The estimates at the rows of a space."""
        features = FeatureMap(space)

        def expectation(rows: Sequence[int]) -> NDArray[np.float64]:
            expected = np.full(len(rows), np.nan)
            for family, inside, columns in features.columns(rows):
                if family in self._estimates and len(inside):
                    expected[inside] = self._estimates[family](columns)
            return expected

        return expectation


class Expectations:
    """Several priors over a space, standardised, and a mixture of those that deserve it.

    Args:
        priors: what is expected.
        space: the valid rows.
        seed: of the rows that stand for a large space.
    """

    def __init__(self, priors: Sequence[Prior], space: StudySpace, seed: int) -> None:
        self._priors = priors
        self._space = space
        self._seed = seed

    def __len__(self) -> int:
        return len(self._priors)

    def of(self, rows: Sequence[int]) -> NDArray[np.float32]:
        """Expectations of some rows, shape (priors, rows)."""
        if self._space.size <= LARGEST_LISTED:
            return np.asarray(self._sampled[:, rows])
        return self._expected(rows)

    def favourites(self, most: int) -> list[int]:
        """The rows that the priors together think best of, the best first."""
        total = self._sampled.sum(axis=0)
        return [self._sample[at] for at in np.argsort(total, kind="stable")[:most].tolist()]

    def trust(
        self,
        rows: Sequence[int],
        points: Points,
        responses: NDArray[np.float64],
        groups: NDArray[np.int64],
    ) -> NDArray[np.float32]:
        """Weights of the priors, given what was measured at some rows; all 0: none is believed.

        Models without a prior, with each of them and with their mean foretell every measurement
        from all the others, and are weighted by how probable they found what was measured
        ("pseudo-Bayesian model averaging" with leave-one-out densities: Geisser and Eddy,
        "A predictive approach to model selection", 1979).
        """
        expected = self.of(rows)
        choices = np.eye(len(self), dtype=np.float32)
        if len(self) > 1:
            choices = np.vstack([choices, np.full((1, len(self)), 1 / len(self))])
        densities = [left_out(points, responses, groups)]
        for choice in choices:
            mixed = replace(points, expectations=(choice @ expected)[None].astype(np.float32))
            densities.append(left_out(mixed, responses, groups))
        chances = np.exp(np.array(densities) - max(densities))
        chances /= chances.sum()
        if chances[0] > _DOUBT:
            return np.zeros(len(self), dtype=np.float32)
        return np.asarray(chances[1:] @ choices, dtype=np.float32)

    @cached_property
    def _standardised(self) -> list[Expectation]:
        return [standardised(prior.over(self._space), self._sample) for prior in self._priors]

    @cached_property
    def _sample(self) -> Sequence[int]:
        """Rows that stand for the space: all of a small one."""
        return drawn_rows(self._space, (), self._seed) or range(self._space.size)

    @cached_property
    def _sampled(self) -> NDArray[np.float32]:
        return self._expected(self._sample)

    def _expected(self, rows: Sequence[int]) -> NDArray[np.float32]:
        return np.array([expect(rows) for expect in self._standardised], dtype=np.float32)
