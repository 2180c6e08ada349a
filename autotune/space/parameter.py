"""Declarations of a space: tunable parameters, restrictions on them, and listed configurations."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from autotune.core.errors import SpaceError
from autotune.core.printable import shown
from autotune.space.columns import INT32_MAX, INT64_MAX, Column
from autotune.space.expression import plain_value
from autotune.space.operators import FLOAT_EXACT, LARGEST_BITS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from autotune.core.configuration import Value
    from autotune.space.expression import Expression

_PLAIN = {bool, int, float, str}
_MOST_VALUES = 2**24


@dataclass(frozen=True, slots=True)
class TunableParameter:
    """A parameter of a search space.

    Values compare as in Python: 1, 1.0 and True are one value, and a parameter may have only one
    of them. NumPy scalars become Python's.

    Attributes:
        name: how restrictions and configurations refer to it.
        values: what it can take, in the order that numbers the rows of the space.
        default: a known-good value, one of `values`.
        summary: what it means, in a few words.
        runtime: passed at the call instead of being written into the source.

    Raises:
        SpaceError: no values, a repeated value, a value that is not a scalar or is not a number,
            or a default that is not among the values.
    """

    name: str
    values: tuple[Value, ...]
    default: Value | None = None
    summary: str = ""
    runtime: bool = False
    _positions: Mapping[Value, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise SpaceError(
                f"a parameter's name must be a non-empty text, got {shown(self.name)}"
            )
        values = self._plain_values(self._listed())
        if not values:
            raise SpaceError(f"parameter {self.name}: needs at least one value")
        positions = dict(zip(reversed(values), range(len(values) - 1, -1, -1), strict=True))
        for position, value in enumerate(values) if len(positions) < len(values) else ():
            if positions[value] != position:
                raise SpaceError(
                    f"parameter {self.name}: value {shown(value)} repeats "
                    f"{shown(values[positions[value]])}"
                )
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "_positions", positions)
        if self.default is not None:
            if self.position(self.default) is None:
                raise SpaceError(
                    f"parameter {self.name}: default {shown(self.default)} is not one of its "
                    f"values {shown(list(values))}"
                )
            object.__setattr__(self, "default", plain_value(self.default))

    def _listed(self) -> tuple[Any, ...]:
        """The given values, taken once: they may be a generator, even one without an end."""
        values = self.values
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise self._no_list()
        try:
            count = len(values) if isinstance(values, Sized) else 0
            listed = tuple(islice(values, 0 if count > _MOST_VALUES else _MOST_VALUES + 1))
        except TypeError:  # an array without dimensions
            raise self._no_list() from None
        if max(count, len(listed)) > _MOST_VALUES:
            raise SpaceError(
                f"parameter {self.name}: {count or 'these'} values are too many, "
                f"at most {_MOST_VALUES}"
            )
        return listed

    def _no_list(self) -> SpaceError:
        return SpaceError(
            f"parameter {self.name}: values must be a list, got {shown(self.values)}"
        )

    def _plain_values(self, listed: tuple[Any, ...]) -> tuple[Value, ...]:
        try:
            kinds = set(map(type, listed))
            values = listed if kinds <= _PLAIN else tuple(map(plain_value, listed))
        except TypeError as error:
            raise SpaceError(f"parameter {self.name}: values: {error}") from None
        if float in map(type, values) and any(value != value for value in values):
            raise SpaceError(f"parameter {self.name}: NaN cannot be a value")
        integers = [value for value in values if type(value) is int]
        for extreme in (min(integers), max(integers)) if integers else ():
            check_range(f"parameter {self.name}", extreme)
        return values

    def position(self, value: Any) -> int | None:
        """Where `value` stands among the values, or None."""
        if type(value) in _PLAIN:
            return self._positions.get(value)
        try:
            return self._positions.get(plain_value(value))
        except TypeError:
            return None

    @property
    def bits(self) -> int | None:
        """Bits of the largest magnitude; None where a value is no integer."""
        integers = [value for value in self.values if isinstance(value, int)]
        if len(integers) < len(self.values):
            return None
        return max(map(int.bit_length, integers))

    @property
    def is_numeric(self) -> bool:
        """True if all values are numbers, so that they have an order; booleans do not count."""
        return all(isinstance(v, int | float) and not isinstance(v, bool) for v in self.values)

    @property
    def has_text(self) -> bool:
        """True if a value is a string."""
        return str in map(type, self.values)

    def column(self) -> Column:
        """The values as numbers of a fixed size where that loses nothing, else as objects."""
        kinds = set(map(type, self.values))
        if kinds == {int} or kinds == {int, bool}:
            integers = list(map(int, self.values))
            limit = max(max(integers), -min(integers))
            # The narrowest that operators compute with.
            dtype = np.int32 if limit <= INT32_MAX else np.int64 if limit <= INT64_MAX else object
            return Column(np.array(self.values, dtype=dtype), None, limit)
        if kinds == {bool}:
            return Column(np.array(self.values), None, 1)
        if kinds == {float}:
            return Column(np.array(self.values))
        objects = np.empty(len(self.values), dtype=object)
        objects[:] = self.values
        return Column(objects)

    def array(self) -> NDArray[Any]:
        """The values as bool, int64 or float64, else as objects.

        Integers in a mixture with floats become floats where that is exact.
        """
        integers = [abs(value) for value in self.values if isinstance(value, int)]
        if set(map(type, self.values)) == {int, float} and max(integers) <= FLOAT_EXACT:
            return np.array(self.values, dtype=np.float64)
        column = np.asarray(self.column().values)
        return column.astype(np.int64) if column.dtype == np.int32 else column


def listed_parameters(
    parameters: Mapping[str, Sequence[Value]] | Sequence[TunableParameter],
) -> tuple[TunableParameter, ...]:
    """Parameters given by name or as they are.

    Raises:
        SpaceError: they are no such list, none, or two of one name.
    """
    if isinstance(parameters, Mapping):
        parameters = [
            TunableParameter(name, cast("tuple[Value, ...]", each))
            for name, each in parameters.items()
        ]
    if not isinstance(parameters, Sequence) or not all(
        isinstance(parameter, TunableParameter) for parameter in parameters
    ):
        raise SpaceError(
            "parameters must be a mapping of names to lists of values, or a list of "
            f"TunableParameter, got {shown(parameters)}"
        )
    if not parameters:
        raise SpaceError("a space needs at least one parameter")
    seen: set[str] = set()
    for parameter in parameters:
        if parameter.name in seen:
            raise SpaceError(f"parameter {parameter.name} is declared twice")
        seen.add(parameter.name)
    return tuple(parameters)


def check_range(what: str, value: Value) -> None:
    """Refuse an integer that is larger than expressions compute with.

    Raises:
        SpaceError: it is.
    """
    if isinstance(value, int) and value.bit_length() > LARGEST_BITS:
        raise SpaceError(f"{what}: {shown(value)} is too large, at most {LARGEST_BITS} bits")


@dataclass(frozen=True, slots=True)
class Restriction:
    """A rule that every valid configuration meets.

    A configuration for which the expression is undefined does not meet it.

    Attributes:
        expression: what must hold.
        reason: why, in a few words.
    """

    expression: Expression
    reason: str = ""

    @property
    def text(self) -> str:
        """The expression as it was written."""
        return self.expression.text


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a configuration is not valid.

    Attributes:
        restriction: the rule that it breaks.
        reason: why there is that rule.
        values: the numbers that the rule is about, by name.
    """

    restriction: str
    reason: str
    values: Mapping[str, Value]

    def __str__(self) -> str:
        numbers = ", ".join(f"{name} = {value}" for name, value in self.values.items())
        rule = f"{self.restriction}: {self.reason}" if self.reason else self.restriction
        return f"{rule} ({numbers})" if numbers else rule


@dataclass(frozen=True, slots=True)
class FunnelStep:
    """The rest of a space after one restriction.

    Attributes:
        expr: the restriction's text.
        reason: why there is that restriction.
        remaining: configurations that meet it and all before it; None when counting them would
            take too long.
    """

    expr: str
    reason: str
    remaining: int | None


def whole_divisions(definitions: Mapping[str, Expression]) -> list[Restriction]:
    """The restrictions that definitions imply: their exact divisions must be whole.

    In the order of the definitions, each once.
    """
    implied: dict[str, Restriction] = {}
    for name, definition in definitions.items():
        for numerator, denominator in definition.divisions():
            expression = numerator.is_multiple_of(denominator)
            quotient = numerator.over(denominator)
            reason = f"{quotient} must be a whole number ({name})"
            implied.setdefault(expression.text, Restriction(expression, reason))
    return list(implied.values())


class ConfigurationList:
    """Configurations with the same parameters, in the order in which they were added.

    A row takes four bytes for every parameter; a value is stored once.
    """

    def __init__(self) -> None:
        self._columns: dict[str, _Observed] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, configuration: Mapping[str, Value]) -> None:
        """Add one.

        Raises:
            SpaceError: it is no mapping, has other parameters than the first, or a value that is
                not a scalar.
        """
        if not isinstance(configuration, Mapping):
            raise SpaceError(
                f"configuration {self._count} must be a mapping, got {shown(configuration)}"
            )
        if not self._count:
            self._columns = {name: _Observed() for name in configuration}
        elif configuration.keys() != self._columns.keys():
            raise SpaceError(
                f"configuration {self._count} has parameters {_names(configuration)}, "
                f"the first one has {_names(self._columns)}"
            )
        for name, column in self._columns.items():
            try:
                column.add(configuration[name])
            except TypeError as error:
                raise SpaceError(f"parameter {name}: {error}") from None
        self._count += 1

    def table(self) -> tuple[list[TunableParameter], NDArray[np.int32]]:
        """The parameters, and the positions of every row's values, shape (rows, parameters).

        A parameter's values are sorted when all are numbers, else in order of appearance.

        Raises:
            SpaceError: a name or a value that no parameter can have.
        """
        found = [column.parameter(name) for name, column in self._columns.items()]
        codes = np.empty((self._count, len(found)), dtype=np.int32)
        for position, (_, column) in enumerate(found):
            codes[:, position] = column
        return [parameter for parameter, _ in found], codes


class _Observed:
    """The values that one parameter took."""

    def __init__(self) -> None:
        self._codes: dict[Value, int] = {}
        self._column = array("i")

    def add(self, value: Value) -> None:
        try:
            code = self._codes.get(value)
        except TypeError:  # a list, say, which `plain_value` refuses
            code = None
        if code is None:
            code = self._codes[plain_value(value)] = len(self._codes)
        self._column.append(code)

    def parameter(self, name: str) -> tuple[TunableParameter, NDArray[np.int32]]:
        """The parameter, and the position of its value in every row."""
        column = np.frombuffer(self._column, dtype=np.int32)
        values = tuple(self._codes)
        if {int, float}.issuperset(map(type, values)):
            values = tuple(sorted(values))
            ranks = np.empty(len(values), dtype=np.int32)
            ranks[[self._codes[value] for value in values]] = np.arange(len(values))
            column = ranks[column]
        return TunableParameter(name, values), column


def ascending(codes: NDArray[np.int32]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows in ascending order, and which of them is the first of those that are equal to it.

    Args:
        codes: shape (rows, columns), in any order.

    Returns:
        Row numbers in ascending order of their codes, equal ones in their own order; and, along
        them, the number of the first of the equal ones.
    """
    order = np.lexsort(codes.T[::-1])
    starts = np.ones(len(order), dtype=bool)
    starts[1:] = (codes[order[1:]] != codes[order[:-1]]).any(axis=1)
    return order, order[starts][np.cumsum(starts) - 1]


def _names(configuration: Mapping[str, object]) -> str:
    return shown(sorted(map(str, configuration)))
