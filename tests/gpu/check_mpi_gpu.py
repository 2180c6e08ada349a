"""Run by mpiexec with a GPU for every rank: kernels on device arrays. Prints one line of JSON."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from autotune import Gemm, load
from autotune.core.configuration import Configuration
from autotune.core.errors import OperandError
from autotune.core.limits import MpiLimits
from autotune.distributed.mpi.gpu.cuda import take_gpu
from autotune.distributed.mpi.kernel import tuned_product
from autotune.distributed.mpi.ranks.ranks import describe
from autotune.families.family import KernelFamily
from autotune.families.rendering import render
from autotune.targets.families import load_families

comm = MPI.COMM_WORLD
root = comm.rank == 0
wrong: list[str] = []


def expect(true: bool, what: str) -> None:
    if not true:
        wrong.append(f"rank {comm.rank}: {what}")


def refused(told: str, call: Callable[[], object]) -> None:
    try:
        call()
        message = "no error"
    except OperandError as error:
        message = str(error)
    expect(told in message, f"{told!r} expected, got {message!r}")


def to_gpu(values: np.ndarray) -> Any:
    import cupy

    return cupy.asarray(np.ascontiguousarray(values))


def check_load(problem: Gemm) -> None:
    """What users call, on blocks in the GPUs and from rank 0."""
    rng = np.random.default_rng(0)
    shapes = (problem.a_shape, problem.b_shape, problem.c_shape)
    a, b, c0 = (rng.random(shape).astype(problem.dtype) for shape in shapes)
    close = {"rtol": 1e-4, "atol": 1e-4}
    kernel = load(problem, "mpi", comm=comm, operands="distributed", local="cuda", match="nearest")
    homes = [block.slices for block in kernel.blocks]  # type: ignore[attr-defined]
    mine = [to_gpu(whole[home]) for whole, home in zip((a, b, c0), homes, strict=True)]
    c = kernel(mine[0], mine[1])
    expect(np.allclose(c.get(), (a @ b)[homes[2]], **close), "blocks")
    kernel(*mine, alpha=2.0, beta=-0.5)
    expect(np.allclose(mine[2].get(), (2 * (a @ b) - 0.5 * c0)[homes[2]], **close), "alpha, beta")
    refused("in the memory of a GPU", lambda: kernel(a[homes[0]], b[homes[1]]))
    refused("must have shape", lambda: kernel(mine[1], mine[1]))
    kernel.free()  # type: ignore[attr-defined]
    whole = load(problem, "mpi", comm=comm, local="cuda", match="nearest")
    c = whole(a, b) if root else whole(None, None)
    expect(np.allclose(c, a @ b, **close) if root else c is None, "from the root")
    whole.free()  # type: ignore[attr-defined]


def check_programs(dtype: str) -> int:
    """Every algorithm by every transport there is."""
    gpus = describe(comm, gpus=True).gpus
    assert gpus is not None
    limits = MpiLimits(comm.size, 1, comm.size, 1, comm.size, int(gpus.cuda_aware), int(gpus.nccl))
    done = 0
    with tuned_product(comm, 1000, 1000, 1000, dtype) as gpu:
        for name, family in load_families(target="mpi").items():
            for number, configuration in enumerate(some(family, limits)):
                module: dict[str, Any] = {"__name__": "program"}
                exec(render(family, configuration, dtype=dtype).text, module)
                for m, n, k in ((700, 1300, 900), (37, 530, 29), (3, 1, 2)):
                    plan = module["gemm"](comm, m, n, k, gpu)
                    check_plan(plan, gpu, (m, n, k), dtype, f"{name} {configuration}", number)
                    plan.free()
                    done += 1
    return done


def some(family: KernelFamily, limits: MpiLimits) -> list[Configuration]:
    """Of a family two configurations for every transport, one for as many ranks as can be."""
    problem = Gemm(2000, 2000, 2000)
    space = family.space(problem, limits)
    found = [space[row] for row in range(len(space))]
    found = [each for each in found if each.get("panel", 256) == 256]
    draw = random.Random(family.name)
    chosen = []
    for transport in sorted({str(each["transport"]) for each in found}):
        own = [each for each in found if each["transport"] == transport]
        used = [int(family.values(each, problem, limits)["used"]) for each in own]
        full = [each for each, ranks in zip(own, used, strict=True) if ranks == max(used)]
        chosen.append(draw.choice(full))
        chosen.append(draw.choice(own))
    return chosen


def check_plan(
    plan: Any, gpu: Any, sizes: tuple[int, int, int], dtype: str, what: str, seed: int
) -> None:
    m, n, k = sizes
    rng = np.random.default_rng(seed)
    a, b, c0 = (rng.standard_normal(shape).astype(dtype) for shape in ((m, n), (n, k), (m, k)))
    homes = [(slice(*rows), slice(*columns)) for rows, columns in plan.homes()]
    allowed = 64 * np.finfo(dtype).eps * (np.abs(a).astype("f8") @ np.abs(b).astype("f8") + 1)
    for alpha, beta in ((1.0, 0.0), (-0.75, 1.5)):
        before = c0 if beta else np.full_like(c0, np.nan)
        blocks = [
            gpu.upload(whole[home]) for whole, home in zip((a, b, before), homes, strict=True)
        ]
        right = alpha * (a.astype("f8") @ b) + (beta * c0 if beta else 0)
        for _ in range(2):  # the second finds everything made
            blocks[2][...] = gpu.fetch(gpu.upload(before[homes[2]]))
            plan.on_blocks(*blocks, alpha, beta)
            off = np.abs(gpu.fetch(blocks[2]) - right[homes[2]]) <= allowed[homes[2]]
            expect(bool(off.all()), f"{what} {sizes} {dtype} alpha={alpha}: {off.sum()} right")


describe(comm, gpus=True)
expect(len(set(comm.allgather(take_gpu(comm).bus))) == comm.size, "ranks share a GPU")
plans = sum(check_programs(dtype) for dtype in sys.argv[1:])
check_load(Gemm(500, 400, 300))
wrong = [text for texts in comm.allgather(wrong) for text in texts]
if root:
    print(json.dumps({"plans": plans, "wrong": wrong}))
