"""What measurements of another device save a search: ``python benchmarks/search_priors.py``.

Replays a recorded space with the sampler `auto`, which knows nothing, or what a search of another
recorded space measured there, or as many random measurements of that. Counted are evaluations
until a share of the optimum's speed, failing configurations included. Prints Markdown.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from environment import describe, describe_files
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from autotune.research import RecordedSpace, read_recorded, run_sampler
from autotune.search.model import MeasuredPrior

SHARES = (0.90, 0.95, 0.99)
"""Of the optimum's speed."""

Rows = NDArray[np.int64]

KNOWN: Mapping[str, Callable[[RecordedSpace, int, int], Rows]] = {
    "none": lambda other, count, seed: np.array([], dtype=np.int64),
    "measurements of a search there": lambda other, count, seed: (
        run_sampler(other, "auto", count, seed).rows
    ),
    "random measurements there": lambda other, count, seed: np.random.default_rng(seed).choice(
        other.size, count, replace=False
    ),
}
"""What is known of the other space: (space, measurements, seed) -> rows."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("space", type=Path, help="what is searched")
    parser.add_argument("other", type=Path, help="what is known: a recording of another device")
    parser.add_argument("--budget", type=int, default=200, help="evaluations, and of the prior")
    parser.add_argument("--seeds", type=int, default=20)
    args = parser.parse_args()

    recorded, other = read_recorded(args.space), read_recorded(args.other)
    print(describe())
    print(describe_files([args.space, args.other]))
    print(f"- {other.name} for {recorded.name}, {args.seeds} seeds, median [quartiles]\n")
    print(f"| prior | {' | '.join(f'{share:.0%}' for share in SHARES)} |")
    print("|---" * (1 + len(SHARES)) + "|")
    with threadpool_limits(1):  # sums must not depend on the number of cores
        for name, known in KNOWN.items():
            runs = [
                searched(recorded, other, known(other, args.budget, seed), args.budget, seed)
                for seed in range(args.seeds)
            ]
            cells = (cell([needed(recorded, rows, share) for rows in runs]) for share in SHARES)
            label = name if name == "none" else f"{args.budget} {name}"
            print(f"| {label} | {' | '.join(cells)} |", flush=True)


def searched(
    recorded: RecordedSpace, other: RecordedSpace, known: Rows, budget: int, seed: int
) -> Rows:
    """What a search asks for that knows what some rows of another space came to."""
    ran = [row for row in known.tolist() if not np.isnan(other.values[row])]
    measured = [(other.space[row], float(other.values[row])) for row in ran]
    priors = [MeasuredPrior(measured)] if measured else []
    return run_sampler(recorded, "auto", budget, seed, priors).rows


def needed(recorded: RecordedSpace, rows: Rows, share: float) -> float:
    """Evaluations until so much of the optimum's speed; infinite where they do not suffice."""
    near = recorded.values[rows] <= recorded.optimum / share
    return float(np.argmax(near)) + 1 if near.any() else float("inf")


def cell(counts: Sequence[float]) -> str:
    """The median run and the quartiles."""
    low, middle, high = np.quantile(counts, (0.25, 0.5, 0.75), method="midpoint")
    return f"{middle:g} [{low:g}-{high:g}]"


if __name__ == "__main__":
    main()
