"""From a configuration to a program: by the binary that was kept of it, or by the compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.configuration import Configuration
from autotune.core.errors import InputError
from autotune.families.gpu.launch import kernel_layout
from autotune.families.gpu.launched import check_launches
from autotune.families.gpu.planning import planner_of
from autotune.gpu.launch.code import Wanted
from autotune.gpu.launch.program import CudaProgram
from autotune.gpu.nvidia.compile.cubin import read_cubin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.core.configuration import Value
    from autotune.core.limits import CudaLimits
    from autotune.families.family import KernelFamily
    from autotune.families.gpu.launch import Binary
    from autotune.families.gpu.planning import Planner
    from autotune.families.program_cache import ProgramCache
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
        FamilyError: the configuration launches a kernel that its source has not.
        MissingDependencyError: there is no binary and no compiler, or it does not know the device.
        SpaceError: the configuration cannot be launched for these sizes.
        CacheError: the program cache cannot be written.
    """

    def planner() -> Planner:
        return planner_of(family, Configuration(configuration), problem.dtype, limits)

    if binary is None:
        code = Wanted(planner(), problem, limits.architecture, programs).code()
        plan = planner().plan(problem)
        if len(plan.steps) > 1:
            check_launches(family, plan, read_cubin(code.cubin))
        return CudaProgram(
            cubin=code.cubin,
            plan=plan,
            dtype=problem.dtype,
            layout=problem.layout,
            kernel_layout=kernel_layout(family, problem.layout),
            support=code.support,
            defined=problem.defined,
            out_dtype=problem.out_dtype,
        )
    if not limits.runs(binary.architecture):
        raise InputError(
            f"the binary must be for {limits.architecture}, is for {binary.architecture}"
        )
    plan = binary.launch or planner().plan(problem)
    return CudaProgram(
        cubin=binary.content,
        plan=plan,
        dtype=problem.dtype,
        layout=problem.layout,
        kernel_layout=binary.layout or kernel_layout(family, problem.layout),
        support=binary.support,
        defined=problem.defined,
        out_dtype=problem.out_dtype,
    )
