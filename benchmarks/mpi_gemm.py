"""Every distributed algorithm on every grid, side by side: ``python benchmarks/mpi_gemm.py``.

All candidates of one size take turns on the same ranks with the same operands, and so does NumPy
in one process; the baseline of the ratios is Scatterv, Bcast, Gatherv by rows on all ranks. Then
the fastest on each grid beside what the cost model predicts, from messages timed here and NumPy's
speed, and how well the model puts grids in order. With ``--tune SECONDS`` the ranks' own kernel is
tuned first. Prints Markdown. ScaLAPACK is for ``mpi_peers.py``.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterator, Mapping

from environment import describe
from mpi_grids import grid_of, root_cost
from mpi_tuning import share_by_rows, tune_local

from autotune import Gemm
from autotune.core.configuration import Candidate
from autotune.core.paths import CacheLocations
from autotune.cpu.target import CpuTarget
from autotune.distributed.grid import ProcessGrid
from autotune.distributed.mpi.evaluator import MpiEvaluator
from autotune.distributed.mpi.forecast import Machine, distributed_cost
from autotune.distributed.mpi.loading import choose_local
from autotune.distributed.mpi.messages import MeasureNetwork, Network
from autotune.distributed.mpi.ranks.world import World
from autotune.distributed.mpi.target import MpiTarget
from autotune.families.program_cache import ProgramCache
from autotune.measuring.effort import Effort, Work
from autotune.serving.lookup import look_up
from autotune.space import SearchSpace
from autotune.targets.families import load_families, select_families


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 1024])
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--operands", nargs="+", default=["root", "distributed"])
    parser.add_argument("--panels", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--family", nargs="+", metavar="FAMILY", help="default: all")
    parser.add_argument("--fewer", action="store_true", help="also grids of fewer ranks")
    parser.add_argument("--all", action="store_true", help="print slower configurations too")
    parser.add_argument("--seconds", type=float, default=1.0, help="timed calls per candidate")
    parser.add_argument("--tune", type=float, default=0, help="seconds for each size")
    args = parser.parse_args()

    print(describe())
    with World(args.ranks) as world:
        network = world.call(MeasureNetwork(), 60)
        print(f"- ranks: {world.describe()}, local product with one thread each")
    assert isinstance(network, Network)
    print(
        f"- messages: {network.latency_s * 1e6:.2f} us, "
        f"{1e-9 / network.seconds_per_byte if network.seconds_per_byte else 0:.2f} GB/s"
    )
    problems = [Gemm(size, size, size, dtype=args.dtype) for size in args.sizes]
    for problem in problems:
        tune_local(problem, args.ranks, args.tune)
    for operands in args.operands:
        for problem in problems:
            compare(problem, operands, network, args)


def compare(problem: Gemm, operands: str, network: Network, args: argparse.Namespace) -> None:
    """Print one table."""
    device = MpiTarget(args.ranks, operands).device(problem)
    cores = device.limits.names()["cores"]
    families = select_families(load_families(target="mpi"), args.family or ())
    candidates = [
        Candidate(name, space[index])
        for name, family in families.items()
        for space in [family.space(problem, device.limits)]
        for index in chosen(space, args)
    ]
    programs = ProgramCache(CacheLocations.at().programs)
    share = share_by_rows(problem, args.ranks)
    local = choose_local(share, programs)
    effort = Effort(finals_s=args.seconds * len(candidates), timeout_s=60)
    work = Work(problem, families, device, programs, effort)
    with MpiEvaluator(work, World(args.ranks), lambda wanted: local) as evaluator:
        finals = evaluator.finals(candidates)
    assert finals.baseline is not None
    rows = [
        (measurement.median_s, measurement.interval_s, candidate, measurement.reason)
        for candidate, measurement in zip(candidates, finals.measurements, strict=True)
        if measurement.median_s is not None and measurement.interval_s is not None
    ]
    by_rows = [s for s, _, each, _ in rows if each.family == "rows"]
    reference = min(by_rows, default=math.nan)
    numpy_flops = problem.flops / finals.baseline.median_s / finals.baseline.threads
    print(f"\n### {problem.label}, operands {operands}\n")
    kernel = look_up(share, CpuTarget(), match="nearest").candidate
    print(f"- local kernel: {kernel}")
    print(f"- {finals.baseline.name}: {finals.baseline.median_s * 1e3:.3f} ms\n")
    print("| algorithm | grid | configuration | ms [95 %] | x rows | x NumPy |")
    print("|---|---|---|---|---|---|")
    by_grid: dict[ProcessGrid, tuple[float, float]] = {}
    shown: set[tuple[str, ProcessGrid]] = set()
    for median_s, (low, high), candidate, _ in sorted(rows, key=lambda row: row[0]):
        configuration = candidate.configuration
        grid = grid_of(configuration)
        sizes = problem.m, problem.n, problem.k
        cost = (root_cost if operands == "root" else distributed_cost)(grid, *sizes)
        # Ranks that share cores get their part of one, and those that wait get theirs: they spin.
        rate = numpy_flops * min(1.0, cores / args.ranks)
        machine = Machine(network.latency_s, network.seconds_per_byte, rate)
        predicted_s = cost.seconds(machine, problem.itemsize)
        by_grid.setdefault(grid, (predicted_s, median_s))
        if (candidate.family, grid) in shown and not args.all:
            continue
        shown.add((candidate.family, grid))
        rest = {
            name: value
            for name, value in configuration.items()
            if name not in ("rows", "columns", "reduction", "side", "threads")
        }
        print(
            f"| {candidate.family} | {grid} | {' '.join(f'{k}={v}' for k, v in rest.items())} "
            f"| {median_s * 1e3:.3f} [{low * 1e3:.3f}, {high * 1e3:.3f}] "
            f"| {reference / median_s:.2f} | {finals.baseline.median_s / median_s:.2f} |",
            flush=True,
        )
    for candidate, measurement in zip(candidates, finals.measurements, strict=True):
        if measurement.median_s is None:
            print(f"\n{candidate}: {measurement.outcome}, {measurement.reason}")
    print_model(by_grid)


def chosen(space: SearchSpace, args: argparse.Namespace) -> Iterator[int]:
    """Rows of a family's space: one thread, the grids and panels asked for, waiting by yields."""
    for index in range(len(space)):
        found = space[index]
        workers = grid_of(found).size + (found.get("master_works") is False)
        if (
            (workers == args.ranks or (args.fewer and workers < args.ranks))
            and found["threads"] == 1
            and found.get("panel", args.panels[0]) in args.panels
            and found.get("wait", "yield") == "yield"
        ):
            yield index


def print_model(times: Mapping[ProcessGrid, tuple[float, float]]) -> None:
    """Predicted and measured times, and how far their orders agree: Kendall's tau."""
    print("\n| grid | ranks | predicted, ms | measured, ms |\n|---|---|---|---|")
    for grid, (predicted_s, median_s) in sorted(times.items(), key=lambda item: item[1][0]):
        print(f"| {grid} | {grid.size} | {predicted_s * 1e3:.3f} | {median_s * 1e3:.3f} |")
    pairs = list(itertools.combinations(times.values(), 2))
    signs = [(a[0] > b[0]) - (a[0] < b[0]) for a, b in pairs]
    agreed = sum(
        sign * ((a[1] > b[1]) - (a[1] < b[1])) for sign, (a, b) in zip(signs, pairs, strict=True)
    )
    told = sum(map(abs, signs))
    print(
        f"\nOrder of {len(times)} grids: of {len(pairs)} pairs the model sets {told} apart, "
        f"and is right on {(told + agreed) / 2:g}: tau {agreed / max(1, told):.2f}"
    )


if __name__ == "__main__":
    main()
