"""Kernels beside NumPy's products in one program: ``python benchmarks/with_numpy.py``.

Each is called in a row in its own steady state, right after a row of the other's calls, and in
turns with the other; then a parallel loop of Numba's takes NumPy's place. Every setting of
variables and number of processors has a process of its own. Kernels are `goto` in one plausible
configuration, not tuned. Prints Markdown: milliseconds, median (quartiles), and what one of each
takes in turns for the sum of both alone.
"""

from __future__ import annotations

import argparse
import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np
from environment import describe

from autotune import Gemm
from autotune.core.configuration import Configuration
from autotune.cpu.call import host_kernel
from autotune.families.program_cache import ProgramCache
from autotune.targets.families import load_families
from autotune.targets.registry import make_target

SETTLE_S = 0.2
"""Longer than idle threads of either library look for work."""

ROW_S = 0.015
"""How long a row of calls is that come before those of the other."""

SETTINGS = ",NUMBA_THREADING_LAYER=omp,OPENBLAS_THREAD_TIMEOUT=20"
"""None; kernels on Numba's threads alone; OpenBLAS's threads as tuning has them."""

SHAPES = "256f4,512f4,1024f4,2048f4,256f8,512f8,1024f8"
FEW = "256f4,1024f4"
WITH_LOOP = "1024f4"

Call = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", default=SETTINGS, help="NAME=VALUE, or nothing")
    parser.add_argument("--processors", default="2,0", help="0 is all there are")
    parser.add_argument("--shapes", default="", help="of square matrices, e.g. 1024f4,512f8")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        for shape in args.shapes.split(","):
            measure(args.settings or "none", shape)
        return
    print(describe(), end="\n\n")
    print_row(
        "setting", "cores", "shape", "ours", "NumPy", "ours after", "NumPy after", "turns", "/sum"
    )
    print_row(*["---"] * 9)
    usable = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as cache:
        for number in args.processors.split(","):
            count = int(number) or len(usable)
            shapes = args.shapes or (SHAPES if count > 2 else FEW)
            for setting in args.settings.split(","):
                more = dict([setting.split("=")]) if setting else {}
                processors = ",".join(map(str, usable[:count]))
                command = [sys.executable, __file__, "--here", f"--settings={setting}"]
                subprocess.run(
                    ["taskset", "-c", processors, *command, f"--shapes={shapes}"],
                    env=os.environ | {"AUTOTUNE_CACHE": cache} | more,
                    check=True,
                )


def print_row(*cells: str) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


def measure(setting: str, shape: str) -> None:
    size, kind = int(shape[:-2]), shape[-2:]
    rng = np.random.default_rng(0)
    a, b = (rng.random((size, size)).astype(kind) for _ in range(2))
    c, other = np.empty_like(a), np.empty_like(a)
    ours = functools.partial(kernel_of(size, a.dtype.name), a, b, c)
    theirs = functools.partial(np.matmul, a, b, out=other)
    ours()
    theirs()
    assert np.allclose(c, other, rtol=1e-3)
    print_measured(setting, shape, ours, theirs)
    if shape == WITH_LOOP:
        print_measured(setting, f"{shape}, Numba's loop", ours, functools.partial(loop, a, other))


@numba.njit(parallel=True, cache=True)
def loop(a, c):  # type: ignore[no-untyped-def]
    """A program's own parallel loop."""
    for i in numba.prange(len(a)):
        for j in range(a.shape[1]):
            c[i, j] = np.sin(a[i, j])


def kernel_of(size: int, dtype: str) -> Callable[..., object]:
    target = make_target("cpu")
    family = load_families(target="cpu")["goto"]
    limits = target.device().limits
    problem = Gemm(m=size, n=size, k=size, dtype=dtype)
    names = limits.names()
    wanted = {
        **family.default(problem, limits),
        "tx": 2 * names["vector_bits"] // (32 if dtype == "float32" else 64),
        "ty": 12 if names["vector_bits"] == 512 else 6,
        "sm": 96 if size >= 512 else 48,
        "sn": 256,
        "pack_a": int(size > 256),
        "parts": names["max_threads"],
        "threads": names["max_threads"],
        "schedule": "dynamic",
        "chunk": 1,
    }
    space = family.space(problem, limits)
    row = space.nearest(Configuration(wanted), ())
    assert row is not None
    programs = ProgramCache(Path(os.environ["AUTOTUNE_CACHE"]))
    return host_kernel(family, space[row], problem, limits, programs)


def print_measured(setting: str, shape: str, ours: Call, theirs: Call) -> None:
    alone = []
    for call in (ours, theirs):
        time.sleep(SETTLE_S)
        in_a_row(call, 3 * ROW_S)
        alone.append(in_a_row(call, 6 * ROW_S))
    after_theirs, after_ours = [], []
    for _ in range(5):
        in_a_row(theirs, ROW_S)
        after_theirs += in_a_row(ours)
        in_a_row(ours, ROW_S)
        after_ours += in_a_row(theirs)

    def both() -> None:
        ours()
        theirs()

    in_a_row(both, 2 * ROW_S)
    turns = in_a_row(both, 6 * ROW_S)
    ratio = np.median(turns) / sum(np.median(each) for each in alone)
    told = [quartiles(each) for each in (*alone, after_theirs, after_ours, turns)]
    print_row(setting, str(len(os.sched_getaffinity(0))), shape, *told, f"{ratio:.2f}")


def in_a_row(call: Call, seconds: float = 0.0) -> list[float]:
    """Milliseconds of each of three calls, or of as many as fill a time."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        times.append((time.perf_counter() - begin) * 1e3)
    return times


def quartiles(times: list[float]) -> str:
    low, middle, high = np.percentile(times, (25, 50, 75))
    return f"{middle:.3f} ({low:.3f}-{high:.3f})"


if __name__ == "__main__":
    main()
