"""Kernels of a communicator: loaded on every rank of it, called on every rank of it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.distributed_gpu import GpuDistributedKernel
from autotune.errors import AutotuneError
from autotune.evaluators.mpi.kernel import DistributedKernel, check_same, wait_for_all
from autotune.evaluators.mpi.loading import load_product, load_program
from autotune.evaluators.mpi.ranks import describe
from autotune.grid import Block
from autotune.local_product import choose_gpu_local, mpi_program
from autotune.mpi_target import MpiTarget
from autotune.paths import CacheLocations
from autotune.problem import Gemm
from autotune.program_cache import ProgramCache
from autotune.runtime import Kernel, look_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.configuration import Candidate
    from autotune.evaluators.mpi.gpu_rank import GpuRank
    from autotune.evaluators.mpi.messages import GpuProduct, MpiProgram, RankSet
    from autotune.store import Match


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class MpiKernel(Kernel):
    """A tuned kernel of a communicator; every rank of it makes every call.

    With operands at the root, rank 0 passes A, B and C whole and the others pass None and get
    None. With distributed operands every rank passes its `blocks`.
    """

    @property
    def blocks(self) -> tuple[Block, Block, Block]:
        """Which parts of A, B and C this rank keeps, where the operands are distributed."""
        bound: DistributedKernel = self._bound  # type: ignore[assignment]
        return bound.blocks

    def free(self) -> None:
        """Give communicators and datatypes back; every rank calls it, before MPI ends."""
        bound: DistributedKernel = self._bound  # type: ignore[assignment]
        bound.free()


class _Communicator(MpiTarget):
    """The target on the ranks of a communicator."""

    def __init__(self, ranks: RankSet, operands: str, local: str) -> None:
        super().__init__(ranks.ranks, operands, local=local)
        self._described = ranks

    def describe(self) -> RankSet:
        """The communicator's own ranks."""
        return self._described


def load_distributed(
    problem: Gemm,
    comm: Any,
    *,
    operands: str = "root",
    local: str = "cpu",
    match: str = "exact",
    cache: str | Path | None = None,
    extra_families: Sequence[Path] = (),
) -> MpiKernel:
    """The tuned kernel for a problem on a communicator; every rank calls it alike.

    Rank 0 looks it up in its cache; the others are sent the program.

    Args:
        problem: what to compute.
        comm: an mpi4py communicator; it is duplicated.
        operands: "root" or "distributed".
        local: "cpu", or "cuda" where each rank has a GPU of its own: then distributed operands
            are device arrays, each in its rank's GPU, and those of rank 0 in the host's memory.
        match: as for `autotune.load`.
        cache: as for `autotune.load`.
        extra_families: as for `autotune.load`.

    Raises:
        OperandError: ranks call it with different arguments, or some do not call it at all.
        InputError: with local="cuda", there are fewer GPUs than ranks.
        NotTunedError: as for `autotune.load`, on every rank; so are its other errors.
    """
    wait_for_all(comm)
    check_same(comm, problem=problem.label, operands=operands, local=local, match=match)
    own = comm.Dup()
    try:
        ranks = describe(own, gpus=local == "cuda")
    except AutotuneError:  # on every rank
        own.Free()
        raise
    programs = ProgramCache(CacheLocations.at(cache).programs)
    found: tuple[Candidate, Match, MpiProgram] | AutotuneError | None = None
    if own.rank == 0:
        try:
            lookup = look_up(
                problem,
                _Communicator(ranks, operands, local),
                match=match,
                cache=cache,
                extra_families=extra_families,
            )
            candidate = lookup.candidate
            program = mpi_program(lookup.family, candidate.configuration, problem, programs)
            found = candidate, lookup.match, program
        except AutotuneError as error:
            found = error
    found = own.bcast(found, 0)
    if isinstance(found, AutotuneError):
        own.Free()
        raise found
    assert found is not None
    candidate, matched, program = found
    make_plan = load_program(program, programs, own)
    plan = make_plan(own, problem.m, problem.n, problem.k)
    distributed = operands == "distributed"
    bound = (
        DistributedKernel(problem, own, plan, distributed=distributed)
        if make_plan.gpu is None
        else GpuDistributedKernel(problem, own, plan, make_plan.gpu, distributed=distributed)
    )
    return MpiKernel(
        problem, "mpi", candidate, matched.quality, matched.reason, matched.record, bound
    )


@contextlib.contextmanager
def tuned_product(comm: Any, m: int, n: int, k: int, dtype: str) -> Iterator[GpuRank]:
    """What emitted programs for GPUs multiply with when they are run by themselves.

    Rank 0 looks the kernel up, as for target "cuda"; every rank calls it.

    Args:
        comm: an mpi4py communicator, each rank of which takes a GPU of its own.
        m: rows of A and C.
        n: the reduction.
        k: columns of B and C.
        dtype: element type of the operands.
    """
    describe(comm, gpus=True)
    programs = ProgramCache(CacheLocations.at(None).programs)
    product: GpuProduct | AutotuneError | None = None
    if comm.rank == 0:
        try:
            product = choose_gpu_local(Gemm(m, n, k, dtype), programs)
        except AutotuneError as error:
            product = error
    product = comm.bcast(product, 0)
    if isinstance(product, AutotuneError):
        raise product
    assert product is not None
    yield load_product(product, comm)
