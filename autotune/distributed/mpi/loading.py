"""Plans of ranks: emitted programs, imported, and the local kernel that each multiplies with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from autotune.core.configuration import Candidate, Value
from autotune.core.device import DeviceLimits
from autotune.core.errors import CompileError
from autotune.core.limits import GpuLimits
from autotune.cpu.kernel import CpuKernel, write_program
from autotune.cpu.target import CpuTarget
from autotune.distributed.machine import LocalKernel
from autotune.distributed.mpi.gpu.cuda import take_gpu
from autotune.distributed.mpi.gpu.rank import GpuRank
from autotune.distributed.mpi.messages import GpuProduct, LocalProduct, MpiProgram
from autotune.families.catalog import catalog
from autotune.families.family import KernelFamily
from autotune.families.gpu.launch import Binary, architecture_of
from autotune.families.local import local_problem
from autotune.families.modules import load_module
from autotune.families.program_cache import ProgramCache
from autotune.families.rendering import render
from autotune.gpu.nvidia.target import CudaTarget
from autotune.operations.problem import Gemm
from autotune.operations.references import Matrix
from autotune.serving.lookup import look_up

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from autotune.distributed.mpi.gpu.cuda import Gpu


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


class Plan(Protocol):
    """The product of an emitted program for given sizes (templates/gemm/mpi)."""

    def from_root(
        self, a: Matrix | None, b: Matrix | None, c: Matrix | None, alpha: float, beta: float
    ) -> None:
        """Compute from rank 0's whole operands."""

    def on_blocks(self, a: Matrix, b: Matrix, c: Matrix, alpha: float, beta: float) -> None:
        """Compute on every rank's own blocks."""

    def homes(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """This rank's blocks of A, B and C: spans of rows and of columns."""

    def free(self) -> None:
        """Give communicators and datatypes back."""


@dataclass(frozen=True, slots=True)
class MakePlan:
    """``make_plan(comm, m, n, k)``: a plan for these sizes, made by all ranks together.

    Its blocks are in the memory of `gpu`, this rank's, or in the host's where that is None.
    """

    gpu: GpuRank | None
    _entry: Callable[..., Plan]
    _local: tuple[Any, ...]

    def __call__(self, comm: Intracomm, m: int, n: int, k: int) -> Plan:
        """Make a plan."""
        return self._entry(comm, m, n, k, *self._local)

    def close(self) -> None:
        """Give the local product back; plans must have been freed first."""
        if self.gpu is not None:
            self.gpu.close()


def load_program(program: MpiProgram, programs: ProgramCache, comm: Intracomm) -> MakePlan:
    """Load a program on this rank, as all ranks of the communicator do.

    Raises:
        InputError: it is for GPUs, and the ranks do not have one each; on every rank.
        CompileError: the program, or the kernel that it multiplies with, does not import; this
            and what follows on this rank alone: ask the others before doing anything together.
        CacheError: the program cache cannot be written.
        LaunchError: the driver refuses a binary.
    """
    # Together, and so before anything that can go wrong on some ranks only.
    taken = take_gpu(comm) if isinstance(program.local, GpuProduct) else None
    module = load_module(programs.write(program.source, program.family))
    entry: Callable[..., Plan] = getattr(module, program.source.entry)
    if isinstance(program.local, GpuProduct):
        assert taken is not None
        gpu = _gpu_rank(taken, program.local, programs)
        return MakePlan(gpu, entry, (gpu,))
    local: tuple[Any, ...] = ()
    if program.local is not None:
        path = programs.write(program.local.source, program.local.family)
        local = (CpuKernel(replace(program.local.program, path=path)),)
    return MakePlan(None, entry, local)


def load_product(product: GpuProduct, programs: ProgramCache, comm: Intracomm) -> GpuRank:
    """The kernels on this rank's GPU.

    Raises:
        InputError: the ranks do not have a GPU each, on every rank; or this one has other
            families than rank 0, as for `load_program`.
        MissingDependencyError: a package or the driver is missing; on every rank.
        LaunchError: the driver refuses a binary, as for `load_program`.
    """
    return _gpu_rank(take_gpu(comm), product, programs)


def _gpu_rank(gpu: Gpu, product: GpuProduct, programs: ProgramCache) -> GpuRank:
    from autotune.distributed.mpi.gpu.cuda import CudaMachine

    return GpuRank(CudaMachine(gpu, product, programs))
