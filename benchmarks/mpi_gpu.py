"""Products on one GPU a rank: ``mpiexec -n N python benchmarks/mpi_gpu.py``.

What a link between two GPUs carries by every transport, what one GPU does alone with the same
local kernel, and every algorithm on every grid and transport, blocks in the memory of the GPUs.
All of them take turns, and some rows of every result are verified by ``C v = A (B v)``. Markdown.
"""

from __future__ import annotations

import argparse
import functools
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
from gpu_environment import describe_gpu
from mpi4py import MPI
from mpi_grids import grid_of
from numpy.typing import NDArray

from autotune.core.configuration import Configuration
from autotune.core.statistics import median_interval
from autotune.distributed.grid import factorisations
from autotune.distributed.mpi.gpu.rank import GpuRank
from autotune.distributed.mpi.kernel import tuned_product
from autotune.distributed.mpi.ranks.ranks import describe
from autotune.families.rendering import render
from autotune.gpu.matrix import DeviceMatrix
from autotune.gpu.nvidia.device import read_gpu
from autotune.targets.families import load_families

FAMILIES = load_families(target="mpi")
DTYPE = "float32"
LINK_BYTES = 256 << 20
BAND = 32
"""Rows looked at together; of every block there are four such bands."""

TOLERANCE = 1e-5
"""Of |C v - A (B v)| / sqrt(N K), v of -1 and 1: without a thousandth of the reduction it is a
thousand times more."""

comm = MPI.COMM_WORLD
Block = NDArray[np.float32]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[16384, 32768])
    parser.add_argument("--families", nargs="+", default=["summa", "grid", "reduction", "cannon"])
    parser.add_argument("--transports", nargs="+", default=["direct", "nccl", "shared", "staged"])
    parser.add_argument("--panels", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--rounds", type=int, default=5, help="turns that each contestant takes")
    parser.add_argument("--seconds", type=float, default=60.0, help="the most for the turns")
    args = parser.parse_args()

    ranks = describe(comm, gpus=True)
    assert ranks.gpus is not None
    device = read_gpu()
    tell(describe_gpu(device))
    tell(
        f"- ranks: {ranks.ranks}, one GPU each, on {ranks.nodes} node, {ranks.library} "
        f"{ranks.version} {ranks.transport}, CUDA-aware: {ranks.gpus.cuda_aware}, NCCL: "
        f"{_nccl_version() if ranks.gpus.nccl else 'no'}"
    )
    topology = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True)
    tell("\n```\n" + _plain(topology.stdout.split("\n\n")[0]) + "\n```")
    able = {
        "staged": True,
        "shared": ranks.nodes == 1,
        "direct": ranks.gpus.cuda_aware,
        "nccl": ranks.gpus.nccl,
    }
    transports = [name for name in args.transports if able[name] and comm.size > 1]
    for size in args.sizes:
        with tuned_product(comm, size, size, size, DTYPE) as gpu:
            if size == args.sizes[0]:
                links(gpu, transports)
            compare(gpu, size, transports, args)


def tell(text: str) -> None:
    """Print on rank 0."""
    if comm.rank == 0:
        print(text, flush=True)


# --- links ---------------------------------------------------------------------------------------


def links(gpu: GpuRank, transports: list[str]) -> None:
    """What passes between two GPUs, and between one and the host."""
    count = LINK_BYTES // 4
    matrix, other = gpu.empty((count,), DTYPE), gpu.empty((count,), DTYPE)
    pinned = gpu.host((count,), DTYPE)
    pinned[...] = 1.0
    matrix[...] = pinned
    gpu.synchronize()
    rows = [
        ("pinned host memory to GPU", rate(gpu, lambda: matrix.__setitem__(..., pinned))),
        ("GPU to pinned host memory", rate(gpu, lambda: gpu.download(matrix, pinned))),
        ("within a GPU", rate(gpu, lambda: other.__setitem__(..., matrix))),
    ]
    for name in transports:
        everybody = gpu.communicator(comm, name).Split(0, comm.rank)
        pair = everybody.Split(comm.rank // 2, comm.rank)

        def exchange(pair: Any = pair) -> None:
            if comm.rank < 2:
                peer = 1 - comm.rank
                message = [pair.Irecv([other, MPI.FLOAT], peer)]
                gpu.wait([*message, pair.Isend([matrix, MPI.FLOAT], peer)])

        def broadcast(everybody: Any = everybody) -> None:
            everybody.Bcast([matrix, MPI.FLOAT], 0)

        rows.append((f"{name}: broadcast to all", rate(gpu, broadcast)))
        rows.append((f"{name}: ranks 0 and 1 exchange, each way", rate(gpu, exchange)))
        pair.Free()
        everybody.Free()
    tell(f"\n{LINK_BYTES >> 20} MiB, alone:\n\n| | GB/s |\n|---|---|")
    for name, each in rows:
        tell(f"| {name} | {each:.1f} |")


def rate(gpu: GpuRank, move: Callable[[], object]) -> float:
    """GB/s of a move of `LINK_BYTES`, the best of a few."""
    seconds = []
    for _ in range(5):
        comm.Barrier()
        start = time.perf_counter()
        move()
        gpu.synchronize()
        seconds.append(comm.allreduce(time.perf_counter() - start, MPI.MAX))
    return LINK_BYTES / min(seconds) / 1e9


# --- products ------------------------------------------------------------------------------------


@dataclass
class Contestant:
    """One algorithm on a grid, its blocks in place.

    Attributes:
        label: for the table.
        plan: what multiplies.
        blocks: A, B and C of this rank.
        seconds: of its turns.
    """

    label: tuple[str, str, str, str]
    plan: Any
    blocks: list[DeviceMatrix]
    seconds: list[float] = field(default_factory=list)

    def call(self) -> None:
        """Multiply."""
        self.plan.on_blocks(*self.blocks, 1.0, 0.0)


def candidates(transports: list[str], panels: list[int]) -> Iterator[tuple[str, Configuration]]:
    """Every algorithm on every grid of all ranks, by every transport."""
    ranks = comm.size
    for transport in transports:
        base: dict[str, Any] = {"transport": transport}
        for grid in factorisations(ranks, layers=False):
            extents = {"rows": grid.rows, "columns": grid.columns}
            for panel in panels:
                chosen = {**base, **extents, "panel": panel, "lookahead": 1}
                yield "gpu_summa", Configuration(chosen)
            yield "gpu_grid", Configuration({**base, **extents})
        for grid in factorisations(ranks):
            if grid.reduction > 1:
                chosen = {**base, "rows": grid.rows, "columns": grid.columns}
                chosen |= {"reduction": grid.reduction, "combine": "reduce_scatter"}
                yield "gpu_reduction", Configuration(chosen)
        side = round(ranks**0.5)
        if side > 1 and side**2 == ranks:
            yield "gpu_cannon", Configuration({**base, "side": side, "overlap": True})


def compare(gpu: GpuRank, size: int, transports: list[str], args: argparse.Namespace) -> None:
    """A table of all contestants beside one GPU."""
    operands = Operands(size)
    held: dict[Any, list[DeviceMatrix]] = {}
    contestants: list[Contestant] = []
    for name, configuration in candidates(transports, args.panels):
        if name.removeprefix("gpu_") not in args.families:
            continue
        module: dict[str, Any] = {"__name__": "program"}
        exec(
            compile(render(FAMILIES[name], configuration, dtype=DTYPE).text, name, "exec"), module
        )
        plan = module["gemm"](comm, size, size, size, gpu)
        homes = tuple(map(tuple, plan.homes()))
        if homes not in held:
            held[homes] = operands.blocks(gpu, plan.homes())
        grid = grid_of(configuration)
        panel = str(configuration.get("panel", ""))
        label = (name, str(grid), str(configuration["transport"]), panel)
        each = Contestant(label, plan, held[homes])
        each.call()
        error = operands.error(gpu, each)
        if not error <= TOLERANCE:
            tell(f"\n{label} is wrong: {error:.2g}")
            continue
        contestants.append(each)
    alone_s = alone(gpu, size, args.rounds)
    started = time.perf_counter()
    for _ in range(args.rounds):
        for each in contestants:
            comm.Barrier()
            start = time.perf_counter()
            each.call()
            each.seconds.append(comm.allreduce(time.perf_counter() - start, MPI.MAX))
        if comm.allreduce(time.perf_counter() - started, MPI.MAX) > args.seconds:
            break
    flops = 2 * size**3
    one = median(alone_s)
    low, high = median_interval(alone_s)
    tell(
        f"\n## {size} x {size} x {size}, {DTYPE}, {comm.size} GPUs\n\n"
        f"One GPU alone: {one * 1e3:.1f} ms [{low * 1e3:.1f}, {high * 1e3:.1f}], "
        f"{flops / one / 1e12:.1f} TFLOP/s, the local kernel being {kernel_of(gpu)}.\n\n"
        "| algorithm | grid | transport | panel | ms [least, most] | TFLOP/s per GPU | "
        "of one GPU's rate |\n|---|---|---|---|---|---|---|"
    )
    for each in sorted(contestants, key=lambda each: median(each.seconds)):
        own = median(each.seconds)
        per_gpu = flops / own / comm.size
        tell(
            f"| {' | '.join(each.label)} | {own * 1e3:.1f} [{min(each.seconds) * 1e3:.1f}, "
            f"{max(each.seconds) * 1e3:.1f}] | {per_gpu / 1e12:.1f} | "
            f"{100 * per_gpu * one / flops:.1f}% |"
        )
    for each in contestants:
        each.plan.free()


def alone(gpu: GpuRank, size: int, rounds: int) -> list[float]:
    """Seconds of calls of the local kernel on the whole problem, on rank 0, the others idle."""
    seconds = []
    if comm.rank == 0:
        tile = np.random.default_rng(0).uniform(-1, 1, (1024, size)).astype(DTYPE)
        a, b, c = (gpu.empty((size, size), DTYPE) for _ in range(3))
        for matrix in (a, b):
            first = gpu.upload(tile)
            for row in range(0, size, len(tile)):
                matrix[row : row + len(tile)] = first[: min(len(tile), size - row)]
        for _ in range(rounds + 1):
            start = time.perf_counter()
            gpu(a, b, c)
            gpu.synchronize()
            seconds.append(time.perf_counter() - start)
    done = comm.Ibarrier()
    while not done.Test():
        time.sleep(0.01)
    return list(comm.bcast(seconds[1:], 0))


class Operands:
    """A and B of one size, made wherever they are needed, and a check of products of them.

    Element (i, j) does not depend on who makes it: both are made in square tiles, each from a
    seed of its own.
    """

    TILE = 2048

    def __init__(self, size: int) -> None:
        self._size = size
        rng = np.random.default_rng(99)
        self._signs = rng.choice([-1.0, 1.0], size)
        self._right: NDArray[np.float64] | None = None

    def blocks(self, gpu: GpuRank, homes: Any) -> list[DeviceMatrix]:
        """This rank's blocks of A, B and C."""
        (a, b, c) = homes
        shape = c[0][1] - c[0][0], c[1][1] - c[1][0]
        blocks = [gpu.upload(self.values(name, home)) for name, home in (("a", a), ("b", b))]
        gpu.synchronize()
        return [*blocks, gpu.empty(shape, DTYPE)]

    def values(self, name: str, home: Any) -> Block:
        """A block of A or B."""
        (top, bottom), (left, right) = home
        block = np.empty((bottom - top, right - left), DTYPE)
        size = self.TILE
        for i in range(top // size, -(-bottom // size)):
            for j in range(left // size, -(-right // size)):
                tile = _tile(name, (i + 3 * j) % 8)
                rows = slice(max(top, i * size), min(bottom, (i + 1) * size))
                columns = slice(max(left, j * size), min(right, (j + 1) * size))
                block[
                    rows.start - top : rows.stop - top, columns.start - left : columns.stop - left
                ] = tile[
                    rows.start - i * size : rows.stop - i * size,
                    columns.start - j * size : columns.stop - j * size,
                ] * np.float32(1 + (i * 7 + j) % 5 / 8)
        return block

    def error(self, gpu: GpuRank, each: Contestant) -> float:
        """The largest |C v - A (B v)| / sqrt(N K), on every rank."""
        a, b, c = each.plan.homes()
        size = self._size
        if self._right is None:
            image = self._times("b", b, self._signs)
            self._right = self._times("a", a, image)
        mine, seen = np.zeros(size), np.zeros(size)
        (top, bottom), columns = c[0], slice(*c[1])
        for start in np.linspace(top, max(top, bottom - BAND), 4).astype(int):
            rows = slice(start, min(start + BAND, bottom))
            if rows.start < rows.stop and columns.start < columns.stop:
                band = gpu.fetch(each.blocks[2][rows.start - top : rows.stop - top])
                mine[rows], seen[rows] = _product(band, self._signs[columns]), 1
        total, covered = np.empty_like(mine), np.empty_like(seen)
        comm.Allreduce(mine, total)
        comm.Allreduce(seen, covered)
        off = np.abs(total - self._right)[covered > 0].max() / size
        return float(np.nan_to_num(off, nan=np.inf))

    def _times(self, name: str, home: Any, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """A matrix times a vector, from everybody's block of it."""
        mine = np.zeros(self._size)
        block = self.values(name, home)
        mine[slice(*home[0])] = _product(block, vector[slice(*home[1])])
        total = np.empty_like(mine)
        comm.Allreduce(mine, total)
        return total


@functools.cache
def _tile(name: str, number: int) -> Block:
    rng = np.random.default_rng([ord(name), number])
    tile: Block = rng.random((Operands.TILE, Operands.TILE), DTYPE) * 2 - 1
    return tile


def _product(block: Block, vector: NDArray[np.float64]) -> NDArray[np.float64]:
    """A block times a vector in float64, a few rows at a time."""
    if not block.size:
        return np.zeros(len(block))
    parts = [
        block[row : row + 256].astype("float64") @ vector for row in range(0, len(block), 256)
    ]
    return np.concatenate(parts)


def kernel_of(gpu: GpuRank) -> str:
    """The local kernel's family and configuration."""
    best = gpu.machine.product.kernels[0].candidate  # type: ignore[attr-defined]
    return f"`{best.family}` {best.configuration.json}"


def _plain(text: str) -> str:
    """Text without a terminal's escapes."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text).strip()


def _nccl_version() -> str:
    from cupy.cuda import nccl

    return str(nccl.get_version())


if __name__ == "__main__":
    main()
