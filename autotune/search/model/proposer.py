"""The sampler `auto`: proposes what a model of all valid configurations finds most promising."""

import math
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import chain
from statistics import geometric_mean

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from autotune.core import session
from autotune.core.configuration import Value
from autotune.search.claims import Ledger, StudySpace
from autotune.search.model.features import (
    Candidates,
    FeatureMap,
    History,
    HistoryReader,
    Points,
    drawn_rows,
    seeded,
)
from autotune.search.model.priors import Expectation, Prior, agreement, standardised
from autotune.search.model.surrogate import (
    FIRST_FIT,
    SuccessModel,
    Surrogate,
    refit_at,
    response,
)

_DESIGN = 7
"""Trials before the model takes over."""

_DESIGN_POOL = 200
"""Rows drawn for each of them, of which the one farthest from all earlier ones is taken."""

_FAVOURITES = 256
"""Rows that are kept of those that the priors think best of."""

_LOCAL_EVERY = 3
"""One proposal in so many changes a single parameter of the best configuration."""

_PRIOR_FITS = 20
"""Successful trials beyond which models are built without the priors: what they know is by then in
where the search has been, and what they are wrong about would keep it there. Which parameters
matter stays true: their length scales are expected ever after."""

_DOUBTED_FROM, _AGREEING = 8, 0.35
"""Successful trials from which a prior must agree with them: the least correlation."""

_DOUBTED_EVERY = 3
"""Of the first trials, up to `_PRIOR_FITS`, one in so many is chosen without priors."""

_COMPILING = 8.0
"""Cost of a trial whose program has to be compiled, where one costs 1 that has been."""

_CENTRES = 4
"""Of a large space, the neighbours of so many of the best rows are candidates."""


class ModelProposer:
    """Bayesian optimisation over the valid configurations themselves.

    After a first few spread-out trials, a Gaussian process is fitted to the logarithms of the
    measured times (`gaussian.fit`), its posterior is kept for every valid configuration
    (`Posterior`), and the one with the largest expected improvement, times its probability of
    success, is next; where parameters are passed at the call, a program that has been compiled
    already is preferred (`log_costs`). One proposal in three is restricted to the best
    configuration's neighbours, which a wrong model cannot talk the search out of. Running trials
    count as observed at their expected value, so that a batch is diverse. Spaces too large to be
    scored whole are represented by rows drawn anew with every fit, and the neighbours of the best.

    Proposals depend on the seed and the ended and running trials alone.

    Args:
        space: the valid rows.
        seed: of the first trials and of draws from large spaces.
        priors: what is expected before anything is measured.
    """

    def __init__(self, space: StudySpace, seed: int = 0, priors: Sequence[Prior] = ()) -> None:
        self._space = space
        self._seed = seed
        self._map = FeatureMap(space)
        self._history = HistoryReader()
        self._priors = tuple(priors)
        self._candidates: Candidates | None = None
        self._success: SuccessModel | None = None
        self._surrogate: Surrogate | None = None
        self._heeded: list[Expectation] = []
        self._built = 0
        self._known: tuple[tuple[int, float | None], ...] = ()

    def propose(self, number: int, ledger: Ledger) -> dict[str, Value]:
        """The most promising unvisited row, or the next of the first ones."""
        return self._space.params(self.row(self._history.read(ledger, but=number)))

    def row(self, history: History) -> int:
        """The row to run next."""
        with _ONE_THREAD.limit():
            return self._next(history)

    def chance(self, ledger: Ledger, gain: float) -> float:
        """Probability that a configuration is left that is faster than the best by a share.

        Of a space too large to be scored whole, among the rows that stand for it. 1 before there
        is a model, 0 where everything was visited.
        """
        history = self._history.read(ledger)
        successes = sum(value is not None for _, value in history.observed)
        if ledger.exhausted:
            return 0.0
        if len(history.observed) < _DESIGN or successes < FIRST_FIT:
            return 1.0
        with _ONE_THREAD.limit():
            surrogate = self._updated(history, refit_at(successes))
            rng = np.random.default_rng((self._seed, len(history.observed)))
            return surrogate.chance(gain, history.visited, rng)

    def _next(self, history: History) -> int:
        successes = sum(value is not None for _, value in history.observed)
        begun = len(history.observed) + len(history.pending)
        if begun < _DESIGN or successes < FIRST_FIT:
            expected = self._favourites if self._priors and begun % 2 == 0 else []
            best = next((row for row in expected if row not in history.visited), None)
            return self._spread_out(history) if best is None else best
        if self._priors and begun <= _PRIOR_FITS and begun % _DOUBTED_EVERY == 1:
            # By turns from a model and blindly: agreement is to be seen on rows of all kinds.
            return self._doubter._next(history) if begun % 2 else self._spread_out(history)
        surrogate = self._updated(history, refit_at(successes))
        surrogate.expect(history.pending)
        candidates = surrogate.candidates
        scores = surrogate.scores()
        if not self._map.compiled.all():
            visited = candidates.seen(sorted(history.visited))
            scores -= log_costs(candidates.points, visited, self._map.compiled)
        scores[candidates.positions(history.visited)] = -np.inf
        if begun % _LOCAL_EVERY == 0:
            scores = _near(scores, candidates.points, candidates.seen([surrogate.best_row]))
        position = int(np.argmax(scores))
        if scores[position] == -np.inf:
            return self._spread_out(history)
        return candidates.row(position)

    def _updated(self, history: History, fitted: int) -> Surrogate:
        """The model of a history, from the one there is if that is of its beginning."""
        observed = history.observed
        if self._known != observed[: len(self._known)]:
            self._candidates = self._success = self._surrogate = None
        ends = [at for at, (_, value) in enumerate(observed, 1) if value is not None]
        built = observed[: ends[fitted - 1]]
        if self._surrogate is None or len(built) > self._built:
            self._surrogate = self._build(built)
            self._built = len(built)
            self._known = built
        for row, value in observed[len(self._known) :]:
            self._surrogate.observe(row, value)
        self._known = observed
        return self._surrogate

    def _build(self, observed: Sequence[tuple[int, float | None]]) -> Surrogate:
        known = [(value, row) for row, value in observed if value is not None]
        best = [row for _, row in sorted(known)[:_CENTRES]]
        rows = drawn_rows(self._space, best, self._seed, len(observed))
        trusted = self._agreeing(known[:_PRIOR_FITS])
        heeded = trusted if len(known) <= _PRIOR_FITS else []
        stale = self._surrogate is None or self._heeded != heeded
        self._heeded = heeded
        if self._candidates is None or self._success is None or rows is not None or stale:
            describe = self._describe if heeded else self._map.of
            self._candidates = Candidates(self._space, describe, rows)
            self._success = SuccessModel(self._candidates.points, self._map.groups)
        lengths = _lengths(trusted)
        groups = self._map.groups
        return Surrogate(self._candidates, self._success, groups, lengths, observed)

    def _agreeing(self, known: Sequence[tuple[float, int]]) -> list[Expectation]:
        """The priors that a model is told of: those that agree with these values and rows."""
        if len(known) < _DOUBTED_FROM:
            return list(self._expectations)
        found = response(np.array([value for value, _ in known]))
        rows = [row for _, row in known]
        return [
            each for each in self._expectations if agreement(each.times(rows), found) >= _AGREEING
        ]

    def _describe(self, rows: Sequence[int]) -> Points:
        expected = np.array([expectation.times(rows) for expectation in self._heeded])
        return replace(self._map.of(rows), expectations=expected.astype(np.float32))

    @cached_property
    def _doubter(self) -> "ModelProposer":
        """Proposes what one would without priors."""
        return ModelProposer(self._space, self._seed)

    @cached_property
    def _expectations(self) -> list[Expectation]:
        """Those of the priors, standardised over the space."""
        return [standardised(prior.over(self._space), self._sample) for prior in self._priors]

    @cached_property
    def _sample(self) -> Sequence[int]:
        """Rows that stand for the space: all of a small one."""
        return drawn_rows(self._space, (), self._seed) or range(self._space.size)

    @cached_property
    def _favourites(self) -> list[int]:
        """The rows that the priors together think best of."""
        rows = self._sample
        total = sum((each.times(rows) for each in self._expectations), np.zeros(len(rows)))
        return [rows[at] for at in np.argsort(total, kind="stable")[:_FAVOURITES].tolist()]

    def _spread_out(self, history: History) -> int:
        """An unvisited row far from all visited ones, of a few drawn at random."""
        random = seeded(self._seed, len(history.observed) + len(history.pending))
        size, visited = self._space.size, history.visited
        drawn = {random.randrange(size) for _ in range(min(size, _DESIGN_POOL))} - visited
        if not drawn:
            start = random.randrange(size)
            rows = chain(range(start, size), range(start))
            drawn = {next(row for row in rows if row not in visited)}
        pool = sorted(drawn)
        taken = [row for row, _ in history.observed] + list(history.pending)
        if not taken:
            return random.choice(pool)
        near, far = self._map.of(taken).features, self._map.of(pool).features
        distances = [np.abs(far - point[:, None]).sum(axis=0) for point in near.T]
        return pool[int(np.min(distances, axis=0).argmax())]


class _OneThread:
    """BLAS on one thread, for one proposal of this process at a time.

    Products this small gain nothing from more threads, which would also spoil repeatability. BLAS
    may have one number of threads for the whole process: two proposals at once would put back what
    the other one has set.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        # In a child by fork the threads are gone of which one may have had its turn.
        session.at_fork(child=lambda: setattr(self, "_turn", threading.Lock()))

    @contextmanager
    def limit(self) -> Iterator[None]:
        with self._turn, _blas().limit(limits=1, user_api="blas"):
            yield


_ONE_THREAD = _OneThread()


@session.cached()
def _blas() -> ThreadpoolController:
    import scipy.linalg  # noqa: F401  (so that its BLAS is among those that are found)

    return ThreadpoolController()


def log_costs(points: Points, begun: Points, compiled: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Logarithm of the cost of a trial of every point, shape (points,).

    Improvement is to be had per second, not per trial (Snoek, Larochelle and Adams, "Practical
    Bayesian optimization of machine learning algorithms", 2012). Programs of the `begun` points
    are compiled; see `FeatureMap.compiled` for the parameters that make a program.
    """
    known = np.isin(_programs(points, compiled), _programs(begun, compiled))
    return np.where(known, np.float32(0), np.float32(math.log(_COMPILING)))


def _programs(points: Points, compiled: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Numbers of points, equal for those that are the same program."""
    levels = points.levels[compiled].astype(np.uint64)
    # Sums of random multiples, modulo 2^64: two programs share one by an accident of 1 in 10^19.
    weights = np.random.default_rng(0).integers(2**64, size=len(levels), dtype=np.uint64)
    return np.asarray((levels * weights[:, None]).sum(axis=0, dtype=np.uint64))


def _lengths(expectations: Sequence[Expectation]) -> dict[str, float]:
    """Length scales that the measurements of priors show, by parameter: geometric means."""
    known: defaultdict[str, list[float]] = defaultdict(list)
    for expectation in expectations:
        for name, length in expectation.lengths.items():
            known[name].append(length)
    return {name: geometric_mean(several) for name, several in known.items()}


def _near(scores: NDArray[np.float32], points: Points, centre: Points) -> NDArray[np.float32]:
    """Scores of the unvisited points that differ least from the centre, up to two parameters."""
    differences = (points.levels != centre.levels).sum(axis=0)
    for most in (1, 2):
        nearby = np.where(differences <= most, scores, -np.inf)
        if nearby.max() > -np.inf:
            return np.asarray(nearby)
    return scores
