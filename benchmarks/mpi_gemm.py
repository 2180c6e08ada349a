"""Every distributed algorithm on every grid, side by side: ``python benchmarks/mpi_gemm.py``.

All candidates of one size take turns on the same ranks with the same operands, and so does NumPy
in one process; the baseline of the ratios is Scatterv, Bcast, Gatherv by rows on all ranks. With
`--scalapack LIBRARY` a ScaLAPACK built for the same MPI takes part, on operands that it holds in
its own block-cyclic distribution. Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from environment import describe

from autotune import Gemm
from autotune.catalog import load_families
from autotune.configuration import Candidate
from autotune.cost_model import Machine, distributed_cost, root_cost
from autotune.evaluators.base import Effort
from autotune.evaluators.mpi.evaluator import grid_of
from autotune.evaluators.mpi.messages import MeasureNetwork, Network
from autotune.evaluators.mpi.world import World, find_mpiexec, launch_command
from autotune.family import KernelFamily
from autotune.mpi_target import MpiTarget
from autotune.program_cache import ProgramCache

PEER = Path(__file__).with_name("scalapack_gemm.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 1024])
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--operands", nargs="+", default=["root", "distributed"])
    parser.add_argument("--panels", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--seconds", type=float, default=1.0, help="timed calls per candidate")
    parser.add_argument("--scalapack", help="path of a ScaLAPACK shared library for the same MPI")
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
    for operands in args.operands:
        for size in args.sizes:
            compare(Gemm(size, size, size, dtype=args.dtype), operands, network, args)
    if args.scalapack is None:
        print("\nScaLAPACK: not compared, there was no --scalapack LIBRARY.")
    else:
        for size in args.sizes:
            print(f"\n{scalapack(args.scalapack, args.ranks, size, max(args.panels))}")


def compare(problem: Gemm, operands: str, network: Network, args: argparse.Namespace) -> None:
    """Print one table."""
    target = MpiTarget(args.ranks, operands)
    device = target.device(problem)
    families = load_families(target="mpi")
    candidates = [
        Candidate(name, space[index])
        for name, family in families.items()
        for space in [family.space(problem, device.limits)]
        for index in chosen(family, space, args)
    ]
    effort = Effort(finals_s=args.seconds * len(candidates), timeout_s=60)
    with (
        tempfile.TemporaryDirectory() as folder,
        target.evaluator(
            problem,
            families,
            device,
            ProgramCache(Path(folder)),
            effort=effort,
            workers=None,
            seed=0,
        ) as evaluator,
    ):
        finals = evaluator.finals(candidates)
    assert finals.baseline is not None
    rows = [
        (measurement.median_s, measurement.interval_s, candidate, measurement.reason)
        for candidate, measurement in zip(candidates, finals.measurements, strict=True)
        if measurement.median_s is not None and measurement.interval_s is not None
    ]
    by_rows = [s for s, _, each, _ in rows if each.family == "rows"]
    reference = min(by_rows)
    machine = Machine(
        network.latency_s,
        network.seconds_per_byte,
        problem.flops / finals.baseline.median_s / finals.baseline.threads,
    )
    print(f"\n### {problem.label}, operands {operands}\n")
    print(f"NumPy: {finals.baseline.name}, {finals.baseline.median_s * 1e3:.3f} ms\n")
    print("| algorithm | grid | configuration | ms [95 %] | x rows | x NumPy | model, ms |")
    print("|---|---|---|---|---|---|---|")
    for median_s, (low, high), candidate, _ in sorted(rows, key=lambda row: row[0]):
        configuration = candidate.configuration
        grid = grid_of(configuration)
        sizes = problem.m, problem.n, problem.k
        panel = configuration.get("panel")
        cost = (
            root_cost(grid, *sizes)
            if operands == "root"
            else distributed_cost(grid, *sizes, panel=None if panel is None else int(panel))
        )
        rest = {
            name: value
            for name, value in configuration.items()
            if name not in ("rows", "columns", "reduction", "side", "threads")
        }
        print(
            f"| {candidate.family} | {grid} | {' '.join(f'{k}={v}' for k, v in rest.items())} "
            f"| {median_s * 1e3:.3f} [{low * 1e3:.3f}, {high * 1e3:.3f}] "
            f"| {reference / median_s:.2f} | {finals.baseline.median_s / median_s:.2f} "
            f"| {cost.seconds(machine, problem.itemsize) * 1e3:.3f} |",
            flush=True,
        )
    for candidate, measurement in zip(candidates, finals.measurements, strict=True):
        if measurement.median_s is None:
            print(f"\n{candidate}: {measurement.outcome}, {measurement.reason}")


def chosen(family: KernelFamily, space: object, args: argparse.Namespace) -> Iterator[int]:
    """Rows of a family's space: all grids of all ranks, one thread, the panels asked for."""
    for index in range(len(space)):  # type: ignore[arg-type]
        found = space[index]  # type: ignore[index]
        workers = grid_of(found).size + (found.get("master_works") is False)
        panel = found.get("panel", args.panels[0])
        if workers == args.ranks and found["threads"] == 1 and panel in args.panels:
            yield index


def scalapack(library: str, ranks: int, size: int, block: int) -> str:
    """One line on ScaLAPACK's pdgemm."""
    command = [*launch_command(find_mpiexec(), ranks), sys.executable, str(PEER), library]
    done = subprocess.run(
        [*command, str(size), str(block)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        told = done.stderr.strip().rpartition("\n")[2]
        return f"ScaLAPACK at {size}: failed, {told}"
    told = json.loads(done.stdout)
    low, median, high = (1e3 * told[name] for name in ("low_s", "median_s", "high_s"))
    return (
        f"ScaLAPACK at {size}, grid {told['grid']}, blocks of {block}: "
        f"{median:.3f} ms [{low:.3f}, {high:.3f}], error {told['error']:.2g}"
    )


if __name__ == "__main__":
    main()
