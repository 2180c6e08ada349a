"""The kernel that each rank of a distributed product multiplies its part with."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.core.configuration import Candidate, Value
from autotune.core.device import DeviceLimits
from autotune.core.errors import CompileError
from autotune.core.limits import GpuLimits
from autotune.cpu.kernel import write_program
from autotune.cpu.target import CpuTarget
from autotune.distributed.machine.interface import LocalKernel
from autotune.distributed.mpi.messages import GpuProduct, LocalProduct, MpiProgram
from autotune.families.catalog import catalog
from autotune.families.family import KernelFamily
from autotune.families.gpu.launch import Binary, architecture_of
from autotune.families.local import local_problem
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import render
from autotune.gpu.nvidia.target import CudaTarget
from autotune.operations.problem import Gemm
from autotune.serving.lookup import look_up


def choose_local(problem: Gemm, programs: ProgramCache) -> LocalProduct:
    """The best CPU kernel there is: that of a record, or a default; nothing is compiled.

    Args:
        problem: a rank's product, with the threads that it may use.
        programs: where emitted programs go; records are looked up in the cache it is part of.
    """
    found = look_up(problem, CpuTarget(), match="nearest", cache=programs.cache)
    family, configuration = found.family, found.candidate.configuration
    return LocalProduct(
        source=render(family, configuration, dtype=problem.dtype),
        family=family.name,
        program=write_program(family, configuration, problem, programs),
    )


def choose_gpu_local(problem: Gemm, programs: ProgramCache) -> GpuProduct:
    """The best CUDA kernel there is, and one that serves any sizes, both compiled.

    Args:
        problem: a rank's product, or near it.
        programs: see `choose_local`.

    Raises:
        CompileError: the compiler refuses a kernel.
        MissingDependencyError: there is no GPU here, or no compiler.
    """
    from autotune.distributed.mpi.gpu.cuda import accumulate_source
    from autotune.gpu.compiling import CompileRequest, Refused, compile_kept
    from autotune.gpu.launch.code import make_program

    found = look_up(problem, CudaTarget(), match="nearest", cache=programs.cache)
    limits = found.device.limits
    assert isinstance(limits, GpuLimits)
    families = catalog(
        "cuda", problem.operation, languages={"cuda": CudaTarget.language()}, strict=False
    )
    any_sizes = next(family for family in families.values() if family.any_sizes)
    kernels = []
    for family, configuration in (
        (found.family, found.candidate.configuration),
        (any_sizes, any_sizes.default(problem, limits)),
    ):
        program = make_program(family, configuration, problem, limits, programs)
        candidate = Candidate(family.name, configuration)
        architecture = architecture_of(family, limits.architecture)
        binary = Binary(program.cubin, architecture, None, program.support)
        kernels.append(LocalKernel(candidate, family.digest, problem.dtype, limits, binary))
    source = accumulate_source(problem.dtype)
    compiled = compile_kept(programs, CompileRequest(source, "accumulate", limits.architecture))
    if isinstance(compiled, Refused):
        raise CompileError(f"accumulate.cu does not compile: {compiled.reason}")
    return GpuProduct(tuple(kernels), compiled.cubin)


def mpi_program(
    family: KernelFamily,
    configuration: Mapping[str, Value],
    problem: Gemm,
    limits: DeviceLimits,
    programs: ProgramCache,
) -> MpiProgram:
    """A candidate as ranks are sent it, with the best local kernel there is."""
    source = render(family, configuration, dtype=problem.dtype)
    wanted = local_problem(family, configuration, problem, limits)
    on_gpus = family.local is not None and family.local.on == "cuda"
    local = (choose_gpu_local if on_gpus else choose_local)(wanted, programs)
    return MpiProgram(source, family.name, local)
