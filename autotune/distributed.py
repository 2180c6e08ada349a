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
from autotune.runtime import Kernel, load

if TYPE_CHECKING:
    from autotune.configuration import Candidate
    from autotune.device import Device
    from autotune.evaluators.base import Binary
    from autotune.evaluators.mpi.messages import MpiProgram, RankSet
    from autotune.family import KernelFamily
    from autotune.problem import Gemm
    from autotune.targets import BoundKernel


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


class _ProgramLookup(MpiTarget):
    """The target as rank 0 looks a kernel up: what is found is a program, and no callable yet."""

    def __init__(self, ranks: RankSet, operands: str) -> None:
        super().__init__(ranks.ranks, operands)
        self._described = ranks
        self.program: MpiProgram | None = None

    def describe(self) -> RankSet:
        """The communicator's own ranks."""
        return self._described

    def kernel(
        self,
        family: KernelFamily,
        candidate: Candidate,
        problem: Gemm,
        device: Device,
        programs: ProgramCache,
        binary: Binary | None = None,
    ) -> BoundKernel:
        """Keep the program."""
        self.program = mpi_program(family, candidate.configuration, problem, programs)
        return _nothing


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
    found: Kernel | AutotuneError | None = None
    program: MpiProgram | None = None
    if own.rank == 0:
        try:
            lookup = _ProgramLookup(ranks, operands)
            found = load(problem, lookup, match=match, cache=cache, extra_families=extra_families)
            program = lookup.program
        except AutotuneError as error:
            found = error
    found, program = own.bcast((found, program), 0)
    if isinstance(found, AutotuneError):
        own.Free()
        raise found
    assert found is not None
    assert program is not None
    make_plan = load_program(program, ProgramCache(CacheLocations.at(cache).programs))
    plan = make_plan(own, problem.m, problem.n, problem.k)
    bound = DistributedKernel(problem, own, plan, distributed=operands == "distributed")
    return MpiKernel(
        problem, "mpi", found.candidate, found.match, found.reason, found.record, bound
    )


def _nothing(*operands: Any) -> None:
    """Stands for the kernel of a communicator where there is none yet."""
