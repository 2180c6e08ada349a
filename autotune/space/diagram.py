"""Decision diagrams and products of them: many rows, counted and numbered without listing them.

A multi-valued diagram has a layer per parameter. Every row is a path from the root to the end
that takes one edge in each layer; beginnings of rows that allow the same endings lead to the same
node. Edges leave a node in ascending order of their codes, so the rows are numbered so, too.
(Srinivasan, Kam, Malik and Brayton, "Algorithms for discrete function manipulation", 1990.)
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

import numpy as np

from autotune.core.errors import SpaceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray


_EXACT_IN_FLOATS = 2**53
_EXACT_IN_WORDS = 2**62


@dataclass(frozen=True, slots=True)
class Edges:
    """The edges of one layer before they are counted, those of a node side by side.

    Attributes:
        parents: the node that each leaves, ascending.
        codes: which value of the parameter it stands for, ascending for each node.
        children: the node of the next layer that it leads to.
        nodes: number of nodes that edges can leave.
    """

    parents: NDArray[np.intp]
    codes: NDArray[np.intp]
    children: NDArray[np.intp]
    nodes: int


@dataclass(frozen=True, slots=True)
class Layer:
    """One parameter's edges: every node has one, and each is on the path of a row.

    Attributes:
        starts: the first edge of every node, and the number of edges.
        codes: which value of the parameter each edge stands for.
        children: the node of the next layer that it leads to.
        before: rows below the edges before it, and below all edges: node by node, edge by edge.
    """

    starts: NDArray[np.intp]
    codes: NDArray[np.intp]
    children: NDArray[np.intp]
    before: NDArray[Any]


class Diagram:
    """Some rows of codes.

    Args:
        size: number of rows.
        edges: gives those of every layer when they are first needed; the first layer has one
            node, the last one leads to node 0. A diagram pickles as far as this does.

    Attributes:
        size: number of rows.
    """

    def __init__(self, size: int, edges: Callable[[], Sequence[Edges]]) -> None:
        self.size = size
        self._edges = edges

    @classmethod
    def of_edges(cls, edges: Sequence[Edges]) -> Diagram:
        """The diagram with these edges."""
        below: NDArray[Any] = np.ones(1)
        for each in reversed(edges):
            below = np.bincount(each.parents, below[each.children], each.nodes)
        diagram = cls(0, partial(tuple, edges))
        exact = below[0] <= _EXACT_IN_FLOATS
        diagram.size = int(below[0] if exact else diagram.layers[0].before[-1])
        return diagram

    @classmethod
    def of_mask(cls, mask: NDArray[np.bool_]) -> Diagram:
        """The diagram of the places where a mask with an axis per column is true."""
        return cls(int(np.count_nonzero(mask)), partial(_trie_of_mask, mask))

    @classmethod
    def of_rows(cls, rows: NDArray[np.intp]) -> Diagram:
        """The diagram of these rows, shape (rows, columns), which must differ, in any order."""
        return cls(len(rows), partial(_trie_of_rows, rows))

    @staticmethod
    @lru_cache(maxsize=256)
    def of_all(count: int) -> Diagram:
        """One column in which every code below `count` is a row."""
        return Diagram.of_mask(np.ones(count, dtype=bool))

    @classmethod
    def of_nothing(cls, columns: int) -> Diagram:
        """No row."""
        return cls.of_rows(np.empty((0, columns), dtype=np.intp))

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The counted edges of every layer, without those that are on no row's path."""
        layers: list[Layer] = []
        below: NDArray[Any] = np.ones(1, dtype=np.int64)
        numbers: NDArray[np.intp] | None = None
        for edges in reversed(self._edges()):
            layer, below, numbers = _count(edges, below, numbers)
            layers.append(layer)
        return tuple(reversed(layers))

    def row_codes(self, row: int) -> list[int]:
        """The codes of one row."""
        codes = []
        node = 0
        for layer in self.layers:
            first, end = layer.starts[node : node + 2].tolist()
            place = row + int(layer.before[first])
            edge = bisect_right(layer.before, place, first, end) - 1
            row = place - int(layer.before[edge])
            codes.append(int(layer.codes[edge]))
            node = int(layer.children[edge])
        return codes

    def codes(self, rows: NDArray[np.int64]) -> Iterator[NDArray[np.intp]]:
        """The codes of many rows, column by column."""
        nodes = np.zeros(len(rows), dtype=np.intp)
        for layer in self.layers:
            places = rows + layer.before[layer.starts[nodes]]
            edges = np.searchsorted(layer.before, places, "right") - 1
            yield layer.codes[edges]
            rows = places - layer.before[edges]
            nodes = layer.children[edges]

    def find(self, codes: Sequence[int]) -> int | None:
        """The row with these codes, or None."""
        if not self.size:
            return None
        row = node = 0
        for layer, code in zip(self.layers, codes, strict=True):
            first, end = layer.starts[node : node + 2].tolist()
            edge = bisect_left(layer.codes, code, first, end)  # a node has few edges
            if edge == end or layer.codes[edge] != code:
                return None
            row += int(layer.before[edge]) - int(layer.before[first])
            node = int(layer.children[edge])
        return row

    def columns(self, values: Sequence[NDArray[Any]], repeats: int) -> Iterator[NDArray[Any]]:
        """Every row's values, column by column, each row `repeats` times in a row.

        Args:
            values: what the codes of every column stand for.
            repeats: copies of each row.
        """
        nodes = np.zeros(min(self.size, 1), dtype=np.intp)
        for layer, each in zip(self.layers, values, strict=True):
            # Every beginning of a row goes on with each of its node's edges.
            firsts = layer.starts[nodes]
            degrees = layer.starts[nodes + 1] - firsts
            total = int(degrees.sum())
            edges = np.arange(total) + np.repeat(firsts - (np.cumsum(degrees) - degrees), degrees)
            nodes = layer.children[edges]
            below = np.diff(layer.before)[edges]
            yield np.repeat(each[layer.codes[edges]], below * repeats)


def _count(
    edges: Edges, below: NDArray[Any], renumbered: NDArray[np.intp] | None
) -> tuple[Layer, NDArray[Any], NDArray[np.intp] | None]:
    """A layer, the rows below each of its nodes, and the new numbers of nodes if some have none.

    Args:
        edges: the layer's edges.
        below: rows below the nodes of the next layer that have any.
        renumbered: the numbers of the next layer's nodes in `below`, -1 for one without rows.
    """
    parents, codes, children = edges.parents, edges.codes, edges.children
    if renumbered is not None:
        children = renumbered[children]
        alive = children >= 0
        parents, codes, children = parents[alive], codes[alive], children[alive]
    degrees = np.bincount(parents, minlength=edges.nodes)
    living = np.flatnonzero(degrees)
    renumbered = None
    if len(living) < edges.nodes:
        renumbered = np.full(edges.nodes, -1, dtype=np.intp)
        renumbered[living] = np.arange(len(living))
        degrees = degrees[living]
    starts = np.zeros(len(degrees) + 1, dtype=np.intp)
    np.cumsum(degrees, out=starts[1:])
    rows = below[children]
    if len(rows) and int(rows.max()) * len(rows) >= _EXACT_IN_WORDS:
        rows = rows.astype(object)
    before = np.zeros(len(rows) + 1, dtype=rows.dtype)
    np.cumsum(rows, out=before[1:])
    return Layer(starts, codes, children, before), np.diff(before[starts]), renumbered


def _trie_of_mask(mask: NDArray[np.bool_]) -> list[Edges]:
    return _trie(np.argwhere(mask))


def _trie_of_rows(rows: NDArray[np.intp]) -> list[Edges]:
    return _trie(rows[np.lexsort(rows.T[::-1])])


def _trie(rows: NDArray[np.intp]) -> list[Edges]:
    """The edges of ascending rows, shape (rows, columns), that share only their beginnings."""
    first = np.zeros(len(rows), dtype=bool)
    first[:1] = True
    parents = np.zeros(len(rows), dtype=np.intp)
    layers = []
    for column in rows.T:
        nodes = int(parents[-1]) + 1 if len(rows) else 1
        first[1:] |= column[1:] != column[:-1]
        children = np.cumsum(first) - 1
        layers.append(Edges(parents[first], column[first], children[first], nodes))
        parents = children
    last = layers[-1]
    layers[-1] = Edges(last.parents, last.codes, np.zeros_like(last.children), last.nodes)
    return layers


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters that restrictions connect, with the rows that are valid for them together.

    Attributes:
        positions: where its parameters stand in the space, ascending.
        diagram: the rows of codes of these parameters.
    """

    positions: tuple[int, ...]
    diagram: Diagram

    @property
    def size(self) -> int:
        """Number of rows."""
        return self.diagram.size


class GroupProduct:
    """Every combination of the groups' rows; the first group is the most significant.

    Attributes:
        groups: over all parameters of a space, each in one of them.
        size: number of rows.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups = tuple(groups)
        self.size = math.prod(group.size for group in groups)
        self._parameters = sum(len(group.positions) for group in groups)

    @cached_property
    def weights(self) -> tuple[int, ...]:
        """Rows of the product that one row of each group stands for."""
        sizes = [group.size for group in self.groups]
        return tuple(math.prod(sizes[number + 1 :]) for number in range(len(sizes)))

    def row_codes(self, row: int) -> list[int]:
        """Positions of one row's values among their parameters'."""
        codes = [0] * self._parameters
        for group in reversed(self.groups):
            row, local = divmod(row, group.size)
            for position, code in zip(
                group.positions, group.diagram.row_codes(local), strict=True
            ):
                codes[position] = code
        return codes

    def codes(self, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """The same for many rows, shape (rows, parameters)."""
        codes = np.empty((len(rows), self._parameters), dtype=np.int32, order="F")
        for group in reversed(self.groups):
            if group.size:
                rows, local = np.divmod(rows, group.size)
                columns = group.diagram.codes(local)
                for position, column in zip(group.positions, columns, strict=True):
                    codes[:, position] = column
        return codes

    def columns(self, values: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """The values of every parameter in every row.

        Args:
            values: what the codes of every parameter stand for.
        """
        columns = _empty_columns([each.dtype for each in values], self.size)
        for group, weight in zip(self.groups, self.weights, strict=True):
            own = [values[position] for position in group.positions]
            for position, column in zip(
                group.positions, group.diagram.columns(own, weight), strict=True
            ):
                if len(column):
                    columns[position].reshape(-1, len(column))[:] = column
        return columns

    def find(self, codes: Sequence[int]) -> int | None:
        """The row with these codes, or None."""
        row = 0
        for group in self.groups:
            local = group.diagram.find([codes[position] for position in group.positions])
            if local is None:
                return None
            row = row * group.size + local
        return row


def _empty_columns(dtypes: Sequence[np.dtype[Any]], rows: int) -> list[NDArray[Any]]:
    """A column of every type.

    Those of one type lie in one block, which the system provides far faster than many small ones.
    """
    numbers = Counter(dtypes)
    blocks = {dtype: iter(np.empty((count, rows), dtype)) for dtype, count in numbers.items()}
    return [next(blocks[dtype]) for dtype in dtypes]


_PointT = TypeVar("_PointT")

LARGEST_LISTING = 2**28
"""Rows that may be listed."""


def row_number(row: SupportsIndex, size: int, what: str = "space") -> int:
    """The number of a row from 0 on; negative ones count from the end.

    Raises:
        IndexError: there is no such row.
        TypeError: it is no whole number.
    """
    number = index(row)
    if not -size <= number < size:
        raise IndexError(f"row {number} is outside a {what} of {size} rows")
    return number % size


def row_slice(rows: slice, size: int, point: Callable[[int], _PointT]) -> list[_PointT]:
    """The points of a slice.

    Raises:
        SpaceError: they are too many to list.
    """
    numbers = range(*rows.indices(size))
    if numbers and abs(numbers[-1] - numbers[0]) // abs(numbers.step) >= LARGEST_LISTING:
        raise SpaceError(
            f"a slice lists at most {LARGEST_LISTING} rows: "
            "sample the space, or index it row by row, instead"
        )
    return [point(number) for number in numbers]
