"""Accuracy classes beside cuBLAS: ``python benchmarks/accuracy_classes.py`` on a GPU.

Every family that splits operands for tensor cores, by its fastest preset: speed relative to
cuBLAS's SGEMM (TF32 off) or DGEMM, all kernels of a call counted, in CUDA graphs, in turns and
then for a while without a pause, with the joules of a result; the same with B kept; and errors of
a corner of C, as Frobenius norms against sums in extended precision. Prints Markdown.
"""

from __future__ import annotations

import argparse
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

from autotune import Gemm
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

Replay = Callable[[], float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", nargs="+", help="left out: all that split operands")
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="MxNxK")
    parser.add_argument("--layout", default="nn")
    parser.add_argument("--steady", type=float, default=0.6, metavar="SECONDS")
    args = parser.parse_args()
    gpu = read_gpu()
    print(describe_gpu(gpu))
    print(f"- layout {args.layout}; sustained: {args.steady} s of calls without a pause\n")
    head = "| family | class | size | preset | µs | x cuBLAS | sustained | J | cuBLAS's J |"
    print(f"{head} B kept | error | cuBLAS's error |\n|{'---|' * 12}")
    families = load_families(target="cuda", operation="gemm")
    names = args.families or [name for name in families if name.startswith("split_")]
    with tempfile.TemporaryDirectory() as folder:
        programs = ProgramCache(Path(folder))
        rows = [
            row
            for size in args.sizes
            for name in names
            for row in compare(families[name], size, args.layout, args.steady, gpu, programs)
        ]
    print(f"\n{by_size(rows)}")


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
    dtype = getattr(torch, problem.dtype)
    shapes = ((m, n), (n, k))
    a, b = (
        torch.randn(shape[:: -1 if letter == "t" else 1], device="cuda", dtype=dtype)
        for shape, letter in zip(shapes, layout, strict=True)
    )
    left, right = (x.t() if letter == "t" else x for x, letter in zip((a, b), layout, strict=True))
    out = torch.empty(m, k, device="cuda", dtype=dtype)
    operands = [(a, b, out)]
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
        kept = kernel.keep(b, None)
        with_kept, _ = turns(theirs, captured(called(kept.call), operands, calls))
        kept.close()
        shown = [f"{error:.1e}", f"{their_error:.1e}"] if n == ERRORS_AT else ["", ""]
        cells = [family.name, family.accuracy, size, name, f"{cool_us:.1f}", f"{ratio:.2f}"]
        cells += [f"{their_us / our_us:.2f}", f"{our_j:.3f}", f"{their_j:.3f}"]
        cells += [f"{with_kept:.2f}"]
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
