"""Configurations that were listed, kept as numbers column by column, not as objects."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from autotune.core.errors import SpaceError
from autotune.core.printable import shown
from autotune.space.expression import plain_value
from autotune.space.parameter import TunableParameter

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from autotune.core.configuration import Value


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
