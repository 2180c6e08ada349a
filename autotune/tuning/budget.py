"""The time of one run: spent by its steps, left for more, and kept for the finals."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from autotune.core.deadline import Deadline
from autotune.core.errors import OutOfTimeError
from autotune.core.interrupt import Interrupt
from autotune.core.pace import CLOSING_S, FIRST_SHARE, Pace

if TYPE_CHECKING:
    from autotune.measuring.effort import Stage

BASELINE_SHARE = 0.05
"""Of the time so far, what measuring the vendor library may have taken for it to be measured again
when there is a new best."""


@dataclass
class Budget:
    """Time of one run.

    Attributes:
        deadline: until when it may take.
        interrupt: whoever asks for an end; entered by the caller.
        pace: what steps of runs like this one have taken, kept up to date.
        started_s: from the beginning of the run to that of the search.
        search_s: from the beginning of the run to the end of the search.
        finals_s: what the last finals took.
        spent_s: wall time by what it went into, in seconds.
    """

    deadline: Deadline = field(default_factory=Deadline)
    interrupt: Interrupt = field(default_factory=Interrupt)
    pace: Pace = field(default_factory=Pace)
    started_s: float = 0.0
    search_s: float = 0.0
    finals_s: float = 0.0
    spent_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def interrupted(self) -> bool:
        """Somebody asked for an end."""
        return self.interrupt.requested

    @property
    def can_repeat_finals(self) -> bool:
        """There is time to hold the finals once more."""
        return not self.interrupted and self.deadline.remaining_s > self.finals_s

    def spent(self, found: bool) -> bool:
        """No further trial is begun.

        Args:
            found: whether a candidate was valid: until then trials go on beyond the goal.
        """
        late = found and self.deadline.planned_s < self.pace.trial_s
        return self.interrupted or self.deadline.over or late

    def reserve(self, finals_s: float, finalists: int, *, holds: bool) -> None:
        """Keep time for the finals, of which more is known with every trial."""
        if not self.interrupted:  # which has set what there is
            run = self.deadline
            run.reserve_s = self.pace.reserve_s(
                run.goal_s, finals_s, finalists, holds=holds, left_s=run.left_s
            )

    def batch(self, count: int, found: bool) -> int:
        """Of so many candidates, how many there is time to compile while nothing is measured."""
        fitting = self.pace.batch(self.deadline.planned_s, count)
        return fitting if found else min(count, max(1, fitting))

    @contextmanager
    def spending(self, what: str) -> Iterator[None]:
        """Count the wall time of a block."""
        begun_s = self.deadline.elapsed_s
        try:
            yield
        finally:
            self.spent_s[what] += self.deadline.elapsed_s - begun_s

    @contextmanager
    def compiling(self, first: bool) -> Iterator[None]:
        """Compile until only the share of what follows is left; more compiling then waits.

        Args:
            first: whether no trial has been made yet.

        Raises:
            OutOfTimeError: the run is over.
        """
        run = self.deadline
        kept_s = FIRST_SHARE * run.remaining_s if first else self.pace.trial_s
        try:
            kept = run.keeping(kept_s if math.isfinite(kept_s) else 0.0)
            with self.spending("compiling"), kept:
                yield
        except OutOfTimeError:
            if run.over:
                raise

    @contextmanager
    def finals(self, count: int) -> Iterator[int]:
        """Hold finals in what is left but for storing; yields how many there is time for."""
        self.deadline.reserve_s = min(CLOSING_S, 0.05 * self.deadline.limit_s)
        begun_s = self.deadline.elapsed_s
        try:
            with self.spending("finals"):
                yield self.pace.finalists(self.deadline.remaining_s, count)
        finally:
            self.finals_s = self.deadline.elapsed_s - begun_s

    @property
    def may_check_baseline(self) -> bool:
        """The vendor library costs little enough to be measured again."""
        return self.spent_s["library"] <= BASELINE_SHARE * self.deadline.elapsed_s

    def left_s(self, stage: Stage, done: int, trials: int, finals_s: float) -> float:
        """Seconds until the end of a run that has made so many trials, as far as is known."""
        may_s = self.deadline.expected_s
        if stage.name == "finals":
            return min(may_s, finals_s * (stage.steps - stage.step + 1) / max(1, stage.steps))
        if not done:
            return may_s
        return min(may_s, (trials - done) * self.deadline.elapsed_s / done + finals_s)

    @property
    def facts(self) -> dict[str, Any]:
        """Seconds spent since the search began, as a study keeps them."""
        spent_s = {what: round(seconds, 3) for what, seconds in self.spent_s.items()}
        seconds = round(self.deadline.elapsed_s - self.started_s, 3)
        return {"seconds": seconds, "spent_s": spent_s}
