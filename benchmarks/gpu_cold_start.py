"""Tuning one problem from nothing: ``python benchmarks/gpu_cold_start.py [--shape MxNxK]``.

A fresh cache, no record to start from. Prints Markdown: the best found after so many seconds, how
many programs were compiled per second, and the share of the time the GPU was at work.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections import Counter

from gpu_environment import GpuWatch, describe_gpu, read_gpu

from autotune import Gemm, tune
from autotune.operations.problem import GEMM
from autotune.tuning.progress import Progress

MOMENTS_S = (2, 5, 10, 15, 20, 30, 45, 60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="2048x2048x2048")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds of search")
    parser.add_argument("--sampler", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    device = read_gpu()
    problem = Gemm(*GEMM.parse_shape(args.shape), dtype=args.dtype)
    seen: list[Progress] = []
    with tempfile.TemporaryDirectory() as cache, GpuWatch(device) as watch:
        started = time.monotonic()
        result = tune(
            problem,
            target="cuda",
            trials=1_000_000,
            timeout=args.timeout,
            sampler=args.sampler,
            seed=args.seed,
            cache=cache,
            progress=seen.append,
        )
        seconds = time.monotonic() - started
    print(describe_gpu(device))
    print(watch.summary())
    print(
        f"- {problem.label}, sampler {args.sampler}, seed {args.seed}, {args.timeout:g} s of "
        f"search, {seconds:.1f} s in all, {len(os.sched_getaffinity(0))} processor cores"
    )

    elapsed = seen[-1].elapsed_s
    measurements = [trial.measurement for trial in result.trials]
    compiles = {  # several trials may have one program
        m.details["program"]: m.details["compile_s"]
        for m in measurements
        if "program" in m.details
    }
    timed = sum(m.repeats * (m.median_s or 0.0) for m in measurements)
    counts = Counter(str(m.outcome) for m in measurements)
    print("\n| | |\n|---|---|")
    print(f"| trials | {len(measurements)}: {', '.join(f'{n} {o}' for o, n in counts.items())} |")
    print(
        f"| programs compiled per second | {len(compiles) / elapsed:.1f} "
        f"(median compile {statistics.median(compiles.values()):.2f} s) |"
    )
    if watch.use:
        print(f"| share of the time in which kernels ran | {statistics.mean(watch.use):.0f}% |")
    print(f"| of the whole time, timed launches that count | {100 * timed / elapsed:.0f}% |")
    best = result.best
    print(f"| winner | {best.candidate} |")
    print(f"| its median | {best.median_s * 1e3:.4f} ms, {best.gflops:.0f} GFLOP/s |")
    if best.baseline is not None:
        print(f"| relative to {best.baseline.name} | {best.baseline.ratio:.3f}x, in turns |")

    print("\n| after s | trials | best ms | GFLOP/s | x cuBLAS, measured alone |")
    print("|---|---|---|---|---|")
    for moment in (*(each for each in MOMENTS_S if each < elapsed), elapsed):
        state = [progress for progress in seen if progress.elapsed_s <= moment][-1:]
        if not state or state[0].best_s is None:
            print(f"| {moment:.0f} | {state[0].trial if state else 0} | - | - | - |")
            continue
        best_s, baseline = state[0].best_s, state[0].baseline
        ratio = "-" if baseline is None else f"{baseline.median_s / best_s:.3f}"
        print(
            f"| {moment:.0f} | {state[0].trial} | {best_s * 1e3:.4f} "
            f"| {problem.flops / best_s / 1e9:.0f} | {ratio} |"
        )


if __name__ == "__main__":
    main()
