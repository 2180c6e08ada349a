"""Priors: what is expected of configurations before any is measured."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.core.configuration import Candidate, Value
from autotune.core.errors import InputError
from autotune.core.printable import shown
from autotune.search.claims import StudySpace
from autotune.search.model.features import FeatureMap
from autotune.search.model.gaussian import Posterior, fit
from autotune.search.model.surrogate import informative, response

_MOST_LEARNED = 256
_MOST_FITTED = 120
"""Measurements of a prior that its process, and the process's kernel, are fitted to."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """Times that a prior expects at the rows of a space, and which parameters it finds to matter.

    Attributes:
        times: expected logarithms of times at some rows, up to a factor and a constant; NaN: no
            idea.
        lengths: length scales of parameters that its measurements show, by name.
    """

    times: Callable[[Sequence[int]], NDArray[np.float64]]
    lengths: Mapping[str, float] = field(default_factory=dict)


Estimate: TypeAlias = Callable[[Mapping[str, NDArray[np.generic]]], NDArray[np.float64]]
"""The same from columns of parameter values, by name."""

_SAYS_NOTHING = 1e-9
"""Spread of an expectation, relative to the mean, below which there is none."""


def standardised(expectation: Expectation, rows: Sequence[int]) -> Expectation:
    """The expectation with mean 0 and standard deviation 1 over `rows`; 0 where it has no idea."""
    expected = expectation.times(rows)
    known = expected[np.isfinite(expected)]
    middle = float(known.mean()) if len(known) else 0.0
    spread = float(known.std()) if len(known) else 0.0
    scale = 1.0 / spread if spread > _SAYS_NOTHING * max(1.0, abs(middle)) else 0.0

    def scaled(rows: Sequence[int]) -> NDArray[np.float64]:
        found = (expectation.times(rows) - middle) * scale
        return np.where(np.isfinite(found), found, 0.0)

    return replace(expectation, times=scaled)


def agreement(expected: NDArray[np.float64], found: NDArray[np.float64]) -> float:
    """Correlation of what was expected of some rows with what was found; 0 of a constant."""
    spreads = float(expected.std()) * float(found.std())
    if not spreads:
        return 0.0
    return float(np.mean((expected - expected.mean()) * (found - found.mean()))) / spreads


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

    A Gaussian process is fitted to the measurements; parameters are matched by name, so that the
    spaces may differ in values, in restrictions, and in parameters that one of them lacks.

    Args:
        measurements: points of some space, configurations or candidates, with their times in any
            unit; at least two, of which the better half and a spread of the rest are used where
            there are many.

    Raises:
        InputError: there are fewer than two, or a time is not a finite number.
    """

    def __init__(
        self, measurements: Iterable[tuple[Candidate | Mapping[str, Value], float]]
    ) -> None:
        try:
            known = [(point, float(time)) for point, time in measurements]
        except (TypeError, ValueError) as error:
            raise InputError(
                f"a prior needs pairs of a point and its time, got {shown(measurements)}"
            ) from error
        times = np.array([time for _, time in known], dtype=np.float64)
        finite = int(np.isfinite(times).sum())
        if finite < max(2, len(known)):
            raise InputError(
                f"a prior needs at least two measurements with finite times, got {finite} of "
                f"{len(known)}: leave out failures, or the prior"
            )
        chosen = informative(times, _MOST_LEARNED)
        self._points = [known[at][0] for at in chosen]
        self._responses = response(times[chosen])

    def over(self, space: StudySpace) -> Expectation:
        """The process's mean at the rows of a space, and its length scales."""
        features = FeatureMap(space, self._points)
        known = features.of_points(self._points)
        some = informative(self._responses, _MOST_FITTED)
        kernel = fit(known[some], self._responses[some], features.groups)
        posterior = Posterior(kernel, known[:0], known, len(known))
        names = [features.groups.names[group] for group in features.groups.columns]
        return Expectation(
            lambda rows: posterior.predict(features.of(rows), self._responses),
            dict(zip(names, (1 / kernel.scales).tolist(), strict=True)),
        )


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

        def times(rows: Sequence[int]) -> NDArray[np.float64]:
            expected = np.full(len(rows), np.nan)
            for family, inside, columns in features.columns(rows):
                if family in self._estimates and len(inside):
                    expected[inside] = self._estimates[family](columns)
            return expected

        return Expectation(times)
