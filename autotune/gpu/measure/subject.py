"""What the process that owns the GPU is told of the device, a problem and a candidate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.families.gpu.launch import LaunchPlan
from autotune.gpu.launch.program import CudaProgram
from autotune.operations.cases import Case
from autotune.operations.problem import Problem


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """What the worker is to know of the device.

    Attributes:
        ordinal: the driver's number, as the worker sees it.
        pci_bus_id: for NVML.
        multiprocessor_count: multiprocessors of the device.
        compute_capability: ten times the major version plus the minor one.
        l2_bytes: level-2 cache.
    """

    ordinal: int
    pci_bus_id: str
    multiprocessor_count: int
    compute_capability: int
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
class PlannedProgram:
    """A program with what it launches for the cases that it is verified at.

    Attributes:
        program: the program.
        plans: for those cases that its configuration is valid for.
    """

    program: CudaProgram
    plans: Mapping[Case, LaunchPlan]

    @property
    def digest(self) -> str:
        """The program's: how it is verified follows from it."""
        return self.program.digest
