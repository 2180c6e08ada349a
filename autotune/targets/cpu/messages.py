"""What the CPU evaluator and the process that measures say to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from autotune.core.measurement import Measurement
from autotune.measuring.rounds import Redraw
from autotune.targets.cpu.kernel import CpuProgram


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Verify a program, then time it."""

    program: CpuProgram
    accuracy: str
    best_s: float | None
    budget_s: float


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What came of it, and whether memory was damaged: then this process must not go on."""

    measurement: Measurement
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class Visit:
    """Time a program, or NumPy where there is none, for one turn of an interleaved round."""

    program: CpuProgram | None
    accuracy: str
    budget_s: float


@dataclass(frozen=True, slots=True)
class Confirm:
    """Verify a program once more, after its last timed call, on what `Redraw` drew.

    Attributes:
        program: the program.
        accuracy: the accuracy class it promises.
        budget_s: seconds of calls that are checked, every one.
    """

    program: CpuProgram
    accuracy: str
    budget_s: float


@dataclass(frozen=True, slots=True)
class DescribeBlas:
    """Say which BLAS NumPy calls."""


Request: TypeAlias = Evaluate | Visit | Redraw | Confirm | DescribeBlas
