"""Progress of a run, as callbacks get it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from autotune.core.configuration import Candidate
    from autotune.core.deadline import Deadline
    from autotune.core.measurement import Outcome
    from autotune.measuring.effort import Baseline


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
