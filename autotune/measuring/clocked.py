"""Calls that are timed by the clock of the host, since they return when they have computed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from autotune.measuring.timing import time_calls, timed
from autotune.operations.verification import Verdict

if TYPE_CHECKING:
    from autotune.core.measurement import Series
    from autotune.operations.poke import Poke


class Operands(Protocol):
    """A case's operands, and the judgement of what a call leaves there."""

    @property
    def contents(self) -> int:
        """How many contents they have in turns."""
        ...

    def turn(self) -> None:
        """Give them their next content."""
        ...

    def prepare(self) -> None:
        """Put C into its state before a call."""
        ...

    def judge(self, accuracy: str) -> Verdict:
        """Judge memory and result after a call that followed `prepare`."""
        ...

    def judge_again(self, accuracy: str) -> Verdict:
        """The same after one of many calls: what was right before need not be computed again."""
        ...


class ClockedBench:
    """A call on a case's operands; see `autotune.measuring.rig.Bench`.

    Args:
        operands: the case's.
        call: the call.
        interval: relative width of the confidence interval at which a median is known.
        pause_s: how long what others did before is left to end.
        poke: changes single elements of the operands between timed calls.
    """

    def __init__(
        self,
        operands: Operands,
        call: Callable[[], object],
        interval: float,
        pause_s: float = 0.0,
        poke: Poke | None = None,
    ) -> None:
        self._operands = operands
        self._call = call
        self._interval = interval
        self._pause_s = pause_s
        self._poke = poke

    @property
    def contents(self) -> int:
        """How many contents the operands have in turns."""
        return self._operands.contents

    def turn(self) -> None:
        """Give the operands their next content."""
        self._operands.turn()

    def once(self) -> float:
        """Prepare and call: seconds of the call."""
        self._operands.prepare()
        return self.again()

    def settle(self) -> float:
        """Pause, then call."""
        if self._pause_s:
            time.sleep(self._pause_s)
        return self.again()

    def again(self) -> float:
        """Seconds of one more call."""
        return timed(self._call)

    def series(
        self,
        expected_s: float,
        budget_s: float,
        *,
        deadline_s: float,
        enough: Callable[[float], bool],
    ) -> Series:
        """Time calls; see `time_calls`."""
        return time_calls(
            self._call,
            expected_s=expected_s,
            budget_s=budget_s,
            interval=self._interval,
            deadline_s=deadline_s,
            enough=enough,
            poke=self._poke,
        )

    def judge(self, accuracy: str) -> Verdict:
        """Judge memory and result."""
        return self._operands.judge(accuracy)

    def judge_last(self, accuracy: str) -> Verdict:
        """Judge memory, the result of the last call, and what single elements came to."""
        if self._poke is not None and self._poke.flaw:
            return Verdict(math.inf, self._poke.flaw)
        return self._operands.judge_again(accuracy)

    def observe(self, series: Series, budget_s: float) -> dict[str, float | int | str]:
        """Nothing: there is nothing to see but the time."""
        return {}
