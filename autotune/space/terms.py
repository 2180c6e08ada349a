"""Subexpressions of all restrictions, each once, and what each of them depends on.

Their columns are kept as tables of distinct values, so that work is done once for each value, not
for each row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from autotune.core.errors import ExpressionError
from autotune.space.columns import Column, MisuseError
from autotune.space.nodes import (
    Apply,
    Conditional,
    Constant,
    Junction,
    Name,
    Node,
    columns,
    combined,
    walk,
)
from autotune.space.operators import NOT, TAKES_TEXT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from autotune.core.configuration import Value
    from autotune.space.expression import Expression


class Term:
    """A subexpression; equal ones are one object.

    Attributes:
        node: its tree.
        operands: what it is computed from; the names of a `guarded` one.
        scope: the parameters it depends on: bit i stands for the parameter at position i.
        text: the restriction in which it was met first.
        guarded: whether an operand may only be evaluated where those before it let it be reached.
        risky: whether an operator in it might be given text where a number is needed, for some
            values of its names.
        textual: whether it may stand for text.
        only_truth: whether its users ask for no more than its truth value.
    """

    __slots__ = (
        "constant",
        "guarded",
        "node",
        "only_truth",
        "operands",
        "risky",
        "scope",
        "text",
        "textual",
    )

    def __init__(self, node: Node, operands: tuple[Term, ...], scope: int, text: str) -> None:
        self.node = node
        self.operands = operands
        self.scope = scope
        self.text = text
        self.guarded = False
        self.risky = False
        self.textual = False
        self.only_truth = True
        self.constant: Column | None = None

    @property
    def level(self) -> int:
        """Position of the last parameter it depends on; -1 for a constant."""
        return self.scope.bit_length() - 1

    def inputs(self) -> Iterator[Term]:
        """The inputs at its level: maximal terms of lower levels, not constants."""
        last = 1 << self.scope.bit_length() >> 1
        for operand in self.operands:
            if operand.scope >= last:
                yield from operand.inputs()
            elif operand.scope:
                yield operand

    def column(self, known: dict[Term, Column]) -> Column:
        """Its values, given those of its inputs and of its last parameter.

        Args:
            known: columns that broadcast against each other; what is computed is added.

        Raises:
            ExpressionError: an operator is given what it does not take.
        """
        try:
            return self._column(known)
        except MisuseError as error:
            raise ExpressionError(f"expression {self.text!r}: {error}") from None

    def holds(self, known: dict[Term, Column]) -> NDArray[np.bool_]:
        """Where it is defined and true, given what `column` takes."""
        column = self.column(known)
        truth = column.truth()
        return truth if column.defined is None else truth & column.defined

    def _column(self, known: dict[Term, Column]) -> Column:
        column = known.get(self) if self.constant is None else self.constant
        if column is None:
            column = self._compute(known)
            if self.scope:
                known[self] = column
            else:
                self.constant = column
        return column

    def _compute(self, known: dict[Term, Column]) -> Column:
        node = self.node
        if self.guarded:
            names = {
                name.node.name: name._column(known)
                for name in self.operands
                if isinstance(name.node, Name)
            }
            return columns(node, names, None)
        assert not isinstance(node, Name | Constant)
        return combined(node, self.operands, lambda term, _: term._column(known), None)


class TermTable:
    """The terms of some restrictions.

    Args:
        positions: where the parameters stand that are not fixed, by name.
        fixed: the values of all other names.
        textual: parameters that may stand for text.
    """

    def __init__(
        self,
        positions: Mapping[str, int],
        fixed: Mapping[str, Value],
        textual: frozenset[str],
    ) -> None:
        self._positions = positions
        self._fixed = fixed
        self._textual = textual
        self._names: dict[str, Term] = {}
        self._constants: dict[tuple[type, Value], Term] = {}
        self._computed: dict[tuple[object, ...], Term] = {}
        self._met: dict[int, Term] = {}
        self._guarded: list[Node] = []  # what `_met` tells by its id must stay alive

    def conjuncts(self, restriction: Expression, guards: Sequence[Expression] = ()) -> list[Term]:
        """Terms that all hold exactly where the restriction does, and the guards.

        A part that is risky may rely on the parts before it as guards; it is never evaluated
        without them.

        Args:
            restriction: what must hold.
            guards: other restrictions; a risky one is not evaluated where one of them fails.
        """
        text = restriction.text
        whole = self._term(restriction.root, text)
        parts = [self._term(node, text) for node in _conjunct_nodes(restriction.root)]
        if guards and whole.risky:
            guarded = Junction(True, (*(guard.root for guard in guards), restriction.root))
            self._guarded.append(guarded)
            whole = self._term(guarded, text)
        elif not any(part.risky for part in parts[1:]):
            return parts
        return [part for part in parts if not part.risky] + [whole]

    def parameter(self, name: str) -> Term | None:
        """A parameter's term; None when no restriction mentions it."""
        return self._names.get(name)

    def _term(self, node: Node, text: str) -> Term:
        if isinstance(node, Name):
            return self._names.get(node.name) or self._name(node, text)
        if isinstance(node, Constant):
            key = type(node.value), node.value
            return self._constants.get(key) or self._constant(node, text)
        # Definitions that were inlined in many places are one object.
        term = self._met.get(id(node))
        if term is None:
            operands = tuple([self._term(operand, text) for operand in node.operands])
            kind = node.operator if isinstance(node, Apply) else getattr(node, "conjunction", None)
            same = (kind, *operands)
            term = self._computed.get(same)
            if term is None:
                term = self._computed[same] = self._compute(node, operands, text)
            self._met[id(node)] = term
        return term

    def _name(self, node: Name, text: str) -> Term:
        term = self._names[node.name] = Term(node, (), 0, text)
        if node.name in self._positions:
            term.scope = 1 << self._positions[node.name]
            term.textual = node.name in self._textual
        else:
            value = self._fixed[node.name]
            term.textual = isinstance(value, str)
            term.constant = Column.of(value)
        return term

    def _constant(self, node: Constant, text: str) -> Term:
        term = self._constants[type(node.value), node.value] = Term(node, (), 0, text)
        term.textual = isinstance(node.value, str)
        term.constant = Column.of(node.value)
        return term

    def _compute(
        self, node: Apply | Junction | Conditional, operands: tuple[Term, ...], text: str
    ) -> Term:
        scope = 0
        risky = textual = False
        for operand in operands:
            scope |= operand.scope
            risky = risky or operand.risky
            textual = textual or operand.textual
        term = Term(node, operands, scope, text)
        term.risky = risky
        if isinstance(node, Apply):
            operator = node.operator
            term.risky = risky or (textual and operator.symbol not in TAKES_TEXT)
            if operator is not NOT:
                for operand in operands:
                    operand.only_truth = False
        elif isinstance(node, Conditional):
            term.textual = any(operand.textual for operand in operands[1:])
            for operand in operands[1:]:
                operand.only_truth = False
        if any(operand.risky for operand in operands[1:]):
            term.guarded = True
            names = [each for each in walk(node) if isinstance(each, Name)]
            term.operands = tuple({self._term(name, text): None for name in names})
            for operand in term.operands:
                operand.only_truth = False
        return term


def _conjunct_nodes(node: Node) -> Iterator[Node]:
    """The operands of the ``and`` at the top, however nested; else the node itself."""
    if isinstance(node, Junction) and node.conjunction:
        for operand in node.operands:
            yield from _conjunct_nodes(operand)
    else:
        yield node


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
