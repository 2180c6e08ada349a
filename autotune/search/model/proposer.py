"""The sampler `auto`: proposes what a model of all valid configurations finds most promising."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain

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
    log_costs,
    seeded,
)
from autotune.search.model.priors import Expectations, Prior
from autotune.search.model.surrogate import (
    FIRST_FIT,
    SuccessModel,
    Surrogate,
    informative,
    refit_at,
    response,
)

_DESIGN = 7
"""Trials before the model takes over."""

_DESIGN_POOL = 200
"""Rows drawn for each of them, of which the one farthest from all earlier ones is taken."""

_SHARED_DESIGN = 12
_SHARE = 4
"""With priors, one in so many of the first trials is such a one: what priors are judged by."""

_DOUBTED_DESIGN = 10
"""With priors that are not believed, trials before the model takes over: without what they have
chosen by then, as many are spread out as where there are none."""

_FAVOURITES = 256
"""Rows that are kept of those that the priors think best of."""

_ALIKE = 16
"""Favourites that count as equally good: the one farthest from all earlier trials is taken."""

_STALE = 8
"""Successful trials without a better one after which priors are not believed."""

_MOST_JUDGED = 60
"""Observations that priors are judged by."""

_LOCAL_EVERY = 3
"""One proposal in so many changes a single parameter of the best configuration."""

_PRIOR_FITS = 20
"""Successful trials beyond which models are built without the priors: what they know is by then in
where the search has been, and what they are wrong about would keep it there."""

_CENTRES = 4
"""Of a large space, the neighbours of so many of the best rows are candidates."""


class ModelProposer:
    """Bayesian optimisation over the valid configurations themselves.

    After a first few spread-out trials, a Gaussian process is fitted to the logarithms of the
    measured times (`covariance.fit`), its posterior is kept for every valid configuration
    (`Posterior`), and the one with the largest expected improvement, times its probability of
    success, is next; where parameters are passed at the call, a program that has been compiled
    already is preferred (`programs.log_costs`). One proposal in three is restricted to the best
    configuration's neighbours, which a wrong model cannot talk the search out of. Running trials
    count as observed at their expected value, so that a batch is diverse. Spaces too large to be
    scored whole are represented by rows drawn anew with every fit, and the neighbours of the best.
    Priors choose most of the first trials and enter the model with what trust they have earned
    (`Expectations.trust`).

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
        self._priors = Expectations(tuple(priors), space, seed)
        self._trust = np.zeros(len(self._priors), dtype=np.float32)
        self._candidates: Candidates | None = None
        self._success: SuccessModel | None = None
        self._surrogate: Surrogate | None = None
        self._built = 0
        self._known: tuple[tuple[int, float | None], ...] = ()

    def propose(self, number: int, ledger: Ledger) -> dict[str, Value]:
        """The most promising unvisited row, or the next of the first ones."""
        return self._space.params(self.row(self._history.read(ledger, but=number)))

    def row(self, history: History) -> int:
        """The row to run next."""
        with _ONE_THREAD.limit():
            return self._next(history)

    def _next(self, history: History) -> int:
        successes = sum(value is not None for _, value in history.observed)
        begun = len(history.observed) + len(history.pending)
        if len(self._priors) and begun < _SHARED_DESIGN and begun % _SHARE == _SHARE - 1:
            return self._spread_out(history)
        if successes < FIRST_FIT or (begun < _DESIGN and not len(self._priors)):
            best = self._favourite(history)
            return self._spread_out(history) if best is None else best
        surrogate = self._updated(history, refit_at(successes))
        if begun < _DOUBTED_DESIGN and len(self._priors) and not self._trust.any():
            return self._spread_out(history)
        surrogate.expect(history.pending)
        candidates = surrogate.candidates
        scores = surrogate.scores()
        if not self._map.compiled.all():
            visited = self._map.of(sorted(history.visited))
            scores -= log_costs(candidates.points, visited, self._map.compiled)
        scores[candidates.positions(history.visited)] = -np.inf
        if begun % _LOCAL_EVERY == 0:
            scores = _near(scores, candidates.points, self._map.of([surrogate.best_row]))
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
        ranked = sorted((value, row) for row, value in observed if value is not None)
        best = [row for _, row in ranked[:_CENTRES]]
        rows = drawn_rows(self._space, best, self._seed, len(observed))
        trust = self._judged(observed)
        if self._candidates is None or rows is not None or (trust != self._trust).any():
            describe = partial(self._describe, trust)
            self._candidates, self._trust = Candidates(self._space, describe, rows), trust
        if self._success is None:
            self._success = SuccessModel(self._candidates.points, self._map.groups)
        return Surrogate(self._candidates, self._success, self._map, observed)

    def _describe(self, trust: NDArray[np.float32], rows: Sequence[int]) -> Points:
        points = self._map.of(rows)
        if not trust.any():
            return points
        return replace(points, expectations=(trust @ self._priors.of(rows))[None])

    def _judged(self, observed: Sequence[tuple[int, float | None]]) -> NDArray[np.float32]:
        """Trust in the priors, after what was observed."""
        rows = [row for row, value in observed if value is not None]
        if not len(self._priors) or len(rows) > _PRIOR_FITS:
            return np.zeros(len(self._priors), dtype=np.float32)
        values = np.array([value for _, value in observed if value is not None])
        if len(values) - int(np.argmin(values)) > _STALE:
            return np.zeros(len(self._priors), dtype=np.float32)
        some = informative(values, _MOST_JUDGED)
        seen = [rows[at] for at in some]
        responses = response(values)[some]
        return self._priors.trust(seen, self._map.of(seen), responses, self._map.groups)

    @cached_property
    def _favourites(self) -> list[int]:
        return self._priors.favourites(_FAVOURITES) if len(self._priors) else []

    def _favourite(self, history: History) -> int | None:
        """Of the unvisited rows that the priors think best of, one far from all visited ones."""
        left = [row for row in self._favourites if row not in history.visited][:_ALIKE]
        return self._farthest(left, history) if left else None

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
        if not history.observed and not history.pending:
            return random.choice(pool)
        return self._farthest(pool, history)

    def _farthest(self, pool: Sequence[int], history: History) -> int:
        """The row of a pool that is farthest from all visited ones; the first before any."""
        taken = [row for row, _ in history.observed] + list(history.pending)
        if not taken:
            return pool[0]
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


def _near(scores: NDArray[np.float32], points: Points, centre: Points) -> NDArray[np.float32]:
    """Scores of the unvisited points that differ least from the centre, up to two parameters."""
    differences = (points.levels != centre.levels).sum(axis=0)
    for most in (1, 2):
        nearby = np.where(differences <= most, scores, -np.inf)
        if nearby.max() > -np.inf:
            return np.asarray(nearby)
    return scores
