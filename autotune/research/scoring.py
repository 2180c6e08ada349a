"""Scores of searches on recorded spaces, and what is needed to believe them.

Two scores stand beside each other. `run_score` goes to a fixed number of evaluations. The score
for papers ends where random search is expected to be almost done, and takes differences within
the recording's noise for none. That cut-off, and the aggregate score in evaluations and seconds,
are those of "A methodology for comparing optimization algorithms for auto-tuning" (Willemsen,
Schoonhoven, Filipovic, Torring, van Nieuwpoort, van Werkhoven; Future Generation Computer
Systems, 2024).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from autotune.core.configuration import Candidate, Configuration
from autotune.research.space import RecordedSpace
from autotune.space import SearchSpace, SpaceUnion

FIRST_SCORED = 10
"""The first evaluations are left out of the score: every search begins with a few blind ones."""

COVERED = 0.95
"""Part of the way from the median to the optimum that random search has gone at the cut-off."""

_MOMENTS = 50
"""Equidistant moments at which the aggregate score in seconds looks."""

_ORDERS = 40_000
"""Random orders whose mean is random search by the clock: a standard error of 0.005 of a score."""

AHEAD = 0.1
"""A configuration is isolated if it is faster by this share than all its neighbours."""

_MOST_LOOKED_AT = 100
"""Fastest configurations whose neighbours are looked at: a hundredth of all, at most so many."""

_RESAMPLES = 10_000

_ALL_SIGNS = 20
"""The most differences whose every combination of signs is looked at."""


def expected_random_best(values: NDArray[np.float64], budget: int) -> NDArray[np.float64]:
    """The expected best value after 1, 2, ... draws without replacement from all configurations.

    Analytic, not sampled: with the N values in ascending order, the smallest of i draws is beyond
    the j-th with probability C(N - j, i) / C(N, i), so that E[min] = v_1 + sum over j of
    (v_{j+1} - v_j) C(N - j, i) / C(N, i). Failures count as draws; until a draw succeeds, the
    best is defined as the worst value recorded.

    Args:
        values: shape (configurations,), NaN where they failed.
        budget: draws, at most as many as there are configurations.

    Returns:
        Shape (budget,), in the unit of the values.
    """
    ordered = np.sort(np.where(np.isnan(values), np.nanmax(values), values))
    steps = np.diff(ordered)
    count = len(ordered)
    left = count - np.arange(1, count)  # configurations beyond the j-th
    beyond = left / count  # probability that one draw is
    expected = np.empty(budget)
    for draws in range(1, budget + 1):
        expected[draws - 1] = ordered[0] + steps @ beyond
        if draws < count:
            beyond = beyond * np.maximum(left - draws, 0) / (count - draws)
    return expected


def best_so_far(
    values: NDArray[np.float64], rows: NDArray[np.int64], budget: int
) -> NDArray[np.float64]:
    """The best value after 1, 2, ... evaluations of a run; infinite until one succeeds.

    A run that ended early keeps its best. Shape (budget,).
    """
    seen = values[rows[:budget]]
    best = np.minimum.accumulate(np.where(np.isnan(seen), np.inf, seen))
    last = best[-1] if len(best) else np.inf
    return np.concatenate([best, np.full(budget - len(best), last)])


def run_score(values: NDArray[np.float64], rows: NDArray[np.int64], budget: int) -> float:
    """The part of the way from uniform random search to the optimum that a run covers, on average.

    The mean over evaluations 10 to `budget` of (random - best) / (random - optimum), where
    "random" is `expected_random_best`: 0 for random search in expectation, 1 for a search that
    begins with the optimum, below 0 for one that is worse than random. Until a run has a success
    its best is the worst value recorded. Evaluations by which random search is sure to have the
    optimum say nothing and are left out; 1 when there are no others.
    """
    return curve_score(values, np.minimum(best_so_far(values, rows, budget), np.nanmax(values)))


def curve_score(values: NDArray[np.float64], best: NDArray[np.float64]) -> float:
    """`run_score` of a run by the value that it has at each evaluation.

    Args:
        values: shape (configurations,), NaN where they failed.
        best: shape (budget,).
    """
    first = min(FIRST_SCORED, len(best)) - 1
    random = expected_random_best(values, len(best))[first:]
    left, telling = room(values, random)
    if not telling.any():
        return 1.0
    return float(np.mean((random - best[first:])[telling] / left[telling]))


def room(
    values: NDArray[np.float64], random: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The distance of random search from the optimum, and where there is any."""
    optimum = np.nanmin(values)
    left = random - optimum
    return left, left > 1e-12 * optimum


@dataclass(frozen=True, slots=True)
class PaperScore:
    """Measures of one sampler on one recorded space, for papers.

    Attributes:
        cut_off: evaluations after which random search is expected to have gone 95% of the way
            from the median of the space to its optimum.
        noise: relative noise; a best value that is nearer to the optimum counts as the optimum.
        scores: of every run, the mean over evaluations 10 to the cut-off (or the budget, if that
            is less; from the middle on, where that is before 10) of the part of random search's
            regret that it saves; NaN where random search is within the noise by then.
        aggregate: the community's aggregate score, over all evaluations up to there.
        aggregate_s: the same over equidistant moments of as many average evaluations' time, for
            which runs go on as `clock_end` says; None where the recording does not know the time
            of evaluations.
    """

    cut_off: int
    noise: float
    scores: tuple[float, ...]
    aggregate: float
    aggregate_s: float | None

    @property
    def telling(self) -> bool:
        """Scores tell samplers apart."""
        return not math.isnan(self.scores[0])

    @property
    def score(self) -> float:
        """Mean over the runs: 0 is random search, 1 is within the noise of the optimum at once."""
        return float(np.mean(self.scores))


def cut_off(values: NDArray[np.float64]) -> int:
    """The evaluations after which random search is expected to be almost done; at least 1.

    That is 95% of the way from the median to the optimum of the configurations that ran.
    """
    from scipy.special import gammaln  # late: it takes a quarter of a second

    ordered = np.sort(np.where(np.isnan(values), np.nanmax(values), values))
    goal = np.nanmin(values) + (1 - COVERED) * (np.nanmedian(values) - np.nanmin(values))
    steps, count = np.diff(ordered), len(ordered)
    beyond = count - np.arange(1, count)

    def expected(draws: int) -> float:
        """The expected best of so many draws, as `expected_random_best` has it."""
        able = beyond >= draws
        logs = gammaln(beyond[able] + 1) - gammaln(beyond[able] - draws + 1)
        shares = np.exp(logs - gammaln(count + 1) + gammaln(count - draws + 1))
        return float(ordered[0] + steps[able] @ shares)

    low, high = 1, count
    while low < high:
        middle = (low + high) // 2
        if expected(middle) <= goal:
            high = middle
        else:
            low = middle + 1
    return low


def paper_score(
    values: NDArray[np.float64],
    runs: Sequence[NDArray[np.int64]],
    budget: int,
    noise: float,
    seconds: NDArray[np.float64] | None = None,
) -> PaperScore:
    """The measures for papers of the runs of one sampler.

    Args:
        values: of the recorded space, by row; NaN where a configuration failed.
        runs: the rows that every run evaluated, in order.
        budget: evaluations of a run.
        noise: relative noise of the values.
        seconds: wall time of each evaluation, by row.
    """
    cut = cut_off(values)
    end, optimum = min(cut, budget), float(np.nanmin(values))
    random = expected_random_best(values, end)
    best = np.stack([best_so_far(values, rows, end) for rows in runs])
    best = np.minimum(best, np.nanmax(values))
    scores = settled_scores(random, best, optimum, noise)
    aggregate_s = None
    if seconds is not None:
        aggregate_s = _over_time(values, runs, end, seconds)
    aggregate = _saved(random, best.mean(axis=0), optimum)
    return PaperScore(cut, noise, scores, aggregate, aggregate_s)


def settled_scores(
    random: NDArray[np.float64], best: NDArray[np.float64], optimum: float, noise: float
) -> tuple[float, ...]:
    """`PaperScore.scores` of runs by the value that each has at each evaluation.

    Args:
        random: `expected_random_best`, shape (evaluations,), up to the cut-off or the budget.
        best: shape (runs, evaluations).
        optimum: the least value of all.
        noise: relative noise of the values.
    """
    within = (1 + noise) * optimum
    first = min(FIRST_SCORED, -(-len(random) // 2)) - 1
    telling = random[first:] > within
    if not telling.any():
        return (math.nan,) * len(best)
    left = random[first:][telling] - optimum
    settled = np.where(best <= within, optimum, best)[:, first:][:, telling]
    saved = (random[first:][telling] - settled) / left
    return tuple(saved.mean(axis=1).tolist())


def _saved(random: NDArray[np.float64], best: NDArray[np.float64], optimum: float) -> float:
    """The part of random search's regret that the mean run's best saves, where there is any."""
    left = random - optimum
    telling = left > 1e-12 * optimum
    saved = (random - best)[telling] / left[telling]
    return float(saved.mean()) if telling.any() else 1.0


def clock_end(
    values: NDArray[np.float64], budget: int, seconds: NDArray[np.float64] | None
) -> float:
    """Seconds of evaluations that a run needs for its aggregate score in seconds; 0 for none.

    They are as many average evaluations' as the score in evaluations looks at. A run that tries
    what is cheap needs more evaluations for them.
    """
    return 0.0 if seconds is None else min(cut_off(values), budget) * float(seconds.mean())


def _over_time(
    values: NDArray[np.float64],
    runs: Sequence[NDArray[np.int64]],
    end: int,
    seconds: NDArray[np.float64],
) -> float:
    """The aggregate score by the clock of evaluations; what the samplers take is not in it.

    Random search is the mean of many random orders by the same clock: what an evaluation takes
    goes with its value, so that nothing simple holds of both.
    """
    filled = np.where(np.isnan(values), np.nanmax(values), values)
    random = _random_by_clock(filled.tobytes(), seconds.tobytes(), end)
    return _saved(random, _by_clock(filled, runs, end, seconds), float(filled.min()))


@lru_cache(maxsize=1)  # the samplers on a recording are scored one after the other
def _random_by_clock(values: bytes, seconds: bytes, end: int) -> NDArray[np.float64]:
    """`_by_clock` of random search."""
    each, spent = np.frombuffer(values), np.frombuffer(seconds)
    # No order has more evaluations before the end than the one that begins with the shortest.
    shortest = np.cumsum(np.sort(spent))
    most = min(len(each), 1 + int(np.searchsorted(shortest, end * spent.mean(), side="right")))
    rng = np.random.default_rng(0)
    orders = (rng.choice(len(each), most, replace=False) for _ in range(_ORDERS))
    return _by_clock(each, orders, end, spent)


def _by_clock(
    values: NDArray[np.float64],
    runs: Iterable[NDArray[np.int64]],
    end: int,
    seconds: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The best of the mean run at each moment: of the evaluations that have ended by then."""
    moments = np.linspace(0, end * float(seconds.mean()), _MOMENTS + 1)[1:]
    worst, bests = values.max(), []
    for rows in runs:
        best = np.append(worst, np.minimum.accumulate(values[rows]))
        bests.append(best[np.searchsorted(np.cumsum(seconds[rows]), moments, side="right")])
    return np.asarray(np.mean(bests, axis=0))


@dataclass(frozen=True, slots=True)
class Isolated:
    """A configuration far ahead of all its neighbours: an isolated optimum, or a glitch.

    Attributes:
        point: the configuration, or a union's candidate.
        value: what was recorded.
        ahead: by which share it is faster than its fastest neighbour.
    """

    point: Candidate | Configuration
    value: float
    ahead: float


def isolated(recorded: RecordedSpace) -> list[Isolated]:
    """The isolated ones among the fastest hundredth of the configurations, fastest first.

    Neighbours differ in one parameter. Whether one that is isolated is real, only more
    measurements can tell: nothing is left out for it.
    """
    whole = recorded.space
    spaces = list(whole.spaces.values()) if isinstance(whole, SpaceUnion) else [whole]
    ran = np.flatnonzero(~np.isnan(recorded.values))
    ranked = ran[np.argsort(recorded.values[ran], kind="stable")]
    fast = ranked[: min(_MOST_LOOKED_AT, math.ceil(len(ran) / 100))]
    found, start = [], 0
    for space in spaces:
        codes = _codes(space)
        values = recorded.values[start : start + len(codes)]
        for row in fast[(fast >= start) & (fast < start + len(codes))].tolist():
            beside = (codes != codes[row - start]).sum(axis=1) == 1
            value, near = float(recorded.values[row]), values[beside & ~np.isnan(values)]
            if len(near) and (ahead := 1 - value / near.min()) >= AHEAD:
                found.append(Isolated(recorded.space[row], value, float(ahead)))
        start += len(codes)
    return sorted(found, key=lambda one: one.value)


def _codes(space: SearchSpace) -> NDArray[np.int32]:
    """The values of each configuration by their positions; shape (rows, parameters)."""
    columns = []
    for parameter, column in zip(space.parameters, space.columns.values(), strict=True):
        position = {value: number for number, value in enumerate(parameter.values)}
        columns.append(np.array([position[value] for value in column.tolist()], dtype=np.int32))
    return np.stack(columns, axis=1)


@dataclass(frozen=True, slots=True)
class Paired:
    """A difference of two samplers' scores over the same spaces and seeds.

    Attributes:
        difference: mean over the spaces of the first one's mean score less the second one's.
        low: lower end of its 95% bootstrap interval, `high` the upper one; None of a single pair.
        p: two-sided probability of as large a difference if every sign were chance; None of too
            few spaces (or seeds, on one space) for less than 5%.
        ahead: spaces on which the first one's mean score is the higher.
    """

    difference: float
    low: float | None
    high: float | None
    p: float | None
    ahead: int


def paired(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> Paired:
    """Compare scores by space and seed: a paired bootstrap, and an exact test of signs.

    Spaces are drawn again where there are several, and the seeds of each: pairs stay pairs. The
    test flips the differences of whole spaces, or of seeds where there is one space.

    Args:
        one: scores by space, and in each by seed.
        other: the other sampler's, of the same spaces and seeds.
    """
    rng = np.random.default_rng(0)
    pairs = [np.subtract(a, b) for a, b in zip(one, other, strict=True)]
    means = np.array([each.mean() for each in pairs])
    drawn = np.stack(
        [each[rng.integers(0, len(each), (_RESAMPLES, len(each)))].mean(axis=1) for each in pairs]
    )
    if len(pairs) > 1:
        chosen = rng.integers(0, len(pairs), (len(pairs), _RESAMPLES))
        drawn = drawn[chosen, np.arange(_RESAMPLES)]
    units = means if len(pairs) > 1 else pairs[0]
    low, high = np.quantile(drawn.mean(axis=0), (0.025, 0.975)) if len(units) > 1 else (None, None)
    return Paired(float(means.mean()), low, high, _flipped(units), int((means > 0).sum()))


def _flipped(differences: NDArray[np.float64]) -> float | None:
    """The two-sided p of the sign-flip test; None where it cannot be below 5%.

    Exact: the share of all signs whose sum is as far from 0, of which the two that all agree are
    the least. Of many differences, the share of random signs, with those that were seen.
    """
    count = len(differences)
    if 2.0 ** (1 - count) > 0.05:
        return None
    if count <= _ALL_SIGNS:
        sums = differences[:1]  # the other sign of the first one has the same sums, mirrored
        for each in differences[1:]:
            sums = np.concatenate([sums + each, sums - each])
    else:
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (_RESAMPLES, count))
        sums = np.append(signs @ differences, differences.sum())
    # Sums that are equal but for their rounding are equal.
    least = abs(differences.sum()) - 1e-12 * np.abs(differences).sum()
    return float(np.mean(np.abs(sums) >= least))
