"""A search space of which every configuration has been measured."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autotune.core import checks
from autotune.core.configuration import Candidate, Configuration, Value
from autotune.core.errors import InputError
from autotune.core.measurement import Outcome
from autotune.core.printable import shown
from autotune.core.statistics import median_interval
from autotune.space import SearchSpace, SpaceUnion
from autotune.space.parameter import ConfigurationList

_POWERS: Mapping[str, int] = {"s": 0, "ms": -3, "us": -6, "ns": -9}
"""Units of recorded times, as powers of ten of a second."""

OUTSIDE = "outside"
"""Outcome of what a recording lists although a restriction rules it out: no configuration."""

UNKNOWN_NOISE = 0.005
"""Relative noise that is taken for that of a recording which has neither samples nor intervals."""

MOST_CONFIGURATIONS = 2_000_000
"""Configurations that a recorded space may have."""
_MOST_FAMILIES = 1000
_MOST_PARAMETERS = 1000


@dataclass(frozen=True, slots=True)
class Goal:
    """An objective that is no time.

    Attributes:
        name: as the file has it.
        unit: "" where the file does not say.
        higher: more is better.
        key: of the details of an entry that have its value.
    """

    name: checks.Line
    unit: checks.AnyLine
    higher: bool
    key: checks.Line

    def cost(self, entry: Entry) -> float | None:
        """The value of an entry, or its reciprocal: less is better, and ratios mean the same."""
        value = entry.details.get(self.key)
        if entry.outcome not in (Outcome.OK, Outcome.ABANDONED) or not checks.is_number(value):
            return None
        return self.told(float(value)) if value > 0 else None

    def told(self, cost: float) -> float:
        """The value behind a cost."""
        return 1 / cost if self.higher else cost


class Entry(NamedTuple):
    """One recorded configuration.

    Attributes:
        configuration: its parameters by name.
        value: its time; None where the configuration failed, or the file has no times.
        family: the kernel family it is of; "" in a space of one unnamed kernel.
        outcome: how it ended, where the recording says more than whether it failed.
        reason: why it failed.
        interval: 95% confidence interval of the value.
        repeats: calls behind the value.
        samples: what the value is the median of, in its unit and in order; not always all.
        seconds: wall time of the evaluation, with compiling and verifying; None where unknown.
        details: further numbers that the recording has: registers, seconds of compiling, ...
    """

    configuration: Mapping[str, Value]
    value: float | None
    family: str = ""
    outcome: str = ""
    reason: str = ""
    interval: tuple[float, float] | None = None
    repeats: int = 0
    samples: tuple[float, ...] = ()
    seconds: float | None = None
    details: Mapping[str, Any] = MappingProxyType({})

    def scaled(self, unit: str, to: str) -> Entry:
        """The entry with its times in another unit."""
        if unit == to:
            return self
        return self._replace(
            value=None if self.value is None else rescaled(self.value, unit, to),
            interval=self.interval
            and (rescaled(self.interval[0], unit, to), rescaled(self.interval[1], unit, to)),
            samples=tuple(rescaled(each, unit, to) for each in self.samples),
        )

    @property
    def noise(self) -> float | None:
        """Half the width of the interval of the value, relative to it; None where unknown."""
        interval = self.interval
        if interval is None and len(self.samples) > 1:
            interval = median_interval(self.samples)
        if interval is None or not self.value:
            return None
        return (interval[1] - interval[0]) / (2 * self.value)


def rescaled(time: float, unit: str, to: str) -> float:
    """A time in another unit. Its digits stay: what has 15 at most comes back as it was.

    Raises:
        InputError: the unit is not known.
    """
    if unit not in _POWERS:
        raise InputError(
            "times need a unit, and these have none that is known: state one in the file, like "
            'the objective "time (ms)" of a replay file'
        )
    if unit == to:
        return time
    return float(Decimal(repr(float(time))).scaleb(_POWERS[unit] - _POWERS[to]))


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """The content of a recorded file; see `RecordedSpace` for what is not said here.

    Attributes:
        entries: what was measured, in the order of the file; to be read once.
        subject: `operation`, `problem`, `target`, `study`, and of a sweep its seed, size and
            counts, as far as the file says.
        note: what is missing of a file that ends too early; "" of a whole one.
        provenance: how it came about, as JSON has it: `spaces` as `autotune.space.document` reads
            them, fingerprint, toolchain, state, versions, date; or what another tuner wrote.
        goal: what configurations are compared by; None where that is their time.
    """

    entries: Iterable[Entry]
    name: str
    unit: str = ""
    device: str = ""
    format: str = ""
    subject: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    goal: Goal | None = None

    def in_unit(self, unit: str) -> Recording:
        """The recording with times in another unit.

        Raises:
            InputError: its own unit is not known.
        """
        rescaled(1.0, self.unit, unit)
        entries = (entry.scaled(self.unit, unit) for entry in self.entries)
        return replace(self, entries=entries, unit=unit)

    def costs(self) -> Iterable[Entry]:
        """The entries with what they are compared by for values, less being better."""
        if (goal := self.goal) is None:
            return self.entries
        return (
            entry._replace(value=goal.cost(entry), interval=None, samples=())
            for entry in self.entries
        )

    def space(self) -> RecordedSpace:
        """The space of its entries, as `RecordedSpace.of` has it."""
        space = RecordedSpace.of(
            self.costs(),
            name=self.name,
            unit=self.unit if self.goal is None else self.goal.unit,
            device=self.device,
            format=self.format,
            goal=self.goal,
        )
        return replace(space, note="; ".join(filter(None, (self.note, space.note))))


@dataclass(frozen=True, slots=True, eq=False)
class RecordedSpace:
    """A space and what every configuration in it came to.

    Attributes:
        name: its name in tables.
        space: exactly the recorded configurations; a union where they name families.
        values: by row of the space, smaller being better; NaN where the configuration failed.
        unit: "s", "ms", "us", "ns", the goal's, or "" where the file does not say.
        device: where it was measured; "" where the file does not say.
        format: what kind of file it came from.
        note: see `Recording`; and how many configurations were recorded again.
        seconds: wall time of each evaluation, by row; None where some are not known.
        noise: of the values: the median over the configurations of `Entry.noise`.
        goal: see `Recording`; where more is better, the values are reciprocals.
    """

    name: str
    space: SearchSpace | SpaceUnion
    values: NDArray[np.float64]
    unit: str = ""
    device: str = ""
    format: str = ""
    note: str = ""
    seconds: NDArray[np.float64] | None = None
    noise: float = UNKNOWN_NOISE
    goal: Goal | None = None

    @classmethod
    def of(
        cls,
        entries: Iterable[Entry],
        *,
        name: str,
        unit: str = "",
        device: str = "",
        format: str = "",
        goal: Goal | None = None,
    ) -> RecordedSpace:
        """The space of these entries; of repeated configurations the first one counts.

        Entries whose outcome is `OUTSIDE` are passed over.

        Raises:
            InputError: there is no entry, none succeeded, there are too many, a value is not a
                positive number, or a name or text cannot be printed.
            SpaceError: the configurations of a family have different parameters.
        """
        families: dict[str, _Family] = {}
        noises = array("d")
        inside = (entry for entry in entries if entry.outcome != OUTSIDE)
        count = 0
        for count, entry in enumerate(inside, start=1):
            if count > MOST_CONFIGURATIONS:
                raise InputError(f"more than {MOST_CONFIGURATIONS:,} configurations are recorded")
            family = families.get(entry.family)
            if family is None:
                if len(families) == _MOST_FAMILIES:
                    raise InputError(f"more than {_MOST_FAMILIES} families are recorded")
                family = families[checks.line("family", entry.family)] = _Family()
            family.add(entry)
            if (noise := entry.noise) is not None:
                noises.append(noise)
        if not families:
            raise InputError("no configurations are recorded: a space needs at least one")
        if all(math.isnan(value) for family in families.values() for value in family.values):
            raise InputError("every recorded configuration failed: a replay needs one that ran")
        found = {name: family.space() for name, family in families.items()}
        spaces, values, times = zip(*found.values(), strict=True)
        space: SearchSpace | SpaceUnion = (
            spaces[0]
            if found.keys() == {""}
            else SpaceUnion(dict(zip(found, spaces, strict=True)))
        )
        seconds = np.concatenate(times)
        again = count - len(seconds)
        return cls(
            name=checks.line("name", name),
            space=space,
            values=np.concatenate(values),
            unit=checks.line("unit", unit),
            device=checks.line("device", device),
            format=format,
            note=f"{again:,} recorded again, of which the first counts" if again else "",
            seconds=None if np.isnan(seconds).any() else seconds,
            noise=float(np.median(noises)) if noises else UNKNOWN_NOISE,
            goal=goal,
        )

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

    def told(self, value: float) -> float:
        """One of the values as it was recorded, in its unit."""
        return value if self.goal is None else self.goal.told(value)

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
        """The value of a configuration; None where it failed.

        Raises:
            SpaceError: it was not recorded.
        """
        value = float(self.values[self.row(point)])
        return None if math.isnan(value) else value


def as_json(document: Mapping[str, Any], rows: str) -> str:
    """A document as JSON, in which each item of `rows` has a line of its own.

    Raises:
        InputError: a number is not finite.
    """
    items = document[rows]
    encode = json.JSONEncoder(allow_nan=False).encode
    begin, end = "[]" if isinstance(items, list) else "{}"
    head = {key: part for key, part in document.items() if key != rows}
    try:
        text = json.dumps(head, indent=1, allow_nan=False)[:-2]
        if isinstance(items, list):
            lines = list(map(encode, items))
        else:
            lines = [f"{encode(key)}: {encode(item)}" for key, item in items.items()]
    except ValueError as error:
        raise InputError("numbers in JSON must be finite: leave out what has others") from error
    return f"{text},\n {encode(rows)}: {begin}\n" + ",\n".join(lines) + f"\n {end}\n}}\n"


def configuration(where: str, stored: object) -> dict[str, Value]:
    """The configuration of a recorded entry: an object of scalars."""
    where = f"{where}.configuration"
    values = checks.mapping(where, stored).items()
    return {name: checks.scalar(f"{where}.{name}", value) for name, value in values}


class _Family:
    """The configurations of one family as they are read, with their values."""

    def __init__(self) -> None:
        self.values = array("d")
        self.seconds = array("d")
        self._configurations = ConfigurationList()

    def add(self, entry: Entry) -> None:
        value = math.nan if entry.value is None else float(entry.value)
        if entry.value is not None and not 0 < value < math.inf:
            raise InputError(
                f"values must be positive, finite numbers, got {shown(entry.value)} for "
                f"{shown(dict(entry.configuration))}"
            )
        if not len(self.values):
            if len(entry.configuration) > _MOST_PARAMETERS:
                raise InputError(
                    f"{len(entry.configuration)} parameters are too many, "
                    f"at most {_MOST_PARAMETERS}"
                )
            for name in entry.configuration:
                checks.line("a parameter's name", name, empty=False)
        self._configurations.add(entry.configuration)
        self.values.append(value)
        self.seconds.append(math.nan if entry.seconds is None else entry.seconds)

    def space(self) -> tuple[SearchSpace, NDArray[np.float64], NDArray[np.float64]]:
        """The space, and by its rows the values and the seconds of the evaluations."""
        space, rows = SearchSpace.from_list(self._configurations)
        for parameter in space.parameters:
            for value in parameter.values if parameter.has_text else ():
                if isinstance(value, str):
                    checks.line(f"a value of {parameter.name}", value)
        return space, np.frombuffer(self.values)[rows], np.frombuffer(self.seconds)[rows]
