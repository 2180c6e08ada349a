"""What loading costs a fresh process: ``python benchmarks/start_up.py``.

Tunes one problem briefly, then starts new interpreters that import autotune, load the kernel
from the cache and call it, and prints the median of each step. Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from environment import describe

from autotune import Gemm, tune

STEPS = """
import json, sys, time
clock = time.perf_counter
times = {}
t = clock(); import numpy as np; times["import numpy"] = clock() - t
t = clock(); import autotune; times["import autotune"] = clock() - t
t = clock(); import numba; times["import numba"] = clock() - t
t = clock(); kernel = autotune.load(autotune.Gemm(1024, 1024, 1024)); times["load"] = clock() - t
a = np.ones((1024, 1024), np.float32)
t = clock(); c = kernel(a, a); times["first call"] = clock() - t
t = clock(); kernel(a, a, c); times["second call"] = clock() - t
assert c[0, 0] == 1024
print(json.dumps(times))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=11)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        tune(Gemm(1024, 1024, 1024), trials=6, cache=cache)
        environment = os.environ | {"AUTOTUNE_CACHE": cache}
        runs = [
            json.loads(
                subprocess.run(
                    [sys.executable, "-c", STEPS],
                    env=environment,
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout
            )
            for _ in range(args.runs)
        ]
    print(describe())
    print(f"- {args.runs} fresh processes\n")
    print("| step | median ms | slowest ms |")
    print("|---|---|---|")
    for step in runs[0]:
        times = [run[step] * 1e3 for run in runs]
        print(f"| {step} | {statistics.median(times):.1f} | {max(times):.1f} |")


if __name__ == "__main__":
    main()
