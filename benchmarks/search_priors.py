"""Priors of other devices and problems, right or wrong: ``search_priors.py DIR``.

Every recorded space of a kernel is searched by the sampler `auto` with every other recording of
it as a prior, and with that recording's values shuffled: a prior that is wrong. Compared is, seed
by seed, with the search that knows nothing. "Picks" are the evaluations that the prior's own order
needs until 95% of the optimum's speed, without any search. Recorded spaces are those in DIR and
data sets of this package. Prints Markdown.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from itertools import permutations
from pathlib import Path

import numpy as np
from environment import describe, describe_files
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from autotune import datasets
from autotune.research import RecordedSpace, read_recorded, run_sampler
from autotune.research.scoring import run_score
from autotune.search.claims import StudySpace
from autotune.search.model import MeasuredPrior

KERNELS = (
    ("conv_milo-A4000", "conv_milo-MI250X", "convolution_v2-RTX_3090"),
    ("gemm-RTX_3090", "gemm_amd2018"),
    ("zen4-blocked-256", "zen4-blocked-96x1024x96"),
    ("h100-tiled-2048", "h100-tiled-256x4096x4096"),
)
"""Recordings of one kernel on several devices, of several versions or for several shapes."""

NEAR, SOON = 0.95, 15
"""Share of the optimum's speed, and evaluations within which it is wanted."""

Rows = NDArray[np.int64]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, help="folder of recorded spaces")
    parser.add_argument("--budget", type=int, default=200, help="evaluations")
    parser.add_argument("--seeds", type=int, default=10)
    args = parser.parse_args()

    paths = {name: path_of(name, args.data) for kernel in KERNELS for name in kernel}
    spaces = {name: read_recorded(path) for name, path in paths.items()}
    print(describe())
    print(describe_files(list(paths.values())))
    print(f"- {args.seeds} seeds, {args.budget} evaluations, or all that there are\n")
    with threadpool_limits(1):  # sums must not depend on the number of cores
        show(spaces, args.budget, range(args.seeds))


def path_of(name: str, folder: Path) -> Path:
    return datasets.path(name) if name in datasets.names() else folder / f"{name}.json"


def show(spaces: Mapping[str, RecordedSpace], budget: int, seeds: Sequence[int]) -> None:
    """A line for each pair, and a table of all."""
    alone = {
        name: [run_sampler(space, "auto", min(budget, space.size), seed).rows for seed in seeds]
        for name, space in spaces.items()
    }
    print(f"| space | prior | score | with it | shuffled | {NEAR:.0%} after | with it | picks |")
    print("|---|---|---|---|---|---|---|---|")
    gained: list[list[float]] = []
    soon: list[list[float]] = []
    for name, other in (pair for kernel in KERNELS for pair in permutations(kernel, 2)):
        space, known = spaces[name], spaces[other]
        prior = recorded_prior(known)
        size = min(budget, space.size)
        informed = [run_sampler(space, "auto", size, seed, [prior]).rows for seed in seeds]
        misled = [
            run_sampler(space, "auto", size, seed, [recorded_prior(known, seed)]).rows
            for seed in seeds
        ]
        searches = (alone[name], informed, misled)
        scores, counts = [], []
        for runs in searches:
            scores.append(np.array([run_score(space.values, rows, size) for rows in runs]))
            counts.append([needed(space, rows) for rows in runs])
        picks = needed(
            space, np.argsort(prior.over(StudySpace(space.space)).times(range(space.size)))
        )
        print(
            f"| {name} | {other} | {scores[0].mean():.3f} | {change(scores[1] - scores[0])} | "
            f"{change(scores[2] - scores[0])} | {np.median(counts[0]):g} | "
            f"{np.median(counts[1]):g} | {picks:g} |",
            flush=True,
        )
        gained.append([float(each.mean()) for each in scores])
        soon.append([*map(within, counts), within([picks])])
    means = np.mean(gained, axis=0)
    less = np.array(gained)[:, 1:] - np.array(gained)[:, :1]
    print(f"\n| of {len(gained)} pairs | nothing known | prior | shuffled | its order alone |")
    print("|---|---|---|---|---|")
    print("| score | " + " | ".join(f"{mean:.3f}" for mean in means) + " | |")
    print("| worst loss | | " + " | ".join(f"{loss:+.3f}" for loss in less.min(axis=0)) + " | |")
    shares = " | ".join(f"{share:.0%}" for share in np.mean(soon, axis=0))
    print(f"| {NEAR:.0%} within {SOON} | {shares} |")


def recorded_prior(recorded: RecordedSpace, shuffled: int | None = None) -> MeasuredPrior:
    """A prior of all that was recorded; with a seed, of its values in random order."""
    points, values = zip(*recorded.measurements(), strict=True)
    if shuffled is not None:
        values = np.random.default_rng(shuffled).permutation(values).tolist()
    return MeasuredPrior(zip(points, values, strict=True))


def needed(recorded: RecordedSpace, rows: Rows) -> float:
    """Evaluations until that share of the optimum's speed; infinite where they do not suffice."""
    near = recorded.values[rows] <= recorded.optimum / NEAR
    return float(np.argmax(near)) + 1 if near.any() else float("inf")


def within(counts: Sequence[float]) -> float:
    """Share of the runs that need no more than wanted."""
    return float(np.mean(np.array(counts) <= SOON))


def change(differences: NDArray[np.float64]) -> str:
    """The mean over seeds and its standard error."""
    error = float(differences.std(ddof=1)) / np.sqrt(len(differences))
    return f"{differences.mean():+.3f} ±{error:.3f}"


if __name__ == "__main__":
    main()
