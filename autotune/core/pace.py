"""Running averages of compile, trial and verify times, used to budget the rest of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass

CLOSING_S = 0.5
"""Seconds kept for storing the winner and ending processes."""

FINALS_SHARE = 0.3
"""Of a run's time, what the finals have at most."""

HOLDING_SHARE = 0.45
"""The same where the best are held without a pause besides."""

VERIFICATIONS = 3
"""Verifications of a trial that verifying a finalist takes: one before its turns, and after them
one on operands that have to be drawn first."""

FIRST_SHARE = 0.3
"""Of the time for searching, what compiling leaves to the first trials, whatever they take."""


SHORT_S = 30.0
"""Where less is left the first batch is half of one: a busy machine may do no more in time."""


@dataclass(slots=True)
class Pace:
    """Seconds that steps have taken; zero where there was none.

    Attributes:
        compile_s: for each candidate of a batch that blocked until it was compiled.
        trial_s: for a trial that was timed to the end.
        verify_s: what of that was not timed calls.
    """

    compile_s: float = 0.0
    trial_s: float = 0.0
    verify_s: float = 0.0

    def note_compile(self, seconds: float, count: int) -> None:
        """A batch was compiled; one that was found on disk says little of the next."""
        if count:
            self.compile_s = max(seconds / count, self.compile_s / 2)

    def note_trial(self, seconds: float, timed_s: float) -> None:
        """A candidate was verified, and its calls timed for so many of the seconds."""
        self.trial_s = _smooth(self.trial_s, seconds)
        self.verify_s = _smooth(self.verify_s, max(0.0, seconds - timed_s))

    def reserve_s(
        self, limit_s: float, finals_s: float, finalists: int, *, holds: bool = False
    ) -> float:
        """Seconds that a run keeps for its end: finals and storing.

        Args:
            limit_s: seconds that the run is meant to take.
            finals_s: seconds of the finals beside verifying.
            finalists: how many there may be; 0 where there are no finals.
            holds: whether the best are held without a pause, in those seconds.
        """
        if not finalists or math.isinf(limit_s):
            return 0.0
        need_s = finals_s + VERIFICATIONS * finalists * self.verify_s + CLOSING_S
        return min(need_s, (HOLDING_SHARE if holds else FINALS_SHARE) * limit_s)

    def batch(self, remaining_s: float, wanted: int) -> int:
        """Number of candidates that there is time to compile and measure.

        Args:
            remaining_s: seconds of searching.
            wanted: the most.
        """
        if not self.compile_s and remaining_s < SHORT_S:
            return (wanted + 1) // 2
        one_s = self.compile_s + self.trial_s
        return wanted if one_s * wanted <= remaining_s else int(remaining_s / one_s)

    def finalists(self, remaining_s: float, wanted: int) -> int:
        """Number of finalists that there is time to verify and give turns.

        Args:
            remaining_s: seconds for finals.
            wanted: the most.
        """
        one_s = VERIFICATIONS * self.verify_s
        return wanted if one_s * wanted <= remaining_s else int(remaining_s / one_s)


def _smooth(so_far: float, latest: float) -> float:
    return (so_far + latest) / 2 if so_far else latest
