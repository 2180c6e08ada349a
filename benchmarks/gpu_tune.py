"""One-shot tuning of a GPU: ``python benchmarks/gpu_tune.py [--cache DIR] [--export FILE]``.

Runs ``autotune tune --preset gpu`` in a process of its own and prints Markdown: every problem's
winner, its speed relative to cuBLAS, measured in turns with it, and the geometric means. Given the
cache of an interrupted run it goes on with that.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from typing import Any

from gpu_environment import GpuWatch, describe_gpu, read_gpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="gpu")
    parser.add_argument("--cache", help="default: an empty one")
    parser.add_argument("--export", metavar="FILE", help="write the winners' records to a file")
    parser.add_argument("--timeout", type=float, help="seconds in all; default: the preset's")
    parser.add_argument("--dtypes", metavar="D,...", help="element types; default: the preset's")
    args = parser.parse_args()

    device = read_gpu()
    print(describe_gpu(device))
    with tempfile.TemporaryDirectory() as empty, GpuWatch(device) as watch:
        command = [sys.executable, "-m", "autotune", "tune", "--json", "--preset", args.preset]
        command += ["--cache", args.cache or empty]
        command += [] if args.export is None else ["--export", args.export]
        command += [] if args.timeout is None else ["--timeout", str(args.timeout)]
        command += [] if args.dtypes is None else ["--dtypes", args.dtypes]
        started = time.monotonic()
        done = subprocess.run(command, stdout=subprocess.PIPE)
        seconds = time.monotonic() - started
    if not done.stdout:
        sys.exit(done.returncode)
    rows = json.loads(done.stdout)
    print(watch.summary())
    trials = sum(sum(row["counts"].values()) for row in rows)
    print(f"- preset {args.preset}: {len(rows)} problems, {trials} trials in {seconds:.0f} s\n")
    print(markdown(rows))


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table of winners and the geometric means by dtype."""
    lines = [
        "| M x N x K | dtype | winner | configuration | ms | GFLOP/s | x cuBLAS | ties | trials | "
        "|\n|---|---|---|---|---|---|---|---|---|---|",
    ]
    ratios: dict[str, list[float]] = {}
    for row in rows:
        problem, best, baseline = row["problem"], row["best"], row["baseline"]
        shape = "x".join(str(problem[name]) for name in ("m", "n", "k"))
        note = "" if row["status"] == "tuned" else f"{row['status']} {row['reason']}".strip()
        if best is None:
            lines.append(f"| {shape} | {problem['dtype']} | - | | | | | | | {note} |")
            continue
        if baseline is not None:
            ratios.setdefault(problem["dtype"], []).append(baseline["ratio"])
        values = ", ".join(f"{name}={value}" for name, value in best["configuration"].items())
        low, high = (1e3 * each for each in best["interval_s"])
        lines.append(
            f"| {shape} | {problem['dtype']} | {best['family']} | {values} "
            f"| {best['median_s'] * 1e3:.4g} [{low:.4g}, {high:.4g}] | {best['gflops']:.0f} "
            f"| {'-' if baseline is None else format(baseline['ratio'], '.3f')} | {best['ties']} "
            f"| {sum(row['counts'].values())} | {note} |"
        )
    for dtype, values in ratios.items():
        mean = math.exp(sum(map(math.log, values)) / len(values))
        lines.append(
            f"\n{dtype}: geometric mean {mean:.3f}x cuBLAS over {len(values)} shapes, "
            f"{sum(ratio >= 1 for ratio in values)} of them at least 1.0x"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
