"""Finalists and the vendor library without a pause between calls, once clocks are steady.

A GPU that reaches its power limit lowers its clocks within tenths of a second, and the kernel that
takes less energy for a result keeps higher ones. Short turns, between which the host judges, show
nothing of it; work that goes on for a second, as training does, is made of nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from autotune.core.errors import OutOfTimeError
from autotune.core.measurement import Measurement, Series
from autotune.measuring.effort import Report, Stage, silent
from autotune.measuring.trial import UNSTEADY_S

if TYPE_CHECKING:
    from autotune.core.deadline import Deadline

LEAST_S = 50e-6
"""Kernels below this seldom follow each other for long, and launches are much of their time."""

TURN_S = 0.5
"""Seconds that count of a turn. Kernels above this are without a pause in any turn."""

MOST_HELD = 3
"""Finalists at most, the fastest of short turns."""

MOST_ROUNDS = 5
MOST_HEATING = 5
"""Turns at most in which the fastest brings the device to its steady clocks."""

_FEWEST_HEATING = 2
"""Clocks are compared; the latter of the two counts in the first round."""

CHANGE = 0.01
"""Clocks that change less from one turn to the next are steady."""

SustainedVisit: TypeAlias = Callable[[float], Series | Measurement]
"""Has a contestant computed for about the seconds given, without a pause."""


class SustainedTurns:
    """Turns without a pause: first of one contestant, until clocks are steady, then of all.

    Args:
        visits: hold the finalists, by their positions; None is the vendor library.
        budget_s: seconds for all of it.
        deadline: of the run.
        report: callback for every round.

    Attributes:
        turns: of everybody who takes part and has not failed; as many of each. There are none
            where there was no time to heat the device and go round once, or who heats it fails.
        failures: of those who failed in a turn.
    """

    def __init__(
        self,
        visits: Mapping[int | None, SustainedVisit],
        budget_s: float,
        deadline: Deadline,
        report: Report = silent,
    ) -> None:
        self._visits = visits
        self._budget_s = budget_s
        self._deadline = deadline
        self._report = report
        self._until_s = 0.0
        self._turn_s = TURN_S + UNSTEADY_S
        self.turns: dict[int | None, list[Series]] = {}
        self.failures: dict[int | None, Measurement] = {}

    def hold(self, best_first: Sequence[int], after: int = 0) -> None:
        """Hold the best, as many as there is time for, and the library.

        Args:
            best_first: positions of the finalists.
            after: rounds of the finals so far.
        """
        run = self._deadline
        self._until_s = run.elapsed_s + min(self._budget_s, run.remaining_s)
        for place in self._chosen(best_first):
            self.turns[place] = []
        first, rounds = best_first[0], 0
        try:
            warm = self._heat(first)
            while warm is not None and self.turns and rounds < MOST_ROUNDS:
                if not self._fits(len(self.turns) - (rounds == 0)):
                    break
                self._report(Stage("finals", after + rounds + 1, after + MOST_ROUNDS))
                for place in [*self.turns]:
                    counted = not rounds and place == first
                    if (turn := warm if counted else self._take(place)) is not None:
                        self.turns[place].append(turn)
                rounds += 1
        except OutOfTimeError:  # what was measured stands
            pass
        for own in self.turns.values():
            del own[rounds:]

    def _chosen(self, best_first: Sequence[int]) -> list[int | None]:
        """As many as there is time for one round of, but for the turns that heat."""
        others = [None] if None in self._visits else []
        turns = int((self._until_s - self._deadline.elapsed_s) / self._turn_s)
        count = turns - (_FEWEST_HEATING - 1) - len(others)
        return [*best_first[: max(1, min(MOST_HELD, count))], *others]

    def _heat(self, place: int) -> Series | None:
        """The turn of a contestant at which clocks are steady; None without it, or the time."""
        before: Series | None = None
        for number in range(MOST_HEATING):
            fewest = max(1, _FEWEST_HEATING - number)
            if not self._fits(fewest + len(self.turns) - 1):
                return before if number >= _FEWEST_HEATING else None
            turn = self._take(place)
            if turn is None or (before is not None and _is_steady(before, turn)):
                return turn
            before = turn
        return before

    def _take(self, place: int | None) -> Series | None:
        """One turn; None if it failed, which puts the contestant out."""
        begun_s = self._deadline.elapsed_s
        reply = self._visits[place](TURN_S)
        if isinstance(reply, Measurement):
            self.failures[place] = reply
            del self.turns[place]
            return None
        self._turn_s = self._deadline.elapsed_s - begun_s
        return reply

    def _fits(self, turns: int) -> bool:
        left_s = self._until_s - self._deadline.elapsed_s
        return not turns or turns * self._turn_s <= left_s


def _is_steady(before: Series, after: Series) -> bool:
    """True if the clock has not changed since; where nobody tells it, the time."""
    clocks = [turn.observed.get("sm_clock_mhz", 1 / turn.median_s) for turn in (before, after)]
    return abs(clocks[1] / clocks[0] - 1) < CHANGE
