"""From a configuration to a program: by the binary that was kept of it, or by the compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.errors import CompileError, InputError
from autotune.evaluators.cuda.compiling import CompileRequest, Refused, compile_kept
from autotune.evaluators.cuda.program import CudaProgram, kernel_layout, plan_launch
from autotune.evaluators.cuda.support import support_source
from autotune.rendering import render

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.configuration import Value
    from autotune.cuda_limits import CudaLimits
    from autotune.evaluators.base import Binary
    from autotune.family import KernelFamily
    from autotune.problem import Gemm
    from autotune.program_cache import ProgramCache
    from autotune.rendering import Source


def make_program(
    family: KernelFamily,
    configuration: Mapping[str, Value],
    problem: Gemm,
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
    if binary is None:
        layout = kernel_layout(family, problem.layout)
        plan = plan_launch(family, configuration, problem, limits)
        source = render(family, configuration, dtype=problem.dtype, layout=layout)
        cubin = _compile(source, family.name, limits, programs)
        support = b""
        if layout != problem.layout:
            support = _compile(support_source(problem.dtype), "support", limits, programs)
        return CudaProgram(cubin, plan, problem.dtype, problem.layout, layout, support)
    if binary.architecture != limits.architecture:
        raise InputError(
            f"the binary must be for {limits.architecture}, is for {binary.architecture}"
        )
    return CudaProgram(
        cubin=binary.content,
        plan=binary.launch or plan_launch(family, configuration, problem, limits),
        dtype=problem.dtype,
        layout=problem.layout,
        # Operands are copied where the kernel reads only what is stored plainly.
        kernel_layout="nn" if binary.support else problem.layout,
        support=binary.support,
    )


def _compile(source: Source, family: str, limits: CudaLimits, programs: ProgramCache) -> bytes:
    reply = compile_kept(programs, CompileRequest(source, family, limits.architecture))
    if isinstance(reply, Refused):
        raise CompileError(f"{family} does not compile for {limits.architecture}: {reply.reason}")
    return reply.cubin
