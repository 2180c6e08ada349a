"""Models of what was observed: how fast the candidates are, and whether they work."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from autotune.search.model.features import Candidates, Groups, Points
from autotune.search.model.gaussian import Kernel, Posterior, fit, lower_factor

_GOOD = 0.3
"""Share of the values that are told apart in full."""

_NARROWEST = 1e-3
"""Spread of log values below which differences are taken for noise."""


def response(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standardised responses to values of which small ones are good.

    Values above 0 are replaced by their logarithms. Beyond the best third the excess is compressed
    logarithmically: how bad bad configurations are matters little, and must not set the scale.

    Values are finite, at least one. Responses have mean 0 and, unless all are equal, standard
    deviation 1.
    """
    squeezed, spread = _squeezed(values)
    return np.asarray((squeezed - squeezed.mean()) / spread)


def _squeezed(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Responses before they are standardised, and their spread."""
    logs = np.log(values) if values.min() > 0 else values / max(1e-300, np.abs(values).max())
    middle = np.interp(_GOOD * (len(logs) - 1), np.arange(len(logs)), np.sort(logs))
    width = max(float(middle - logs.min()), _NARROWEST)
    excess = np.maximum(logs - middle, 0.0)
    squeezed = np.minimum(logs, middle) + width * np.log1p(excess / width)
    spread = float(squeezed.std())
    return squeezed, spread if spread > 1e-9 else 1.0


def informative(values: NDArray[np.float64], most: int) -> list[int]:
    """Positions of values to learn from: the better half of `most`, and a spread of the rest."""
    if len(values) <= most:
        return list(range(len(values)))
    order = np.argsort(values, kind="stable")
    rest = order[most // 2 :]
    spread = rest[np.linspace(0, len(rest) - 1, most - most // 2).astype(np.int64)]
    return sorted([*order[: most // 2].tolist(), *spread.tolist()])


FIRST_FIT = 4
"""Observations before there is a model."""

LONGEST_STEP = 64
"""Observations after which a model is fitted anew, at the latest."""

_GROWTH = 1.25


def refit_at(count: int) -> int:
    """The last of these numbers up to `count`; the first one where `count` is less.

    They depend on nothing but the count, so that a study that is resumed fits its models to the
    same observations as one that was never interrupted.
    """
    number = FIRST_FIT
    while (following := min(int(number * _GROWTH) + 1, number + LONGEST_STEP)) <= count:
        number = following
    return min(number, max(count, 1))


_LEAST_VARIANCE = np.float32(1e-10)

_FAR = -30.0
_NEAR = 30.0
_STEP = 1 / 64
"""Where the tabulated function begins and ends, and how finely it is tabulated."""


def log_expected_improvement(
    mean: NDArray[np.float32], variance: NDArray[np.float32], best: float
) -> NDArray[np.float32]:
    """Logarithm of the expected improvement on `best`, where small is good.

    The logarithm keeps its order where the improvement itself underflows, so that a search that
    has nearly converged still knows the most promising point (Ament et al., "Unexpected
    improvements to expected improvement for Bayesian optimization", 2023).
    """
    deviation = np.sqrt(np.maximum(variance, _LEAST_VARIANCE))
    z = (np.float32(best) - mean) / deviation
    # A table, since there is one value for every configuration of the space.
    values, slopes = _table()
    place = (np.clip(z, _FAR, _NEAR - _STEP) - np.float32(_FAR)) * np.float32(1 / _STEP)
    index = place.astype(np.int32)
    improvement = values[index] + slopes[index] * (place - index)
    beyond = np.nonzero(z < _FAR)[0]
    improvement[beyond] = _log_tail(z[beyond].astype(np.float64))
    improvement += np.log(deviation)
    return np.asarray(improvement)


@cache
def _table() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """log(phi(z) + z Phi(z)), z in steps, and its increments."""
    from scipy.special import erfcx, ndtr

    z = np.arange(_FAR, _NEAR + _STEP, _STEP)
    low, high = np.minimum(z, -1.0), np.maximum(z, -1.0)
    # Here the two terms cancel, and their ratio to phi does not underflow.
    ratio = np.log1p(low * math.sqrt(math.pi / 2) * erfcx(-low / math.sqrt(2)))
    below = ratio - 0.5 * low * low - 0.5 * math.log(2 * math.pi)
    above = np.log(np.exp(-0.5 * high * high) / math.sqrt(2 * math.pi) + high * ndtr(high))
    values = np.where(z > -1.0, above, below)
    return values[:-1].astype(np.float32), np.diff(values).astype(np.float32)


def _log_tail(z: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same for z far below 0, to the leading order in 1 / z."""
    return np.asarray(-0.5 * z * z - 2 * np.log(-z) - 0.5 * math.log(2 * math.pi))


_MOST_LEARNED = 96
"""Observations that a fit begins with: the latest, which are where the search is."""

_LEAST = 1e-4
"""Probability below which nothing is thought to be."""


class SuccessModel:
    """Learns from failures: a Gaussian process on +1 for success and -1 for failure.

    Failures come of exhausted resources, which are products of powers of parameters: beside the
    kernel's other terms there is one that is linear in the features, so that a limit seen in one
    place holds beyond it. Regression on labels is cheap, and as good a classifier as any here
    (Rasmussen and Williams, "Gaussian Processes for Machine Learning", section 6.5). `groups` are
    those of the `FeatureMap`, and `candidates` are watched first.
    """

    def __init__(self, candidates: Points, groups: Groups) -> None:
        self._candidates = _linear(candidates)
        self._groups = groups
        self._points = self._candidates[:0]
        self._labels: list[float] = []
        # Nothing is computed before the first failure: many spaces have none.
        self._kernel: Kernel | None = None
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

    def watch(self, candidates: Points) -> None:
        """Have other candidates in place of those there are."""
        linear = _linear(candidates)
        self._candidates = linear[:0]  # nothing is computed of the old ones any more
        if self._failed:
            self._updated().watch(linear)
        self._candidates = linear

    def widen(self, candidates: Points) -> None:
        """Add candidates after those there are."""
        added = _linear(candidates)
        if self._failed:
            self._updated().widen(added)
        self._candidates = self._candidates + added

    def log_probability(self) -> NDArray[np.float32] | float:
        """Logarithm of the probability of success of every candidate; 0 before any failure."""
        from scipy.special import ndtr

        if not self._failed:
            return 0.0
        posterior, overall = self._updated(), self._overall
        labels = np.array(self._labels[self._start :])
        mean = posterior.mean(labels - overall) + np.float32(overall)
        deviation = np.sqrt(np.maximum(posterior.variance, 0.0) + np.float32(posterior.noise))
        return np.asarray(np.log(np.maximum(ndtr(mean / deviation), np.float32(_LEAST))))

    @property
    def _failed(self) -> bool:
        return -1.0 in self._labels

    def _updated(self) -> Posterior:
        """Up to date with what was observed, as if it had been asked for after each."""
        fitted = refit_at(len(self))
        self._start = max(0, fitted - _MOST_LEARNED)
        points = self._points[self._start : fitted]
        if self._kernel is None or fitted > self._fitted:
            labels = np.array(self._labels[self._start : fitted])
            # The overall rate as it is at a fit stands for what is far away until the next one.
            overall = self._overall = float(np.mean(self._labels[:fitted]))
            self._kernel = fit(points, labels - overall, self._groups, weight=0.0)
            self._fitted, self._posterior = fitted, None
        if self._posterior is None:
            capacity = len(points) + LONGEST_STEP
            self._posterior = Posterior(self._kernel, self._candidates, points, capacity)
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

_MOST_KEPT = 1024
"""Observations that a model begins with."""

_MOST_SCANNED = 64
"""Observations that all rows of a space are judged by, to find the promising ones."""

_MOST_TRACKED = 2048
"""Rows that are followed between two fits: the most promising at the first one."""

_BLOCK = 2048
"""Rows that are judged together: what is kept of a block stays in the cache."""

_CAUTION = 2.0
"""Power of the probability of success. More than 1: nothing is ever measured where all fails, so
that the improvement expected there stays what the best measured configurations promise."""

_MOST_DRAWN, _DRAWS = 256, 512
"""Candidates that are drawn together, and how often."""

_MOST_PENDING = 64
"""Running trials that are taken into account."""


class Surrogate:
    """A model of the promising candidates, as a function of the observations in their order.

    The kernel is fitted when it is built, and all rows are scored once; later observations change
    the posterior of the best of them only. So its state depends on nothing but the observations,
    however many are told at a time.

    Args:
        everywhere: the rows that may be proposed.
        success: of these candidates; it may know the first observations already.
        groups: those of the `FeatureMap`.
        lengths: expected length scales of some of them, by name.
        observed: row and value (None for failures) up to the last success that is fitted.
    """

    def __init__(
        self,
        everywhere: Candidates,
        success: SuccessModel,
        groups: Groups,
        lengths: Mapping[str, float],
        observed: Sequence[tuple[int, float | None]],
    ) -> None:
        self._values: list[float] = [value for _, value in observed if value is not None]
        self._rows: list[int] = [row for row, value in observed if value is not None]
        self._pending: list[int] = []
        self._success = success
        for row, value in observed[len(success) :]:
            success.observe(everywhere.seen([row]), value is not None)
        values = np.array(self._values)
        fitted = informative(values, _MOST_FITTED)
        self.candidates = everywhere
        kernel = fit(self._seen(fitted), response(values)[fitted], groups, lengths=lengths)
        self.candidates = self._promising(everywhere, kernel)
        self._kept = informative(values, _MOST_KEPT)
        capacity = len(self._kept) + LONGEST_STEP + _MOST_PENDING
        points = self._seen(self._kept)
        self._posterior = Posterior(kernel, self.candidates.points, points, capacity)
        success.watch(self.candidates.points)

    def observe(self, row: int, value: float | None) -> None:
        """Take note of one trial more."""
        point = self.candidates.seen([row])
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
            self._posterior.append(self.candidates.seen([row]))
        self._pending = wanted

    @property
    def best_row(self) -> int:
        """The row with the smallest value."""
        return self._rows[int(np.argmin(self._values))]

    def scores(self) -> NDArray[np.float32]:
        """Promise of every candidate: log expected improvement, and chance of success."""
        return self._scores(self._posterior, self._kept)

    def _scores(self, posterior: Posterior, kept: Sequence[int]) -> NDArray[np.float32]:
        responses = response(np.array(self._values))[kept]
        best = float(posterior.fitted(responses).min())
        mean = posterior.mean(responses)
        improvement = log_expected_improvement(mean, posterior.variance, best)
        return np.asarray(improvement + _CAUTION * self._success.log_probability())

    def chance(self, gain: float, visited: Collection[int], rng: np.random.Generator) -> float:
        """Probability that an unvisited candidate is faster than the best by more than a share.

        The likeliest candidates are drawn together from the posterior, so that neighbours, which
        are fast or slow together, do not count as so many chances.
        """
        self.expect(())
        values = np.array(self._values)
        responses, spread = response(values)[self._kept], _squeezed(values)[1]
        goal = float(self._posterior.fitted(responses).min()) - math.log1p(gain) / spread
        works = np.exp(np.broadcast_to(self._success.log_probability(), len(self.candidates)))
        mean = self._posterior.mean(responses)
        hopes = log_expected_improvement(mean, self._posterior.variance, goal) + np.log(works)
        hopes[self.candidates.positions(visited)] = -np.inf
        likely = np.argsort(-hopes)[:_MOST_DRAWN]
        likely = likely[hopes[likely] > -np.inf]
        if not len(likely):
            return 0.0
        factor = lower_factor(self._posterior.covariance(likely.tolist()))
        drawn = mean[likely, None] + factor @ rng.standard_normal((len(likely), _DRAWS))
        reached = (drawn < goal) & (rng.random(drawn.shape) < works[likely, None])
        return float(reached.any(axis=0).mean())

    def _promising(self, everywhere: Candidates, kernel: Kernel) -> Candidates:
        """The rows with the best scores, and the neighbours of the best one measured."""
        if len(everywhere) <= _MOST_TRACKED:
            return everywhere
        kept = informative(np.array(self._values), _MOST_SCANNED)
        posterior = Posterior(kernel, everywhere.points[:0], self._seen(kept), len(kept))
        scores = []
        for start in range(0, len(everywhere), _BLOCK):
            block = everywhere.points[start : start + _BLOCK]
            posterior.watch(block)
            self._success.watch(block)
            scores.append(self._scores(posterior, kept))
        order = np.argpartition(-np.concatenate(scores), _MOST_TRACKED)
        promising = everywhere.part(np.sort(order[:_MOST_TRACKED]).tolist())
        promising.widen(self.best_row)
        return promising

    def _seen(self, kept: Sequence[int]) -> Points:
        return self.candidates.seen([self._rows[at] for at in kept])

    def _widen(self, row: int) -> None:
        if self.candidates.whole:
            return
        self._posterior.truncate(len(self._kept))
        self._pending.clear()
        added = self.candidates.widen(row)
        self._posterior.widen(added)
        self._success.widen(added)
