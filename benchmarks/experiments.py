"""Classic experiments on the matrix product: ``python benchmarks/experiments.py NAME``.

loop-orders  the six orders of the textbook's three loops
unrolling    how far a loop is written out: partial sums, reduction steps, vectors
blocking     the size of cache blocks against the sizes of the caches
schedules    schedules, chunks and threads, for rows of equal and of growing cost
strassen     from which size on seven products beat eight

Kernels are those of the families; every one is verified, then all take turns in one process, as
finalists of a tuning run do. Prints Markdown; ``--plot FILE`` draws it too (extra: bench).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import experiment_plots
from environment import describe
from thread_schedule import SCHEDULES, ThreadSchedule

from autotune import Gemm
from autotune.core.configuration import Candidate, Configuration, Value
from autotune.core.limits import CpuLimits
from autotune.families.family import KernelFamily
from autotune.families.program_cache import ProgramCache
from autotune.measuring.effort import Effort
from autotune.operations.problem import Product
from autotune.serving.target import Work
from autotune.targets.families import find_operation, load_families
from autotune.targets.registry import make_target

TRIANGULAR = Path(__file__).parent.parent / "examples" / "triangular"


@dataclass(frozen=True, slots=True)
class Contender:
    """A configuration in an experiment: the line it belongs to, its place on it, what it is."""

    line: str
    x: Value
    family: str
    parameters: Mapping[str, Value]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured of one contender."""

    contender: Contender
    problem: Gemm
    median_s: float
    interval_s: tuple[float, float]

    @property
    def gflops(self) -> float:
        return self.problem.flops / self.median_s / 1e9


@dataclass(frozen=True, slots=True)
class Experiment:
    """Contenders for every size, and how to show what came of them.

    Attributes:
        contenders: those of one size, given the machine's limits; the first is what others are
            compared with.
        sizes: M = N = K.
        x: what the horizontal axis is; empty where it is the size.
        operation: what is computed: gemm or trmm.
        accuracy: the loosest class allowed.
        threads: the cap on threads; None takes all.
    """

    contenders: Callable[[int, CpuLimits], Iterable[Contender]]
    sizes: tuple[int, ...]
    x: str
    operation: str = "gemm"
    accuracy: str = "ieee"
    threads: int | None = 1


def loop_orders(size: int, limits: CpuLimits) -> Iterator[Contender]:
    for order in ("ijk", "ikj", "jik", "jki", "kij", "kji"):
        yield Contender("loops", order, "loops", {"order": order})


def unrolling(size: int, limits: CpuLimits) -> Iterator[Contender]:
    vector = limits.vector_bits
    for unroll in (1, 2, 4, 8, 16):
        yield Contender(
            "partial sums of a dot product", unroll, "unrolled", {"unroll": unroll, "tx": 1}
        )
        tiles = {"sm": 64, "sn": 64, "sk": 512}
        yield Contender("reduction steps of ikj", unroll, "blocked", {"unroll": unroll, **tiles})
        simd = {"vector": vector, "unroll": unroll, "block": 0}
        yield Contender("vectors of a row", unroll, "simd", {**simd, "row": "memory"})
        yield Contender("vectors kept in registers", unroll, "simd", {**simd, "row": "registers"})


def blocking(size: int, limits: CpuLimits) -> Iterator[Contender]:
    caches = [("L1", limits.l1_bytes), ("L2", limits.l2_bytes), ("L3", limits.l3_bytes)]
    for row in ("memory", "registers"):
        blocks = [block for block in (16, 32, 64, 128, 256, 512, 1024) if block < size]
        for block in (*blocks, 0):
            fitting = [name for name, held in caches if 3 * block * block * 4 <= held]
            unroll = max(1, min(4, (block or 64) * 32 // limits.vector_bits))
            yield Contender(
                f"row in {row}",
                block or size,
                "simd",
                {"vector": limits.vector_bits, "unroll": unroll, "row": row, "block": block},
                f"three blocks fit {' '.join(fitting[:1]) or 'no cache'}"
                if block
                else "not blocked",
            )


def schedules(
    family: str, fixed: Mapping[str, Value], cost: Callable[[int], float]
) -> Callable[[int, CpuLimits], Iterator[Contender]]:
    """One thread, then every schedule, chunk and number of threads."""

    def contenders(size: int, limits: CpuLimits) -> Iterator[Contender]:
        costs = [cost(row) for row in range(size)]
        yield Contender("one thread", "-", family, fixed)
        counts = [t for t in (2, 4, 8, 16, 32, 64) if t < limits.max_threads]
        for threads in (*counts, limits.max_threads):
            for kind in SCHEDULES:
                for chunk in (0, 1, 4, 16, 64):
                    schedule = ThreadSchedule(kind, chunk)
                    yield Contender(
                        f"{kind}, {threads} threads",
                        chunk,
                        family,
                        {**fixed, "threads": threads, "schedule": kind, "chunk": chunk},
                        f"at most {schedule.best_speedup(costs, threads):.2f}",
                    )

    return contenders


def strassen(size: int, limits: CpuLimits) -> Iterator[Contender]:
    def panels(largest: int) -> Mapping[str, Value]:
        """Panels no larger than the blocks that are multiplied: those would repeat others."""
        return {"ty": 4, "unroll": 4, "sn": min(256, largest), "sk": min(512, largest)}

    whole = {**panels(size), "sm": min(1024, size), "shared": "grid"}
    yield Contender("eight products (packed)", size, "packed", whole)
    for cutoff in (128, 256, 512, 1024):
        divided = {**panels(cutoff), "cutoff": cutoff}
        yield Contender(f"seven, down to {cutoff}", size, "strassen", divided)


EXPERIMENTS: Mapping[str, Sequence[Experiment]] = {
    "loop-orders": [Experiment(loop_orders, (512,), "loop order, outermost first")],
    "unrolling": [Experiment(unrolling, (512,), "unroll")],
    "blocking": [Experiment(blocking, (1024,), "edge of a block")],
    "schedules": [
        Experiment(
            schedules(
                "simd", {"vector": 256, "unroll": 4, "row": "memory", "block": 0}, lambda row: 1.0
            ),
            (768,),
            "chunk (0: not given)",
            threads=None,
        ),
        Experiment(
            schedules("rows", {"unroll": 8}, lambda row: row + 1.0),
            (1024,),
            "chunk (0: not given)",
            operation="trmm",
            threads=None,
        ),
    ],
    "strassen": [
        Experiment(strassen, (256, 512, 1024, 2048), "", accuracy="strassen"),
    ],
}


def configuration_of(contender: Contender, families: Mapping[str, KernelFamily]) -> Configuration:
    """A value for each of the family's parameters; one thread, unless said otherwise."""
    values = {"threads": 1, "schedule": "static", "chunk": 0, **contender.parameters}
    return Configuration({p.name: values[p.name] for p in families[contender.family].parameters})


def measure(experiment: Experiment, sizes: Sequence[int], seconds: float) -> list[Point]:
    """Verify every contender that is valid here, and time all of a size in turns."""
    own = [TRIANGULAR]
    families = load_families(target="cpu", operation=experiment.operation, extra=own)
    target = make_target("cpu")
    points = []
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            problem = _problem(experiment, size)
            device = target.device(problem)
            limits = device.limits
            assert isinstance(limits, CpuLimits)
            entered: dict[Candidate, Contender] = {}
            for contender in experiment.contenders(size, limits):
                configuration = configuration_of(contender, families)
                if configuration in families[contender.family].space(problem, limits):
                    entered[Candidate(contender.family, configuration)] = contender
            effort = Effort(timeout_s=120, finals_s=seconds)
            with target.evaluator(
                Work(problem, families, device, ProgramCache(Path(folder)), effort)
            ) as evaluator:
                finals = evaluator.finals(list(entered))
            for contender, found in zip(entered.values(), finals.measurements, strict=True):
                if found.ok and found.median_s is not None:
                    interval = found.interval_s or (found.median_s, found.median_s)
                    points.append(Point(contender, problem, found.median_s, interval))
                else:
                    print(f"<!-- {contender.line}, {contender.x}: {found.reason} -->")
    return points


def _problem(experiment: Experiment, size: int) -> Gemm:
    fields = {"accuracy": experiment.accuracy, "threads": experiment.threads}
    if experiment.operation == "gemm":
        return Gemm(size, size, size, **fields)
    operation = find_operation(experiment.operation, [TRIANGULAR])
    return Product(size, size, size, **fields, defined=operation)


def table(experiment: Experiment, points: Sequence[Point]) -> str:
    """Markdown: a row for each point, with its speed relative to the first of its size."""
    x = experiment.x or "size"
    lines = [
        f"{experiment.operation}, float32, M = N = K\n",
        f"| size | what | {x} | ms [95% interval] | GFLOP/s | speedup | |",
        "|---|---|---|---|---|---|---|",
    ]
    first: dict[int, float] = {}
    for point in points:
        size = point.problem.m
        low, high = (1e3 * bound for bound in point.interval_s)
        speedup = first.setdefault(size, point.median_s) / point.median_s
        contender = point.contender
        lines.append(
            f"| {size} | {contender.line} | {contender.x} "
            f"| {1e3 * point.median_s:.3f} [{low:.3f}, {high:.3f}] | {point.gflops:.1f} "
            f"| {speedup:.2f} | {contender.note} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=EXPERIMENTS)
    parser.add_argument("--sizes", type=int, nargs="+", help="M = N = K (default: the usual ones)")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="of timed calls for each size (default 20)"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="PNG or SVG")
    args = parser.parse_args()

    printed = [describe()]
    print(printed[0])
    for experiment in EXPERIMENTS[args.name]:
        points = measure(experiment, args.sizes or experiment.sizes, args.seconds)
        printed.append(f"\n{table(experiment, points)}")
        print(printed[-1], flush=True)
    if args.plot is not None:
        experiment_plots.draw(args.plot, args.name, "\n".join(printed))


if __name__ == "__main__":
    main()
