"""Which cases a CPU program is verified at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.core.errors import InputError
from autotune.cpu.kernel import CpuProgram
from autotune.families.gpu.planning import Planner
from autotune.measuring.rig import FORMULA_PRODUCTS, HOST_PRODUCTS, affordable
from autotune.operations.cases import Case, small_case, special_cases
from autotune.operations.problem import MatrixOperation, multiplies

if TYPE_CHECKING:
    from autotune.core.configuration import Configuration
    from autotune.core.device import DeviceLimits
    from autotune.families.family import KernelFamily
    from autotune.operations.problem import Problem

PROBE_SHRINK = 4
"""A candidate is first run on the problem with every size divided by this."""


@dataclass(frozen=True, slots=True)
class CasedProgram:
    """A program, and what it may be called at.

    Attributes:
        program: the program.
        cases: what it is verified at, beside the problem itself.
        shrinks: whether it may be run on the problem with every size divided by `PROBE_SHRINK`.
    """

    program: CpuProgram
    cases: tuple[Case, ...]
    shrinks: bool

    @property
    def digest(self) -> str:
        """Equal for programs that do the same."""
        return self.program.digest


def host_cases(problem: Problem) -> tuple[Case, ...]:
    """The cases of a problem's operation that a processor is asked for in every trial."""
    most = HOST_PRODUCTS if multiplies(problem.defined) else FORMULA_PRODUCTS
    return affordable(problem, most)


def shrunk(problem: Problem) -> tuple[int, ...]:
    """A problem's sizes, divided by `PROBE_SHRINK`."""
    return tuple(max(1, size // PROBE_SHRINK) for size in problem.shape)


def cased(
    program: CpuProgram,
    family: KernelFamily,
    configuration: Configuration,
    problem: Problem,
    limits: DeviceLimits,
) -> CasedProgram:
    """A program with the cases that its configuration is valid at.

    Matrix products serve all sizes, whatever they are meant for.
    """
    cases = host_cases(problem)
    if isinstance(problem.defined, MatrixOperation):
        return CasedProgram(program, cases, shrinks=True)
    planner = Planner(family, configuration, problem.dtype, limits)

    def valid(shape: tuple[int, ...]) -> bool:
        try:
            return planner.valid(problem.with_sizes(*shape))
        except InputError:  # there are no such operands
            return False

    allowed = tuple(case for case in cases if valid(case.sizes) and not case.special)
    if not allowed and (small := small_case(problem, valid)) is not None:
        allowed = (small,)
    allowed += special_cases(problem, allowed)
    return CasedProgram(program, allowed, shrinks=valid(shrunk(problem)))
