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

ONCE_SHARE = 0.5
"""Of what the first trial took beside timed calls, what the next one finds done: operands and
references of cases, and code that was compiled or loaded."""

FEW_TRIALS, LEAST_SHARE = 12, 0.15
"""Trials that come before all of the finals but this share of a run's time, and the verifying of
one finalist."""

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
        trials: how many those were.
    """

    compile_s: float = 0.0
    trial_s: float = 0.0
    verify_s: float = 0.0
    trials: int = 0

    def note_compile(self, seconds: float, count: int) -> None:
        """A batch was compiled; one that was found on disk says little of the next."""
        if count:
            self.compile_s = max(seconds / count, self.compile_s / 2)

    def note_trial(self, seconds: float, timed_s: float) -> None:
        """A candidate was verified, and its calls timed for so many of the seconds.

        Of the first trial part is expected of others; the second says more than that.
        """
        self.trials += 1
        verify_s = max(0.0, seconds - timed_s)
        once_s = ONCE_SHARE * verify_s if self.trials == 1 else 0.0
        known = self.trials > 2
        self.trial_s = _smooth(self.trial_s if known else 0.0, seconds - once_s)
        self.verify_s = _smooth(self.verify_s if known else 0.0, verify_s - once_s)

    def reserve_s(
        self,
        limit_s: float,
        finals_s: float,
        finalists: int,
        *,
        holds: bool = False,
        left_s: float = math.inf,
    ) -> float:
        """Seconds that a run keeps for its end: finals and storing.

        Until a few trials have been made, where they are slow, finals keep the least that they
        need; next to nothing before the second, as of one trial they choose nothing.

        Args:
            limit_s: seconds that the run is meant to take.
            finals_s: seconds of the finals beside verifying.
            finalists: how many there may be; 0 where there are no finals.
            holds: whether the best are held without a pause, in those seconds.
            left_s: seconds until the run is meant to end.
        """
        if not finalists or math.isinf(limit_s):
            return 0.0
        one_s = VERIFICATIONS * self.verify_s
        need_s = finals_s + finalists * one_s + CLOSING_S
        turns_s = min(finals_s, LEAST_SHARE * limit_s)
        least_s = CLOSING_S + (turns_s + one_s if self.trials > 1 else 0.0)
        few_s = max(0, FEW_TRIALS - self.trials) * self.trial_s
        share_s = (HOLDING_SHARE if holds else FINALS_SHARE) * limit_s
        return min(need_s, share_s, max(least_s, left_s - few_s))

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
