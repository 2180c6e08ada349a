"""Emitted programs as plans: written to the program cache, imported, given a machine and sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from autotune.families.modules import load_module
from autotune.families.rendering import Source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.distributed.hybrid.machine import Machine
    from autotune.distributed.hybrid.products import LocalKernel
    from autotune.families.program_cache import ProgramCache
    from autotune.gpu.matrix import DeviceMatrix
    from autotune.operations.references import Matrix


class Plan(Protocol):
    """What an emitted program makes for given sizes on a machine (templates/gemm/hybrid)."""

    def from_host(self, a: Matrix, b: Matrix, c: Matrix, alpha: float, beta: float) -> None:
        """C in place, all three in the memory of the host."""
        ...

    def from_device(
        self, a: DeviceMatrix, b: DeviceMatrix, c: DeviceMatrix, alpha: float, beta: float
    ) -> None:
        """C in place, all three whole on the first GPU."""
        ...

    def on_blocks(
        self,
        a: Sequence[DeviceMatrix],
        b: Sequence[DeviceMatrix],
        c: Sequence[DeviceMatrix],
        alpha: float,
        beta: float,
    ) -> None:
        """C in place, every GPU with its block of each."""
        ...

    def blocks(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """For every GPU the rows of A and C, and the rows of B, that it keeps."""
        ...

    def free(self) -> None:
        """Give threads, streams and memory back."""
        ...


@dataclass(frozen=True, slots=True)
class HybridProgram:
    """A candidate, with the kernel that multiplies within a GPU; it can be sent between processes.

    Attributes:
        source: the emitted program.
        family: the family it is of.
        local: that kernel.
    """

    source: Source
    family: str
    local: LocalKernel

    @property
    def digest(self) -> str:
        """Its source's, from which the kernel within a GPU follows."""
        return self.source.digest


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
