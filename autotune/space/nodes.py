"""The tree that an expression is parsed into, and its values at a point and in columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from autotune.space.columns import (
    INT32_MAX,
    INT64_MAX,
    Column,
    MisuseError,
    UndefinedError,
    both,
    elementwise,
    narrowed,
)
from autotune.space.operators import CALL, NEGATE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from autotune.core.configuration import Value
    from autotune.space.columns import Mask
    from autotune.space.operators import Operator


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal."""

    value: Value
    operands = ()

    def evaluate(self, names: Mapping[str, Value]) -> Value:
        """The value, whatever the names stand for."""
        return self.value


@dataclass(frozen=True, slots=True)
class Name:
    """A parameter, a constant of the space, or a definition that is still to be inlined."""

    name: str
    operands = ()

    def evaluate(self, names: Mapping[str, Value]) -> Value:
        """The value of the name."""
        return names[self.name]


@dataclass(frozen=True, slots=True)
class Apply:
    """An operator applied to its operands, all of which are evaluated."""

    operator: Operator
    operands: tuple[Node, ...]

    def evaluate(self, names: Mapping[str, Value]) -> Value:
        """The operator's value; raises UndefinedError and MisuseError."""
        return self.operator.scalar(*[operand.evaluate(names) for operand in self.operands])


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


@dataclass(frozen=True, slots=True)
class Conditional:
    """``a if c else b``: its operands are c, a and b, the last two of which are alternatives."""

    operands: tuple[Node, Node, Node]

    def evaluate(self, names: Mapping[str, Value]) -> Value:
        """The value of the branch that the condition chooses."""
        condition, then, otherwise = self.operands
        return (then if condition.evaluate(names) else otherwise).evaluate(names)


Node: TypeAlias = Constant | Name | Apply | Junction | Conditional


_OperandT = TypeVar("_OperandT")


def columns(node: Node, names: Mapping[str, Column], active: Mask) -> Column:
    """The values in every row; rows that are not active may hold anything."""
    if isinstance(node, Constant):
        return Column.of(node.value)
    if isinstance(node, Name):
        return names[node.name]
    return combined(node, node.operands, lambda each, rows: columns(each, names, rows), active)


def combined(
    node: Apply | Junction | Conditional,
    operands: Sequence[_OperandT],
    evaluate: Callable[[_OperandT, Mask], Column],
    active: Mask,
) -> Column:
    """The values of a node in every row, by those of its operands.

    Args:
        node: the operator, junction or conditional.
        operands: stand for its operands, in order.
        evaluate: an operand's column, given the rows in which it is reached.
        active: rows that matter.
    """
    if isinstance(node, Apply):
        return _applied(node.operator, operands, evaluate, active)
    if isinstance(node, Junction):
        return _joined(node.conjunction, operands, evaluate, active)
    return _chosen(operands, evaluate, active)


def _applied(
    operator: Operator,
    operands: Sequence[_OperandT],
    evaluate: Callable[[_OperandT, Mask], Column],
    active: Mask,
) -> Column:
    """As at one point, a row goes no further than to its first operand without a value."""
    found: list[Column] = []
    defined: Mask = None
    varies = False
    for operand in operands:
        column = evaluate(operand, both(active, defined))
        found.append(column)
        defined = both(defined, column.defined)
        varies = varies or column.is_array
    if varies:
        result = operator.vector(*found)
        if result is not None:
            return Column(result.values, both(defined, result.defined), result.limit)
    return elementwise(operator.scalar, found, both(active, defined))


def _joined(
    conjunction: bool,
    operands: Sequence[_OperandT],
    evaluate: Callable[[_OperandT, Mask], Column],
    active: Mask,
) -> Column:
    undecided: Mask = None
    undefined: Mask = None
    for operand in operands:
        column = evaluate(operand, both(active, undecided))
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


def _chosen(
    operands: Sequence[_OperandT],
    evaluate: Callable[[_OperandT, Mask], Column],
    active: Mask,
) -> Column:
    condition = evaluate(operands[0], active)
    if not condition.is_array:  # one branch for all rows
        chosen = evaluate(operands[1 if condition.values else 2], both(active, condition.defined))
        return chosen._replace(defined=both(condition.defined, chosen.defined))
    truth = condition.truth()
    decided = both(active, condition.defined)
    then = evaluate(operands[1], both(decided, truth))
    otherwise = evaluate(operands[2], both(decided, ~truth))
    defined = condition.defined
    if then.defined is not None or otherwise.defined is not None:
        present = [True if each.defined is None else each.defined for each in (then, otherwise)]
        defined = both(defined, np.where(truth, *present))
    limit = max(then.limit, otherwise.limit)
    kinds = {then.kind, otherwise.kind}
    dtype: type = object
    if kinds == {"f"}:
        dtype = np.float64
    elif kinds == {"i"} and limit <= INT64_MAX:
        dtype = np.int32 if limit <= INT32_MAX else np.int64
    values = np.where(truth, *(np.asarray(each.values, dtype) for each in (then, otherwise)))
    if dtype is not object:
        return Column(values, defined, limit)
    values, rows = np.broadcast_arrays(values, True if defined is None else defined)
    return narrowed(np.where(rows, values, 0), rows)


def fold(node: Node, known: Mapping[str, Value]) -> Node:
    """The tree with values in place of known names, and of all that follows from them.

    What has no value stays as it is, and so does what might have none.
    """
    if isinstance(node, Name):
        return Constant(known[node.name]) if node.name in known else node
    if isinstance(node, Constant):
        return node
    if isinstance(node, Conditional):
        condition, then, otherwise = node.operands
        condition = fold(condition, known)
        if isinstance(condition, Constant):
            return fold(then if condition.value else otherwise, known)
        return Conditional((condition, fold(then, known), fold(otherwise, known)))
    if isinstance(node, Junction):
        return _folded(node.conjunction, node.operands, known)
    folded = Apply(node.operator, tuple([fold(operand, known) for operand in node.operands]))
    if all(isinstance(operand, Constant) for operand in folded.operands):
        try:
            return Constant(folded.evaluate({}))
        except (UndefinedError, MisuseError):
            return folded
    return folded


def simplify(node: Node) -> Node:
    """A tree for people to read: without factors of 1, terms of 0, and products with 0.

    It may have a value where the tree has none.
    """
    if not isinstance(node, Apply):
        operands = tuple(map(simplify, node.operands))
        return replace(node, operands=operands) if operands else node  # type: ignore[arg-type]
    operands = tuple(map(simplify, node.operands))
    if node.operator.symbol in ("*", "+") and len(operands) == 2:
        for one, other in (operands, operands[::-1]):
            if isinstance(one, Constant) and one.value == (node.operator.symbol == "*"):
                return other
            if isinstance(one, Constant) and node.operator.symbol == "*" and one.value == 0:
                return Constant(0)
    return Apply(node.operator, operands)


def _folded(conjunction: bool, operands: Sequence[Node], known: Mapping[str, Value]) -> Node:
    left: list[Node] = []
    for operand in operands:
        folded = fold(operand, known)
        if not isinstance(folded, Constant):
            left.append(folded)
        elif bool(folded.value) != conjunction:  # it decides, where it is reached
            left.append(Constant(not conjunction))
            break
    if not left or isinstance(left[0], Constant):
        return left[0] if left else Constant(conjunction)
    if len(left) == 1:
        (only,) = left
        truth = isinstance(only, Junction) or (isinstance(only, Apply) and only.operator.decides)
        return only if truth else Junction(conjunction, (Constant(conjunction), only))
    return Junction(conjunction, tuple(left))


def measure(node: Node, limit: int) -> tuple[int, int]:
    """The numbers of nodes and of levels of the tree; counting stops beyond `limit` nodes."""
    size = depth = 0
    pending = [(node, 1)]
    while pending and size <= limit:
        node, level = pending.pop()
        size += 1
        depth = max(depth, level)
        pending += [(operand, level + 1) for operand in node.operands]
    return size, depth


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it, in the order in which it is written."""
    yield node
    for operand in node.operands:
        yield from walk(operand)


def substitute(node: Node, definitions: Mapping[str, Node]) -> Node:
    """The tree with every defined name replaced by what it stands for."""
    if isinstance(node, Name):
        return definitions.get(node.name, node)
    if isinstance(node, Constant):
        return node
    operands = tuple([substitute(operand, definitions) for operand in node.operands])
    return replace(node, operands=operands)  # type: ignore[arg-type]  # as many as there were


def always_evaluated(node: Node) -> Iterator[Apply]:
    """The operators that are applied whatever the values: not those that others guard."""
    if isinstance(node, Junction | Conditional):
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
        case Conditional(operands=(condition, then, otherwise)):
            return f"{_enclosed(then, 0)} if {_enclosed(condition, 0)} else {to_text(otherwise)}"
    symbol = node.operator.symbol
    if node.operator.binding == CALL:
        return f"{symbol}({', '.join(to_text(operand) for operand in node.operands)})"
    if len(node.operands) == 1:
        space = " " if symbol == "not" else ""
        return symbol + space + _enclosed(node.operands[0], _binding(node))
    left, right = node.operands
    first = _enclosed(left, _binding(node) + (symbol == "**"))
    return f"{first} {symbol} {_enclosed(right, _binding(node) + (symbol != '**'))}"


def _binding(node: Node) -> float:
    """The precedence of the top of the tree; leaves and calls bind tightest."""
    if isinstance(node, Conditional):
        return -1
    if isinstance(node, Junction):
        return int(node.conjunction)
    if isinstance(node, Apply):
        return node.operator.binding
    negative = isinstance(node, Constant) and repr(node.value).startswith("-")
    return NEGATE.binding if negative else CALL


def _enclosed(node: Node, binding: float) -> str:
    text = to_text(node)
    # comparisons would chain, so they are always enclosed in one another
    loose = _binding(node) < binding or (_binding(node) == binding == 3)
    return f"({text})" if loose else text
