"""Emitted programs, and the GPUs as they see them: memory, streams, events and products."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from numpy.typing import NDArray

from autotune.core.configuration import Configuration
from autotune.core.device import DeviceLimits
from autotune.distributed.grid import Span
from autotune.distributed.machine import Enqueues, GpuMachine, LocalKernel, Products
from autotune.families.family import KernelFamily
from autotune.families.local import local_problem
from autotune.families.modules import load_module
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import Source, render
from autotune.gpu.matrix import DeviceMatrix
from autotune.operations.problem import Gemm
from autotune.operations.references import Matrix

ChooseLocal: TypeAlias = Callable[[Gemm], LocalKernel]
"""The kernel that a GPU multiplies its part of a problem with."""


class Machine(Enqueues, Protocol):
    """The GPUs of a host as an emitted program uses them, from several threads at once."""

    devices: int

    def here(self, device: int) -> contextlib.AbstractContextManager[None]:
        """Make a GPU current in this thread."""

    def stream(self, device: int) -> Any:
        """A new stream of a GPU."""

    def memory(self, device: int, rows: int, columns: int) -> Any:
        """A new matrix on a GPU, with nothing in it yet."""

    def pinned(self, count: int) -> NDArray[Any]:
        """Page-locked memory of the host, for so many elements."""

    def is_locked(self, array: NDArray[Any]) -> bool:
        """Tell whether an array is page-locked: copies of it are made by the GPU alone."""

    def kernel(self, source: str, name: str) -> Callable[[Any, Any, Any], None]:
        """A kernel of the program's own: ``run(target, source, stream)``."""

    def free(self, what: Any) -> None:
        """Give back a stream, a matrix or page-locked memory."""


class Plan(Protocol):
    """The product of an emitted program for given sizes on a machine (templates/gemm/hybrid).

    C is computed in place.
    """

    def from_host(self, a: Matrix, b: Matrix, c: Matrix, alpha: float, beta: float) -> None:
        """Multiply operands in the memory of the host."""

    def from_device(
        self, a: DeviceMatrix, b: DeviceMatrix, c: DeviceMatrix, alpha: float, beta: float
    ) -> None:
        """Multiply operands that are whole on the first GPU."""

    def on_blocks(
        self,
        a: Sequence[DeviceMatrix],
        b: Sequence[DeviceMatrix],
        c: Sequence[DeviceMatrix],
        alpha: float,
        beta: float,
    ) -> None:
        """Multiply operands of which every GPU has its block."""

    def blocks(self) -> list[tuple[Span, Span]]:
        """For every GPU the rows of A and C, and the rows of B, that it keeps."""

    def free(self) -> None:
        """Give threads, streams and memory back."""


@dataclass(frozen=True, slots=True)
class HybridProgram:
    """A candidate, with the kernel that multiplies within a GPU; it can be pickled."""

    source: Source
    family: str
    local: LocalKernel

    @property
    def digest(self) -> str:
        """Its source's, from which the kernel within a GPU follows."""
        return self.source.digest


def emit_program(
    family: KernelFamily,
    configuration: Configuration,
    problem: Gemm,
    limits: DeviceLimits,
    choose_local: ChooseLocal,
) -> HybridProgram:
    """A candidate's program for some GPUs, with the kernel that is chosen for each of them."""
    source = render(family, configuration, dtype=problem.dtype)
    wanted = local_problem(family, configuration, problem, limits)
    return HybridProgram(source, family.name, choose_local(wanted))


def machine_with(local: LocalKernel, devices: int, programs: ProgramCache) -> GpuMachine:
    """The first so many GPUs here, with a kernel that multiplies within each."""
    return GpuMachine(range(devices), local.dtype, Products([local], programs))


def make_plan(
    program: HybridProgram, machine: Machine, programs: ProgramCache, m: int, n: int, k: int
) -> Plan:
    """Load a program and make its plan.

    Raises:
        CompileError: it does not import, or a kernel of its own does not compile.
        CacheError: the program cache cannot be written.
    """
    module: Any = load_module(programs.write(program.source, program.family))
    plan: Plan = getattr(module, program.source.entry)(machine, m, n, k)
    return plan
