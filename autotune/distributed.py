"""Kernels of a communicator: loaded on every rank of it, called on every rank of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.errors import AutotuneError
from autotune.evaluators.mpi.kernel import DistributedKernel, check_same, wait_for_all
from autotune.evaluators.mpi.loading import load_program
from autotune.evaluators.mpi.ranks import describe
from autotune.grid import Block
from autotune.local_product import mpi_program
from autotune.mpi_target import MpiTarget
from autotune.paths import CacheLocations
from autotune.program_cache import ProgramCache
from autotune.runtime import Kernel, look_up

if TYPE_CHECKING:
    from autotune.configuration import Candidate
    from autotune.evaluators.mpi.messages import MpiProgram, RankSet
    from autotune.problem import Gemm
    from autotune.store import Match


@dataclasses.dataclass(frozen=True, slots=True)
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

    def __init__(self, ranks: RankSet, operands: str) -> None:
        super().__init__(ranks.ranks, operands)
        self._described = ranks

    def describe(self) -> RankSet:
        """The communicator's own ranks."""
        return self._described


def load_distributed(
    problem: Gemm,
    comm: Any,
    *,
    operands: str = "root",
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
        match: as for `autotune.load`.
        cache: as for `autotune.load`.
        extra_families: as for `autotune.load`.

    Raises:
        OperandError: ranks call it with different arguments, or some do not call it at all.
        NotTunedError: as for `autotune.load`, on every rank; so are its other errors.
    """
    wait_for_all(comm)
    check_same(comm, problem=problem.label, operands=operands, match=match)
    own = comm.Dup()
    ranks = describe(own)
    programs = ProgramCache(CacheLocations.at(cache).programs)
    found: tuple[Candidate, Match, MpiProgram] | AutotuneError | None = None
    if own.rank == 0:
        try:
            lookup = look_up(
                problem,
                _Communicator(ranks, operands),
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
    make_plan = load_program(program, programs)
    plan = make_plan(own, problem.m, problem.n, problem.k)
    bound = DistributedKernel(problem, own, plan, distributed=operands == "distributed")
    return MpiKernel(
        problem, "mpi", candidate, matched.quality, matched.reason, matched.record, bound
    )
