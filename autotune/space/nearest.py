"""The valid row nearest to a configuration.

The distance of two configurations is the sum over parameters of the difference in rank, relative
to the largest there is, for numbers, and 0 or 1 for text and booleans. It is a sum over groups
too, so rows of the whole space are visited in order of distance by a best-first search over the
groups' rows, each in its own order of distance, without listing the product.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

import numpy as np

from autotune.space.expression import plain_value

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from numpy.typing import NDArray

    from autotune.configuration import Value
    from autotune.space.group import Group
    from autotune.space.parameter import TunableParameter
    from autotune.space.product import GroupProduct

_UNIT_LIMIT = 2**52


def nearest_row(
    parameters: Sequence[TunableParameter],
    product: GroupProduct,
    configuration: Mapping[str, Value],
    excluded: Container[int],
) -> int | None:
    """The row with the smallest (distance, row) that is not excluded, or None.

    A parameter that the configuration lacks does not count, nor does text that is not among the
    values; a number that is not stands for the nearest value.
    """
    if product.size == 0:
        return None
    tables = _tables(parameters, configuration)
    choices = [
        (_Ranked(_distances(group, tables)), weight)
        for group, weight in zip(product.groups, product.weights, strict=True)
        if group.size > 1
    ]
    return _best_first(choices, excluded)


def _tables(
    parameters: Sequence[TunableParameter], configuration: Mapping[str, Value]
) -> list[NDArray[np.int64] | None]:
    """The distance of every value of every parameter, in whole units; None where all are 0."""
    spans = [len(parameter.values) - 1 for parameter in parameters if len(parameter.values) > 1]
    # Distances are whole multiples of a common unit, so that equal ones compare as equal.
    unit = min(math.lcm(*spans), _UNIT_LIMIT)
    tables: list[NDArray[np.int64] | None] = []
    for parameter in parameters:
        wanted = configuration.get(parameter.name)
        if wanted is None or len(parameter.values) == 1:
            tables.append(None)
        elif parameter.is_numeric:
            tables.append(_rank_table(parameter, wanted, unit))
        else:
            position = parameter.position(wanted)
            table = np.full(len(parameter.values), unit, dtype=np.int64)
            if position is not None:
                table[position] = 0
            tables.append(None if position is None else table)
    return tables


def _rank_table(parameter: TunableParameter, wanted: Value, unit: int) -> NDArray[np.int64] | None:
    try:
        number = plain_value(wanted)
    except TypeError:
        return None
    if isinstance(number, str) or number != number:
        return None
    order = sorted(range(len(parameter.values)), key=parameter.values.__getitem__)
    ascending = [parameter.values[position] for position in order]
    target = min(range(len(order)), key=lambda rank: _gap(ascending[rank], number))
    table = np.empty(len(order), dtype=np.int64)
    for rank, position in enumerate(order):
        table[position] = abs(rank - target) * unit // (len(order) - 1)
    return table


def _gap(left: Value, right: Value) -> float:
    assert not isinstance(left, str)
    assert not isinstance(right, str)
    return 0.0 if left == right else abs(left - right)


def _distances(group: Group, tables: Sequence[NDArray[np.int64] | None]) -> NDArray[np.int64]:
    """The distance of every row of a group."""
    total = np.zeros(group.size, dtype=np.int64)
    for column, position in enumerate(group.positions):
        table = tables[position]
        if table is not None:
            total += table[group.codes[:, column]]
    return total


class _Ranked:
    """Rows in ascending order of (distance, row), sorted only as far as they are asked for."""

    def __init__(self, distances: NDArray[np.int64]) -> None:
        self._distances = distances
        first = int(np.argmin(distances))
        self._rows: NDArray[np.intp] = np.array([first])

    def __getitem__(self, rank: int) -> tuple[int, int] | None:
        """(distance, row) of the row at `rank`, or None past the last one."""
        if rank >= len(self._distances):
            return None
        if rank >= len(self._rows):
            self._sort(max(64, 8 * rank))
        row = int(self._rows[rank])
        return int(self._distances[row]), row

    def _sort(self, count: int) -> None:
        if count < len(self._distances):
            bound = np.partition(self._distances, count)[count]
            rows = np.flatnonzero(self._distances <= bound)
        else:
            rows = np.arange(len(self._distances))
        self._rows = rows[np.argsort(self._distances[rows], kind="stable")]


def _best_first(choices: Sequence[tuple[_Ranked, int]], excluded: Container[int]) -> int | None:
    """Visit combinations in ascending order of (distance, row) until one is not excluded.

    A combination is a rank in every group. Its successors raise the rank of one group, none to
    the left of the last raised one, so that every combination has one predecessor. Neither
    distance nor, among equals, row decreases on the way.
    """
    distance = row = 0
    for ranked, weight in choices:
        first = ranked[0]
        assert first is not None
        distance += first[0]
        row += first[1] * weight
    heap: list[tuple[int, int, int, tuple[int, ...]]] = [(distance, row, 0, (0,) * len(choices))]
    while heap:
        distance, row, raised, ranks = heapq.heappop(heap)
        if row not in excluded:
            return row
        for group in range(raised, len(choices)):
            ranked, weight = choices[group]
            current, following = ranked[ranks[group]], ranked[ranks[group] + 1]
            if current is None or following is None:
                continue
            successor = (*ranks[:group], ranks[group] + 1, *ranks[group + 1 :])
            step = following[0] - current[0]
            moved = (following[1] - current[1]) * weight
            heapq.heappush(heap, (distance + step, row + moved, group, successor))
    return None
