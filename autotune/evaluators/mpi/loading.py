"""Emitted programs as plans: written where a rank reads them, imported, given a local kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from autotune.evaluators.cpu.kernel import CpuKernel, load_module

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from autotune.evaluators.mpi.messages import MpiProgram
    from autotune.evaluators.mpi.operands import Plan
    from autotune.program_cache import ProgramCache

MakePlan: TypeAlias = Callable[["Intracomm", int, int, int], "Plan"]
"""``make_plan(comm, m, n, k)``: a plan for these sizes, made by all ranks together."""


def load_program(program: MpiProgram, programs: ProgramCache) -> MakePlan:
    """Load a program on this rank.

    Raises:
        CompileError: the program, or the kernel that it multiplies with, does not import.
        CacheError: the program cache cannot be written.
    """
    module = load_module(programs.write(program.source, program.family))
    entry: Callable[..., Plan] = getattr(module, program.source.entry)
    local: tuple[Any, ...] = ()
    if program.local is not None:
        path = programs.write(program.local.source, program.local.family)
        local = (CpuKernel(replace(program.local.program, path=path)),)

    def make_plan(comm: Intracomm, m: int, n: int, k: int) -> Plan:
        return entry(comm, m, n, k, *local)

    return make_plan
