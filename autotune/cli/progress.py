"""Live progress of a tuning run, on stderr."""

from __future__ import annotations

import math
import sys
import time
from typing import TextIO

from autotune.evaluators.base import Baseline
from autotune.tuner import Progress

LOG_INTERVAL_S = 5.0
"""Seconds between lines where stderr is not a terminal."""


class ProgressLine:
    """One status line that is rewritten on a terminal, or a line every few seconds in a log."""

    def __init__(self, title: str, stream: TextIO | None = None) -> None:
        self._title = title
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._begun = False
        self._printed_at = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        """Show where the run stands; the title comes first, once the work has begun."""
        if not self._begun:
            self._begun = True
            print(self._title, file=self._stream, flush=True)
        text = status(progress)
        if self._live:
            print(f"\r\x1b[K{text}", end="", file=self._stream, flush=True)
        elif time.monotonic() - self._printed_at >= LOG_INTERVAL_S:
            self._printed_at = time.monotonic()
            print(text, file=self._stream, flush=True)

    def end(self) -> None:
        """Leave the status line behind."""
        if self._live and self._begun:
            print(file=self._stream, flush=True)


def status(progress: Progress) -> str:
    """Trial, best so far, counts by outcome, and the time that is left, in one line."""
    parts = [f"trial {progress.trial}/{progress.trials}"]
    if progress.best_s is not None:
        best = f"best {progress.flops / progress.best_s / 1e9:.1f} GFLOP/s"
        if progress.baseline is not None:
            ratio = progress.baseline.median_s / progress.best_s
            best += f" ({ratio:.2f}x {vendor(progress.baseline)})"
        parts.append(best)
    if progress.counts:
        parts.append(" ".join(f"{outcome} {n}" for outcome, n in sorted(progress.counts.items())))
    remaining_s = _remaining(progress)
    if math.isfinite(remaining_s):
        parts.append(f"ETA {remaining_s:.0f} s")
    return " | ".join(parts)


def vendor(baseline: Baseline) -> str:
    """The first word of the baseline's name: "NumPy"."""
    return baseline.name.split()[0]


def _remaining(progress: Progress) -> float:
    by_time = progress.timeout_s - progress.elapsed_s
    if not progress.trial:
        return by_time
    by_trials = (progress.trials - progress.trial) * progress.elapsed_s / progress.trial
    return max(0.0, min(by_time, by_trials))
