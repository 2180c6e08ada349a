"""What racing saves and whether it finds the same winner: ``python benchmarks/racing.py``.

Measures the same random configurations of CPU families twice, interleaved: raced, that is against
the best so far as `tune` does, and timed to the end, as `sweep` does. The finalists of both then
take turns, which decides each one's winner. Prints Markdown.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from environment import describe

from autotune import Gemm, Outcome
from autotune.core.configuration import Candidate
from autotune.core.measurement import Measurement
from autotune.cpu.target import CpuTarget
from autotune.measuring.evaluator import Evaluator
from autotune.research.sweeps import shuffled_rows
from autotune.tuning.context import TuningContext
from autotune.tuning.deciding import finalists
from autotune.tuning.settings import Run


@dataclass
class Entrant:
    """One way of measuring: what it found and how long that took."""

    raced: bool
    measured: list[tuple[Candidate, Measurement]] = field(default_factory=list)
    seconds: float = 0.0
    calls: int = 0

    def measure(self, evaluator: Evaluator, candidate: Candidate) -> None:
        best_s = self.best_s if self.raced else None
        started = time.perf_counter()
        measurement = evaluator.evaluate(candidate, best_s)
        self.seconds += time.perf_counter() - started
        self.calls += measurement.repeats
        self.measured.append((candidate, measurement))

    @property
    def best_s(self) -> float | None:
        return min((each.median_s or 0.0 for _, each in self.measured if each.ok), default=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--family", nargs="+", default=["packed"])
    parser.add_argument("--configurations", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=3, help="other configurations for each")
    parser.add_argument(
        "--threads", type=int, default=1, help="other work disturbs one thread the least"
    )
    parser.add_argument("--cache", type=Path, help="keep compiled programs here")
    args = parser.parse_args()
    problem = Gemm(args.size, args.size, args.size, threads=args.threads)
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        work = TuningContext.of(
            problem,
            target=CpuTarget(),
            device=None,
            families=args.family,
            extra_families=(),
            cache=args.cache or folder,
            options={},
        )
        for seed in range(args.seeds):
            lines.append(_compare(work, args.configurations, seed))
            print(lines[-1], file=sys.stderr, flush=True)
    print(describe())
    print(
        f"- {args.configurations} random configurations of {', '.join(args.family)} for "
        f"{problem.label}, {work.union.size} are valid\n"
    )
    print(
        "| seed | configurations | abandoned | measuring, raced / to the end | timed calls "
        "| raced winner in the finals | the other's winner in the finals | ratio "
        "| what racing had made of that one |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    print("\n".join(lines))
    print(
        "\nMeasuring is verifying and timing, without compiling. Intervals are 95% confidence "
        "intervals of the median."
    )


def _compare(work: TuningContext, count: int, seed: int) -> str:
    rows = list(islice(shuffled_rows(work.union.size, seed), count))
    candidates = [work.union[row] for row in rows]
    raced, whole = Entrant(raced=True), Entrant(raced=False)
    with work.evaluator(work.problem, Run(seed=seed)) as evaluator:
        for start in range(0, len(candidates), evaluator.batch):
            batch = candidates[start : start + evaluator.batch]
            evaluator.prepare(batch)
            for number, candidate in enumerate(batch):
                # In turns: the second one finds the program loaded and its caches warm.
                pair = (raced, whole) if number % 2 else (whole, raced)
                for entrant in pair:
                    entrant.measure(evaluator, candidate)
        return _row(evaluator, raced, whole, seed)


def _row(evaluator: Evaluator, raced: Entrant, whole: Entrant, seed: int) -> str:
    """Both entrants' finalists take turns together, as `tune` does; each has its own winner."""
    teams = [finalists(each.measured) for each in (raced, whole)]
    everybody = list(dict.fromkeys([*teams[0], *teams[1]]))
    finals = dict(zip(everybody, evaluator.finals(everybody).measurements, strict=True))
    first, second = (min(team, key=lambda each: _seconds(finals[each])) for team in teams)
    in_race = dict(raced.measured)[second]
    counts = Counter(measurement.outcome for _, measurement in raced.measured)
    ratio = _seconds(finals[first]) / _seconds(finals[second])
    return (
        f"| {seed} | {len(raced.measured)} | {counts[Outcome.ABANDONED]} "
        f"| {raced.seconds:.1f} s / {whole.seconds:.1f} s = {raced.seconds / whole.seconds:.2f} "
        f"| {raced.calls} / {whole.calls} = {raced.calls / whole.calls:.2f} "
        f"| {_time(finals[first])} | {_time(finals[second])} | {ratio:.3f} "
        f"| {'same' if first == second else f'{in_race.outcome} {_time(in_race)}'} |"
    )


def _seconds(measurement: Measurement) -> float:
    return measurement.median_s if measurement.ok and measurement.median_s else float("inf")


def _time(measurement: Measurement) -> str:
    median_s = measurement.median_s or 0.0
    low, high = measurement.interval_s or (median_s, median_s)
    return f"{median_s * 1e3:.3f} ms [{low * 1e3:.3f}, {high * 1e3:.3f}]"


if __name__ == "__main__":
    main()
