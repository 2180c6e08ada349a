"""The kernel that each rank of a distributed product multiplies its part with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.evaluators.cpu.kernel import write_program
from autotune.evaluators.mpi.evaluator import local_problem
from autotune.evaluators.mpi.messages import LocalProduct, MpiProgram
from autotune.rendering import render
from autotune.runtime import load
from autotune.targets import CpuTarget

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.configuration import Candidate, Value
    from autotune.device import Device
    from autotune.evaluators.base import Binary
    from autotune.family import KernelFamily
    from autotune.problem import Gemm
    from autotune.program_cache import ProgramCache
    from autotune.targets import BoundKernel


class _Lookup(CpuTarget):
    """The CPU as a place to look kernels up for, none of which is compiled."""

    def __init__(self) -> None:
        self.found: tuple[KernelFamily, Candidate] | None = None

    def kernel(
        self,
        family: KernelFamily,
        candidate: Candidate,
        problem: Gemm,
        device: Device,
        programs: ProgramCache,
        binary: Binary | None = None,
    ) -> BoundKernel:
        """Keep what was found."""
        self.found = family, candidate
        return _nothing


def choose_local(problem: Gemm, programs: ProgramCache) -> LocalProduct:
    """The best CPU kernel there is: that of a record, or a default; nothing is compiled.

    Args:
        problem: what a rank multiplies, with the threads that it may use.
        programs: where emitted programs go; records are looked up in the cache it is part of.
    """
    lookup = _Lookup()
    load(problem, lookup, match="nearest", cache=_cache_of(programs.folder))
    assert lookup.found is not None
    family, candidate = lookup.found
    return LocalProduct(
        source=render(family, candidate.configuration, dtype=problem.dtype),
        family=family.name,
        program=write_program(family, candidate.configuration, problem, programs),
    )


def mpi_program(
    family: KernelFamily,
    configuration: Mapping[str, Value],
    problem: Gemm,
    programs: ProgramCache,
) -> MpiProgram:
    """A candidate as ranks are told of it, with the local kernel that there is.

    Args:
        family: the candidate's family.
        configuration: its configuration.
        problem: what is computed by all ranks together.
        programs: as for `choose_local`.
    """
    source = render(family, configuration, dtype=problem.dtype)
    local = choose_local(local_problem(problem, configuration), programs)
    return MpiProgram(source, family.name, local)


def _cache_of(folder: Path) -> Path:
    """The cache that a program folder belongs to; ``AUTOTUNE_CACHE`` may name its database."""
    given = os.environ.get("AUTOTUNE_CACHE", "")
    if given.endswith(".sqlite") and Path(given).parent == folder.parent:
        return Path(given)
    return folder.parent


def _nothing(*operands: object) -> None:
    """Stands for a kernel that is not compiled here."""
