"""What the evaluator and the process that owns the GPUs say to each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from autotune.measuring.evaluator import Effort
from autotune.measuring.rounds import Redraw
from autotune.operations.problem import Gemm
from autotune.operations.references import Case
from autotune.targets.hybrid.loading import HybridProgram

CASES = (
    Case(1, 7, 1, alpha=-1.5, beta=2.0),
    Case(5, 2, 30, beta=1.0),
    Case(65, 127, 63, alpha=1.25, distribution="normal"),
    Case(300, 270, 290, alpha=1.5, beta=-0.5, padding=1),
    Case(1030, 1500, 70, beta=0.5),
)
"""Sizes that nothing divides, some with fewer rows or steps than there are threads."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What the worker is made for.

    Attributes:
        problem: what is computed.
        operands: "host", "device" or "blocks".
        devices: GPUs to use at most.
        effort: how long and how exactly to measure.
        programs: folder of emitted programs and binaries.
        seed: seeds the operands.
    """

    problem: Gemm
    operands: str
    devices: int
    effort: Effort
    programs: Path
    seed: int


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Verify a program, then time it; answered by an `Evaluated`."""

    program: HybridProgram
    accuracy: str
    best_s: float | None
    budget_s: float


@dataclass(frozen=True, slots=True)
class Visit:
    """Time a program, or the baseline where there is none, for one turn of an interleaved round.

    Answered by a `Series`, or by an `Evaluated` that says what is wrong.
    """

    program: HybridProgram | None
    accuracy: str
    budget_s: float


@dataclass(frozen=True, slots=True)
class Confirm:
    """Verify a program once more, after its last timed call, on what `Redraw` drew.

    Answered by an `Evaluated`.
    """

    program: HybridProgram
    accuracy: str


@dataclass(frozen=True, slots=True)
class DescribeBaseline:
    """Say what the baseline is, once it has multiplied correctly; answered by text or None."""


Request: TypeAlias = Evaluate | Visit | Redraw | Confirm | DescribeBaseline
