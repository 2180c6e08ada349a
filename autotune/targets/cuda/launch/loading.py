"""From a configuration to a program: by the binary that was kept of it, or by the compiler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.core.configuration import Configuration
from autotune.core.errors import CompileError, InputError
from autotune.families.launch import kernel_layout
from autotune.families.planning import planner_of
from autotune.families.rendering import render
from autotune.targets.cuda.compile.compiling import CompileRequest, Refused, compile_kept
from autotune.targets.cuda.launch.program import CudaProgram
from autotune.targets.cuda.launch.support_source import support_source

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.core.configuration import Value
    from autotune.core.limits import CudaLimits
    from autotune.families.family import KernelFamily
    from autotune.families.launch import Binary
    from autotune.families.planning import Planner
    from autotune.families.program_cache import ProgramCache
    from autotune.families.rendering import Source
    from autotune.operations.problem import Problem


def make_program(
    family: KernelFamily,
    configuration: Mapping[str, Value],
    problem: Problem,
    limits: CudaLimits,
    programs: ProgramCache,
    binary: Binary | None = None,
) -> CudaProgram:
    """What is needed to launch a configuration.

    Args:
        family: the configuration's family.
        configuration: which kernel.
        problem: what it computes.
        limits: of the device it is to run on.
        programs: where sources are, and what was compiled from them before.
        binary: what this configuration was compiled to; None compiles it.

    Raises:
        CompileError: the compiler refuses the source.
        MissingDependencyError: there is no binary and no compiler, or it does not know the device.
        SpaceError: the configuration cannot be launched for these sizes.
        CacheError: the program cache cannot be written.
    """

    def planner() -> Planner:
        return planner_of(family, Configuration(configuration), problem.dtype, limits)

    if binary is None:
        layout = kernel_layout(family, problem.layout)
        code = _compiled(planner(), problem, layout, limits, programs)
        return CudaProgram(
            cubin=code.cubin,
            plan=planner().plan(problem),
            dtype=problem.dtype,
            layout=problem.layout,
            kernel_layout=layout,
            support=code.support,
            defined=problem.defined,
        )
    if binary.architecture != limits.architecture:
        raise InputError(
            f"the binary must be for {limits.architecture}, is for {binary.architecture}"
        )
    return CudaProgram(
        cubin=binary.content,
        plan=binary.launch or planner().plan(problem),
        dtype=problem.dtype,
        layout=problem.layout,
        # Operands are copied where the kernel reads only what is stored plainly.
        kernel_layout="nn" if binary.support else problem.layout,
        support=binary.support,
        defined=problem.defined,
    )


@dataclass(frozen=True, slots=True)
class _Code:
    """What was compiled.

    Attributes:
        cubin: the kernels.
        support: the transposing kernel; empty where nothing is copied.
    """

    cubin: bytes
    support: bytes


_COMPILED: dict[tuple[object, ...], _Code] = {}
"""What this process has compiled or found compiled, by all that it depends on."""


def _compiled(
    planner: Planner, problem: Problem, layout: str, limits: CudaLimits, programs: ProgramCache
) -> _Code:
    family = planner.family
    dtypes = problem.dtype, problem.out_dtype
    key = (family, planner.fixed, *dtypes, problem.layout, limits.architecture, programs.folder)
    if key not in _COMPILED:
        source = render(
            family,
            planner.configuration,
            dtype=problem.dtype,
            layout=layout,
            out_dtype=problem.out_dtype,
        )
        cubin = _compile(source, family.name, limits, programs)
        support = b""
        if layout != problem.layout:
            support = _compile(support_source(problem.dtype), "support", limits, programs)
        _COMPILED[key] = _Code(cubin, support)
    return _COMPILED[key]


def _compile(source: Source, family: str, limits: CudaLimits, programs: ProgramCache) -> bytes:
    reply = compile_kept(programs, CompileRequest(source, family, limits.architecture))
    if isinstance(reply, Refused):
        raise CompileError(f"{family} does not compile for {limits.architecture}: {reply.reason}")
    return reply.cubin
