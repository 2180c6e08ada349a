"""The valid row nearest to a configuration.

The distance of two configurations is the sum over parameters of the difference in rank, relative
to the largest there is, for numbers, and 0 or 1 for text and booleans. So it is a sum over the
edges of a row's path through the groups' diagrams. The least distance from every node to the end
is known after one pass over the edges, and with it as a guide a best-first search (A*; Hart,
Nilsson and Raphael, 1968) visits rows in order of distance, without listing them.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

import numpy as np

from autotune.space.expression import plain_value

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from autotune.core.configuration import Value
    from autotune.space.diagram import Diagram, GroupProduct, Layer
    from autotune.space.parameter import TunableParameter

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
    stages: list[_Stage] = []
    to_go = 0
    for group, weight in zip(reversed(product.groups), reversed(product.weights), strict=True):
        if group.size > 1:
            costs = [tables[position] for position in group.positions]
            stages += _stages(group.diagram, costs, weight, to_go)
            to_go = stages[-1].to_go(0)
    return _best_first(stages[::-1], to_go, excluded)


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


class _Stage:
    """One layer of a diagram, with the distance that each of its edges adds.

    Args:
        layer: the edges.
        costs: the distance of each.
        following: the least distance from each child on to the end of the space's last group.
        weight: rows of the space that one row of the diagram stands for.
    """

    def __init__(
        self, layer: Layer, costs: NDArray[np.int64], following: NDArray[np.int64], weight: int
    ) -> None:
        self._layer = layer
        self._costs = costs
        self._least = costs + following[layer.children]
        self._weight = weight
        self.least = np.minimum.reduceat(self._least, layer.starts[:-1])

    def to_go(self, node: int) -> int:
        """The least distance from a node on."""
        return int(self.least[node])

    def choices(self, node: int) -> Iterator[tuple[int, int, int, int]]:
        """Every edge of a node: least distance on the way, distance, rows before it, child."""
        first, end = self._layer.starts[node : node + 2].tolist()
        before = self._layer.before[first:end].tolist()
        return zip(
            self._least[first:end].tolist(),
            self._costs[first:end].tolist(),
            [(rows - before[0]) * self._weight for rows in before],
            self._layer.children[first:end].tolist(),
            strict=True,
        )


def _stages(
    diagram: Diagram, tables: Sequence[NDArray[np.int64] | None], weight: int, to_go: int
) -> list[_Stage]:
    """The stages of one group, the last one first.

    Args:
        diagram: the group's rows.
        tables: the distance of every value of its parameters.
        weight: rows of the space that one of its rows stands for.
        to_go: the least distance that the groups after it add.
    """
    stages = []
    following = np.array([to_go], dtype=np.int64)
    for layer, table in zip(reversed(diagram.layers), reversed(tables), strict=True):
        costs = np.zeros(len(layer.codes), dtype=np.int64) if table is None else table[layer.codes]
        stages.append(_Stage(layer, costs, following, weight))
        following = stages[-1].least
    return stages


def _best_first(stages: Sequence[_Stage], least: int, excluded: Container[int]) -> int | None:
    """Visit rows in ascending order of (distance, row) until one is not excluded.

    What waits is the beginning of a row, with the least distance of the rows that begin so and
    the first of them. Neither decreases as it goes on, so a row that comes up is the next one.
    """
    heap: list[tuple[int, int, int, int, int]] = [(least, 0, 0, 0, 0)]
    while heap:
        _, row, depth, node, distance = heapq.heappop(heap)
        if depth == len(stages):
            if row not in excluded:
                return row
            continue
        for least, cost, rows, child in stages[depth].choices(node):
            heapq.heappush(heap, (distance + least, row + rows, depth + 1, child, distance + cost))
    return None
