"""What a target gives the process that measures: programs, loaded and put before operands.

How a trial goes (`autotune.measuring.trial`) is the same everywhere; how a program is called, how
its calls are timed and where its result is judged is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from autotune.core.measurement import Series
    from autotune.measuring.messages import Evaluated, Program, Vendor
    from autotune.measuring.plausibility import Ceiling
    from autotune.operations.problem import Problem
    from autotune.operations.verification import Verdict

FIRST_RUNS = 2
"""Runs after which a candidate may be abandoned: the first one meets cold caches."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What the first runs of a program are worth, by what may hold them up.

    Attributes:
        runs: runs after which it may be abandoned.
        long_runs: the same where `runs` would take longer than timing is to take.
        hopeless: a first run that is this many times slower than allowed, and not brief, says
            enough by itself.
    """

    runs: int = FIRST_RUNS
    long_runs: int = 1
    hopeless: float = math.inf


class Placed(Protocol):
    """A program before the operands of a case."""

    def once(self) -> float:
        """Put C into its state before a call, then call: the seconds of the call."""
        ...

    def judge(self, accuracy: str) -> Verdict:
        """Judge memory and result after `once`.

        Args:
            accuracy: the accuracy class that the program promises.
        """
        ...


class Bench(Placed, Protocol):
    """A program before the operands of the problem."""

    @property
    def contents(self) -> int:
        """How many contents the operands have in turns."""
        ...

    def turn(self) -> None:
        """Give the operands their next content, at the same addresses."""
        ...

    def settle(self) -> float:
        """Call until what others did before does not matter; the seconds of the last call."""
        ...

    def again(self) -> float:
        """One more run of one or more calls, C as the one before left it: seconds of a call."""
        ...

    def series(
        self,
        expected_s: float,
        budget_s: float,
        *,
        deadline_s: float,
        enough: Callable[[float], bool],
    ) -> Series:
        """Time calls until the median is known; see `autotune.measuring.timing.time_calls`."""
        ...

    def judge_last(self, accuracy: str) -> Verdict:
        """Judge memory, and what the last of many calls left."""
        ...

    def observe(self, series: Series, budget_s: float) -> dict[str, float | int | str]:
        """What else is worth keeping of calls that were just timed."""
        ...


@dataclass(frozen=True, slots=True)
class Probe:
    """A program before a smaller problem of the same kind.

    Attributes:
        bench: to run it on.
        scale: how much more work the problem is.
        told: how the smaller problem was made, for people.
    """

    bench: Bench
    scale: float
    told: str


class Loaded(Protocol):
    """A program that is loaded."""

    @property
    def cases(self) -> Sequence[Any]:
        """What it is verified at besides the problem, each for `place`."""
        ...

    def place(self, case: Any) -> AbstractContextManager[Placed]:
        """It before the operands of one of `cases`."""
        ...

    def problem(self) -> AbstractContextManager[Bench]:
        """It before the operands of the problem."""
        ...

    def probe(self, best_s: float | None) -> Probe | None:
        """It before a smaller problem, where one says something about this.

        Args:
            best_s: the best median so far, in seconds.
        """
        ...


class Rig(Protocol):
    """The operands of one problem, and what calls programs on them.

    Attributes:
        pace: what first runs are worth.
        ceiling: what the device can do at most.
    """

    pace: Pace
    ceiling: Ceiling

    @property
    def problem(self) -> Problem:
        """The problem that is computed."""
        ...

    def now(self) -> float:
        """Seconds from a fixed point, the same for all who take part in a trial."""
        ...

    def load(self, program: Program, *, keep: bool) -> AbstractContextManager[Loaded]:
        """Load a program.

        Args:
            program: what to load.
            keep: whether it takes turns with others: it stays loaded until the next that does not.
        """
        ...

    def vendor(self, vendor: Vendor) -> AbstractContextManager[Bench]:
        """One of `vendors` before the operands of the problem; nobody judges what it leaves."""
        ...

    def redraw(self, seed: int) -> None:
        """Draw all operands afresh, unless they are of this seed already."""
        ...

    def vendors(self) -> tuple[Vendor, ...]:
        """What kernels are compared with; see `DescribeBaseline`."""
        ...

    def failure(self, error: Exception) -> Evaluated | None:
        """What an error says of the program; None where it is not the program's fault."""
        ...
