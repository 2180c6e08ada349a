"""Harness of the process that measures: programs, loaded and put before operands.

A trial goes the same way everywhere (`autotune.measuring.trial`); how a program is called, how its
calls are timed and where its result is judged is the target's.

A kernel is verified before it is timed, at every case of its operation
(`autotune.operations.cases`), at two of them once more on operands that hold NaN and infinity, at
the hard ones of its accuracy class, and at the problem itself; while it is timed, in single
elements that change between calls; after it was timed, on what its last call left and on another
content of the problem's operands; in the finals in every turn and, on operands that nobody has
seen, at everything again and in as many calls as there is time for. Targets leave out:

cuda
    The cases that a configuration is not valid for: a launch is planned for sizes, where other
    targets call an entry that serves all. Of a formula, cases of more than `DEVICE_PRODUCTS`
    multiplications, whose reference NumPy would compute for a minute.
cpu
    Those cases too, of other operations than matrix products; where none is left, a small one that
    is valid is taken.
    Cases of more than `HOST_PRODUCTS` multiplications, where a textbook loop takes a second for
    what a GPU does at once, and, for a formula, of more than `FORMULA_PRODUCTS`, as it and its
    reference are computed without a BLAS.
cpu, cuda
    Cases that a reference in Python leaves no time for; see `DrawnCases`.
hybrid
    Read-only inputs: memory that a GPU copies from by itself is not write-protected. They are
    compared after every call that is judged.
hybrid, mpi
    Hard operands, since what they divide is computed by the operands' own type.
    Changes of single elements between timed calls (`autotune.operations.poke`), and a bound that
    no time may be below (`autotune.measuring.timing`): several processes or devices work.
mpi
    Padded rows, since ranks take whole operands without, and cases of more than `RANK_PRODUCTS`
    multiplications: every rank makes a plan, with communicators of its own, for every case.

On the CPU and on rank 0 the inputs of the problem are read-only memory while a kernel runs; those
of the cases are not, so that a verdict can say which one was written.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from autotune.core.errors import InputError
from autotune.measuring.timing import time_calls, timed
from autotune.operations.cases import Case, cases_of, special_cases
from autotune.operations.problem import multiplies
from autotune.operations.python_reference import PythonReference
from autotune.operations.verification import Verdict

if TYPE_CHECKING:
    from autotune.core.measurement import Series
    from autotune.measuring.messages import Evaluated, Program, Vendor
    from autotune.measuring.timing import Ceiling, Stop
    from autotune.operations.poke import Poke
    from autotune.operations.problem import Problem

Drawn = TypeVar("Drawn")

OTHER_CONTENTS = ("normal",)
"""Distributions of the contents that the problem's operands have in turns, beside the uniform."""

HOST_PRODUCTS = 2**25
"""Multiplications of the largest case that a processor is asked for in every trial."""

FORMULA_PRODUCTS = 2**20
"""The same where what is computed is no matrix product."""

DEVICE_PRODUCTS = 2**28
"""The same where kernels run on a GPU."""

DRAWING_S = 5.0
"""Seconds after which no further case is drawn of an operation whose reference is in Python."""

RANK_PRODUCTS = 2**20
"""The same for ranks, which share the processors and exchange what they multiply."""

FIRST_RUNS = 2
"""Runs after which a candidate may be abandoned: the first one meets cold caches."""


def affordable(problem: Problem, most: float, *, padded: bool = True) -> tuple[Case, ...]:
    """The cases of a problem's operation with at most so many multiplications, and special ones.

    Args:
        problem: its own sizes do not matter.
        most: multiplications of the largest.
        padded: whether rows may be apart.
    """
    cases = [case if padded else case.without_padding() for case in _up_to(problem, most)]
    return (*cases, *special_cases(problem, cases))


def device_cases(problem: Problem) -> tuple[Case, ...]:
    """The cases of a problem's operation for a GPU, but for special ones."""
    return _up_to(problem, math.inf if multiplies(problem.defined) else DEVICE_PRODUCTS)


def _up_to(problem: Problem, most: float) -> tuple[Case, ...]:
    cases = cases_of(problem)
    return tuple(each for each in cases if problem.with_sizes(*each.sizes).flops <= 2 * most)


class DrawnCases(Generic[Drawn]):
    """Operands and references of cases; where a function in Python computes these, of a few.

    What that takes nobody knows, and no kernel is tried before: small cases come first, and once
    `DRAWING_S` have been spent the rest is left out.

    Args:
        problem: of the operation.
        cases: those that are wanted from the start, as far as they can be drawn.
        make: draws one.
        clock: seconds from a fixed point.

    Attributes:
        drawn: what there is, by case.
    """

    def __init__(
        self,
        problem: Problem,
        cases: Iterable[Case],
        make: Callable[[Case], Drawn],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.drawn: dict[Case, Drawn] = {}
        self._make = make
        self._clock = clock
        self._left_s = math.inf
        if isinstance(problem.defined.result, PythonReference):
            self._left_s = DRAWING_S
            cases = sorted(cases, key=lambda case: problem.with_sizes(*case.sizes).traffic)
        for case in cases:
            # Not all sizes need be a reference's or the kernels': a program that asks is told.
            with contextlib.suppress(InputError):
                self.of([case])

    def of(self, cases: Iterable[Case]) -> list[Drawn]:
        """Those of the cases that there is time for."""
        wanted = list(cases)
        for case in wanted:
            if case not in self.drawn and self._left_s > 0:
                begun_s = self._clock()
                self.drawn[case] = self._make(case)
                self._left_s -= self._clock() - begun_s
        return [self.drawn[case] for case in wanted if case in self.drawn]


@dataclass(frozen=True, slots=True)
class FirstRuns:
    """Evidence in the first runs of a program, by what may hold them up.

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
        """Judge memory and result after `once`, by the accuracy class the program promises."""
        ...


class Bench(Placed, Protocol):
    """A program before the operands of the problem."""

    @property
    def contents(self) -> int:
        """Number of contents that the operands have in turns."""
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

    def series(self, expected_s: float, stop: Stop) -> Series:
        """Time calls, of about so many seconds, until the median is known."""
        ...

    def judge_last(self, accuracy: str) -> Verdict:
        """Judge memory, and what the last of many calls left."""
        ...

    def observe(self, series: Series, stop: Stop) -> dict[str, float | int | str]:
        """Further details of calls that were just timed, until they stopped so."""
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
        """Cases to verify it at besides the problem, each for `place`."""
        ...

    def place(self, case: Any) -> AbstractContextManager[Placed]:
        """The program before the operands of one of `cases`."""
        ...

    def problem(self) -> AbstractContextManager[Bench]:
        """The program before the operands of the problem."""
        ...

    def probe(self, best_s: float | None) -> Probe | None:
        """The program before a smaller problem, where one says something about this.

        Args:
            best_s: the best median so far, in seconds.
        """
        ...


class Harness(Protocol):
    """The operands of one problem, and what calls programs on them.

    Attributes:
        first_runs: evidence in first runs.
        ceiling: the most that the device can do.
    """

    first_runs: FirstRuns
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
        """Libraries to compare kernels with; see `DescribeBaseline`."""
        ...

    def failure(self, error: Exception) -> Evaluated | None:
        """The verdict of an error on the program; None where it is not the program's fault."""
        ...


class Observer(Protocol):
    """Watches one series of calls after the other."""

    def start(self) -> None:
        """Calls begin."""
        ...

    def stop(self) -> None:
        """Calls have ended."""
        ...

    def read(self, series: Series) -> Mapping[str, float]:
        """Observations of one call of the series between start and stop, by name."""
        ...


class EnergyObserver:
    """Observes "watts" and "joules": mean power while calls run, and that over the median call.

    Args:
        joules: reads a counter of energy, in joules.
        clock: seconds from a fixed point.
    """

    def __init__(
        self, joules: Callable[[], float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._joules = joules
        self._clock = clock
        self._watts = 0.0

    def start(self) -> None:
        """Read the counter."""
        self._begun = self._joules(), self._clock()

    def stop(self) -> None:
        """Read it again."""
        joules, seconds = self._joules() - self._begun[0], self._clock() - self._begun[1]
        self._watts = joules / seconds

    def read(self, series: Series) -> Mapping[str, float]:
        """Power, and energy of a call."""
        return {"watts": self._watts, "joules": self._watts * series.median_s}


class Operands(Protocol):
    """A case's operands, and the judgement of what a call leaves there."""

    @property
    def contents(self) -> int:
        """Number of contents that they have in turns."""
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
    """A `Bench` of calls that return when they have computed: the host's clock times them.

    Args:
        operands: the case's.
        call: the call.
        pause_s: how long what others did before is left to end.
        poke: changes single elements of the operands between timed calls.
        in_place: whether a call changes what the next one reads: that is restored before each.
    """

    def __init__(
        self,
        operands: Operands,
        call: Callable[[], object],
        pause_s: float = 0.0,
        poke: Poke | None = None,
        *,
        in_place: bool = False,
    ) -> None:
        self._operands = operands
        self._call = call
        self._pause_s = pause_s
        self._poke = poke
        self._restore = operands.prepare if in_place else None

    @property
    def contents(self) -> int:
        """Number of contents that the operands have in turns."""
        return self._operands.contents

    def turn(self) -> None:
        """Give the operands their next content."""
        self._operands.turn()

    def once(self) -> float:
        """Prepare and call: seconds of the call."""
        self._operands.prepare()
        return timed(self._call)

    def settle(self) -> float:
        """Pause, then call."""
        if self._pause_s:
            time.sleep(self._pause_s)
        return self.again()

    def again(self) -> float:
        """Seconds of one more call."""
        if self._restore is not None:
            self._restore()
        return timed(self._call)

    def series(self, expected_s: float, stop: Stop) -> Series:
        """Time calls; see `time_calls`."""
        return time_calls(self._call, expected_s, stop, poke=self._poke, restore=self._restore)

    def judge(self, accuracy: str) -> Verdict:
        """Judge memory and result."""
        return self._operands.judge(accuracy)

    def judge_last(self, accuracy: str) -> Verdict:
        """Judge memory, the result of the last call, and what single elements came to."""
        if self._poke is not None and self._poke.flaw:
            return Verdict(math.inf, self._poke.flaw)
        return self._operands.judge_again(accuracy)

    def observe(self, series: Series, stop: Stop) -> dict[str, float | int | str]:
        """Nothing beside the time."""
        return {}
