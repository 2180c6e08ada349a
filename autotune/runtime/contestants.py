"""Contestants: kernels and the library in a contest, their times, and a comparison of two."""

from __future__ import annotations

import logging
import math
from collections import deque
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from autotune.core.errors import AutotuneError
from autotune.core.statistics import median_interval

if TYPE_CHECKING:
    from autotune.serving.clock import Reading
    from autotune.serving.kernel import Kernel
    from autotune.serving.loading import Contender

MARGIN = 1.02
"""Times that a kernel must be faster than the library to take its place."""

_log = logging.getLogger(__name__)


class Contestant:
    """A kernel in a contest; without a contender, the library."""

    __slots__ = ("calls", "contender", "is_out", "kernel", "pending", "times", "waiting")

    def __init__(self, contender: Contender | None) -> None:
        self.contender = contender
        self.kernel: Kernel | None = None
        self.times: list[tuple[float, ...]] = []
        self.pending: deque[Reading] = deque()
        self.calls = 0
        self.is_out = False
        self.waiting = False

    def load(self) -> Kernel:
        """Load the kernel when it is first needed."""
        if self.kernel is None:
            assert self.contender is not None
            self.kernel = self.contender.load()
        return self.kernel

    def drop(self, error: AutotuneError) -> None:
        """Let the kernel take no part any more."""
        assert self.contender is not None
        _log.debug("%s takes no part: %s", self.contender.found.candidate, error)
        self.is_out = True

    def read(self) -> None:
        """Take the times that are known by now."""
        while self.pending:
            try:
                seconds = self.pending[0]()
            except AutotuneError:  # of the driver: it is said where the program waits for it
                seconds = (math.nan,)
            if seconds is None:
                return
            self.pending.popleft()
            if not any(map(math.isnan, seconds)):
                self.times.append(seconds)


class Compared(NamedTuple):
    """A kernel beside the library, in the first or in the second call of a pair.

    Attributes:
        ratio: its speed relative to the library's.
        ours: its median, in seconds.
        theirs: the library's.
        interval: 95% confidence interval of its median.
        is_clear: whether all times of one are below all of the other.
    """

    ratio: float
    ours: float
    theirs: float
    interval: tuple[float, float]
    is_clear: bool


def compare(kernel: Contestant, library: Contestant) -> Compared:
    """Compare a kernel with the library where it does worse: a program may call in either way."""
    found = []
    for call in range(2):
        ours, theirs = (
            [times[call] for times in one.times if len(times) > call] for one in (kernel, library)
        )
        if not (ours and theirs):
            break
        faster, slower = max(ours) * MARGIN < min(theirs), max(theirs) < min(ours)
        own, other = median(ours), median(theirs)
        interval = median_interval(ours)
        found.append(Compared(other / own, own, other, interval, faster or slower))
    least = min(found)
    all_clear = all(compared.is_clear for compared in found)
    return least._replace(is_clear=all_clear or (least.is_clear and least.ratio < 1))
