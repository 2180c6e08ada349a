"""Rows of a space as the model sees them: what was run, what is scored, and both as numbers."""

import math
from bisect import bisect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields
from datetime import datetime
from math import isfinite
from random import Random
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from optuna.trial import FrozenTrial, TrialState

from autotune.core.configuration import Candidate, Value
from autotune.search.claims import INTERRUPTED, ORPHANED, OUTCOME, REASON, Ledger, StudySpace
from autotune.space import SearchSpace

_LARGEST_INDEX = 2**63 - 1

_APART = np.float32(math.sqrt(0.5))
"""Two categories, each with such a column of its own, are one apart."""

_ABSENT = 0.5
"""Where a family stands in the columns of parameters that it lacks."""


@dataclass(frozen=True, slots=True)
class Points:
    """Some configurations as the model sees them; points are the last axis of every array.

    Attributes:
        features: shape (columns, points); distances between them are meaningful.
        levels: shape (parameters, points); equal numbers are equal values, -1 where a family
            lacks the parameter.
        expectations: shape (priors, points); what each prior expects, standardised.
    """

    features: NDArray[np.float32]
    levels: NDArray[np.signedinteger]
    expectations: NDArray[np.float32]

    def __len__(self) -> int:
        return int(self.features.shape[1])

    def __getitem__(self, part: slice | Sequence[int]) -> Self:
        return type(self)(*(getattr(self, own.name)[..., part] for own in fields(self)))

    def __add__(self, other: Self) -> Self:
        names = [own.name for own in fields(self)]
        pairs = [(getattr(self, name), getattr(other, name)) for name in names]
        return type(self)(*(np.concatenate(pair, axis=-1) for pair in pairs))


@dataclass(frozen=True, slots=True)
class Groups:
    """Features by parameter: those of one share a length scale.

    Attributes:
        columns: for each column of the features, the number of its parameter.
        names: of the parameters; that of the family is empty.
        values: for each parameter, how many values it has.
    """

    columns: NDArray[np.int64]
    names: tuple[str, ...]
    values: NDArray[np.int64]


class _Parameter(NamedTuple):
    """One parameter of one family, and the features and level of each of its values."""

    position: int  # among the family's parameters
    group: int  # among the parameters of all families
    columns: slice
    table: NDArray[np.float32]  # shape (columns, values)
    levels: NDArray[np.generic]


class FeatureMap:
    """Features of the valid rows of a space, each in 0..1.

    A number stands at its logarithm, since kernels respond to ratios; text has a column per
    value, so that any two are one apart. An integer that is not always a power of two has a second
    column, how often 2 divides it: alignment, vectors and bank conflicts depend on that. In a
    union the family is one more parameter, what several families have under one name is one
    parameter, and what a family lacks stands in the middle.

    Args:
        space: where rows come from.
        others: points of other spaces, which this map is to place too.

    Attributes:
        groups: which columns are of one parameter.
        parameters: how many parameters have more than one value.
        compiled: for each of these, in the order of `Points.levels`, true where it is written
            into the source of some family; the others are passed at the call by all.
    """

    def __init__(
        self, space: StudySpace, others: Iterable[Candidate | Mapping[str, Value]] = ()
    ) -> None:
        self._members: Mapping[str, SearchSpace] = (
            {"": space.space} if isinstance(space.space, SearchSpace) else space.space.spaces
        )
        self._large = space.size > _LARGEST_INDEX
        self._values = _values_by_name(self._members.values(), others)
        self._columns: dict[str, slice] = {}
        groups: list[int] = []
        for group, (name, values) in enumerate(self._values.items()):
            width = len(_features(values, values))
            self._columns[name] = slice(len(groups), len(groups) + width)
            groups += [group] * width
        families = len(self._members) if len(self._members) > 1 else 0
        self._families = slice(len(groups), len(groups) + families)
        self.parameters = len(self._values) + (families > 0)
        counts = [len(values) for values in self._values.values()] + [families] * (families > 0)
        self.groups = Groups(
            np.array(groups + [len(self._values)] * families, dtype=np.int64),
            (*self._values, *([""] if families else ())),
            np.array(counts, dtype=np.int64),
        )
        members = self._members.values()
        written = {p.name for member in members for p in member.parameters if not p.runtime}
        self.compiled: NDArray[np.bool_] = np.array(
            [name in written for name in self._values] + [True] * (families > 0)
        )
        most = max((len(values) for values in self._values.values()), default=0)
        # Small where it can be: levels are compared more often than anything else is done.
        self._level = np.int8 if max(most, families) < 128 else np.int32
        self._tables = {family: self._table(member) for family, member in self._members.items()}

    def of(self, rows: Sequence[int]) -> Points:
        """The configurations at some rows, without expectations."""
        points = self._blank(len(rows))
        for family, inside, codes in self._codes(rows):
            for own in self._tables[family]:
                column = codes[:, own.position]
                points.features[own.columns, inside] = own.table[:, column]
                points.levels[own.group, inside] = own.levels[column]
            self._mark(points, family, inside)
        return points

    def of_points(self, others: Sequence[Candidate | Mapping[str, Value]]) -> Points:
        """Points of other spaces, which were given when this map was made."""
        points = self._blank(len(others))
        for at, point in enumerate(others):
            configuration = point.configuration if isinstance(point, Candidate) else point
            for group, (name, values) in enumerate(self._values.items()):
                if name in configuration:
                    value = configuration[name]
                    points.features[self._columns[name], at] = _features([value], values)[:, 0]
                    points.levels[group, at] = values.index(value)
            if isinstance(point, Candidate):
                self._mark(points, point.family, np.array([at]))
        return points

    def columns(
        self, rows: Sequence[int]
    ) -> Iterator[tuple[str, NDArray[np.int64], dict[str, NDArray[Any]]]]:
        """The values at some rows, family by family: its name, which rows, columns by name.

        The name is empty where there are no families.
        """
        for family, inside, codes in self._codes(rows):
            parameters = self._members[family].parameters
            yield (
                family,
                inside,
                {p.name: np.asarray(p.array()[codes[:, at]]) for at, p in enumerate(parameters)},
            )

    def _codes(
        self, rows: Sequence[int]
    ) -> Iterator[tuple[str, NDArray[np.int64], NDArray[np.int32]]]:
        """For each family with some: which rows are its own, and the positions of their values."""
        numbers = np.array(rows, dtype=object if self._large else np.int64)
        start = 0
        for family, member in self._members.items():
            inside = np.nonzero((numbers >= start) & (numbers < start + member.size))[0]
            if len(inside):
                yield family, inside, _codes(member, numbers[inside] - start)
            start += member.size

    def _blank(self, count: int) -> Points:
        return Points(
            np.full((len(self.groups.columns), count), _ABSENT, dtype=np.float32),
            np.full((self.parameters, count), -1, dtype=self._level),
            np.zeros((0, count), dtype=np.float32),
        )

    def _mark(self, points: Points, family: str, at: NDArray[np.int64]) -> None:
        """Note the family of some points."""
        if self._families.start == self._families.stop:
            return
        points.features[self._families, at] = 0.0
        if family in self._members:
            number = list(self._members).index(family)
            points.features[self._families.start + number, at] = _APART
            points.levels[-1, at] = number

    def _table(self, member: SearchSpace) -> list[_Parameter]:
        table: list[_Parameter] = []
        groups = {name: group for group, name in enumerate(self._values)}
        for position, parameter in enumerate(member.parameters):
            if (name := parameter.name) in self._values:
                several = self._values[name]
                level = {value: number for number, value in enumerate(several)}
                levels = np.array([level[value] for value in parameter.values], dtype=self._level)
                features = _features(parameter.values, several)
                columns = self._columns[name]
                table.append(_Parameter(position, groups[name], columns, features, levels))
        return table


def _values_by_name(
    members: Iterable[SearchSpace], others: Iterable[Candidate | Mapping[str, Value]]
) -> dict[str, list[Value]]:
    """The values of each name, wherever they occur; names with a single value are left out."""
    values: dict[str, dict[Value, None]] = {}
    for member in members:
        for parameter in member.parameters:
            values.setdefault(parameter.name, {}).update(dict.fromkeys(parameter.values))
    for point in others:
        configuration = point.configuration if isinstance(point, Candidate) else point
        for name in values.keys() & configuration.keys():
            values[name].setdefault(configuration[name])
    return {name: list(several) for name, several in values.items() if len(several) > 1}


def _codes(member: SearchSpace, rows: NDArray[Any]) -> NDArray[np.int32]:
    """Positions of the rows' values among their parameters', shape (rows, parameters)."""
    if member.size <= _LARGEST_INDEX:
        return member.codes(rows.astype(np.int64))
    codes = [
        [parameter.position(configuration[parameter.name]) for parameter in member.parameters]
        for configuration in (member[row] for row in rows)
    ]
    return np.array(codes, dtype=np.int32).reshape(len(rows), len(member.parameters))


def _features(own: Sequence[Value], several: Sequence[Value]) -> NDArray[np.float32]:
    """Features, shape (columns, len(own)), of some of a parameter's `several` values."""
    position = {value: at for at, value in enumerate(several)}
    at = [position[value] for value in own]
    numbers = [v for v in several if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < len(several):
        if len(several) == 2:
            return np.array([at], dtype=np.float32)
        return (_APART * np.eye(len(several), dtype=np.float32))[:, at]
    lowest = min(numbers)
    # log2, of one more where there is a 0; the value itself where some are below 0.
    more = 0 if lowest > 0 else 1
    places = np.array([math.log2(float(v) + more) if lowest >= 0 else float(v) for v in numbers])
    table = [(places - places.min()) / np.ptp(places)]
    if len(numbers) > 3 and min(numbers) > 0 and all(isinstance(v, int) for v in numbers):
        # How often 2 divides them.
        twos = np.array([(int(v) & -int(v)).bit_length() - 1 for v in numbers])
        if any(int(v) & (int(v) - 1) for v in numbers) and np.ptp(twos):
            table.append(twos / twos.max())
    return np.stack(table)[:, at].astype(np.float32)


@dataclass(frozen=True, slots=True)
class History:
    """Rows that were run and rows that are running.

    Attributes:
        observed: row and value of every trial that ended, in order of their ends; the value is
            None where it failed or is not finite.
        pending: rows that some worker is at, by trial number.
        visited: rows that must not be proposed.
    """

    observed: tuple[tuple[int, float | None], ...]
    pending: tuple[int, ...]
    visited: Set[int]


class HistoryReader:
    """Reads the history of a study from its ledger, every trial that has ended once.

    A pruned trial counts with its last intermediate value: it was stopped because it was slow, and
    how slow is worth knowing. Trials that were interrupted say nothing of their row.
    """

    def __init__(self) -> None:
        self._ledger: Ledger | None = None
        self._read = 0
        self._ended: list[tuple[datetime, int]] = []
        self._observed: list[tuple[int, float | None]] = []

    def read(self, ledger: Ledger, but: int | None = None) -> History:
        """The findings, without the trial `but` that a proposal is wanted for."""
        if ledger is not self._ledger:
            self._ledger, self._read, self._ended, self._observed = ledger, 0, [], []
        for number in ledger.ended[self._read :]:
            trial, row = ledger.trials[number], ledger.rows.get(number)
            if row is not None and not _lost(trial):
                # What came of a trial is known when it ends: a study that goes on sees the same
                # order as one that is resumed.
                when = (trial.datetime_complete or datetime.min, number)
                place = bisect(self._ended, when)
                self._ended.insert(place, when)
                self._observed.insert(place, (row, _value(trial)))
        self._read = len(ledger.ended)
        observed = self._observed
        if ledger.whole:  # of what was pruned only, nothing is known then
            observed = [one for one in observed if one[0] in ledger.visited]
        pending = (ledger.rows.get(number) for number in ledger.open if number != but)
        running = tuple(row for row in pending if row is not None)
        return History(tuple(observed), running, ledger.visited)


def _lost(trial: FrozenTrial) -> bool:
    """The trial's worker died or was interrupted before it knew anything."""
    reason = trial.user_attrs.get(REASON)
    return OUTCOME not in trial.user_attrs and reason in (INTERRUPTED, ORPHANED)


def _value(trial: FrozenTrial) -> float | None:
    known = trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
    return trial.value if known and trial.value is not None and isfinite(trial.value) else None


LARGEST_LISTED = 131_072
"""Spaces up to this many rows are scored whole."""

_DRAWN = 32_768
"""Rows drawn uniformly from a larger space."""

_DRAWN_SLOWLY = 1_024
"""The same where rows exceed 64 bits and NumPy cannot help."""


class Candidates:
    """Rows as the model sees them by `describe`; all of the space where `rows` is None.

    `points` are the rows as they are seen, where that is known already, and `listed` is every row
    of the space, where these are some.
    """

    def __init__(
        self,
        space: StudySpace,
        describe: Callable[[Sequence[int]], Points],
        rows: Sequence[int] | None,
        points: Points | None = None,
        listed: Points | None = None,
    ) -> None:
        self._space = space
        self._describe = describe
        self._rows: Sequence[int] = range(space.size) if rows is None else rows
        self._positions = None if rows is None else {row: at for at, row in enumerate(rows)}
        self.points: Points = describe(self._rows) if points is None else points
        self._listed = self.points if self.whole else listed

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def whole(self) -> bool:
        """Every row of the space is a candidate."""
        return self._positions is None

    def row(self, position: int) -> int:
        """The row of a candidate."""
        return self._rows[position]

    def part(self, positions: Sequence[int]) -> "Candidates":
        """Some of these candidates."""
        rows = [self._rows[at] for at in positions]
        points = self.points[positions]
        return Candidates(self._space, self._describe, rows, points, self._listed)

    def seen(self, rows: Sequence[int]) -> Points:
        """Any rows of the space as the model sees them."""
        return self._describe(rows) if self._listed is None else self._listed[rows]

    def positions(self, rows: Iterable[int]) -> list[int]:
        """Positions of those rows that are candidates."""
        if self._positions is None:
            return list(rows)
        return [self._positions[row] for row in rows if row in self._positions]

    def widen(self, centre: int) -> Points:
        """Add a row and its neighbours; returns those that were not there before."""
        if self._positions is None:
            return self.points[:0]
        if self._listed is None:
            near = [centre, *neighbours(self._space, centre)]
        else:
            levels = self._listed.levels
            apart = (levels != levels[:, centre : centre + 1]).sum(axis=0)
            near = np.flatnonzero(apart <= 1).tolist()
        new = [row for row in near if row not in self._positions]
        self._positions.update(zip(new, range(len(self), len(self) + len(new)), strict=True))
        self._rows = [*self._rows, *new]
        added = self.seen(new)
        self.points = self.points + added
        return added


def drawn_rows(space: StudySpace, centres: Collection[int], *seed: int) -> list[int] | None:
    """Rows of a large space to score: a uniform draw, some good rows and their neighbours.

    They ascend; None when the space is small enough to be scored whole.
    """
    if space.size <= LARGEST_LISTED:
        return None
    count = _DRAWN if space.size < 2**63 else _DRAWN_SLOWLY
    if space.size < 2**63:
        rows = set(np.random.default_rng(seed).integers(space.size, size=count).tolist())
    else:
        random = seeded(*seed)
        rows = {random.randrange(space.size) for _ in range(count)}
    rows.update(centres)
    for centre in centres:
        rows.update(neighbours(space, centre))
    return sorted(rows)


def neighbours(space: StudySpace, row: int) -> Iterator[int]:
    """The valid rows that differ from one in a single parameter."""
    params = space.params(row)
    for name, value in params.items():
        for other in space.choices[name]:
            if other != value:
                # Another family has other parameters: such a point is incomplete, and no row.
                found = space.row({**params, name: other})
                if found is not None:
                    yield found


def seeded(*seed: int) -> Random:
    """A generator of Python's own: a space may have more rows than NumPy's can count."""
    state = np.random.SeedSequence(seed).generate_state(4)
    return Random(int.from_bytes(state.tobytes(), "little"))
