"""Accuracy classes beside cuBLAS: ``python benchmarks/accuracy_classes.py`` on a GPU.

Every family of a looser class than usual, by its fastest preset: speed relative to cuBLAS's SGEMM
(in class tf32: with TF32) or DGEMM, all kernels of a call counted, in CUDA graphs, in turns and
then for a while without a pause, with the joules of a result; the same with B kept; and errors of
a corner of C, as Frobenius norms against sums in extended precision. With ``--drawn COUNT``
instead: what `load` serves in each class for shapes that nobody tuned, in all layouts, beside
cuBLAS and beside the strict kernel that it serves. Prints Markdown.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_environment import describe_gpu, read_gpu
from layers import called, captured, preset_kernels
from shape_draws import Bounds, draw

from autotune import Gemm, load
from autotune.families.program_cache import ProgramCache
from autotune.gpu.nvidia.nvml import GpuMonitor
from autotune.targets.families import load_families

SIZES = ("1024x1024x1024", "2048x2048x2048", "4096x4096x4096", "8192x8192x8192", "4095x4097x4099")
TURNS = 9
CORNER = 48
GRAPH_PRODUCTS = 1.3e11
"""In the calls of a graph together, some milliseconds of cuBLAS."""
ERRORS_AT = 4096
"""Reduction of the products whose errors are shown."""
SUSTAINED_AT = "4096x4096x4096"
"""What the table by sizes shows of steady work, and of errors."""
DRAWN = Bounds(sides=(512, 8192), reduction=(512, 8192), work=(1e8, 1e11))
CLASSES = {"tf32": "float32", "fp32-normwise": "float32", "fp32": "float32", "fp64": "float64"}
LAYOUTS = ("nn", "nt", "tn", "tt")

Replay = Callable[[], float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", nargs="+", help="left out: all of looser classes")
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="MxNxK")
    parser.add_argument("--layout", default="nn")
    parser.add_argument("--steady", type=float, default=0.6, metavar="SECONDS")
    parser.add_argument("--drawn", type=int, metavar="COUNT", help="shapes of each class")
    parser.add_argument("--seed", type=int, default=1, help="of the shapes")
    args = parser.parse_args()
    gpu = read_gpu()
    print(describe_gpu(gpu))
    if args.drawn:
        print(f"- {args.drawn} shapes of each class, seed {args.seed}; nothing tuned\n")
        print(served(args.drawn, args.seed))
        return
    print(f"- layout {args.layout}; sustained: {args.steady} s of calls without a pause\n")
    head = "| family | class | size | preset | µs | x cuBLAS | sustained | J | cuBLAS's J |"
    print(f"{head} B kept | error | cuBLAS's error |\n|{'---|' * 12}")
    families = load_families(target="cuda", operation="gemm")
    names = args.families or [name for name, each in families.items() if each.accuracy in CLASSES]
    with tempfile.TemporaryDirectory() as folder:
        programs = ProgramCache(Path(folder))
        rows = [
            row
            for size in args.sizes
            for name in names
            for row in compare(families[name], size, args.layout, args.steady, gpu, programs)
        ]
    print(f"\n{by_size(rows)}")


def served(count: int, seed: int) -> str:
    """Print a line for each drawn shape, and give a table of the classes."""
    print(f"| class | shape | layout | family | µs | x cuBLAS | x strict |\n|{'---|' * 7}")
    table = ["| class | x cuBLAS | least | x strict | least |\n|---|---|---|---|---|"]
    for accuracy, dtype in CLASSES.items():
        ratios = []
        for number, shape in enumerate(itertools.islice(draw(seed, DRAWN), count)):
            layout = LAYOUTS[number % len(LAYOUTS)]
            problem, strict = (
                Gemm(*shape.sizes, dtype, layout=layout, accuracy=each) for each in (accuracy, "")
            )
            ours, usual = (
                load(each, target="cuda", match="nearest") for each in (problem, strict)
            )
            a, b, left, right, out = tensors(problem)
            torch.backends.cuda.matmul.allow_tf32 = accuracy == "tf32"
            calls = max(2, min(64, round(GRAPH_PRODUCTS / shape.work)))
            theirs = captured(
                lambda each: torch.mm(each[0], each[1], out=each[2]), [(left, right, out)], calls
            )
            kept = [captured(called(each), [(a, b, out)], calls) for each in (ours, usual)]
            times = [[replay() for replay in (theirs, *kept)] for _ in range(TURNS)][1:]
            found = [
                statistics.median(turn[other] / turn[1] for turn in times) for other in (0, 2)
            ]
            ratios.append(found)
            us = statistics.median(turn[1] for turn in times)
            cells = [accuracy, str(shape), layout, ours.candidate.family, f"{us:.1f}"]
            print(f"| {' | '.join([*cells, *(f'{each:.2f}' for each in found)])} |", flush=True)
        cells = [accuracy]
        for each in zip(*ratios, strict=True):
            cells += [f"{math.exp(statistics.fmean(map(math.log, each))):.2f}", f"{min(each):.2f}"]
        table.append(f"| {' | '.join(cells)} |")
    return "\n" + "\n".join(table)


def tensors(problem: Gemm) -> tuple[Any, Any, Any, Any, Any]:
    """A and B as they are stored, as they are multiplied, and memory for C."""
    dtype = getattr(torch, problem.dtype)
    stored = [torch.randn(each.shape, device="cuda", dtype=dtype) for each in problem.operands[:2]]
    left, right = (
        each.t() if letter == "t" else each
        for each, letter in zip(stored, problem.layout, strict=True)
    )
    return *stored, left, right, torch.empty(problem.m, problem.k, device="cuda", dtype=dtype)


def by_size(rows: Sequence[Sequence[str]]) -> str:
    """A line for each family, and for its exact preset: speeds by size, steady ones, the error."""
    sizes = list(dict.fromkeys(row[2] for row in rows))
    names = [size.split("x")[0] if len(set(size.split("x"))) == 1 else size for size in sizes]
    lines: dict[str, dict[str, Sequence[str]]] = {}
    for row in rows:
        name = f"{row[0]}, exact" if row[3] == "exact" else row[0]
        lines.setdefault(name, {})[row[2]] = row
    head = f"| family | {' | '.join(names)} | sustained | B kept | error |"
    shown = [f"{head}\n|{'---|' * (len(sizes) + 4)}"]
    for name, found in lines.items():
        last = found.get(SUSTAINED_AT, [""] * 12)
        cells = [found[size][5] if size in found else "" for size in sizes]
        shown.append(f"| {' | '.join([name, *cells, last[6], last[9], last[10]])} |")
    return "\n".join(shown)


def compare(
    family: Any, size: str, layout: str, steady_s: float, gpu: Any, programs: ProgramCache
) -> Iterator[list[str]]:
    """Print and give rows of a family: its fastest preset, and `exact` where there is one."""
    m, n, k = map(int, size.split("x"))
    problem = Gemm(m, n, k, family.dtypes[0], layout=layout, accuracy=family.accuracy)
    a, b, left, right, out = tensors(problem)
    operands = [(a, b, out)]
    torch.backends.cuda.matmul.allow_tf32 = family.accuracy == "tf32"
    calls = max(2, min(64, round(GRAPH_PRODUCTS / (m * n * k))))
    theirs = captured(lambda each: torch.mm(left, right, out=each[2]), operands, calls)
    torch.mm(left, right, out=out)
    expected, their_error = errors(left, right, out, n)

    timed = {}
    for name, kernel in preset_kernels(family, problem, gpu, programs):
        replay = captured(called(kernel), operands, calls)
        timed[name] = (min(replay() for _ in range(4)), replay, kernel)
    exact = {"exact"} & set(timed)
    fastest = min(timed.keys() - exact, key=lambda name: timed[name][0], default=None)
    for name in [*([fastest] if fastest else []), *exact]:
        _, replay, kernel = timed[name]
        ratio, cool_us = turns(theirs, replay)
        (their_us, their_j), (our_us, our_j) = (
            held(each, steady_s, gpu) for each in (theirs, replay)
        )
        out.fill_(float("nan"))
        kernel(a, b, out=out)
        error = errors(left, right, out, n, expected)[1]
        with_kept = ""
        if (kept := kernel.keep(b, None)) is not None:
            with_kept = f"{turns(theirs, captured(called(kept.call), operands, calls))[0]:.2f}"
            kept.close()
        shown = [f"{error:.1e}", f"{their_error:.1e}"] if n == ERRORS_AT else ["", ""]
        cells = [family.name, family.accuracy, size, name, f"{cool_us:.1f}", f"{ratio:.2f}"]
        cells += [f"{their_us / our_us:.2f}", f"{our_j:.3f}", f"{their_j:.3f}"]
        cells += [with_kept]
        print(f"| {' | '.join([*cells, *shown])} |", flush=True)
        yield [*cells, *shown]


def turns(theirs: Replay, ours: Replay) -> tuple[float, float]:
    """The ratio of two graphs that take turns, and the microseconds of a call of ours."""
    pairs = [(theirs(), ours()) for _ in range(TURNS)][1:]
    ratio = statistics.median(before / after for before, after in pairs)
    return ratio, statistics.median(us for _, us in pairs)


def held(replay: Replay, seconds: float, gpu: Any) -> tuple[float, float]:
    """The microseconds and the joules of a call in steady work."""
    monitor = GpuMonitor(gpu.state["pci_bus_id"])

    def joules() -> float:
        return float(monitor.read(["energy_j"]).get("energy_j", "nan"))

    end = time.monotonic() + seconds / 2
    while time.monotonic() < end:
        replay()
    times: list[float] = []
    before, began = joules(), time.monotonic()
    while time.monotonic() < began + seconds / 2:
        times.append(replay())
    used, took = joules() - before, time.monotonic() - began
    us = statistics.median(times)
    return us, used / took * us / 1e6


def errors(left: Any, right: Any, out: Any, n: int, expected: Any = None) -> tuple[Any, float]:
    """The corner of the product in extended precision, and the error of `out` in it."""
    if expected is None:
        rows = left[:CORNER].cpu().numpy().astype(np.longdouble)
        columns = right[:, :CORNER].cpu().numpy().astype(np.longdouble)
        expected = rows @ columns
    off = out[:CORNER, :CORNER].cpu().numpy().astype(np.longdouble) - expected
    norms = (np.linalg.norm(each.astype(float)) for each in (off, expected))
    return expected, float(next(norms) / next(norms))


if __name__ == "__main__":
    main()
