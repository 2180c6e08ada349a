"""What the evaluator and the process that owns the GPU say to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from autotune.core.measurement import Measurement
from autotune.families.launch import LaunchPlan
from autotune.measuring.rounds import Redraw
from autotune.operations.cases import Case, large_cases, small_cases
from autotune.operations.problem import Problem
from autotune.targets.cuda.launch.program import CudaProgram


def cases_of(problem: Problem) -> tuple[Case, ...]:
    """What every program is verified at, as far as its configuration is valid there."""
    return small_cases(problem) + large_cases(problem)


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """What the worker is to know of the device.

    Attributes:
        ordinal: the driver's number, as the worker sees it.
        pci_bus_id: for NVML.
        multiprocessor_count: multiprocessors of the device.
        l2_bytes: level-2 cache.
    """

    ordinal: int
    pci_bus_id: str
    multiprocessor_count: int
    l2_bytes: int


@dataclass(frozen=True, slots=True)
class Subject:
    """What the worker keeps operands of.

    Attributes:
        problem: what is computed.
        support: binary of the evaluator's own kernels for its element type.
    """

    problem: Problem
    support: bytes


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Verify a program, then time it.

    Attributes:
        program: the program.
        plans: what it launches for those of `cases_of` that its configuration is valid for.
        accuracy: the accuracy class it promises.
        best_s: the best median so far; None while there is none.
        budget_s: seconds of timed launches.
    """

    program: CudaProgram
    plans: Mapping[Case, LaunchPlan]
    accuracy: str
    best_s: float | None
    budget_s: float


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What came of it.

    Attributes:
        measurement: the result.
        lost: the context is dead, a kernel still runs, or memory was damaged: this process must
            not go on.
        blameless: what was damaged may have been so before.
    """

    measurement: Measurement
    lost: bool = False
    blameless: bool = False


@dataclass(frozen=True, slots=True)
class Visit:
    """Time a program, or cuBLAS where there is none, for one turn of an interleaved round.

    Attributes:
        program: the program, evaluated before.
        accuracy: the accuracy class it promises.
        budget_s: seconds of timed launches.
    """

    program: CudaProgram | None
    accuracy: str
    budget_s: float


@dataclass(frozen=True, slots=True)
class Confirm:
    """Verify a program once more, after its last timed launch, on what `Redraw` drew.

    Attributes:
        program: the program.
        accuracy: the accuracy class it promises.
        budget_s: seconds of launches that are checked, every one.
    """

    program: CudaProgram
    accuracy: str
    budget_s: float


@dataclass(frozen=True, slots=True)
class DescribeBaseline:
    """Say which cuBLAS there is."""


Request: TypeAlias = Evaluate | Visit | Redraw | Confirm | DescribeBaseline
