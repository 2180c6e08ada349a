"""Kernels of a communicator: loaded on every rank of it, called on every rank of it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from autotune.core.configuration import Candidate
from autotune.core.errors import AutotuneError, InputError
from autotune.core.paths import CacheLocations
from autotune.distributed.grid import Block
from autotune.distributed.mpi.gpu.rank import GpuRank
from autotune.distributed.mpi.kernel import DistributedKernel, GpuDistributedKernel
from autotune.distributed.mpi.loading import load_product, load_program
from autotune.distributed.mpi.local import choose_gpu_local, mpi_program
from autotune.distributed.mpi.messages import MpiProgram, RankSet
from autotune.distributed.mpi.ranks.meeting import check_same, load_on_all, meet
from autotune.distributed.mpi.ranks.ranks import Together, describe
from autotune.families.program_cache import ProgramCache
from autotune.operations.problem import Gemm, only_gemm
from autotune.serving.kernel import ProductKernel, Request
from autotune.serving.lookup import look_up
from autotune.serving.target import Target
from autotune.store import Match

_T = TypeVar("_T")
_COMPILATION = "the compilation of load"


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class MpiKernel(ProductKernel):
    """A tuned kernel of a communicator; every rank of it makes every call.

    With operands at the root, rank 0 passes A, B and C whole and the others pass None and get
    None. With distributed operands every rank passes its `blocks`.
    """

    _bound: DistributedKernel

    @property
    def blocks(self) -> tuple[Block, Block, Block]:
        """Parts of A, B and C that this rank keeps, where the operands are distributed."""
        return self._bound.blocks

    def free(self) -> None:
        """Give communicators and datatypes back; every rank calls it, before MPI ends."""
        self._bound.free()


def load_distributed(
    request: Request,
    comm: Any,
    target_of: Callable[[RankSet], Target],
    *,
    operands: str,
    local: str,
) -> MpiKernel:
    """The tuned kernel for a problem on a communicator; every rank calls it alike.

    Rank 0 looks it up in its cache; the others are sent the program.

    Args:
        request: the arguments of `load`.
        comm: an mpi4py communicator; it is duplicated.
        target_of: the target on the ranks of a communicator.
        operands: "root" or "distributed".
        local: "cpu", or "cuda" where each rank has a GPU of its own: then distributed operands
            are device arrays, each in its rank's GPU, and those of rank 0 in the host's memory.

    A rank that does not call it within the time that ranks wait for each other
    (`autotune.distributed.mpi.patience`) ends all of them, with a line that names it.

    Raises:
        OperandError: ranks call it with different arguments.
        InputError: with local="cuda", there are fewer GPUs than ranks.
        NotTunedError: as for `autotune.load`, on every rank; so are its other errors.
    """
    gemm = only_gemm(request.problem, "target mpi")
    meet(comm, f"the call of load for {gemm.label}")
    check_same(comm, problem=gemm.label, operands=operands, local=local, match=request.match)
    with _communicators():
        own = comm.Dup()
    try:
        with Together(own, agreed=AutotuneError):
            ranks = describe(own, gpus=local == "cuda")
            programs = ProgramCache.of(CacheLocations.at(request.cache))

            def find() -> tuple[Candidate, Match, MpiProgram]:
                found = look_up(
                    gemm,
                    target_of(ranks),
                    match=request.match,
                    cache=request.cache,
                    extra_families=request.extra_families,
                )
                chosen = found.candidate.configuration
                limits = found.device.limits
                program = mpi_program(found.family, chosen, gemm, limits, programs)
                return found.candidate, found.match, program

            candidate, matched, program = _of_rank_0(own, find)
            make_plan = load_on_all(
                own, lambda: load_program(program, programs, own), name=_COMPILATION
            )
            with _communicators():
                plan = make_plan(own, gemm.m, gemm.n, gemm.k)
    except AutotuneError:  # on every rank
        own.Free()
        raise
    distributed, gpu = operands == "distributed", make_plan.gpu
    bound = (
        DistributedKernel(gemm, own, plan, distributed=distributed)
        if gpu is None
        else GpuDistributedKernel(gemm, own, plan, gpu, distributed=distributed)
    )
    return MpiKernel(
        gemm, "mpi", candidate, matched.quality, matched.reason, matched.record, bound
    )


@contextlib.contextmanager
def tuned_product(comm: Any, m: int, n: int, k: int, dtype: str) -> Iterator[GpuRank]:
    """The local product of emitted programs for GPUs that are run by themselves.

    Rank 0 looks the kernel up, as for target "cuda"; every rank calls it, and takes a GPU of its
    own.
    """
    describe(comm, gpus=True)
    programs = ProgramCache.of(CacheLocations.at(None))
    product = _of_rank_0(comm, lambda: choose_gpu_local(Gemm(m, n, k, dtype), programs))
    gpu = load_on_all(comm, lambda: load_product(product, programs, comm), name=_COMPILATION)
    yield gpu
    gpu.close()


@contextlib.contextmanager
def _communicators() -> Iterator[None]:
    """Raise an InputError with a remedy where MPI has no communicator left: on all ranks."""
    from mpi4py import MPI

    try:
        yield
    except MPI.Exception as error:
        text = error.Get_error_string().strip().rpartition("\n")[2]
        raise InputError(
            f"MPI gives no communicator ({text}): every kernel of target mpi keeps some until its "
            "free() is called: free those that are done with"
        ) from error


def _of_rank_0(comm: Any, look: Callable[[], _T]) -> _T:
    """The result of rank 0, or its error, on every rank."""
    found: _T | AutotuneError | None = None
    if comm.rank == 0:
        try:
            found = look()
        except AutotuneError as error:
            found = error
    meet(comm, "the look-up of load")
    found = comm.bcast(found, 0)
    if isinstance(found, AutotuneError):
        raise found
    assert found is not None
    return found
