"""Tuned candidates at the sizes and on the device that they are wanted for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.configuration import Candidate, Configuration
from autotune.core.errors import SpaceError
from autotune.families.gpu.planning import Planner, planner_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.core.device import DeviceLimits
    from autotune.families.family import KernelFamily
    from autotune.operations.problem import Problem
    from autotune.space import SearchSpace
    from autotune.space.parameter import Rejection


class Fits:
    """Validity of candidates on one device, compiled once for each candidate.

    Args:
        families: by name.
        limits: of the device.
    """

    def __init__(self, families: Mapping[str, KernelFamily], limits: DeviceLimits) -> None:
        self.families = families
        self.limits = limits
        self._planners: dict[tuple[Candidate, str], Planner | str] = {}

    def at(self, problem: Problem) -> Fitting:
        """Fitting of candidates to one problem."""
        return Fitting(self, problem)

    def valid(self, candidate: Candidate, problem: Problem) -> bool:
        """True if a candidate may serve a problem."""
        planner = self._planner(candidate, problem.dtype)
        return isinstance(planner, Planner) and planner.valid(problem)

    def lack(self, candidate: Candidate, problem: Problem) -> str:
        """The reason why a candidate does not fit its family's parameters any more; or empty."""
        planner = self._planner(candidate, problem.dtype)
        return "" if isinstance(planner, Planner) else planner

    def _planner(self, candidate: Candidate, dtype: str) -> Planner | str:
        key = candidate, dtype
        found = self._planners.get(key)
        if found is None:
            family = self.families[candidate.family]
            try:
                found = planner_of(family, candidate.configuration, dtype, self.limits)
            except SpaceError as error:
                found = str(error)
            self._planners[key] = found
        return found


class Fitting:
    """Tuned candidates, fitted to a problem, each once.

    Args:
        fits: validity on the device.
        problem: what is to be computed.
    """

    def __init__(self, fits: Fits, problem: Problem) -> None:
        self._fits = fits
        self._problem = problem
        self._spaces: dict[str, SearchSpace] = {}
        self._fitted: dict[Candidate, Candidate | None] = {}

    def rejection(self, tuned: Candidate) -> Rejection | None:
        """The reason why a candidate is not valid here; None where it is."""
        if self._fits.valid(tuned, self._problem):
            return None
        return self._space(tuned.family).rejection(tuned.configuration)

    def fitted(self, tuned: Candidate) -> Candidate | None:
        """The candidate itself or, where it is not valid here, one near to it."""
        if tuned not in self._fitted:
            self._fitted[tuned] = self._nearest(tuned)
        return self._fitted[tuned]

    def default(self, family: KernelFamily) -> Candidate:
        """A family's default configuration, or the valid one nearest to it.

        Raises:
            SpaceError: the family has none for the problem.
        """
        declared = {parameter.name: parameter.default for parameter in family.parameters}
        values = {name: value for name, value in declared.items() if value is not None}
        if len(values) == len(declared):  # nothing can be nearer than the default itself
            candidate = Candidate(family.name, Configuration(values))
            if self._fits.valid(candidate, self._problem):
                return candidate
        return Candidate(family.name, family.default(self._problem, self._fits.limits))

    def _nearest(self, tuned: Candidate) -> Candidate | None:
        if self.rejection(tuned) is None:  # at a fraction of the cost of the space's rows
            return tuned
        space = self._space(tuned.family)
        row = space.nearest(tuned.configuration, ())
        return None if row is None else Candidate(tuned.family, space[row])

    def _space(self, name: str) -> SearchSpace:
        if name not in self._spaces:
            family = self._fits.families[name]
            self._spaces[name] = family.space(self._problem, self._fits.limits)
        return self._spaces[name]
