"""Replaying recorded spaces: a sampler searches, what it asks for is looked up, and is scored.

Every unique valid configuration that a search asks for is charged, failing ones included.
`autotune.research.scoring` says by which measures.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.core import arguments
from autotune.core.errors import AutotuneError
from autotune.core.processors import usable_processors
from autotune.measuring.failure import Failure
from autotune.measuring.sharing import WorkerPool
from autotune.research.scoring import (
    FIRST_SCORED,
    PaperScore,
    best_so_far,
    clock_end,
    expected_random_best,
    paper_score,
    room,
    run_score,
)
from autotune.research.space import UNKNOWN_NOISE, RecordedSpace
from autotune.search import Searcher, make_sampler
from autotune.search.model import MeasuredPrior, Prior

BAND = (10, 90)
"""The percentiles over seeds that a curve's band spans."""


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """One sampler on one recorded space, over several seeds.

    Curves have one number per evaluation, from the first on: the fraction of the optimum's speed
    (optimum / best value so far), 0 before the first configuration that ran.

    Attributes:
        budget: evaluations of each run.
        scores: the score of every run; see `run_score`.
        telling: scores tell samplers apart: random search could be beaten.
        paper: the measures for papers, by the recording's cut-off and noise.
        median: median over the runs; `low` and `high` are the 10th and 90th percentile.
        n95: evaluations after which the median run has 95% of the optimum's speed; None when
            the budget does not suffice; `n99` is that for 99%.
        reach95: share of the runs that get to 95% within the budget; `reach99` to 99%.
        cpu_ms: CPU time of the sampler for one evaluation, in milliseconds.
    """

    budget: int
    scores: tuple[float, ...]
    median: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    n95: float | None
    n99: float | None
    reach95: float
    reach99: float
    cpu_ms: float
    paper: PaperScore
    telling: bool = True

    @property
    def score(self) -> float:
        """Mean over the runs: 0 is uniform random search, 1 knows the optimum beforehand."""
        return float(np.mean(self.scores))

    @property
    def score_error(self) -> float:
        """Standard error of the score over the runs; 0 of a single run."""
        return self.error_of(self.scores)

    @staticmethod
    def error_of(scores: Sequence[float]) -> float:
        """Standard error of the mean of scores; 0 of a single one."""
        return float(np.std(scores, ddof=1)) / math.sqrt(len(scores)) if scores[1:] else 0.0

    def fraction(self, evaluations: int) -> float:
        """The median fraction of the optimum after so many evaluations, or after all of them."""
        return float(self.median[min(evaluations, self.budget) - 1])


def summarise(
    values: NDArray[np.float64],
    runs: Sequence[NDArray[np.int64]],
    budget: int,
    cpu_s: Sequence[float] = (),
    *,
    noise: float = UNKNOWN_NOISE,
    seconds: NDArray[np.float64] | None = None,
) -> Summary:
    """Sum up the runs of one sampler.

    Args:
        values: of the recorded space, by row; NaN where a configuration failed.
        runs: the rows that every run evaluated, in order, none twice; those beyond the budget
            count in the score in seconds alone.
        budget: evaluations of a run, at most as many as there are rows.
        cpu_s: seconds of CPU time that the runs' samplers took.
        noise: relative noise of the values.
        seconds: wall time of each evaluation, by row; None where that is not known.
    """
    fractions = np.nanmin(values) / np.stack([best_so_far(values, rows, budget) for rows in runs])
    low, median, high = np.percentile(fractions, [BAND[0], 50, BAND[1]], axis=0)
    first = min(FIRST_SCORED, budget) - 1
    evaluations = sum(map(len, runs))
    first95, first99 = (_first_reaching(fractions, share) for share in (0.95, 0.99))
    return Summary(
        budget=budget,
        scores=tuple(run_score(values, rows, budget) for rows in runs),
        median=median,
        low=low,
        high=high,
        n95=_median_or_none(first95),
        n99=_median_or_none(first99),
        reach95=float(np.mean(np.isfinite(first95))),
        reach99=float(np.mean(np.isfinite(first99))),
        cpu_ms=1e3 * sum(cpu_s) / max(evaluations, 1),
        paper=paper_score(values, runs, budget, noise, seconds),
        telling=bool(room(values, expected_random_best(values, budget)[first:])[1].any()),
    )


def _first_reaching(fractions: NDArray[np.float64], share: float) -> NDArray[np.float64]:
    """Evaluations until the runs have this share of the optimum's speed; infinite where never."""
    reached = fractions >= share
    return np.where(reached.any(axis=1), reached.argmax(axis=1) + 1.0, np.inf)


def _median_or_none(evaluations: NDArray[np.float64]) -> float | None:
    # Infinities order like numbers, but the mean of the two middle ones must not become NaN.
    ordered = np.sort(evaluations)
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    return float(middle) if np.isfinite(middle) else None


TRIALS = 200
"""Evaluations of a run, unless another budget is given or the space is smaller."""

SEEDS = 20
"""Runs of each sampler, unless another number is given."""

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""The runs themselves keep the cores busy; a run's numbers must not depend on their number."""

_UNLIMITED_S = 7 * 86_400.0


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One search of a recorded space.

    Attributes:
        rows: what was evaluated, in order, each row once.
        cpu_s: CPU time that the sampler took, from building it to its last proposal.
    """

    rows: NDArray[np.int64]
    cpu_s: float


def run_sampler(
    recorded: RecordedSpace,
    sampler: str,
    trials: int,
    seed: int,
    prior: Sequence[Prior] = (),
    least_s: float = 0.0,
) -> Run:
    """Search a recorded space once, in this process.

    Args:
        recorded: the space.
        sampler: a sampler's name, or the dotted path of an `optuna.samplers.BaseSampler`.
        trials: the most configurations to evaluate; failing ones count.
        seed: equal seeds give equal runs.
        prior: what the sampler may expect before it has measured anything.
        least_s: seconds of evaluations, by the recording, before which the run goes on all the
            same; see `autotune.research.scoring.clock_end`.
    """
    rows: list[int] = []
    spent_s = 0.0
    started = time.process_time()
    searcher = Searcher(recorded.space, sampler, seed, prior)
    while len(rows) < trials or spent_s < least_s:
        if (point := searcher.ask()) is None:
            break
        searcher.tell(point, recorded.value(point))
        rows.append(recorded.row(point))
        spent_s += 0.0 if recorded.seconds is None else float(recorded.seconds[rows[-1]])
    return Run(np.array(rows, dtype=np.int64), time.process_time() - started)


def replay(
    recorded: RecordedSpace,
    samplers: Sequence[str] = ("auto",),
    *,
    trials: int = TRIALS,
    seeds: int = SEEDS,
    workers: int | None = None,
    prior: Sequence[RecordedSpace] = (),
) -> Iterator[tuple[str, Summary]]:
    """Search a recorded space with each sampler, once per seed 0, 1, ..., in worker processes.

    Args:
        recorded: the space.
        samplers: names, or dotted paths of `optuna.samplers.BaseSampler`s.
        trials: evaluations of each run; no more than the space has configurations. Where the
            recording knows seconds, a run of cheap ones goes on for the score in seconds.
        seeds: runs of each sampler.
        workers: processes; None takes one per processor that this process may use.
        prior: other recorded spaces, of another device or problem, that the sampler may learn
            from beforehand; parameters are matched by name. Only `auto` does.

    Returns:
        An iterator over samplers and their summaries, in the order given.

    Raises:
        InputError: `trials`, `seeds` or `workers` is less than 1.
        UnknownNameError: there is no such sampler.
        MissingDependencyError: a sampler needs a package that is not installed.
        AutotuneError: a sampler failed; the message says how.
    """
    trials, seeds = arguments.whole("trials", trials), arguments.whole("seeds", seeds)
    workers = arguments.workers(workers)
    # Before any work: a sampler may not exist, a prior may say too little.
    for sampler in samplers:
        make_sampler(sampler, recorded.space)
    for other in prior:
        MeasuredPrior(other.measurements())
    return _replay(recorded, samplers, min(trials, recorded.size), seeds, workers, prior)


def _replay(
    recorded: RecordedSpace,
    samplers: Sequence[str],
    trials: int,
    seeds: int,
    workers: int | None,
    prior: Sequence[RecordedSpace],
) -> Iterator[tuple[str, Summary]]:
    count = min(workers or usable_processors(), seeds)
    least_s = clock_end(recorded.values, trials, recorded.seconds)
    with WorkerPool(
        _replayer, recorded, prior, count=count, environment=ONE_THREAD, replies=_Reply
    ) as pool:
        for sampler in samplers:
            replies = pool.run(
                [(sampler, seed, trials, least_s) for seed in range(seeds)], _UNLIMITED_S
            )
            runs, cpu_s = [], []
            for reply in replies:
                if isinstance(reply, Failure):
                    raise AutotuneError(
                        f"sampler {sampler!r} failed on the recorded space: {reply.reason}"
                    )
                runs.append(np.array(reply[0], dtype=np.int64))
                cpu_s.append(reply[1])
            yield (
                sampler,
                summarise(
                    recorded.values,
                    runs,
                    trials,
                    cpu_s,
                    noise=recorded.noise,
                    seconds=recorded.seconds,
                ),
            )


_Request: TypeAlias = tuple[str, int, int, float]
"""A run for a worker: sampler, seed, trials, and the seconds of evaluations that it needs."""

_Reply: TypeAlias = tuple[tuple[int, ...], float]
"""A `Run`, as workers reply: its rows, and its seconds."""


def _replayer(
    recorded: RecordedSpace, prior: Sequence[RecordedSpace]
) -> Callable[[_Request], _Reply]:
    """Entry of a worker: it keeps the space and what is known beforehand."""
    priors = [MeasuredPrior(other.measurements()) for other in prior]

    def handle(request: _Request) -> _Reply:
        sampler, seed, trials, least_s = request
        run = run_sampler(recorded, sampler, trials, seed, priors, least_s)
        return tuple(run.rows.tolist()), run.cpu_s

    return handle
