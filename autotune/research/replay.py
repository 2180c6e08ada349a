"""Replaying recorded spaces: a sampler searches, and what it asks for is looked up."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from autotune.core import arguments
from autotune.core.errors import AutotuneError
from autotune.core.processors import usable_processors
from autotune.measuring.pool import WorkerPool
from autotune.measuring.processes import Failure
from autotune.research.score import Summary, summarise
from autotune.search import Searcher, make_sampler
from autotune.search.model import MeasuredPrior

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from autotune.research.space import RecordedSpace
    from autotune.search.model import Prior

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
    recorded: RecordedSpace, sampler: str, trials: int, seed: int, prior: Sequence[Prior] = ()
) -> Run:
    """Search a recorded space once, in this process.

    Args:
        recorded: the space.
        sampler: a sampler's name, or the dotted path of an `optuna.samplers.BaseSampler`.
        trials: the most configurations to evaluate; failing ones count.
        seed: equal seeds give equal runs.
        prior: what the sampler may expect before it has measured anything.
    """
    rows: list[int] = []
    started = time.process_time()
    searcher = Searcher(recorded.space, sampler, seed, prior)
    while len(rows) < trials and (point := searcher.ask()) is not None:
        searcher.tell(point, recorded.value(point))
        rows.append(recorded.row(point))
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
        trials: evaluations of each run; no more than the space has configurations.
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
    with WorkerPool(
        _replayer, recorded, prior, count=count, environment=ONE_THREAD, replies=_Reply
    ) as pool:
        for sampler in samplers:
            replies = pool.run([(sampler, seed, trials) for seed in range(seeds)], _UNLIMITED_S)
            runs, cpu_s = [], []
            for reply in replies:
                if isinstance(reply, Failure):
                    raise AutotuneError(
                        f"sampler {sampler!r} failed on the recorded space: {reply.reason}"
                    )
                runs.append(np.array(reply[0], dtype=np.int64))
                cpu_s.append(reply[1])
            yield sampler, summarise(recorded.values, runs, trials, cpu_s)


_Request: TypeAlias = tuple[str, int, int]
"""A run for a worker: sampler, seed, trials."""

_Reply: TypeAlias = tuple[tuple[int, ...], float]
"""A `Run`, as workers reply: its rows, and its seconds."""


def _replayer(
    recorded: RecordedSpace, prior: Sequence[RecordedSpace]
) -> Callable[[_Request], _Reply]:
    """Entry of a worker: it keeps the space and what is known beforehand."""
    priors = [MeasuredPrior(other.measurements()) for other in prior]

    def handle(request: _Request) -> _Reply:
        sampler, seed, trials = request
        run = run_sampler(recorded, sampler, trials, seed, priors)
        return tuple(run.rows.tolist()), run.cpu_s

    return handle
