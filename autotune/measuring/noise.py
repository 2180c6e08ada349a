"""Disturbances of a measurement: other load, throttled clocks, times that do not agree.

Nothing here decides what to do about it: a disturbed measurement is made again, or stored with
what disturbed it (`autotune.tuning.deciding`).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.core.statistics import WIDE, half_width, median

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DISAGREE = 2.0
"""Search and finals that differ by more than this did not measure the same thing."""

SPARE_CORES = 0.25
"""Processors that others may use, beyond those that are free, before they are in the way: what a
machine does for itself is less."""

_THROTTLED = ("hardware slowdown", "thermal", "hardware thermal", "power brake")
"""Reasons of a GPU's own. A power cap is none: it is how large products run."""


def scatter(name: str, median_s: float, interval_s: tuple[float, float]) -> str:
    """Complaint about the interval of a median; empty when it is narrow enough."""
    spread = half_width(median_s, interval_s)
    return "" if spread <= WIDE else f"the median of {name} is known to ±{spread:.0%} only"


def disturbance(medians: Sequence[float], best_s: float) -> str:
    """Complaint about the median of a library's times; empty if it is near the best of them.

    Args:
        medians: of its turns, in seconds.
        best_s: its best time besides.
    """
    typical_s, least_s = median(medians), min(best_s, *medians)
    if typical_s <= DISAGREE * least_s:
        return ""
    return (
        f"the library was disturbed: it took {typical_s * 1e3:.3g} ms in its turns and "
        f"{least_s * 1e3:.3g} ms at its best"
    )


def disagreement(search_s: float | None, finals_s: float) -> str:
    """Complaint about times in the search and the finals; empty when they agree."""
    if search_s is None or max(search_s, finals_s) <= DISAGREE * min(search_s, finals_s):
        return ""
    return f"{search_s * 1e3:.3g} ms in the search and {finals_s * 1e3:.3g} ms in the finals"


def throttling(details: Mapping[str, float | int | str]) -> str:
    """Reasons for which the GPU was slowed down meanwhile; empty when there were none."""
    reasons = [reason.strip() for reason in str(details.get("throttle", "")).split(",")]
    found = [reason for reason in reasons if reason in _THROTTLED]
    return f"the GPU was throttled ({', '.join(found)})" if found else ""


class Competition:
    """Watches, from its making on, what others do with the processors of this machine.

    Linux counts the time of all processors in ``/proc/stat``, that which a virtual machine did not
    get (steal) too; ours is that of this process and all that descend from it.

    Args:
        threads: how many threads the kernels that are measured use.
        processors: of the machine; None asks the system.
        proc: where Linux shows its processes.
    """

    def __init__(
        self, threads: int, *, processors: int | None = None, proc: Path = Path("/proc")
    ) -> None:
        self._threads = threads
        self._processors = processors or os.cpu_count() or 1
        self._proc = proc
        self._started = self._read()

    def seen(self) -> str:
        """Complaint about the load of others since; empty if there was none, or it is unknown."""
        now = self._read()
        if now is None or self._started is None or now.at_s <= self._started.at_s:
            return ""
        elapsed_s = now.at_s - self._started.at_s
        busy_s = now.busy_s - self._started.busy_s
        own_s = now.own_s - self._started.own_s
        others = max(0.0, busy_s - own_s) / elapsed_s
        if others + self._threads <= self._processors + SPARE_CORES:
            return ""
        return (
            f"others kept {others:.1f} of {self._processors} processors busy, and the kernels "
            f"use {self._threads}"
        )

    def _read(self) -> _Usage | None:
        try:
            return _Usage(time.monotonic(), _busy_seconds(self._proc), _own_seconds(self._proc))
        except (OSError, ValueError, IndexError):
            return None


@dataclass(frozen=True, slots=True)
class _Usage:
    """Processor seconds up to a moment: of everybody, and of this process and its descendants."""

    at_s: float
    busy_s: float
    own_s: float


def _busy_seconds(proc: Path) -> float:
    first = (proc / "stat").read_text().split("\n", 1)[0].split()
    user, nice, system, _, _, interrupts, softer, steal = map(int, first[1:9])
    return (user + nice + system + interrupts + softer + steal) / os.sysconf("SC_CLK_TCK")


def _own_seconds(proc: Path) -> float:
    """Time of this process and of all that descend from it, those that have ended too."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for file in proc.glob("[0-9]*/stat"):
        try:
            # The name of a program stands in parentheses and may hold anything.
            fields = file.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        process = int(file.parent.name)
        parents[process] = int(fields[1])
        # Its own user and system time, and that of children that it has waited for.
        ticks[process] = sum(map(int, fields[11:15]))
    own, total = os.getpid(), 0
    for process, spent in ticks.items():
        while process not in (0, own):
            process = parents.get(process, 0)
        total += spent if process == own else 0
    return total / os.sysconf("SC_CLK_TCK")
