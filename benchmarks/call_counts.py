"""Calls on the way of a user's call: ``python benchmarks/call_counts.py``.

In one process, with a cache of its own: the first `matmul`, of a shape that nobody tuned; that of
another shape, and of one that is remembered; a `load` of a known shape; and a `tune` of three
trials on the CPU. Counts modules of ours that are passed, calls of our Python functions, and how
deep they are nested, in the thread of the caller. Modules that are imported are not counted.
Prints Markdown.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = str(Path(__file__).resolve().parents[1] / "autotune") + os.sep
GOALS = {"load": "20 modules, 150 calls", "matmul, first of a process": "5,000 calls"}


class Counter:
    """Calls of our functions, as `sys.setprofile` hears of them."""

    def __init__(self) -> None:
        self.calls = self.depth = self.deepest = 0
        self.modules: set[str] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event not in ("call", "return") or not frame.f_code.co_filename.startswith(PACKAGE):
            return
        if frame.f_code.co_name == "<module>":
            return
        if event == "return":
            self.depth -= 1
            return
        self.calls += 1
        self.depth += 1
        self.deepest = max(self.deepest, self.depth)
        self.modules.add(frame.f_code.co_filename)


def counted(call: Callable[[], Any]) -> Counter:
    counter = Counter()
    sys.setprofile(counter)
    try:
        call()
    finally:
        sys.setprofile(None)
    return counter


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["AUTOTUNE_CACHE"] = folder
        import numpy as np

        from autotune import Gemm, load, matmul, tune

        def product(*sizes: int) -> Callable[[], Any]:
            m, n, k = sizes
            a, b = np.ones((m, n), np.float32), np.ones((n, k), np.float32)
            return lambda: matmul(a, b)

        known, remembered = Gemm(96, 64, 80), product(48, 32, 80)

        def know() -> None:
            tune(known, target="cpu", trials=1)
            load(known, "cpu")

        def remember() -> None:
            os.environ["AUTOTUNE_TURNS"] = "0"
            remembered()

        rows: dict[str, tuple[Callable[[], Any] | None, Callable[[], Any]]] = {
            "matmul, first of a process": (None, product(64, 64, 64)),
            "matmul, first of a shape": (None, product(65, 33, 129)),
            "matmul, remembered": (remember, remembered),
            "load": (know, lambda: load(known, "cpu")),
            "tune, 3 trials": (None, lambda: tune(Gemm(64, 96, 80), target="cpu", trials=3)),
        }
        print("| call | modules | calls | depth | at most |\n|---|---|---|---|---|")
        for name, (prepare, call) in rows.items():
            if prepare is not None:
                prepare()
            found = counted(call)
            goal = GOALS.get(name, "")
            calls = f"{found.calls:,}"
            print(f"| {name} | {len(found.modules)} | {calls} | {found.deepest} | {goal} |")


if __name__ == "__main__":
    main()
