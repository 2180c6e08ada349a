"""A tuned distributed product against ScaLAPACK's and rows by collectives, in one run.

``python benchmarks/mpi_peers.py LIBRARY --ranks 4`` starts itself under mpiexec. LIBRARY is a
ScaLAPACK built for the MPI that mpi4py uses. What was tuned comes from the cache; with ``--tune
SECONDS`` each problem and its local kernel are tuned first, so long each. It and the row scheme
multiply with the same local kernel, ScaLAPACK with its own BLAS. Every grid and block size of
ScaLAPACK is tried, and the fastest few take part. All contenders take turns, call by call, on the
same ranks; ratios are of calls of the same round. Prints Markdown, and how much of the processors
other work took meanwhile.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from environment import describe
from mpi_tuning import share_by_rows, tune_local
from scalapack_gemm import Product, Scalapack, variants

from autotune import Gemm, tune
from autotune.core.configuration import Candidate, Configuration
from autotune.core.paths import CacheLocations
from autotune.core.statistics import median_interval
from autotune.cpu.kernel import CpuKernel
from autotune.cpu.target import CpuTarget
from autotune.distributed.mpi.loading import choose_local
from autotune.distributed.mpi.processes import find_mpiexec, launch_command
from autotune.distributed.mpi.ranks.harness import timed_together
from autotune.distributed.mpi.ranks.world import under_mpiexec
from autotune.distributed.mpi.target import MpiTarget
from autotune.families.modules import load_module
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import render
from autotune.serving.lookup import look_up
from autotune.targets.families import load_families

TRIED = 3
"""Rounds of all variants of ScaLAPACK, of which the fastest are chosen."""

KEPT = 4
"""How many of them take part."""

RESAMPLED = 10_000
"""Draws of all rounds behind the interval of a mean over sizes."""


@dataclass(frozen=True, slots=True)
class Contender:
    """Something that multiplies, on this rank.

    Attributes:
        name: what the tables call it.
        call: computes the product; all ranks call it.
        error: the largest deviation of C on this rank after a call, in units of n eps |A| |B|.
    """

    name: str
    call: Callable[[], object]
    error: Callable[[], float]


class Bench:
    """One problem on all ranks.

    Args:
        comm: the ranks.
        scalapack: the peer.
        size: rows and columns of the matrices.
        operands: "root" or "distributed".
    """

    def __init__(self, comm: Any, scalapack: Scalapack, size: int, operands: str) -> None:
        self.comm = comm
        self.scalapack = scalapack
        self.operands = operands
        self.problem = Gemm(size, size, size, dtype="float64")
        rng = np.random.default_rng(0)
        self.a, self.b = rng.random((size, size)), rng.random((size, size))
        self.right = self.a @ self.b
        self.c = np.zeros((size, size)) if comm.rank == 0 else None
        whole = (self.a, self.b, self.c) if comm.rank == 0 else (None, None, None)
        self.whole: tuple[Any, Any, Any] = whole
        self.unit = size * float(np.finfo("float64").eps) * float(self.right.max())
        self.programs = ProgramCache(CacheLocations.at().programs)

    def ours(self) -> list[Contender]:
        """What was tuned, and the row scheme, with one local kernel."""
        comm, problem = self.comm, self.problem
        told = None
        if comm.rank == 0:
            target = MpiTarget(comm.size, self.operands)
            found = look_up(problem, target, match="nearest")
            quarter = share_by_rows(problem, comm.size)
            told = found.candidate, found.match.quality.name, choose_local(quarter, self.programs)
            kernel = look_up(quarter, CpuTarget(), match="nearest").candidate
            print(f"- local kernel of ours at {problem.m}: {kernel}", flush=True)
        candidate, quality, local = comm.bcast(told)
        kernel = CpuKernel(local.program)
        rows = Candidate("rows", Configuration({"rows": comm.size, "threads": 1}))
        return [
            self.planned(f"tuned ({quality.lower()}): {candidate}", candidate, kernel),
            self.planned("rows by collectives", rows, kernel),
        ]

    def planned(self, name: str, candidate: Candidate, kernel: CpuKernel) -> Contender:
        """A candidate of ours."""
        family = load_families(target="mpi")[candidate.family]
        source = render(family, candidate.configuration, dtype="float64")
        module = load_module(self.programs.write(source, family.name))
        problem = self.problem
        plan = getattr(module, source.entry)(self.comm, problem.m, problem.n, problem.k, kernel)
        if self.operands == "root":
            return Contender(name, lambda: plan.from_root(*self.whole), self.error)
        homes = [(slice(*rows), slice(*columns)) for rows, columns in plan.homes()]
        a, b = self.a[homes[0]].copy(), self.b[homes[1]].copy()
        c, right = np.zeros_like(self.right[homes[2]]), self.right[homes[2]]
        return Contender(
            name,
            lambda: plan.on_blocks(a, b, c),
            lambda: float(np.abs(c - right).max(initial=0.0)) / self.unit,
        )

    def error(self) -> float:
        """How far rank 0's C is off."""
        return 0.0 if self.c is None else float(np.abs(self.c - self.right).max()) / self.unit

    def scalapacks(self) -> list[Contender]:
        """The fastest variants of ScaLAPACK, by their shortest calls in a few rounds of all."""
        tried = [
            (grid, block, Product(self.scalapack, grid, self.problem.m, block))
            for grid, block in variants(self.comm.size)
        ]
        for _, _, product in tried:
            product.hand_out(self.a, self.b)
        shortest = [math.inf] * len(tried)
        for _ in range(TRIED):
            for index, (_, _, product) in enumerate(tried):
                seconds = timed_together(self.comm, self.of_scalapack(product))
                shortest[index] = min(shortest[index], seconds)
        order = sorted(range(len(tried)), key=shortest.__getitem__)
        for index in order[KEPT:]:
            tried[index][2].free()
        best = []
        for index in order[:KEPT]:
            grid, block, product = tried[index]
            product.c.fill(np.nan)
            best.append(
                Contender(
                    f"ScaLAPACK {grid}, blocks of {block}",
                    self.of_scalapack(product),
                    self.error
                    if self.operands == "root"
                    else lambda product=product: product.error(self.right) / self.unit,
                )
            )
        return best

    def of_scalapack(self, product: Product) -> Callable[[], object]:
        """The call that is timed."""
        if self.operands == "root":
            return lambda: product.from_root(*self.whole)
        return product.on_blocks


def busy_seconds() -> float:
    """Seconds that this machine's cores have been busy, all together; 0 where it does not say."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return 0.0
    user, nice, system, _, _, *interrupts = map(int, fields[:8])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


def rounds(bench: Bench, contenders: list[Contender], seconds: float) -> list[list[float]]:
    """Seconds of every call of each contender, which take turns; checked first.

    Each turn has a call that is not timed: what the one before left in the caches is nobody's.
    """
    from mpi4py import MPI

    comm = bench.comm
    for each in contenders:
        if bench.c is not None:
            bench.c[...] = np.nan
        each.call()
        error = comm.allreduce(each.error(), MPI.MAX)
        if not error < 1:
            raise ValueError(f"{each.name} is off by {error:.3g} n eps |A| |B|")
    times: list[list[float]] = [[] for _ in contenders]
    spent = 0.0
    while spent < seconds or len(times[0]) < 9:
        for own, each in zip(times, contenders, strict=True):
            warm = timed_together(comm, each.call)
            own.append(timed_together(comm, each.call))
            spent += warm + own[-1]
    return times


def compare(bench: Bench, seconds: float) -> dict[str, list[float]]:
    """Print one table; the tuned product's ratios to each kind of peer, by round."""
    contenders = [*bench.ours(), *bench.scalapacks()]
    busy_s, ranks_s = busy_seconds(), time.process_time()
    times = rounds(bench, contenders, seconds)
    busy_s = busy_seconds() - busy_s
    ranks_s = bench.comm.allreduce(time.process_time() - ranks_s)
    tuned, rows, *scalapack = times
    best = min(scalapack, key=median)
    ratios = {
        name: [other / mine for other, mine in zip(peer, tuned, strict=True)]
        for name, peer in (("rows by collectives", rows), ("ScaLAPACK", best))
    }
    if bench.comm.rank == 0:
        size = bench.problem.m
        print(f"\n### {size}x{size}x{size}, operands {bench.operands}, {len(tuned)} rounds\n")
        print("| | ms [95 %] | GFLOP/s |\n|---|---|---|")
        for each, own in zip(contenders, times, strict=True):
            low, high = median_interval(own)
            gflops = bench.problem.flops / median(own) / 1e9
            print(
                f"| {each.name} | {median(own) * 1e3:.2f} [{low * 1e3:.2f}, {high * 1e3:.2f}] "
                f"| {gflops:.1f} |"
            )
        if busy_s:
            print(f"\nOther work took {max(0.0, 1 - ranks_s / busy_s):.0%} of the processor time.")
        print(flush=True)
    return ratios


def mean_of_medians(sizes: list[list[float]]) -> tuple[float, float, float]:
    """The geometric mean of the medians of several sizes, and its 95 % interval by bootstrap.

    Args:
        sizes: the ratios of each, by round; rounds are drawn anew within each size.
    """
    rng = np.random.default_rng(0)
    logs = np.mean(
        [
            np.log(np.median(rng.choice(rounds, (RESAMPLED, len(rounds))), axis=1))
            for rounds in sizes
        ],
        axis=0,
    )
    low, high = np.exp(np.quantile(logs, [0.025, 0.975]))
    return math.prod(map(median, sizes)) ** (1 / len(sizes)), float(low), float(high)


def tune_all(args: argparse.Namespace) -> None:
    """Tune the ranks' own kernels, then the products; for no time, leave what there is."""
    for size in args.sizes if args.tune else ():
        problem = Gemm(size, size, size, dtype="float64")
        tune_local(problem, args.ranks, args.tune)
        for operands in args.operands:
            options = {"ranks": args.ranks, "operands": operands}
            tune(problem, target="mpi", timeout=args.tune, **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", help="path of a ScaLAPACK shared library")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--operands", nargs="+", default=["root", "distributed"])
    parser.add_argument("--seconds", type=float, default=6.0, help="of calls at every size")
    parser.add_argument("--tune", type=float, default=0, help="seconds for each problem")
    args = parser.parse_args()
    if not under_mpiexec():
        one_thread = dict.fromkeys(
            ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
        )
        command = [*launch_command(find_mpiexec(), args.ranks), sys.executable]
        again = [*command, str(Path(__file__)), *sys.argv[1:]]
        tune_all(args)
        sys.exit(subprocess.run(again, env={**os.environ, **one_thread}).returncode)

    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    scalapack = Scalapack(args.library, comm)
    if comm.rank == 0:
        print(describe())
        version = MPI.Get_library_version().splitlines()[0].replace("\t", " ")
        print(f"- {comm.size} ranks, {' '.join(version.split())}; one thread a rank")
        library = Path(args.library).resolve().name
        print(f"- {library}, local BLAS: {scalapack.blas() or 'unknown'}", flush=True)
    for operands in args.operands:
        found = [
            compare(Bench(comm, scalapack, size, operands), args.seconds) for size in args.sizes
        ]
        if comm.rank == 0:
            print(f"\nTuned, operands {operands}, times as fast as [95 %]:\n")
            print(f"| | {' | '.join(map(str, args.sizes))} | geometric mean |")
            print("|---" * (len(args.sizes) + 2) + "|")
            for name in found[0]:
                sizes = [each[name] for each in found]
                cells = [(median(own), *median_interval(own)) for own in sizes]
                mean = mean_of_medians(sizes)
                row = " | ".join(
                    f"{m:.2f} [{low:.2f}, {high:.2f}]" for m, low, high in (*cells, mean)
                )
                print(f"| {name} | {row} |", flush=True)
            print(flush=True)


if __name__ == "__main__":
    main()
