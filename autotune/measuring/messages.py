"""Messages between an evaluator and the process that measures, whatever the target."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from autotune.core.measurement import Measurement, Outcome
from autotune.core.measurement import Series as Series


class Program(Protocol):
    """A compiled candidate, or what else a process can be told to call; it can be pickled."""

    @property
    def digest(self) -> str:
        """Equal for programs that do the same."""
        ...


@dataclass(frozen=True, slots=True)
class Vendor:
    """A library on the same problem, which takes turns like a program.

    Attributes:
        name: library, version, kernels and threads, for people.
        threads: threads it may use.
        details: what the name is made of.
        about_s: seconds that a call takes, as far as is known before it is timed.
    """

    name: str
    threads: int
    details: Mapping[str, str]
    about_s: float = 0.0

    @property
    def digest(self) -> str:
        """Its name, which says all of it."""
        return self.name


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Verify a program, then time it; answered by an `Evaluated`.

    Attributes:
        program: the program.
        accuracy: the accuracy class it promises.
        best_s: the best median so far; None while there is none.
        budget_s: seconds of timed calls.
        samples: the most that the reply has of what was timed.
    """

    program: Program
    accuracy: str
    best_s: float | None
    budget_s: float
    samples: int = 0


@dataclass(frozen=True, slots=True)
class Visit:
    """Time a program for one turn of an interleaved round.

    Answered by a `Series`, or by an `Evaluated` that says what is wrong.

    Attributes:
        program: the program, evaluated before, or a `Vendor`, whose result is not judged.
        accuracy: the accuracy class it promises.
        budget_s: seconds of timed calls.
        sustained: whether calls follow each other for all of them, clocks and energy observed.
    """

    program: Program
    accuracy: str
    budget_s: float
    sustained: bool = False


@dataclass(frozen=True, slots=True)
class Redraw:
    """Draw all operands afresh, unless they are of this seed already; answered by None.

    A request of its own, since references of a large problem take longer than a trial may.
    """

    seed: int


@dataclass(frozen=True, slots=True)
class Confirm:
    """Verify a program once more, after its last timed call, on what `Redraw` drew.

    Answered by an `Evaluated`.

    Attributes:
        program: the program.
        accuracy: the accuracy class it promises.
        budget_s: seconds of calls that are checked, every one.
    """

    program: Program
    accuracy: str
    budget_s: float


@dataclass(frozen=True, slots=True)
class DescribeBaseline:
    """Say what kernels are compared with, one `Vendor` for every way to use it.

    Answered by a tuple of them, empty where none computes the problem correctly.
    """


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The result for a program.

    Attributes:
        measurement: the result.
        lost: memory was damaged, or something still runs: this process must not go on.
        blameless: what was damaged may have been so before.
    """

    measurement: Measurement
    lost: bool = False
    blameless: bool = False


def answers(reply: object, request: Request) -> bool:
    """True if a reply is one to the request, with times that are times."""
    match reply:
        case Evaluated(measurement=measurement):
            if measurement.outcome not in (Outcome.OK, Outcome.ABANDONED):
                return True
            timed = _is_time(measurement.median_s, measurement.interval_s)
            confirmed = isinstance(request, Confirm) and measurement.ok
            return confirmed or (isinstance(request, Evaluate) and timed)
        case Series():
            visited = isinstance(request, Visit)
            return visited and reply.calls > 0 and _is_time(reply.median_s, reply.interval_s)
        case tuple():
            return isinstance(request, DescribeBaseline)
    return isinstance(request, Redraw)


def _is_time(median_s: float | None, interval_s: tuple[float, float] | None) -> bool:
    low, high = interval_s or (median_s, median_s)
    return all(time is not None and 0 < time < math.inf for time in (low, median_s, high))


Request: TypeAlias = Evaluate | Visit | Redraw | Confirm | DescribeBaseline

Reply: TypeAlias = Evaluated | Series | tuple[Vendor, ...] | None
