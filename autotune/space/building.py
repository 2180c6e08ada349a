"""Builds the diagram of the rows that meet some restrictions, parameter by parameter.

What a beginning of a row allows afterwards depends only on the values that the restrictions still
to come compute from it: if all that is left to check is ``u * v <= 64`` where ``u`` is ``x * y``,
then beginnings with the same product are one node. So a node is a combination of such values. Each
of them is kept as a table of distinct values and, for every node, a position in the table:
restrictions are evaluated on the combinations of distinct values, which are few, not on nodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from autotune.space.diagram import Diagram, Edges
from autotune.space.operators import Column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from autotune.space.system import Term

_LARGEST_RADIX = 2**62
_SCATTERED = 8
"""Up to so many possible keys for each that occurs, a table of them beats sorting."""
_SMALL_TABLE = 1024
"""A table of so many keys costs no more than calling NumPy."""
_FEW = 64
"""So many values are told apart faster by Python."""


class Encoded(NamedTuple):
    """A column that is ``table[ids]``.

    Attributes:
        table: values that differ from each other; not all need occur.
        ids: the position of every row's value among them.
        size: how many there are in the table.
    """

    table: Column
    ids: NDArray[np.intp]
    size: int

    def rows(self, ids: NDArray[np.intp]) -> Column:
        """The column that has the values at these positions."""
        return self.table.each(lambda values: values[ids])

    def at(self, nodes: NDArray[np.intp]) -> Encoded:
        """The same for some of the nodes; values that none of them has may be left out."""
        ids = self.ids[nodes]
        if self.size <= len(nodes):
            return Encoded(self.table, ids, self.size)
        numbers, places = distinct(ids, self.size)
        return Encoded(self.rows(ids[places]), numbers, len(places))


def spread(values: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """`np.broadcast_to`, which takes its time, where it is needed."""
    if isinstance(values, np.ndarray) and values.shape == shape:
        return values
    return np.broadcast_to(values, shape)


def encode(column: Column, shape: tuple[int, ...]) -> Encoded:
    """A column, flattened; rows without a value are alike."""
    values = spread(column.values, shape).ravel()
    ids, places = _distinct_values(values)
    if column.defined is None:
        return Encoded(Column(values[places], None, column.limit), ids, len(places))
    defined = spread(column.defined, shape).ravel()
    ids, places = distinct(np.where(defined, ids + 1, 0), len(places) + 1)
    return Encoded(Column(values[places], defined[places], column.limit), ids, len(places))


def combine(columns: Iterable[Encoded], rows: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Numbers for distinct combinations of several columns' values, as `distinct` gives them."""
    keys = np.zeros(rows, dtype=np.intp)
    radix = 1
    for each in columns:
        if radix * each.size >= _LARGEST_RADIX:
            keys, used = distinct(keys, radix)
            radix = len(used)
        keys = keys * each.size + each.ids if radix > 1 else each.ids
        radix *= each.size
    return distinct(keys, radix)


def _distinct_values(values: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """As `distinct`, for values of any kind."""
    if values.dtype == bool:
        return distinct(values.astype(np.intp), 2)
    if values.dtype == object or len(values) <= _FEW:
        return _distinct_objects(values)
    if values.dtype.kind == "i":
        low, high = int(values.min()), int(values.max())
        if high - low < _LARGEST_RADIX:
            return distinct(values.astype(np.int64) - low, high - low + 1)
    _, places, ids = np.unique(values, return_index=True, return_inverse=True)
    return ids, places


def _distinct_objects(values: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    keys: list[object] = values.tolist()
    if values.dtype == object:
        # Equal values of different kinds may compute differently: 2**53 + 1 and 2.0**53 + 1.
        keys = [(type(value), value) for value in keys]
    places: dict[object, int] = {}
    numbers: dict[object, int] = {}
    ids = []
    for place, key in enumerate(keys):
        if key not in numbers:
            numbers[key] = len(numbers)
            places[key] = place
        ids.append(numbers[key])
    return np.array(ids, dtype=np.intp), np.array(list(places.values()), dtype=np.intp)


def distinct(keys: NDArray[np.intp], radix: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Numbers for distinct keys: that of every key, and a place where each number's key occurs.

    Args:
        keys: integers from 0 on.
        radix: they are less than this.
    """
    if radix > _SCATTERED * len(keys) + _SMALL_TABLE:
        _, places, numbers = np.unique(keys, return_index=True, return_inverse=True)
        return numbers, places
    place_of = np.full(radix, -1, dtype=np.intp)
    place_of[keys] = np.arange(len(keys))
    used = (place_of >= 0).nonzero()[0]
    places = place_of[used]
    place_of[used] = np.arange(len(used))
    return place_of[keys], places


_BLOCK = 2**18
"""Evaluations at a time: 2 MB for every intermediate array of 8-byte numbers."""
_SMALL = 4096
"""So many evaluations cost hardly more than calling NumPy."""


class TooManyError(Exception):
    """The diagram would take more evaluations than were allowed."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """One parameter, as a layer sees it.

    Attributes:
        position: where the parameter stands in the space.
        term: its name; None when no restriction mentions it.
        column: its values.
    """

    position: int
    term: Term | None
    column: Column


def build(
    dimensions: Sequence[Dimension], conjuncts: Sequence[Term], allowance: int | None = None
) -> Diagram:
    """The diagram of the rows for which all conjuncts hold.

    Args:
        dimensions: the parameters, in order.
        conjuncts: what must hold; each depends on at least one of the parameters, on no others.
        allowance: evaluations that this may take.

    Raises:
        TooManyError: it takes more.
        ExpressionError: an operator is given what it does not take.
    """
    combinations = math.prod(dimension.column.length for dimension in dimensions)
    risky = any(term.risky for term in conjuncts)
    with np.errstate(all="ignore"):
        if combinations <= _SMALL and not risky:
            return Diagram.of_mask(_mask(dimensions, conjuncts))
        builder = _Builder(conjuncts, risky, allowance)
        return Diagram.of_edges([builder.bind(dimension) for dimension in dimensions])


def _mask(dimensions: Sequence[Dimension], conjuncts: Sequence[Term]) -> NDArray[np.bool_]:
    """A mask of the combinations of values for which all conjuncts hold; a parameter an axis."""
    known: dict[Term, Column] = {}
    for axis, dimension in enumerate(dimensions):
        if dimension.term is not None:
            known[dimension.term] = _along(dimension.column, axis, len(dimensions))
    mask: Any = True
    for term in conjuncts:
        mask = mask & term.holds(known)
    return spread(mask, tuple([dimension.column.length for dimension in dimensions]))


class _Builder:
    """Binds one parameter after another; knows the nodes of the layer to come.

    Args:
        conjuncts: what must hold.
        risky: whether one of them is.
        allowance: evaluations that may be made.
    """

    def __init__(self, conjuncts: Sequence[Term], risky: bool, allowance: int | None) -> None:
        self._allowance = allowance
        self._evaluations = 0
        self._risky = risky
        self._nodes = 1
        self._kept: dict[Term, Encoded] = {}
        self._closing: dict[int, list[Term]] = {}
        self._made: dict[int, list[Term]] = {}
        self._inputs: dict[Term, tuple[Term, ...]] = {}
        self._last: dict[Term, int] = {}
        for term in conjuncts:
            self._closing.setdefault(term.level, []).append(term)
            self._need(term)

    def _need(self, term: Term) -> None:
        """Arrange for a term's inputs to be kept until it is computed."""
        level = term.level
        self._inputs[term] = inputs = tuple(dict.fromkeys(term.inputs()))
        for each in inputs:
            if each not in self._last:
                self._made.setdefault(each.level, []).append(each)
                self._need(each)
            self._last[each] = max(self._last.get(each, level), level)

    def bind(self, dimension: Dimension) -> Edges:
        """The edges of the next layer."""
        level = dimension.position
        column, choices = self._choices(dimension)
        parents, picked = self._allowed(level, dimension.term, column)
        codes = picked if choices is None else choices[picked]
        kept = {
            term: Encoded(each.table, each.ids[parents], each.size)
            for term, each in self._kept.items()
            if self._last[term] > level
        }
        made = self._made.get(level, ())
        nodes, count = self._nodes, len(parents)
        told_apart = dimension.term in made and len(kept) == len(self._kept)
        for term in made:
            kept[term] = self._keep(term, dimension.term, column, parents, picked)
        if told_apart:
            self._nodes, self._kept, children = count, kept, np.arange(count)
        elif kept:
            children = self._merge(kept, count)
        else:
            self._nodes, self._kept, children = 1, kept, np.zeros(count, dtype=np.intp)
        return Edges(parents, codes, children, nodes)

    def _choices(self, dimension: Dimension) -> tuple[Column, NDArray[np.intp] | None]:
        """Values that meet the restrictions on this one alone, and their codes (None: all)."""
        column, name = dimension.column, dimension.term
        mask: Any = True
        for term in self._closing.get(dimension.position, ()):
            if not self._inputs[term]:
                assert name is not None
                mask = mask & term.holds({name: column})
        if mask is True:
            return column, None
        choices = spread(mask, (column.length,)).nonzero()[0]
        return column.each(lambda values: values[choices]), choices

    def _allowed(
        self, level: int, name: Term | None, column: Column
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Nodes, and positions of the values that each of them allows."""
        width = column.length
        self._evaluations += self._nodes * width
        if self._allowance is not None and self._evaluations > self._allowance:
            raise TooManyError
        wider = [term for term in self._closing.get(level, ()) if self._inputs[term]]
        if not wider or not width:
            every = np.arange(self._nodes * width)
            return divmod(every, width) if self._nodes > 1 else (every - every, every)
        assert name is not None
        rules = [self._rule(term, name, column) for term in wider]
        found = []
        stride = max(1, _BLOCK // width)
        for start in range(0, self._nodes, stride):
            nodes = slice(start, start + stride)
            mask = rules[0](nodes)
            for rule in rules[1:]:
                mask = mask & rule(nodes)
            parents, picked = mask.nonzero()
            found.append((parents + start if start else parents, picked))
        if len(found) == 1:
            return found[0]
        parts = list(zip(*found, strict=True)) or [(np.empty(0, dtype=np.intp),)] * 2
        return np.concatenate(parts[0]), np.concatenate(parts[1])

    def _rule(
        self, term: Term, name: Term, column: Column
    ) -> Callable[[slice], NDArray[np.bool_]]:
        """A conjunct as a mask (nodes, values), for some of the nodes at a time."""
        inputs = self._inputs[term]
        width = column.length
        cells = math.prod(self._kept[each].size for each in inputs)
        if term.risky or cells > self._nodes or cells * width > _BLOCK:

            def by_node(nodes: slice) -> NDArray[np.bool_]:
                known = {
                    each: self._kept[each].rows(self._kept[each].ids[nodes, None])
                    for each in inputs
                }
                count = len(range(*nodes.indices(self._nodes)))
                return spread(term.holds({**known, name: column}), (count, width))

            return by_node
        known, cell = self._grid(inputs)
        known[name] = column
        shape = (*(self._kept[each].size for each in inputs), width)
        table = spread(term.holds(known), shape).reshape(cells, width)
        return lambda nodes: table[cell[nodes]]

    def _grid(self, inputs: Sequence[Term]) -> tuple[dict[Term, Column], NDArray[np.intp]]:
        """Every combination of the inputs' distinct values, and that of every node.

        The columns have an axis for every input, and a last one for the parameter.
        """
        axes = len(inputs) + 1
        known = {}
        cell: NDArray[np.intp] | None = None
        for axis, term in enumerate(inputs):
            kept = self._kept[term]
            known[term] = _along(kept.table, axis, axes)
            cell = kept.ids if cell is None else cell * kept.size + kept.ids
        assert cell is not None
        return known, cell

    def _keep(
        self,
        term: Term,
        name: Term | None,
        column: Column,
        parents: NDArray[np.intp],
        picked: NDArray[np.intp],
    ) -> Encoded:
        """A term's value on every edge."""
        assert name is not None
        inputs = self._inputs[term]
        width = column.length
        if term is name:
            return Encoded(column, picked, width)
        if not inputs:
            own = _encoded(term, term.column({name: column}), (width,))
            return Encoded(own.table, own.ids[picked], own.size)
        cells = math.prod(self._kept[each].size for each in inputs)
        if term.risky or cells * width > max(_SMALL, len(parents)):
            known = {each: self._kept[each].rows(self._kept[each].ids[parents]) for each in inputs}
            known[name] = column.each(lambda values: values[picked])
            return _encoded(term, term.column(known), (len(parents),))
        known, cell = self._grid(inputs)
        known[name] = column
        shape = (*(self._kept[each].size for each in inputs), width)
        every = _encoded(term, term.column(known), shape)
        return Encoded(every.table, every.ids[cell[parents] * width + picked], every.size)

    def _merge(self, kept: dict[Term, Encoded], edges: int) -> NDArray[np.intp]:
        """Edges to a node for every combination of what is kept."""
        if len(kept) == 1 and not self._risky:
            ((term, only),) = kept.items()
            if only.size <= edges:
                # Some of the nodes may be ones that no edge leads to.
                self._nodes = only.size
                self._kept = {term: Encoded(only.table, np.arange(only.size), only.size)}
                return only.ids
        children, edge = combine(kept.values(), edges)
        self._nodes = len(edge)
        self._kept = {term: each.at(edge) for term, each in kept.items()}
        return children


def _encoded(term: Term, column: Column, shape: tuple[int, ...]) -> Encoded:
    """A term's column; only as much of it as its users ask for."""
    if term.only_truth:
        column = Column(column.truth(), column.defined, 1)
    return encode(column, shape)


def _along(column: Column, axis: int, axes: int) -> Column:
    """A column along one of several axes."""
    shape = [1] * axes
    shape[axis] = column.length
    return column.each(lambda values: values.reshape(shape))
