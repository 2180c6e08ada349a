"""Finalists and the vendor library without a pause between calls, once clocks are steady.

A GPU that reaches its power limit lowers its clocks within tenths of a second, and the kernel that
takes less energy for a result keeps higher ones. Short turns, between which the host judges, show
nothing of it; work that goes on for a second, as training does, is made of nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
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
"""Seconds that count of a turn. Calls above this are without a pause in any turn."""

LONG_S = 0.05
CALLS = 8
"""Calls that a turn may take beside its time where they are longer than that: those before it, in
each of its three parts one that began in time, and on a GPU one that had been enqueued."""

MOST_HELD = 3
"""Finalists at most, the fastest of short turns."""

MOST_ROUNDS = 5
MOST_HEATING = 5
"""Turns at most in which the fastest brings the device to its steady clocks."""

_FEWEST_HEATING = 2
"""Clocks are compared; the latter of the two counts in the first round."""

CHANGE = 0.01
"""Clocks that change less from one turn to the next are steady."""

_ROUNDING_S = 1e-9
"""More than sums of turns are off by: what fits before the first of them fits after it."""

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
        self._call_s: Mapping[int | None, float] = {}
        self._turn_s: dict[int | None, float] = {}
        self._latest_s = TURN_S + UNSTEADY_S
        self.turns: dict[int | None, list[Series]] = {}
        self.failures: dict[int | None, Measurement] = {}

    def hold(
        self,
        best_first: Sequence[int],
        after: int = 0,
        call_s: Mapping[int | None, float] = MappingProxyType({}),
    ) -> None:
        """Hold the best, as many as there is time for, and the library, unless it takes too long.

        Args:
            best_first: positions of the finalists.
            after: rounds of the finals so far.
            call_s: seconds of a call of each in those, by position; None is the library.
        """
        run, self._call_s = self._deadline, call_s
        best_first = [place for place in best_first if call_s.get(place, 0.0) <= TURN_S]
        self._until_s = run.elapsed_s + min(self._budget_s, run.remaining_s)
        for place in self._chosen(best_first):
            self.turns[place] = []
        first, rounds = best_first[0], 0
        try:
            warm = self._heat(first)
            while warm is not None and self.turns and rounds < MOST_ROUNDS:
                if not self._fits([at for at in self.turns if rounds or at != first]):
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
        others = [None] if None in self._visits and self._call_s.get(None, 0.0) <= TURN_S else []
        heating, chosen = [best_first[0]] * (_FEWEST_HEATING - 1), [*best_first[:1]]
        for place in best_first[1:MOST_HELD]:
            if not self._fits([*heating, *chosen, place, *others]):
                break
            chosen.append(place)
        return [*chosen, *others]

    def _heat(self, place: int) -> Series | None:
        """The turn of a contestant at which clocks are steady; None without it, or the time."""
        before: Series | None = None
        for number in range(MOST_HEATING):
            fewest = max(1, _FEWEST_HEATING - number)
            others = [at for at in self.turns if at != place]
            if not self._fits([*[place] * fewest, *others]):
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
        self._turn_s[place] = self._latest_s = self._deadline.elapsed_s - begun_s
        return reply

    def _fits(self, turns: Sequence[int | None]) -> bool:
        left_s = self._until_s - self._deadline.elapsed_s + _ROUNDING_S
        return not turns or sum(map(self._expected_s, turns)) <= left_s

    def _expected_s(self, place: int | None) -> float:
        """Seconds of a turn: what one took, or what it may with such calls."""
        if place in self._turn_s:
            return self._turn_s[place]
        call_s = self._call_s.get(place, 0.0)
        return max(self._latest_s, TURN_S + UNSTEADY_S + CALLS * call_s * (call_s > LONG_S))


def _is_steady(before: Series, after: Series) -> bool:
    """True if the clock has not changed since; where nobody tells it, the time."""
    clocks = [turn.observed.get("sm_clock_mhz", 1 / turn.median_s) for turn in (before, after)]
    return abs(clocks[1] / clocks[0] - 1) < CHANGE
