"""Linear layers of language models in 16 bits: ``python benchmarks/layers.py`` on a GPU.

The kernel that `load` has for a layer nobody tuned, beside `torch.mm`, by the number of tokens
(rows of A). Weights are stored as `torch.nn.functional.linear` has them (layout nt), and rotate
through more than the level-2 cache. Both run in CUDA graphs, in turns, without pauses: chains of
products, or with ``--behind`` each behind a kernel that writes its first operand, as in a model.
With ``--following layer_bias_gelu ...``: layers with what follows their product, beside PyTorch's
operators and beside the product alone. Prints Markdown.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from gpu_environment import describe_gpu, read_gpu
from torch.nn import functional

from autotune import Gemm, find_operation, load
from autotune.core.configuration import Candidate
from autotune.families.family import KernelFamily
from autotune.families.program_cache import ProgramCache
from autotune.operations.layers import ACTIVATIONS
from autotune.serving.kernel import BoundKernel
from autotune.targets.registry import make_target
from autotune.torch.layers import Following, composed

LAYERS = {
    "bfloat16": "4096x6144 4096x4096 4096x28672 14336x4096 3584x18944 18944x3584 4096x128256",
    "float16": "2048x8192 8192x2048 5120x15360 3072x24576",
}
"""In x out. Nothing was chosen by those of float16."""

TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048, 4096)
ROTATED_BYTES = 256e6
TURNS = 13

Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Product = Callable[[Operands], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtypes", nargs="+", choices=[*LAYERS], default=[*LAYERS])
    parser.add_argument("--layers", nargs="+", metavar="INxOUT", help="of every type")
    parser.add_argument("--tokens", nargs="+", type=int, default=TOKENS)
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--following", nargs="+", metavar="OPERATION", help="layer_bias_gelu, say")
    kinds.add_argument("--behind", action="store_true", help="products are in no chain")
    args = parser.parse_args()
    print(describe_gpu(read_gpu()))
    print("- layout nt, layers in x out; nothing tuned")
    for dtype in args.dtypes:
        layers = args.layers or LAYERS[dtype].split()
        if args.following:
            compare_following(dtype, layers, args.tokens, args.following)
        else:
            compare(dtype, layers, args.tokens, behind=args.behind)


def compare(dtype: str, layers: Sequence[str], numbers: Sequence[int], *, behind: bool) -> None:
    """Print the tables of an element type: by the number of tokens, and of all products."""
    ratios: defaultdict[int, list[float]] = defaultdict(list)
    lines = []
    for layer in layers:
        n, k = map(int, layer.split("x"))
        for tokens in numbers:
            product = Gemm(tokens, n, k, dtype, layout="nt")
            ratio, ours_us, family = compared(product, behind=behind)
            ratios[tokens].append(ratio)
            lines.append(f"| {tokens}x{n}x{k} | {family} | {ours_us:.1f} | {ratio:.3f} |")
    print(f"\n## {dtype}: {' '.join(layers)}\n")
    print("| tokens | layers | geometric mean | quartiles | least |\n|---|---|---|---|---|")
    for tokens, found in ratios.items():
        mean = math.exp(statistics.fmean(map(math.log, found)))
        quartiles = statistics.quantiles(found, n=4) if len(found) > 1 else found
        told = ", ".join(f"{each:.2f}" for each in quartiles)
        print(f"| {tokens} | {len(found)} | {mean:.2f} | {told} | {min(found):.2f} |")
    print("\n| product | family | µs | x torch.mm |\n|---|---|---|---|")
    print(*lines, sep="\n")


def after_another(product: Product) -> Product:
    """A product behind an elementwise kernel, whose time is with its own."""

    def both(each: Operands) -> None:
        torch.maximum(each[0], each[0], out=each[0])
        product(each)

    return both


def compared(problem: Gemm, *, behind: bool) -> tuple[float, float, str]:
    """The served kernel's speed relative to `torch.mm`, its microseconds, and its family."""
    kernel = load(problem, target="cuda", match="nearest")
    dtype = getattr(torch, problem.dtype)
    x = torch.randn(problem.m, problem.n, device="cuda", dtype=dtype)
    weights = torch.randn(problem.k, problem.n, device="cuda", dtype=dtype) / problem.n**0.5
    out = torch.empty(problem.m, problem.k, device="cuda", dtype=dtype)
    copies, calls = repeats(problem)
    operands = [(x, weights.clone(), out) for _ in range(copies)]
    ways = [called(kernel), lambda each: torch.mm(each[0], each[1].t(), out=each[2])]
    if behind:
        ways = list(map(after_another, ways))
    ratio, us = in_turns(*(captured(way, operands, calls) for way in ways))
    return ratio, us, kernel.candidate.family


def repeats(product: Gemm) -> tuple[int, int]:
    """Copies of the weights that rotate, and the calls of a graph."""
    copies = max(1, min(8, math.ceil(ROTATED_BYTES / (product.n * product.k * 2))))
    return copies, copies * (4 if product.m < 2048 else 2)


def in_turns(ours: Callable[[], float], *others: Callable[[], float]) -> tuple[float, ...]:
    """How many times as long others take as ours does, and the microseconds of ours."""
    rounds = []
    for turn in range(TURNS + 3):  # the first three are not counted
        order = [ours, *others] if turn % 2 else [*reversed(others), ours]
        times = {each: each() for each in order}
        rounds.append([times[each] for each in (ours, *others)])
    counted = rounds[3:]
    ratios = (
        statistics.median(each[place] / each[0] for each in counted)
        for place in range(1, len(others) + 1)
    )
    return *ratios, statistics.median(each[0] for each in counted)


def compare_following(
    dtype: str, layers: Sequence[str], numbers: Sequence[int], operations: Sequence[str]
) -> None:
    """Print a table of layers with what follows their product."""
    print(f"\n## {dtype}\n\n| product | operation | family | µs | x PyTorch | x the product |")
    print("|---|---|---|---|---|---|")
    for layer, tokens, name in itertools.product(layers, numbers, operations):
        n, k = map(int, layer.split("x"))
        theirs, alone, us, family = followed(name, Gemm(tokens, n, k, dtype, layout="nt"))
        cells = [f"{tokens}x{n}x{k}", name, family, f"{us:.1f}", f"{theirs:.2f}", f"{alone:.2f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


def followed(name: str, product: Gemm) -> tuple[float, float, float, str]:
    """A layer's speed relative to PyTorch and to its product, its microseconds and its family."""
    m, n, k, dtype = product.m, product.n, product.k, product.dtype
    problem = find_operation(name).problem(M=m, N=n, K=k, dtype=dtype, layout="nt")
    kernel, alone = (load(each, target="cuda", match="nearest") for each in (problem, product))
    given = [
        torch.randn(each.shape, device="cuda", dtype=getattr(torch, dtype)) / n**0.25
        for each in problem.operands
    ]
    copies, calls = repeats(product)
    operands = [(given[0], given[1].clone(), *given[2:]) for _ in range(copies)]
    names = [each.name for each in problem.operands[2:-1]]
    longest = sorted(ACTIVATIONS, key=len, reverse=True)
    activation = next((each for each in longest if f"_{each}" in name), None)

    def by_pytorch(each: Any) -> None:
        parts: dict[str, Any] = dict(zip(names, each[2:-1], strict=True))
        composed(functional.linear, each[0], each[1], Following(activation=activation, **parts))

    ways = (called(kernel), by_pytorch, lambda each: alone(*each[:2], out=each[-1]))
    theirs, of_product, us = in_turns(*(captured(way, operands, calls) for way in ways))
    return theirs, of_product, us, kernel.candidate.family


def preset_kernels(
    family: KernelFamily, problem: Any, gpu: Any, programs: ProgramCache
) -> Iterator[tuple[str, BoundKernel]]:
    """A family's presets that are valid for a problem as they are, each with its kernel."""
    space = family.space(problem, gpu.limits)
    for name, preset in family.presets.items():
        row = space.nearest(preset.configuration, ())
        if row is None or space[row] != {**space[row], **preset.configuration}:
            continue
        candidate = Candidate(family.name, space[row])
        yield name, make_target("cuda").kernel(family, candidate, problem, gpu, programs)


def called(kernel: Any) -> Callable[[Any], object]:
    """A function of operands, the output last, that calls a kernel."""
    return lambda each: kernel(*each[:-1], out=each[-1])


def captured(product: Product, operands: Sequence[Operands], calls: int) -> Callable[[], float]:
    """A function that replays a graph of calls, and returns the microseconds of one."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for each in operands:
            product(each)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for number in range(calls):
            product(operands[number % len(operands)])

    def replay() -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / calls * 1e3

    return replay


if __name__ == "__main__":
    main()
