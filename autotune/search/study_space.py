"""A search space as a study sees it: flat named parameters, rows, and the way between them."""

from collections.abc import Callable, Container, Mapping, Sequence
from typing import TypeVar

from optuna.distributions import BaseDistribution, CategoricalDistribution

from autotune.core.configuration import Candidate, Configuration, Value
from autotune.core.errors import SpaceError
from autotune.core.printable import shown
from autotune.space import SearchSpace, SpaceUnion

PointT = TypeVar("PointT", Configuration, Candidate)
"""Points of a space: configurations, or a union's candidates."""

FAMILY = "family"
"""The parameter that chooses among a union's spaces."""


class StudySpace:
    """One `SearchSpace`, or a `SpaceUnion`, under the names a study stores.

    A plain space keeps its parameters' names. A union has `family` and each family's parameters
    as `block.sm`; they are conditional: a point has the chosen family's parameters only. A *row*
    is the position of a valid point in the canonical order; *params* is a point by flat names.

    Attributes:
        space: what was given.
        choices: the values of every name, in declared order; `family` comes first.
    """

    def __init__(self, space: SearchSpace | SpaceUnion) -> None:
        self.space = space
        self.choices: dict[str, tuple[Value, ...]] = {}
        self._names: dict[Value, tuple[str, ...]] = {}
        if isinstance(space, SearchSpace):
            self.choices = {p.name: p.values for p in space.parameters}
        else:
            # A family with no valid configuration is not worth a proposal.
            families = [name for name, member in space.spaces.items() if member.size]
            self.choices[FAMILY] = tuple(families or space.spaces)
            for family in self.choices[FAMILY]:
                values = {
                    f"{family}.{p.name}": p.values for p in space.spaces[str(family)].parameters
                }
                self.choices.update(values)
                self._names[family] = tuple(values)
        self.distributions: dict[str, BaseDistribution] = {
            name: CategoricalDistribution(values) for name, values in self.choices.items()
        }

    @property
    def size(self) -> int:
        """Number of valid points."""
        return self.space.size

    @property
    def digest(self) -> str:
        """The digest a study of this space carries."""
        return self.space.digest

    def stages(self) -> Sequence[Callable[[Mapping[str, Value]], Sequence[str]]]:
        """Names to decide together, in turn; each stage sees what was decided before."""
        if isinstance(self.space, SearchSpace):
            return [lambda decided: tuple(self.choices)]
        return [lambda decided: (FAMILY,), lambda decided: self._names[decided[FAMILY]]]

    def suggest(self, value: Callable[[str], Value]) -> dict[str, Value]:
        """Collect one point: `value(name)` is asked for the names that apply, in order."""
        params: dict[str, Value] = {}
        for stage in self.stages():
            for name in stage(params):
                params[name] = value(name)
        return params

    def point(self, row: int) -> Candidate | Configuration:
        """The valid point at `row`."""
        return self.space[row]

    def params(self, row: int) -> dict[str, Value]:
        """The valid point at `row` by flat names."""
        if isinstance(self.space, SearchSpace):
            return dict(self.space[row])
        return self.space.flatten(self.space[row])

    def row(self, params: Mapping[str, Value]) -> int | None:
        """The row of a complete point; None when it is incomplete or not valid."""
        try:
            point = self._unflatten(params)
            return self.row_of(point) if point is not None else None
        except SpaceError:
            return None

    def row_of(self, point: Candidate | Mapping[str, Value]) -> int:
        """The row of a valid point.

        Raises:
            SpaceError: the point is not valid, or belongs to another kind of space.
        """
        if isinstance(self.space, SearchSpace):
            if isinstance(point, Candidate):
                raise SpaceError(f"this space takes configurations, not candidates: got {point}")
            return self.space.index(point)
        if not isinstance(point, Candidate):
            raise SpaceError(
                f"this space takes candidates (family, configuration): got {shown(point)}"
            )
        return self.space.index(point)

    def nearest(self, params: Mapping[str, Value], excluded: Container[int]) -> int | None:
        """The row nearest to a point, which may be invalid; None when all rows are excluded."""
        if isinstance(self.space, SearchSpace):
            return self.space.nearest(params, excluded)
        point = self._unflatten(params)
        assert isinstance(point, Candidate)
        return self.space.nearest(point, excluded)

    def _unflatten(self, params: Mapping[str, Value]) -> Candidate | Mapping[str, Value] | None:
        """The point that `params` names; None when the names are not those of one point."""
        if isinstance(self.space, SearchSpace):
            return params if params.keys() == self.choices.keys() else None
        names = self._names.get(params.get(FAMILY, ""), None)
        if names is None or params.keys() != {FAMILY, *names}:
            return None
        return self.space.unflatten(params)
