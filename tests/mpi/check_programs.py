"""Run by mpiexec: emitted programs on these ranks against NumPy. Prints one line of JSON.

Arguments are a folder, how many configurations of each family, and, for programs for GPUs, which
run on stand-ins here, a transport.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
from emitted import comm, drawn, error_of, load
from mpi_grids import grid_of
from slow_machine import SlowMachine

from autotune.core.configuration import Configuration
from autotune.core.limits import MpiLimits
from autotune.distributed.grid import BlockPartition
from autotune.distributed.mpi.gpu import communicators
from autotune.distributed.mpi.gpu.rank import GpuRank
from autotune.families.family import KernelFamily
from autotune.families.rendering import render
from autotune.operations.problem import Gemm
from autotune.targets.families import load_families

TRANSPORT = sys.argv[3] if len(sys.argv) > 3 else None
# One that most grids divide, one that none does, and one with fewer rows than ranks; on GPUs the
# panels of the first are many.
SIZES = ((48, 900 if TRANSPORT else 48, 48), (37, 53, 29), (2, 35, 3))
SCALARS = ((1.0, 0.0), (-0.75, 1.5))
DTYPES = ("float64", "float32")
# So that messages here have several pieces.
communicators.PIECE_BYTES = 1 << 14


def configurations(family: KernelFamily, count: int) -> list[Configuration]:
    """Some of a family's configurations for these ranks."""
    limits = MpiLimits(comm.size, 1, comm.size)
    if TRANSPORT:
        limits = MpiLimits(comm.size, 1, comm.size, 1, gpus=comm.size, cuda_aware=1, nccl=1)
    space = family.space(Gemm(1000, 1000, 1000), limits)
    found = [space[index] for index in range(len(space))]
    if TRANSPORT:
        found = [each for each in found if each["transport"] == TRANSPORT]
        found = [each for each in found if each.get("panel", 256) == 256]
    else:
        found = [each for each in found if each["threads"] == 1]
        found = [each for each in found if each.get("panel", 16) in (16, 32)]
    return drawn(found, count)


def check(
    plan: Any, gpu: GpuRank | None, gemm: Gemm, partition: BlockPartition, seed: int
) -> list[str]:
    """What is wrong with a plan: from the root, and, where it can, on distributed blocks."""
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((gemm.m, gemm.n)).astype(gemm.dtype)
    b = rng.standard_normal((gemm.n, gemm.k)).astype(gemm.dtype)
    wrong = []
    for alpha, beta in SCALARS:
        before = rng.standard_normal((gemm.m, gemm.k)).astype(gemm.dtype)
        if not beta:
            before[...] = np.nan  # must not be read
        c = before.copy()
        # Copies: a plan must not count on operands that stay where they are.
        whole = (a.copy(), b.copy(), c) if comm.rank == 0 else (None, None, None)
        plan.from_root(*whole, alpha, beta)
        error = error_of(c, (a, b, before), alpha, beta) if comm.rank == 0 else 0.0
        if not error <= 1:
            wrong.append(f"from root, alpha={alpha} beta={beta}: {error:.3g}")
        if not hasattr(plan, "homes"):
            continue
        homes = [(slice(*rows), slice(*columns)) for rows, columns in plan.homes()]
        kept = (partition.home_a, partition.home_b, partition.home_c)
        for home, of_rank in zip(homes, kept, strict=True):
            if plan.active and home != of_rank(comm.rank).slices:
                wrong.append(f"home is {home}, not {of_rank(comm.rank).slices}")
        mine = [whole[home].copy() for whole, home in zip((a, b, before), homes, strict=True)]
        if gpu:
            mine = [gpu.upload(each) for each in mine]
        plan.on_blocks(*mine, alpha, beta)
        c = np.zeros((gemm.m, gemm.k), gemm.dtype)
        c[homes[2]] = gpu.fetch(mine[2]) if gpu else mine[2]
        c = comm.allreduce(c)
        error = error_of(c, (a, b, before), alpha, beta)
        if not error <= 1:
            wrong.append(f"on blocks, alpha={alpha} beta={beta}: {error:.3g}")
    return wrong


def main() -> None:
    wrong, plans, families = [], 0, set()
    for name, family in load_families(target="mpi").items():
        if TRANSPORT and not name.startswith("gpu_"):
            continue
        for number, found in enumerate(configurations(family, int(sys.argv[2]))):
            families.add(name)
            dtype = DTYPES[number % 2]
            module = load(render(family, found, dtype=dtype).text, plans)
            gpu = GpuRank(SlowMachine()) if TRANSPORT else None
            for m, n, k in SIZES:
                plan = module.gemm(comm, m, n, k, *([gpu] if gpu else []))
                scattered = found.get("combine") == "reduce_scatter"
                partition = BlockPartition(grid_of(found), m, n, k, scattered=scattered)
                gemm = Gemm(m, n, k, dtype=dtype)
                for each in comm.allgather(check(plan, gpu, gemm, partition, seed=plans)):
                    wrong += [f"{name} {found} {gemm.label}: {text}" for text in each]
                plan.free()
                plans += 1
            if gpu:
                gpu.close()
    if comm.rank == 0:
        print(json.dumps({"plans": plans, "families": sorted(families), "wrong": wrong}))


main()
