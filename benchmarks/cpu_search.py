"""How soon a live search is near the best there is: ``python benchmarks/cpu_search.py``.

Sweeps a family's whole space on the CPU, then tunes the same problem several times from nothing.
Counted are the trials until one has a configuration whose time in the sweep is within 2% of the
sweep's best: the searches measure for themselves, the sweep is the judge of what they found.
Prints Markdown. Given the cache of an interrupted run the sweep goes on with that.
"""

from __future__ import annotations

import argparse
import tempfile
from statistics import median

from environment import describe

from autotune import Gemm, sweep, tune

NEAR = 1.02


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--family", nargs="+", default=["goto"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--sampler", nargs="+", default=["auto", "tpe", "random"])
    parser.add_argument("--cache", help="of the sweep; default: an empty one")
    args = parser.parse_args()

    problem = Gemm(args.size, args.size, args.size, args.dtype, threads=args.threads)
    with tempfile.TemporaryDirectory() as empty:
        swept = sweep(problem, target="cpu", families=args.family, cache=args.cache or empty)
    times = {
        result.candidate: result.measurement.median_s
        for result in swept.measured
        if result.measurement.ok and result.measurement.median_s is not None
    }
    best_s = min(times.values())
    near = sum(time <= NEAR * best_s for time in times.values())
    print(describe())
    print(
        f"- {problem.label}, {args.threads} thread(s), {', '.join(args.family)}: "
        f"{len(swept.measured)} configurations swept in {swept.seconds:.0f} s, {len(times)} ok; "
        f"best {best_s * 1e3:.3f} ms ({problem.flops / best_s / 1e9:.1f} GFLOP/s), {near} within "
        f"2% of it, median {median(times.values()) / best_s:.2f} times the best\n"
    )
    print("| sampler | trials until within 2% of the best, by run | median | best found, by run |")
    print("|---|---|---|---|")
    for sampler in args.sampler:
        needed: list[float] = []
        reached: list[float] = []
        for seed in range(args.runs):
            with tempfile.TemporaryDirectory() as cache:
                result = tune(
                    problem,
                    target="cpu",
                    families=args.family,
                    trials=args.trials,
                    timeout=600,
                    sampler=sampler,
                    seed=seed,
                    cache=cache,
                )
            tried = [times.get(trial.candidate, float("inf")) for trial in result.trials]
            first = (at for at, time in enumerate(tried, 1) if time <= NEAR * best_s)
            needed.append(next(first, float("inf")))
            reached.append(best_s / times.get(result.best.candidate, float("inf")))
        shown = ", ".join(f"{each:.0f}" if each < float("inf") else "-" for each in needed)
        middle = median(needed)
        print(
            f"| {sampler} | {shown} | {middle:.0f} "
            f"| {', '.join(f'{100 * each:.1f}%' for each in reached)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
