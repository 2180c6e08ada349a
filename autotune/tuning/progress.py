"""Progress of a run: as callbacks get it, and as a live line on stderr."""

from __future__ import annotations

import contextlib
import math
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO, TypeAlias

from autotune.measuring.rounds import DISAGREE

if TYPE_CHECKING:
    from autotune.core.configuration import Candidate
    from autotune.core.deadline import Deadline
    from autotune.core.measurement import Outcome
    from autotune.measuring.effort import Baseline

LOG_INTERVAL_S = 5.0
"""Seconds between lines where stderr is not a terminal."""

TICK_S = 0.25
"""Seconds between updates on a terminal: the clock moves while the run waits for something."""

BAR = 12
"""Characters of the bar; a narrow terminal has none."""

NARROW = 60
"""Columns below which the bar and counts of outcomes make room for the rest."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run, passed to the callback at the start and whenever something has moved.

    Attributes:
        trial: trials told so far in this run.
        trials: the most this run will make.
        elapsed_s: seconds since the run began.
        timeout_s: seconds that the run may take; infinite where only trials count.
        best_s: best median so far, in seconds; None before the first success.
        baseline: the vendor library on the same problem; None when there is none, or not yet.
        flops: floating-point operations of the problem.
        counts: trials by outcome.
        phase: what is being done: "starting", "compiling", "trials" or "finals".
        step: candidates compiled, or the round of the finals that begins; 0 in other phases.
        steps: how many there are.
        left_s: seconds that it will take, finals included, as far as is known, and at most those
            that it may.
        best: the candidate with that median.
    """

    trial: int
    trials: int
    elapsed_s: float
    timeout_s: float
    best_s: float | None
    baseline: Baseline | None
    flops: int
    counts: Mapping[Outcome, int]
    phase: str = "trials"
    step: int = 0
    steps: int = 0
    left_s: float = math.inf
    best: Candidate | None = None

    @classmethod
    def at_start(cls, flops: int, trials: int, deadline: Deadline) -> Progress:
        """A run of which nothing is known yet."""
        return cls(
            trial=0,
            trials=trials,
            elapsed_s=deadline.elapsed_s,
            timeout_s=deadline.limit_s,
            best_s=None,
            baseline=None,
            flops=flops,
            counts={},
            phase="starting",
            left_s=deadline.expected_s,
        )


Watcher: TypeAlias = Callable[[Progress], None]
"""A callback of a run's progress."""


class ProgressLine:
    """One status line that is rewritten on a terminal, or a line every few seconds in a log.

    On a terminal a thread of its own keeps it moving, until `end`.

    Args:
        title: a line that comes first, once the work has begun.
        stream: where to; None is stderr.
        clock: seconds from a fixed point.
        columns: the terminal's width.
    """

    def __init__(
        self,
        title: str,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        columns: Callable[[], int] = lambda: shutil.get_terminal_size().columns,
    ) -> None:
        self._title = title
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._clock = clock
        self._columns = columns
        self._latest: tuple[Progress, float] | None = None
        self._printed_at = clock()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._ticker: threading.Thread | None = None

    def __call__(self, progress: Progress) -> None:
        """Show where the run stands."""
        now = self._clock()
        begins = self._latest is None
        self._latest = progress, now
        if begins:
            self._print(f"{self._title}\n")
        if self._live:
            self.tick()
            if begins:
                self._ticker = threading.Thread(target=self._keep_moving, daemon=True)
                self._ticker.start()
        elif now - self._printed_at >= LOG_INTERVAL_S:
            self._printed_at = now
            self._print(f"{status(progress)}\n")

    def tick(self) -> None:
        """Rewrite the line with the time that it is now."""
        if self._latest is None:
            return
        progress, at = self._latest
        # The last column stays free: some terminals wrap when it is written to.
        text = status(progress, self._clock() - at, width=max(1, self._columns() - 1))
        with self._lock:
            self._print(f"\r\x1b[K{text}")

    def end(self) -> None:
        """Leave the status line behind."""
        self._ended.set()
        if self._ticker is not None:
            self._ticker.join()
            self._ticker = None
            self._print("\n")

    def _print(self, text: str) -> None:
        """Write what work must not end for: a terminal may be gone."""
        with contextlib.suppress(OSError, ValueError):
            print(text, end="", file=self._stream, flush=True)

    def _keep_moving(self) -> None:
        while not self._ended.wait(TICK_S):
            self.tick()


def status(progress: Progress, since_s: float = 0.0, width: int | None = None) -> str:
    """Phase, best so far, counts by outcome, elapsed time and what is left, in one line.

    The run stood there `since_s` seconds ago; the line has `width` columns at most.
    """
    elapsed_s = progress.elapsed_s + since_s
    left_s = max(0.0, progress.left_s - since_s)
    parts = [_phase(progress)]
    if progress.best_s is not None:
        best = f"best {progress.flops / progress.best_s / 1e9:.1f} GFLOP/s"
        library = progress.baseline
        if library and library.median_s <= DISAGREE * library.interval_s[0]:
            ratio = library.median_s / progress.best_s
            best += f" ({ratio:.2f}x {vendor(library)})"
        if progress.best is not None:
            best += f" {progress.best.family}"
        parts.append(best)
    clock = f"{elapsed_s:.0f} s"
    if math.isfinite(left_s) and left_s >= 1:
        clock += f", {left_s:.0f} s left"
    bar = _bar(_share(progress, elapsed_s, left_s))
    counts = " ".join(f"{outcome} {n}" for outcome, n in sorted(progress.counts.items()))
    if width is None or width >= NARROW:
        full = [f"{bar} {parts[0]}", *parts[1:], *filter(None, [counts]), clock]
        if width is None or len(" | ".join(full)) <= width:
            return " | ".join(full)
        parts[0] = f"{bar} {parts[0]}"
    # What changes all the time comes before what may be cut off.
    return " | ".join([parts[0], clock, *parts[1:]])[:width]


def vendor(baseline: Baseline) -> str:
    """The first word of the baseline's name: "NumPy"."""
    return baseline.name.split()[0]


def _phase(progress: Progress) -> str:
    trials = f"trial {progress.trial}/{progress.trials}"
    match progress.phase:
        case "compiling" if progress.steps:
            step = f"compiling {progress.step}/{progress.steps}"
            return f"{trials}, {step}" if progress.trial else step
        case "finals" if progress.step:
            return f"finals: round {progress.step}/{progress.steps}"
        case "finals":
            return "finals: verifying"
        case "trials" | "compiling":
            return trials
    return progress.phase


def _bar(share: float) -> str:
    done = round(BAR * min(1.0, max(0.0, share)))
    return f"[{'#' * done}{'.' * (BAR - done)}]"


def _share(progress: Progress, elapsed_s: float, left_s: float) -> float:
    """The part that is done, by the time or by the trials, whichever says more."""
    by_trials = progress.trial / progress.trials if progress.trials else 0.0
    if not math.isfinite(left_s):
        return by_trials
    return elapsed_s / max(elapsed_s + left_s, 1e-9)
