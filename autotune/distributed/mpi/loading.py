"""Emitted programs as plans: written where a rank reads them, imported, given a local kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from autotune.cpu.kernel import CpuKernel
from autotune.distributed.mpi.gpu.gpus import take_gpu
from autotune.distributed.mpi.gpu.rank import GpuRank
from autotune.distributed.mpi.messages import GpuProduct, MpiProgram
from autotune.families.modules import load_module
from autotune.families.program_cache import ProgramCache
from autotune.operations.references import Matrix

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from autotune.distributed.mpi.gpu.cuda import Gpu


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
