"""Search spaces: tunable parameters, the restrictions among them, and the valid rows."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, SupportsIndex, overload
from unicodedata import normalize

import numpy as np

from autotune.core.arguments import mapping, must, whole
from autotune.core.configuration import Configuration, Value
from autotune.core.errors import SpaceError
from autotune.core.printable import shown
from autotune.space.building import RestrictionSystem
from autotune.space.columns import UndefinedError
from autotune.space.diagram import (
    LARGEST_LISTING,
    Diagram,
    Group,
    GroupProduct,
    row_number,
    row_slice,
)
from autotune.space.expression import Expression, plain_value
from autotune.space.nearest import nearest_row
from autotune.space.parameter import (
    ConfigurationList,
    FunnelStep,
    Rejection,
    Restriction,
    TunableParameter,
    ascending,
    check_range,
    listed_parameters,
    whole_divisions,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NO_CONSTANTS: Mapping[str, Value] = MappingProxyType({})
_NO_DEFINITIONS: Mapping[str, Expression] = MappingProxyType({})
_BUILT = frozenset({"_system", "_rows"})
_LARGEST_SAMPLED = 2**63 - 1
_ITERATED_ROWS = 4096


class SearchSpace:
    """The configurations that meet all restrictions, each with a row number.

    Rows are sorted. Parameters that restrictions connect form a group; the rows of a group are in
    ascending order of their values' positions, the first declared parameter being the most
    significant, and rows of the space are the product of the groups, the group that holds the
    first declared parameter being the most significant. A group is a decision diagram, built when
    it is first needed; neither its rows nor the product's are listed, so a space may have far more
    rows than memory.

    Values compare as in Python: where x may be 1, ``{"x": True}`` and ``{"x": 1.0}`` are valid.

    Args:
        parameters: in declaration order, or the values of each by name.
        restrictions: what valid configurations meet; text stands for a restriction with no reason.
        constants: further names that restrictions and definitions may use.
        definitions: named expressions over parameters, constants and earlier definitions. Their
            exact divisions must be whole: that makes restrictions, put before the explicit ones.

    Attributes:
        parameters: in declaration order.
        restrictions: those that definitions imply, then the explicit ones.
        definitions: as given.
        cartesian: configurations there would be without restrictions.

    Raises:
        SpaceError: no parameters, a name that is used twice or is unknown, or bad values.
        ExpressionError: a restriction that is not in the language.
    """

    def __init__(
        self,
        parameters: Mapping[str, Sequence[Value]] | Sequence[TunableParameter],
        restrictions: Sequence[str | Restriction] = (),
        *,
        constants: Mapping[str, Value] = _NO_CONSTANTS,
        definitions: Mapping[str, Expression] = _NO_DEFINITIONS,
    ) -> None:
        self.parameters = listed_parameters(parameters)
        self.cartesian = math.prod(len(parameter.values) for parameter in self.parameters)
        self._by_name = {parameter.name: parameter for parameter in self.parameters}
        example = '{"area": Expression.parse("x * y")}'
        for name, each in mapping("definitions", definitions, example, SpaceError).items():
            expected = "an Expression, like Expression.parse('x + 1')"
            must(f"definition {name}", expected, each, isinstance(each, Expression), SpaceError)
        self._constants = _constants(constants, self._by_name)
        self.definitions: Mapping[str, Expression] = dict(definitions)
        self._definitions = self._inline_definitions(definitions)
        explicit = _restrictions(restrictions)
        implied = whole_divisions(definitions)
        self.restrictions: tuple[Restriction, ...] = (*implied, *explicit)
        known = {**self._by_name, **self._constants, **self._definitions}
        for restriction in self.restrictions:
            _check_names("restriction", restriction.expression, known)
        self._inlined = tuple(
            restriction.expression.substitute(self._definitions)
            for restriction in self.restrictions
        )
        self._listed: Group | None = None

    @classmethod
    def from_configurations(cls, configurations: Iterable[Mapping[str, Value]]) -> SearchSpace:
        """The space of exactly these configurations.

        All must have the same parameters. A parameter's values are sorted when all are numbers,
        otherwise in order of appearance; rows are sorted like those of any space.

        Raises:
            SpaceError: no configurations, a repeated one, or one with other parameters.
        """
        listed = ConfigurationList()
        several = isinstance(configurations, Iterable)
        must("configurations", "a list of mappings", configurations, several, SpaceError)
        for configuration in configurations:
            listed.add(configuration)
        space, rows = cls.from_list(listed)
        if len(rows) < len(listed):
            _, codes = listed.table()
            order, first = ascending(codes)
            number, original = min(
                (int(row), int(at)) for row, at in zip(order, first, strict=True) if row != at
            )
            raise SpaceError(f"configuration {number} repeats configuration {original}")
        return space

    @classmethod
    def from_list(cls, listed: ConfigurationList) -> tuple[SearchSpace, NDArray[np.intp]]:
        """The space of the listed configurations, and for each row the first of them that it is.

        Raises:
            SpaceError: there are none.
        """
        if not len(listed):
            raise SpaceError("a space needs at least one configuration")
        parameters, codes = listed.table()
        space = cls(parameters)
        order, first = ascending(codes)
        rows = order[order == first]
        space._listed = Group(
            tuple(range(len(parameters))), Diagram.of_rows(codes[rows].astype(np.intp))
        )
        return space, rows

    @cached_property
    def size(self) -> int:
        """Number of valid configurations."""
        return self._rows.size

    @cached_property
    def digest(self) -> str:
        """Sixteen hex digits over everything that decides which configurations are valid."""
        described = {
            "parameters": [[p.name, list(p.values)] for p in self.parameters],
            "restrictions": [restriction.text for restriction in self.restrictions],
            "definitions": {name: each.text for name, each in self.definitions.items()},
            "constants": self.constants,
        }
        sha = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
        if self._listed is not None:
            for column in self._listed.diagram.codes(np.arange(self.size)):
                sha.update(column.astype("<i4").tobytes())
        return sha.hexdigest()[:16]

    @cached_property
    def constants(self) -> dict[str, Value]:
        """Those constants that restrictions and definitions use."""
        used = set().union(*(each.names for each in (*self._inlined, *self._definitions.values())))
        return {name: value for name, value in self._constants.items() if name in used}

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """A column per parameter, a row per valid configuration.

        Bool, int64 or float64 arrays; an object array where the values include text or integers
        beyond 64 bits. Columns of one type share a block of memory.

        Raises:
            SpaceError: there are more than 2**28 rows; use `sample` or index the space instead.
        """
        if self.size > LARGEST_LISTING:
            raise SpaceError(
                f"{self.size} rows are too many to list, at most {LARGEST_LISTING}; "
                "sample or index the space instead"
            )
        values = [parameter.array() for parameter in self.parameters]
        return dict(zip(self._by_name, self._rows.columns(values), strict=True))

    def __len__(self) -> int:
        return self.size

    def __bool__(self) -> bool:
        return self.size > 0

    @overload
    def __getitem__(self, row: SupportsIndex) -> Configuration: ...
    @overload
    def __getitem__(self, row: slice) -> list[Configuration]: ...
    def __getitem__(self, row: SupportsIndex | slice) -> Configuration | list[Configuration]:
        if isinstance(row, slice):
            return row_slice(row, self.size, self.__getitem__)
        return self._configuration(self._rows.row_codes(row_number(row, self.size)))

    def __iter__(self) -> Iterator[Configuration]:
        for start in range(0, self.size, _ITERATED_ROWS):
            stop = min(self.size, start + _ITERATED_ROWS)
            for codes in self.codes(np.arange(start, stop)).tolist():
                yield self._configuration(codes)

    def __contains__(self, configuration: object) -> bool:
        if not isinstance(configuration, Mapping):
            return False
        return (
            configuration.keys() == self._by_name.keys() and self._find(configuration) is not None
        )

    def __repr__(self) -> str:
        return (
            f"SearchSpace({len(self.parameters)} parameters, "
            f"{len(self.restrictions)} restrictions, {shown(self.cartesian)} combinations)"
        )

    def __getstate__(self) -> dict[str, Any]:
        # What was built from the restrictions is larger than they are, and soon built again.
        return {name: each for name, each in vars(self).items() if name not in _BUILT}

    def index(self, configuration: Mapping[str, Value]) -> int:
        """The row of a configuration.

        Raises:
            SpaceError: it is not valid, or has other parameters.
        """
        row = self.find(configuration)
        if row is None:
            raise SpaceError(f"not in the space: {self.rejection(configuration)}")
        return row

    def find(self, configuration: Mapping[str, Value]) -> int | None:
        """The row of a configuration; None where it is not valid, for which no reason is sought.

        Raises:
            SpaceError: it has other parameters.
        """
        self._check_parameters(configuration)
        return self._find(configuration)

    def codes(self, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """Positions of the rows' values among their parameters', shape (rows, parameters).

        Raises:
            SpaceError: they are no whole numbers.
            IndexError: a row is outside the space.
        """
        try:
            given = np.asarray(rows)
        except ValueError:  # lists of several lengths
            given = np.empty(1, dtype=object)
        numbers = given.dtype.kind in "iu" or not given.size
        must("rows", "an array of whole numbers", rows, numbers, SpaceError)
        rows = given.astype(np.int64, copy=False)
        if rows.size and (rows.min() < 0 or rows.max() >= self.size):
            raise IndexError(f"rows must be in 0..{self.size - 1}")
        return self._rows.codes(rows)

    def rejection(self, configuration: Mapping[str, Value]) -> Rejection | None:
        """Why a configuration is not valid, or None when it is.

        Raises:
            SpaceError: a parameter is missing or unknown.
        """
        self._check_parameters(configuration)
        scope = dict(self._constants)
        for parameter in self.parameters:
            position = parameter.position(configuration[parameter.name])
            if position is None:
                return Rejection(
                    f"{parameter.name} in {list(parameter.values)}",
                    "not one of the parameter's values",
                    {parameter.name: configuration[parameter.name]},
                )
            scope[parameter.name] = parameter.values[position]
        for restriction, inlined in zip(self.restrictions, self._inlined, strict=True):
            if not inlined.holds(scope):
                values = self._values_of(restriction.expression, scope)
                return Rejection(restriction.text, restriction.reason, values)
        if self._listed is not None and self._find(configuration) is None:
            return Rejection(
                "listed", f"not one of the {self.size} listed configurations", dict(configuration)
            )
        return None

    def funnel(self) -> list[FunnelStep]:
        """The sizes after the first, the first two, ... of the restrictions."""
        remaining = self._system.remaining()
        return [
            FunnelStep(restriction.text, restriction.reason, count)
            for restriction, count in zip(self.restrictions, remaining, strict=True)
        ]

    def sample(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """`count` rows drawn uniformly, with replacement.

        Raises:
            SpaceError: the space is empty, or has more rows than an int64 can number; or the count
                is none, or `rng` no generator.
        """
        count = whole("count", count, least=0, error=SpaceError)
        generator = isinstance(rng, np.random.Generator)
        must("rng", "a generator, like numpy.random.default_rng(0)", rng, generator, SpaceError)
        if not 0 < self.size <= _LARGEST_SAMPLED:
            raise SpaceError(
                f"cannot sample a space of {self.size} rows; 1..{_LARGEST_SAMPLED} can be sampled"
            )
        return rng.integers(0, self.size, size=count, dtype=np.int64)

    def nearest(
        self, configuration: Mapping[str, Value], excluded: Container[int] = ()
    ) -> int | None:
        """The valid row nearest to a configuration, which need not be valid itself.

        The distance is a sum over parameters: for numbers the difference in rank relative to the
        largest there is, for text and booleans 0 or 1. Of equally near rows the lowest is taken.
        A number that is not among a parameter's values stands for the nearest one; other unknown
        values, and missing parameters, do not count.

        Args:
            configuration: where to look.
            excluded: rows that are not wanted.

        Returns:
            The row, or None when every row is excluded.

        Raises:
            SpaceError: it is no mapping.
        """
        _check_mapping("a configuration", configuration)
        return nearest_row(self.parameters, self._rows, configuration, excluded)

    @cached_property
    def _system(self) -> RestrictionSystem:
        return RestrictionSystem(self.parameters, self._inlined, self._constants)

    @cached_property
    def _rows(self) -> GroupProduct:
        return GroupProduct(self._system.groups() if self._listed is None else [self._listed])

    def _find(self, configuration: Mapping[str, Value]) -> int | None:
        codes: list[int] = []
        for parameter in self.parameters:
            position = parameter.position(configuration[parameter.name])
            if position is None:
                return None
            codes.append(position)
        return self._rows.find(codes)

    def _configuration(self, codes: Iterable[int]) -> Configuration:
        return Configuration(
            {p.name: p.values[code] for p, code in zip(self.parameters, codes, strict=True)}
        )

    def _values_of(self, expression: Expression, scope: Mapping[str, Value]) -> dict[str, Value]:
        """The names that an expression uses, definitions included, where they have a value."""
        values: dict[str, Value] = {}
        for name in expression.ordered_names:
            if name not in self._definitions:
                values[name] = scope[name]
                continue
            try:
                values[name] = self._definitions[name].evaluate(scope)
            except UndefinedError:
                continue
        return values

    def _check_parameters(self, configuration: Mapping[str, Value]) -> None:
        _check_mapping("a configuration", configuration)
        missing = [name for name in self._by_name if name not in configuration]
        unknown = [name for name in configuration if name not in self._by_name]
        if missing or unknown:
            problem = f"lacks {missing}" if missing else f"has unknown {unknown}"
            raise SpaceError(
                f"a configuration {problem}; the parameters are {', '.join(self._by_name)}"
            )

    def _inline_definitions(self, definitions: Mapping[str, Expression]) -> dict[str, Expression]:
        inlined: dict[str, Expression] = {}
        for name, definition in definitions.items():
            if name in self._by_name or name in self._constants:
                raise SpaceError(f"definition {name}: a parameter or constant has that name")
            known = {**self._by_name, **self._constants, **inlined}
            _check_names(f"definition {name} =", definition, known)
            inlined[name] = definition.substitute(inlined)
        return inlined


def _constants(
    constants: Mapping[str, Value], parameters: Mapping[str, TunableParameter]
) -> dict[str, Value]:
    plain: dict[str, Value] = {}
    for name, value in mapping("constants", constants, '{"warp": 32}', SpaceError).items():
        if name in parameters:
            raise SpaceError(f"constant {name}: a parameter has that name")
        try:
            plain[name] = plain_value(value)
        except TypeError as error:
            raise SpaceError(f"constant {name}: {error}") from None
        check_range(f"constant {name}", plain[name])
    return plain


def _restrictions(restrictions: Sequence[str | Restriction]) -> list[Restriction]:
    if isinstance(restrictions, str) or not isinstance(restrictions, Sequence):
        kind = "the text " if isinstance(restrictions, str) else ""
        raise SpaceError(f"restrictions must be a list, got {kind}{shown(restrictions)}")
    return [
        each if isinstance(each, Restriction) else Restriction(Expression.parse(each))
        for each in restrictions
    ]


def _check_mapping(name: str, value: object) -> None:
    must(name, "a mapping", value, isinstance(value, Mapping), SpaceError)


def _check_names(what: str, expression: Expression, known: Collection[str]) -> None:
    for name in expression.ordered_names:
        if name not in known:
            alike = [each for each in known if normalize("NFKC", each) == normalize("NFKC", name)]
            apart = f" ({name!a} is not {alike[0]!a})" if alike else ""
            raise SpaceError(
                f"{what} {expression.text!r}: unknown name {name!r}; "
                f"known names: {', '.join(known)}{apart}"
            )
