"""Restrictions as a system: subexpressions, each once, and parts that are independent.

Each part is built or counted on its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, TypeVar

from autotune.core.errors import ExpressionError
from autotune.space.building import Dimension, TooManyError, build
from autotune.space.diagram import Diagram
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
from autotune.space.operators import NOT, TAKES_TEXT, Column, MisuseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from autotune.core.configuration import Value
    from autotune.space.expression import Expression
    from autotune.space.parameter import TunableParameter


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


_ResultT = TypeVar("_ResultT")

_COUNTING_ALLOWANCE = 20_000_000
"""Evaluations that counting one part may take: some seconds, and a gigabyte at worst."""


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


class RestrictionSystem:
    """Restrictions over parameters.

    Args:
        parameters: in declaration order.
        restrictions: over parameters and constants only, definitions inlined.
        constants: values of all other names.
    """

    def __init__(
        self,
        parameters: Sequence[TunableParameter],
        restrictions: Sequence[Expression],
        constants: Mapping[str, Value],
    ) -> None:
        self._parameters = parameters
        # A parameter with one value is a constant, so it does not connect any others.
        fixed = {p.name: p.values[0] for p in parameters if len(p.values) == 1}
        positions = {p.name: at for at, p in enumerate(parameters) if p.name not in fixed}
        textual = frozenset(p.name for p in parameters if p.has_text)
        self._restrictions = restrictions
        self._terms = TermTable(positions, {**constants, **fixed}, textual)
        self._conjuncts = [self._terms.conjuncts(restriction) for restriction in restrictions]

    def groups(self) -> list[Group]:
        """The valid rows of every part, in order of the parts' first parameters.

        Raises:
            ExpressionError: a restriction is given text where it takes numbers, in a row that
                meets all before it.
        """
        return self._with_guards(self._groups)

    def remaining(self) -> list[int | None]:
        """Configurations left by the first, the first two, ... of the restrictions.

        None where counting would take too long; raises what `groups` raises.
        """
        return self._with_guards(self._remaining)

    def _with_guards(self, compute: Callable[[], list[_ResultT]]) -> list[_ResultT]:
        """Compute with restrictions apart, which is fast, unless one needs those before it."""
        try:
            return compute()
        except ExpressionError:
            guarded = [
                self._terms.conjuncts(restriction, self._restrictions[:number])
                for number, restriction in enumerate(self._restrictions)
            ]
            if guarded == self._conjuncts:
                raise
            self._conjuncts = guarded
        return compute()

    def _groups(self) -> list[Group]:
        conjuncts = [term for terms in self._conjuncts for term in terms]
        if not _constants_hold(conjuncts):
            count = len(self._parameters)
            return [Group(tuple(range(count)), Diagram.of_nothing(count))]
        return [Group(part, self._diagram(part, terms)) for part, terms in self._parts(conjuncts)]

    def _remaining(self) -> list[int | None]:
        counts: dict[tuple[int, ...], int | None] = {
            (position,): len(parameter.values)
            for position, parameter in enumerate(self._parameters)
        }
        remaining: list[int | None] = []
        kept: list[Term] = []
        for added in self._conjuncts:
            kept += added
            touched = reduce(or_, (term.scope for term in added), 0)
            counts = {
                part: counts[part]
                if part in counts and not any(touched >> position & 1 for position in part)
                else self._count(part, terms)
                for part, terms in self._parts(kept)
            }
            remaining.append(_product(counts.values()) if _constants_hold(kept) else 0)
        return remaining

    def _parts(self, conjuncts: Sequence[Term]) -> list[tuple[tuple[int, ...], list[Term]]]:
        """Positions of connected parameters, with the conjuncts that are about them."""
        joined: list[int] = []
        for scope in {term.scope for term in conjuncts}:
            touching = [part for part in joined if part & scope]
            joined = [part for part in joined if not part & scope]
            joined.append(reduce(or_, touching, scope))
        parts: dict[int, tuple[list[int], list[Term]]] = {}
        for position in range(len(self._parameters)):
            bit = 1 << position
            part = next((part for part in joined if part & bit), bit)
            parts.setdefault(part, ([], []))[0].append(position)
        for part, (_, terms) in parts.items():
            terms += [term for term in conjuncts if term.scope & part]
        return [(tuple(positions), terms) for positions, terms in parts.values()]

    def _diagram(
        self, part: tuple[int, ...], conjuncts: Sequence[Term], allowance: int | None = None
    ) -> Diagram:
        if not conjuncts:
            (position,) = part
            return Diagram.of_all(len(self._parameters[position].values))
        dimensions = [
            Dimension(
                position,
                self._terms.parameter(self._parameters[position].name),
                self._parameters[position].column(),
            )
            for position in part
        ]
        return build(dimensions, conjuncts, allowance)

    def _count(self, part: tuple[int, ...], conjuncts: Sequence[Term]) -> int | None:
        try:
            return self._diagram(part, conjuncts, _COUNTING_ALLOWANCE).size
        except TooManyError:
            return None


def _constants_hold(conjuncts: Iterable[Term]) -> bool:
    """Return whether the conjuncts that are about no parameter hold."""
    return all(bool(term.holds({})) for term in conjuncts if not term.scope)


def _product(counts: Iterable[int | None]) -> int | None:
    """The product; an unknown factor makes it unknown, unless another one is 0."""
    product = 1
    unknown = False
    for count in counts:
        unknown = unknown or count is None
        product *= 1 if count is None else count
    return None if unknown and product else product
