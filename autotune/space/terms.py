"""Subexpressions of all restrictions, each once, and what each of them depends on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.errors import ExpressionError
from autotune.space.column import Column, MisuseError
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
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
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
