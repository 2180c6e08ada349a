"""Stacks and groups of products in 16 bits: ``python benchmarks/stacks.py`` on a GPU.

`bmm` beside `torch.bmm`; `grouped`, rows of experts with a matrix each, beside a loop of
`torch.mm`, which knows how many rows a group has, and `torch.nn.functional.grouped_mm`. Ours is
the fastest preset. All run in CUDA graphs, in turns, operands rotating beyond the level-2 cache.
Prints Markdown.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_environment import describe_gpu, read_gpu
from layers import called, captured, preset_kernels

from autotune import find_operation
from autotune.core.errors import AutotuneError
from autotune.families.program_cache import ProgramCache
from autotune.targets.families import load_families

STACKS = (
    "64x1024x64x1024 nt, 64x1024x1024x64 nn, 64x1024x64x64 nn, 32x2048x128x2048 nt, "
    "32x2048x2048x128 nn, 256x128x128x128 nn, 64x512x512x512 nn"
)
GROUPS = (
    "8x64x4096x14336, 8x512x4096x14336, 8x4096x4096x14336, 8x4096x14336x4096, 16x2048x4096x1536, "
    "32x4096x5120x1536, 64x512x2048x1408, 64x4096x2048x1408, 64x16384x2048x1408, 64x4096x1408x2048"
)
"""Experts, rows of all, inputs, outputs; layout nt."""

ROTATED_BYTES = 160e6
TURNS = 11

Replay = Callable[[], float]
Call = Callable[[Any], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16"))
    parser.add_argument("--seed", type=int, default=1, help="of the rows of groups")
    args = parser.parse_args()
    gpu = read_gpu()
    print(describe_gpu(gpu))
    dtype = getattr(torch, args.dtype)
    rng = np.random.default_rng(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        programs = ProgramCache(Path(folder))
        print(f"\n## {args.dtype}: stacks\n\n| P x M x N x K | preset | µs | x torch.bmm |")
        print("|---|---|---|---|")
        for case in STACKS.split(", "):
            text, layout = case.split()
            shape = tuple(map(int, text.split("x")))
            operands = [*stack_operands(shape, layout, dtype)]
            replays = [captured(by_bmm(layout), operands, len(operands))]
            print_row("bmm", shape, layout, args.dtype, operands, replays, gpu, programs)
        print(f"\n## {args.dtype}: groups of rows, layout nt\n")
        print("| E x M x N x K | preset | µs | x a loop of torch.mm | x grouped_mm |")
        print("|---|---|---|---|---|")
        for text in GROUPS.split(", "):
            shape = tuple(map(int, text.split("x")))
            rows = rng.multinomial(shape[1], rng.dirichlet(np.full(shape[0], 4.0)))
            operands = [*group_operands(shape, rows, dtype)]
            theirs = [by_loop(np.cumsum(rows).tolist()), by_grouped_mm]
            replays = [captured(each, operands, len(operands)) for each in theirs]
            print_row("grouped", shape, "nt", args.dtype, operands, replays, gpu, programs)


def print_row(
    operation: str,
    shape: tuple[int, ...],
    layout: str,
    dtype: str,
    operands: list[Any],
    theirs: list[Replay],
    gpu: Any,
    programs: ProgramCache,
) -> None:
    """Print a row: the fastest preset of all families, and ratios to each of `theirs`."""
    problem = find_operation(operation).at(shape, dtype=dtype, layout=layout)
    out = operands[0][-1]
    expected = out.double().clone()  # what was captured last has written it
    timed: dict[str, tuple[float, Replay]] = {}
    for name, family in load_families(target="cuda", operation=operation).items():
        for preset, kernel in preset_kernels(family, problem, gpu, programs):
            out.fill_(float("nan"))
            try:
                replay = captured(called(kernel), operands, len(operands))
            except AutotuneError as error:
                print(f"<!-- {name} {preset}: {error} -->")
                continue
            replay()
            off = float((out.double() - expected).norm() / expected.norm())
            if not off < 0.01:
                raise SystemExit(f"{operation} {shape} {name} {preset} is wrong by {off}")
            timed[f"{name} {preset}"] = min(replay() for _ in range(4)), replay
    fastest = min(timed, key=lambda name: timed[name][0])
    ours = timed[fastest][1]
    turns = [([each() for each in theirs], ours()) for _ in range(TURNS)][1:]
    ratios = [
        statistics.median(times[number] / us for times, us in turns)
        for number in range(len(theirs))
    ]
    us = statistics.median(us for _, us in turns)
    text = "x".join(map(str, shape))
    told = " | ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"| {text} {layout} | {fastest} | {us:.1f} | {told} |", flush=True)


def by_bmm(layout: str) -> Call:
    """`torch.bmm` of operands that are stored in a layout."""

    def call(each: Any) -> object:
        a, b = (x.mT if letter == "t" else x for x, letter in zip(each, layout, strict=False))
        return torch.bmm(a, b, out=each[-1])

    return call


def by_loop(ends: list[int]) -> Call:
    """A product for each group of rows."""
    begins = [0, *ends[:-1]]

    def call(each: Any) -> None:
        a, b, _, out = each
        for matrix, begin, end in zip(b, begins, ends, strict=True):
            if end > begin:
                torch.mm(a[begin:end], matrix.t(), out=out[begin:end])

    return call


def by_grouped_mm(each: Any) -> None:
    """PyTorch's product of groups, which makes its own output: a copy is not captured."""
    a, b, ends, out = each
    own = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
    made = own(a, b.mT, offs=ends)
    if not torch.cuda.is_current_stream_capturing():
        out.copy_(made)


def stack_operands(shape: tuple[int, ...], layout: str, dtype: Any) -> Iterator[tuple[Any, ...]]:
    """A, B and C, as often as they rotate."""
    p, m, n, k = shape
    for _ in range(copies(p * (m * n + n * k + m * k))):
        a = torch.randn((p, n, m) if layout[0] == "t" else (p, m, n), device="cuda").to(dtype)
        b = torch.randn((p, k, n) if layout[1] == "t" else (p, n, k), device="cuda").to(dtype)
        yield a, b, torch.empty((p, m, k), device="cuda", dtype=dtype)


def group_operands(
    shape: tuple[int, ...], rows: np.ndarray, dtype: Any
) -> Iterator[tuple[Any, ...]]:
    """A, B, ends and C, as often as they rotate."""
    e, m, n, k = shape
    ends = torch.tensor(np.cumsum(rows), dtype=torch.int32, device="cuda")
    for _ in range(copies(e * n * k + m * (n + k))):
        a = torch.randn(m, n, device="cuda").to(dtype)
        b = (torch.randn(e, k, n, device="cuda") / n**0.5).to(dtype)
        yield a, b, ends, torch.empty(m, k, device="cuda", dtype=dtype)


def copies(elements: int) -> int:
    """Copies of operands of 16 bits that are beyond the level-2 cache together."""
    return max(2, min(16, math.ceil(ROTATED_BYTES / (2 * elements))))


if __name__ == "__main__":
    main()
