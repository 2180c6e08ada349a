"""The kernel that each rank of a distributed product multiplies its part with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.evaluators.cpu.kernel import write_program
from autotune.evaluators.mpi.evaluator import local_problem
from autotune.evaluators.mpi.messages import LocalProduct, MpiProgram
from autotune.rendering import render
from autotune.runtime import look_up

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.configuration import Value
    from autotune.family import KernelFamily
    from autotune.problem import Gemm
    from autotune.program_cache import ProgramCache


def choose_local(problem: Gemm, programs: ProgramCache) -> LocalProduct:
    """The best CPU kernel there is: that of a record, or a default; nothing is compiled.

    Args:
        problem: what a rank multiplies, with the threads that it may use.
        programs: where emitted programs go; records are looked up in the cache it is part of.
    """
    found = look_up(problem, "cpu", match="nearest", cache=_cache_of(programs.folder))
    family, configuration = found.family, found.candidate.configuration
    return LocalProduct(
        source=render(family, configuration, dtype=problem.dtype),
        family=family.name,
        program=write_program(family, configuration, problem, programs),
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
