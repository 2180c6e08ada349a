"""What calls cost a program beside the work: ``python benchmarks/call_costs.py --target cpu``.

Shapes are drawn from a seed. In one warm process every one of them is chosen for (`look_up`),
planned (`Planner`, on a GPU), and multiplied by `matmul` for the first time and again. Calls on a
GPU are not waited for: what is timed is the host. A call on the CPU returns with the result, so
shapes have little work, and NumPy's times are given beside. Prints Markdown.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from environment import describe
from gpu_environment import describe_gpu, read_gpu
from shape_draws import Bounds, draw

from autotune import Gemm, matmul
from autotune.families.gpu.planning import planner_of
from autotune.serving.background import background
from autotune.serving.lookup import look_up
from autotune.targets.registry import make_target

WARM_UP = 32
"""Shapes that are called before any is timed, so that the process is warm."""

LATER = 5
"""Calls of a shape after its first one, of which the median counts."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--library", choices=("torch", "cupy"), default="torch")
    parser.add_argument("--count", type=int, default=200, help="shapes that are timed")
    parser.add_argument("--largest", type=int, default=4096, help="of the sizes")
    parser.add_argument(
        "--work", type=float, default=1e6, help="products at most, to see the rest"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--foreground", action="store_true", help="compile in the call")
    args = parser.parse_args()
    os.environ["AUTOTUNE_BACKGROUND"] = "0" if args.foreground else "1"

    bounds = Bounds((1, args.largest), (1, args.largest), (1e3, args.work))
    drawn = itertools.islice(draw(args.seed, bounds), 2 * (WARM_UP + 2 * args.count))
    shapes = list(dict.fromkeys(shape.sizes for shape in drawn))
    problems = [Gemm(*sizes) for sizes in shapes[: WARM_UP + 2 * args.count]]
    warm, rest = problems[:WARM_UP], problems[WARM_UP:]
    chosen, called = rest[: args.count], rest[args.count :]
    arrays = host_arrays if args.target == "cpu" else device_arrays(args.library)
    for problem in warm:
        matmul(*arrays(problem))
    wait_for_compilers()

    target = make_target(args.target)
    rows: dict[str, list[float]] = {}
    found = []
    for problem in chosen:
        choose = functools.partial(look_up, problem, target, match="nearest")
        rows.setdefault("choosing a kernel for a new shape", []).append(timed(choose))
        found.append(choose())
    if args.target == "cuda":
        for problem, each in zip(chosen, found, strict=True):
            limits: Any = each.device.limits
            planner = planner_of(each.family, each.candidate.configuration, problem.dtype, limits)
            planner.plan(problem)
            rows.setdefault("planning its launch", []).append(
                timed(functools.partial(planner.plan, problem))
            )
    for problem in called:
        operands = arrays(problem)
        call = functools.partial(matmul, *operands)
        rows.setdefault("first call of a new shape", []).append(timed(call))
        later = [timed(call) for _ in range(LATER)]
        rows.setdefault("later calls", []).append(statistics.median(later))
        if args.target == "cpu":
            product = functools.partial(np.matmul, *operands)
            products = [timed(product) for _ in range(LATER)]
            rows.setdefault("NumPy's product", []).append(statistics.median(products))
    wait_for_compilers()

    print(describe() if args.target == "cpu" else describe_gpu(read_gpu()))
    qualities = Counter(str(each.match.quality) for each in found)
    print(f"- seed {args.seed}, sizes 1..{args.largest}, {len(warm)} shapes called before")
    print(f"- chosen by: {', '.join(f'{name} {count}' for name, count in qualities.items())}\n")
    print("| us | median | 90 % | largest |\n|---|---|---|---|")
    for name, seconds in rows.items():
        print(f"| {name} | {row_of(seconds)} |")


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def row_of(seconds: Sequence[float]) -> str:
    """Median, ninth decile and maximum in microseconds."""
    ordered = sorted(seconds)
    shown = (statistics.median(ordered), ordered[len(ordered) * 9 // 10], ordered[-1])
    return " | ".join(f"{value * 1e6:.1f}" for value in shown)


def wait_for_compilers() -> None:
    """Until nothing is compiled any more: what is timed then is not disturbed."""
    while background().busy:
        time.sleep(0.05)


def host_arrays(problem: Gemm) -> tuple[Any, Any]:
    return np.ones(problem.a_shape, problem.dtype), np.ones(problem.b_shape, problem.dtype)


def device_arrays(library: str) -> Callable[[Gemm], tuple[Any, Any]]:
    if library == "cupy":
        import cupy

        return lambda problem: (cupy.ones(problem.a_shape, "f4"), cupy.ones(problem.b_shape, "f4"))
    import torch

    return lambda problem: (
        torch.ones(problem.a_shape, device="cuda"),
        torch.ones(problem.b_shape, device="cuda"),
    )


if __name__ == "__main__":
    main()
