"""Tuned CPU kernels beside NumPy, size by size: ``python benchmarks/cpu_gemm.py``.

Each problem is tuned from nothing in a cache of its own; the ratio printed is the one of the
finals, where the winner and NumPy's matmul take turns on the same operands in one process, with
the same number of threads. Prints Markdown.
"""

from __future__ import annotations

import argparse
import tempfile

from environment import describe

from autotune import Gemm, tune


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 512, 1000, 1024, 2048])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float64"])
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds of search each")
    args = parser.parse_args()

    print(describe())
    print(f"- search: 200 trials or {args.timeout:g} s each, sampler auto, seed 0\n")
    print("| shape | dtype | threads | family | configuration | ms | GFLOP/s | x NumPy | ties |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as cache:
        for threads in args.threads:
            for dtype in args.dtypes:
                for size in args.sizes:
                    problem = Gemm(size, size, size, dtype=dtype, threads=threads)
                    result = tune(problem, timeout=args.timeout, cache=cache)
                    best = result.best
                    low, high = best.interval_s
                    ratio = "-" if best.baseline is None else f"**{best.baseline.ratio:.2f}**"
                    print(
                        f"| {size}³ | {dtype} | {threads} | {best.candidate.family} "
                        f"| {best.candidate.configuration} "
                        f"| {best.median_s * 1e3:.3f} [{low * 1e3:.3f}, {high * 1e3:.3f}] "
                        f"| {best.gflops:.1f} | {ratio} | {best.ties} |",
                        flush=True,
                    )
    print(f"\nBaseline: {result.baseline.name if result.baseline else 'none'}")


if __name__ == "__main__":
    main()
