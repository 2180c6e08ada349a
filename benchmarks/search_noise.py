"""The cost of noise to the sampler `auto`: ``search_noise.py DIR``.

Every recorded value is told with a normal error of its logarithm, another one in each run. After
each evaluation the search is judged by the recorded value of the point that it thinks best, the
smallest one told. The cut-off score takes differences within the error for none, also of the
runs without one that it is compared with. Recorded spaces are those in DIR. Prints Markdown.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from environment import describe, describe_files
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from autotune.research import RecordedSpace, read_recorded
from autotune.research.scoring import curve_score, cut_off, expected_random_best, settled_scores
from autotune.search import Searcher


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, help="folder of recorded spaces")
    parser.add_argument("--budget", type=int, default=200, help="evaluations")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--errors", type=float, nargs="+", default=[0.01, 0.015])
    args = parser.parse_args()

    paths = sorted(args.data.iterdir())
    spaces = [read_recorded(path) for path in paths]
    print(describe())
    print(describe_files(paths))
    print(f"- {args.seeds} seeds, {args.budget} evaluations\n")
    with threadpool_limits(1):  # sums must not depend on the number of cores
        show(spaces, args.budget, args.seeds, args.errors)


def show(
    spaces: Sequence[RecordedSpace], budget: int, seeds: int, errors: Sequence[float]
) -> None:
    """A line for each error of each space, and one for each of all."""
    print(
        "| space | error | score, without | with | cut-off score, without | with |\n"
        + "|---" * 6
        + "|"
    )
    means: dict[float, list[NDArray[np.float64]]] = {error: [] for error in errors}
    for recorded in spaces:
        values, end = recorded.values, min(cut_off(recorded.values), budget)
        random = expected_random_best(values, end)
        exact = runs(recorded, budget, seeds, 0.0)
        for error in errors:
            both = exact, runs(recorded, budget, seeds, error)
            fixed = [[curve_score(values, run) for run in each] for each in both]
            settled = [
                settled_scores(random, each[:, :end], recorded.optimum, error) for each in both
            ]
            scores = np.array([*fixed, *settled])
            means[error].append(scores.mean(axis=1))
            spread = scores.std(axis=1, ddof=1) / np.sqrt(seeds)
            pairs = zip(means[error][-1], spread, strict=True)
            columns = [f"{mean:.3f} ±{deviation:.3f}" for mean, deviation in pairs]
            print(f"| {recorded.name} | {error:.1%} | {' | '.join(columns)} |", flush=True)
    for error, each in means.items():
        columns = [f"{mean:.3f}" for mean in np.mean(each, axis=0)]
        print(f"| mean | {error:.1%} | {' | '.join(columns)} |")


def runs(recorded: RecordedSpace, budget: int, seeds: int, error: float) -> NDArray[np.float64]:
    """`believed` by seed."""
    return np.stack([believed(recorded, budget, seed, error) for seed in range(seeds)])


def believed(recorded: RecordedSpace, budget: int, seed: int, error: float) -> NDArray[np.float64]:
    """The recorded value of the point with the smallest told one, by evaluation."""
    searcher = Searcher(recorded.space, "auto", seed)
    rng = np.random.default_rng(seed)
    values: list[float] = []
    least, best = np.inf, float(np.nanmax(recorded.values))
    while len(values) < budget and (point := searcher.ask()) is not None:
        value = recorded.value(point)
        told = None if value is None else value * float(np.exp(rng.normal(0.0, error)))
        searcher.tell(point, told)
        if value is not None and told is not None and told < least:
            least, best = told, value
        values.append(best)
    return np.array(values)


if __name__ == "__main__":
    main()
