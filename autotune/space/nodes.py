"""The tree that an expression is parsed into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from autotune.space.column import Column, both, elementwise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from autotune.core.configuration import Value
    from autotune.space.column import Mask
    from autotune.space.operators import Operator


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal."""

    value: Value

    def evaluate(self, names: Mapping[str, Value]) -> Value:
        """The value, whatever the names stand for."""
        return self.value

    def columns(self, names: Mapping[str, Column], active: Mask) -> Column:
        """One value for all rows."""
        return Column.of(self.value)


@dataclass(frozen=True, slots=True)
class Name:
    """A parameter, a constant of the space, or a definition that is still to be inlined."""

    name: str

    def evaluate(self, names: Mapping[str, Value]) -> Value:
        """What the name stands for."""
        return names[self.name]

    def columns(self, names: Mapping[str, Column], active: Mask) -> Column:
        """What the name stands for in every row."""
        return names[self.name]


@dataclass(frozen=True, slots=True)
class Apply:
    """An operator applied to its operands, all of which are evaluated."""

    operator: Operator
    operands: tuple[Node, ...]

    def evaluate(self, names: Mapping[str, Value]) -> Value:
        """The operator's value; raises UndefinedError and MisuseError."""
        return self.operator.scalar(*[operand.evaluate(names) for operand in self.operands])

    def columns(self, names: Mapping[str, Column], active: Mask) -> Column:
        """The operator's value in every row; what is not active may hold anything.

        As at one point, a row goes no further than to its first operand without a value.
        """
        operands: list[Column] = []
        for operand in self.operands:
            operands.append(operand.columns(names, active))
            active = both(active, operands[-1].defined)
        return applied(self.operator, operands, active)


@dataclass(frozen=True, slots=True)
class Junction:
    """``and`` (conjunction) or ``or``: a truth value; stops at the operand that decides."""

    conjunction: bool
    operands: tuple[Node, ...]

    def evaluate(self, names: Mapping[str, Value]) -> Value:
        """True or False; raises what the operands up to the deciding one raise."""
        for operand in self.operands:
            if bool(operand.evaluate(names)) != self.conjunction:
                return not self.conjunction
        return self.conjunction

    def columns(self, names: Mapping[str, Column], active: Mask) -> Column:
        """The truth value in every row; rows an operand is not reached in do not matter to it."""
        return joined(
            self.conjunction,
            lambda operand, reached: operand.columns(names, both(active, reached)),
            self.operands,
        )


Node: TypeAlias = Constant | Name | Apply | Junction


_OperandT = TypeVar("_OperandT")


def applied(operator: Operator, operands: Sequence[Column], active: Mask) -> Column:
    """An operator's value in every row; what is not active may hold anything."""
    defined: Mask = None
    varies = False
    for operand in operands:
        defined = both(defined, operand.defined)
        varies = varies or operand.is_array
    if varies:
        result = operator.vector(*operands)
        if result is not None:
            return Column(result.values, both(defined, result.defined), result.limit)
    return elementwise(operator.scalar, operands, both(active, defined))


def joined(
    conjunction: bool,
    evaluate: Callable[[_OperandT, Mask], Column],
    operands: Sequence[_OperandT],
) -> Column:
    """The truth value of ``and`` or ``or`` in every row.

    Args:
        conjunction: whether it is ``and``.
        evaluate: an operand's column, given the rows in which it is reached.
        operands: in order; rows that one is not reached in do not matter to it.
    """
    undecided: Mask = None
    undefined: Mask = None
    for operand in operands:
        column = evaluate(operand, undecided)
        goes_on = column.truth() if conjunction else ~column.truth()
        if column.defined is not None:
            missed = both(undecided, ~column.defined)
            undefined = missed if undefined is None or missed is None else undefined | missed
            goes_on = goes_on & column.defined
        undecided = both(undecided, goes_on)
    assert undecided is not None
    values = undecided if conjunction else ~undecided
    defined = None if undefined is None else ~undefined
    return Column(values if np.ndim(values) else bool(values), defined, 1)


def measure(node: Node, limit: int) -> tuple[int, int]:
    """How many nodes the tree has, and how many levels; counting stops beyond `limit` nodes."""
    size = depth = 0
    pending = [(node, 1)]
    while pending and size <= limit:
        node, level = pending.pop()
        size += 1
        depth = max(depth, level)
        if isinstance(node, Apply | Junction):
            pending += [(operand, level + 1) for operand in node.operands]
    return size, depth


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it, in the order in which it is written."""
    yield node
    if isinstance(node, Apply | Junction):
        for operand in node.operands:
            yield from walk(operand)


def substitute(node: Node, definitions: Mapping[str, Node]) -> Node:
    """The tree with every defined name replaced by what it stands for."""
    if isinstance(node, Name):
        return definitions.get(node.name, node)
    if isinstance(node, Constant):
        return node
    operands = tuple(substitute(operand, definitions) for operand in node.operands)
    if isinstance(node, Apply):
        return Apply(node.operator, operands)
    return Junction(node.conjunction, operands)


def always_evaluated(node: Node) -> Iterator[Apply]:
    """The operators that are applied whatever the values: not those that ``and``/``or`` guard."""
    if isinstance(node, Junction):
        yield from always_evaluated(node.operands[0])
    elif isinstance(node, Apply):
        for operand in node.operands:
            yield from always_evaluated(operand)
        yield node


def to_text(node: Node) -> str:
    """The tree written out, with no more parentheses than it needs."""
    match node:
        case Constant(value=value):
            return repr(value)
        case Name(name=name):
            return name
        case Junction(conjunction=conjunction, operands=operands):
            joint = " and " if conjunction else " or "
            return joint.join(_enclosed(each, _binding(node) + 1) for each in operands)
    symbol = node.operator.symbol
    if symbol not in _BINDING:
        return f"{symbol}({', '.join(to_text(operand) for operand in node.operands)})"
    if len(node.operands) == 1:
        space = " " if symbol == "not" else ""
        return symbol + space + _enclosed(node.operands[0], _binding(node))
    left, right = node.operands
    first = _enclosed(left, _binding(node) + (symbol == "**"))
    return f"{first} {symbol} {_enclosed(right, _binding(node) + (symbol != '**'))}"


_BINDING = (
    {"not": 2, "**": 7}
    | dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), 3)
    | dict.fromkeys("+-", 4)
    | dict.fromkeys(("*", "/", "//", "%"), 5)
)


def _binding(node: Node) -> int:
    """How tightly the top of the tree binds; leaves and calls bind tightest."""
    if isinstance(node, Junction):
        return int(node.conjunction)
    if isinstance(node, Apply) and node.operator.symbol in _BINDING:
        signed = len(node.operands) == 1 and node.operator.symbol != "not"
        return 6 if signed else _BINDING[node.operator.symbol]
    negative = isinstance(node, Constant) and repr(node.value).startswith("-")
    return 6 if negative else 8


def _enclosed(node: Node, binding: int) -> str:
    text = to_text(node)
    # comparisons would chain, so they are always enclosed in one another
    loose = _binding(node) < binding or (_binding(node) == binding == 3)
    return f"({text})" if loose else text
