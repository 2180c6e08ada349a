"""A search space of which every configuration has been measured."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from autotune.configuration import Candidate, Configuration, Value
from autotune.errors import InputError
from autotune.space import SearchSpace, SpaceUnion

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray


class Entry(NamedTuple):
    """One recorded configuration.

    Attributes:
        configuration: its parameters by name.
        value: what was measured, smaller being better; None where the configuration failed.
        family: the kernel family it is of; "" in a space of one unnamed kernel.
    """

    configuration: Mapping[str, Value]
    value: float | None
    family: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class RecordedSpace:
    """A space and what every configuration in it came to.

    Attributes:
        name: what it is called in tables.
        space: exactly the recorded configurations; a union where they name families.
        values: by row of the space, smaller being better; NaN where the configuration failed.
        entries: what was recorded, in the order in which it was.
        unit: of the values: "ms", "s", or "" where the file does not say.
        device: where it was measured; "" where the file does not say.
        format: what kind of file it came from.
    """

    name: str
    space: SearchSpace | SpaceUnion
    values: NDArray[np.float64]
    entries: tuple[Entry, ...] = field(repr=False)
    unit: str = ""
    device: str = ""
    format: str = ""

    @classmethod
    def of(
        cls,
        entries: Iterable[Entry],
        *,
        name: str,
        unit: str = "",
        device: str = "",
        format: str = "",
    ) -> RecordedSpace:
        """The space of these entries; of repeated configurations the first one counts.

        Raises:
            InputError: there is no entry, none succeeded, or a value is not a positive number.
            SpaceError: the configurations of a family have different parameters.
        """
        known: dict[str, dict[Configuration, float]] = {}
        kept = tuple(entries)
        for entry in kept:
            value = math.nan if entry.value is None else float(entry.value)
            if entry.value is not None and not 0 < value < math.inf:
                raise InputError(
                    f"values must be positive, finite numbers, got {entry.value} for "
                    f"{Configuration(entry.configuration)}"
                )
            family = known.setdefault(entry.family, {})
            family.setdefault(Configuration(entry.configuration), value)
        if not known:
            raise InputError("no configurations are recorded: a space needs at least one")
        if all(math.isnan(value) for each in known.values() for value in each.values()):
            raise InputError("every recorded configuration failed: a replay needs one that ran")
        spaces = {family: SearchSpace.from_configurations(each) for family, each in known.items()}
        if known.keys() == {""}:
            space: SearchSpace | SpaceUnion = spaces[""]
            values = np.array([known[""][configuration] for configuration in spaces[""]])
        else:
            space = SpaceUnion(spaces)
            values = np.array(
                [known[family][each] for family in spaces for each in spaces[family]]
            )
        return cls(name, space, values, kept, unit, device, format)

    def __reduce__(self) -> tuple[Any, ...]:
        # Entries are smaller than what is made of them; equal ones in equal order give equal rows.
        return _restore, (self.entries, self.name, self.unit, self.device, self.format)

    @property
    def size(self) -> int:
        """Number of recorded configurations, failed ones included."""
        return len(self.values)

    @property
    def failures(self) -> int:
        """Number of configurations that failed."""
        return int(np.isnan(self.values).sum())

    @property
    def optimum(self) -> float:
        """The smallest value recorded."""
        return float(np.nanmin(self.values))

    def measurements(self) -> list[tuple[Candidate | Configuration, float]]:
        """The configurations that ran, with their values: a prior for another space."""
        return [
            (self.space[row], float(self.values[row]))
            for row in np.flatnonzero(~np.isnan(self.values)).tolist()
        ]

    def row(self, point: Candidate | Mapping[str, Value]) -> int:
        """The row of a configuration, or of a union's candidate.

        Raises:
            SpaceError: it was not recorded.
        """
        if isinstance(self.space, SpaceUnion):
            assert isinstance(point, Candidate)
            return self.space.index(point)
        assert not isinstance(point, Candidate)
        return self.space.index(point)

    def value(self, point: Candidate | Mapping[str, Value]) -> float | None:
        """What a configuration came to; None where it failed.

        Raises:
            SpaceError: it was not recorded.
        """
        value = float(self.values[self.row(point)])
        return None if math.isnan(value) else value


def _restore(
    entries: tuple[Entry, ...], name: str, unit: str, device: str, format: str
) -> RecordedSpace:
    return RecordedSpace.of(entries, name=name, unit=unit, device=device, format=format)
