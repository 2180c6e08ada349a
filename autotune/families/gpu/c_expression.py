"""Expressions over whole numbers as C++ constant expressions.

Values are the same: quotients and remainders round down, through the functions that the emitted
source opens with (``floordiv``, ``modulo``, ``ceildiv``, ``minimum``, ``maximum``, ``ispow2``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from autotune.space import Expression, operators
from autotune.space.nodes import Apply, Conditional, Constant, Junction, Name, Node

_FUNCTIONS: Mapping[operators.Operator, str] = {
    operators.FLOOR_DIVIDE: "floordiv",
    operators.REMAINDER: "modulo",
    operators.CEILING_DIVIDE: "ceildiv",
    operators.MINIMUM: "minimum",
    operators.MAXIMUM: "maximum",
    operators.IS_POWER_OF_TWO: "ispow2",
}
_BINARY: Mapping[operators.Operator, tuple[str, int]] = {
    operators.EQUAL: ("==", 3),
    operators.NOT_EQUAL: ("!=", 3),
    operators.LESS: ("<", 4),
    operators.LESS_EQUAL: ("<=", 4),
    operators.GREATER: (">", 4),
    operators.GREATER_EQUAL: (">=", 4),
    operators.ADD: ("+", 5),
    operators.SUBTRACT: ("-", 5),
    operators.MULTIPLY: ("*", 6),
    operators.DIVIDE_EXACTLY: ("/", 6),
}
_UNARY: Mapping[operators.Operator, str] = {
    operators.NOT: "!",
    operators.NEGATE: "-",
    operators.PLUS: "+",
}
_UNARY_BINDING = 7
_TIGHTEST = 8
_INT_MAX = 2**31 - 1
_LARGEST_UNROLLED_POWER = 4


_CALLS: Mapping[str, tuple[str, ...]] = {
    "floordiv": ("modulo",),
    "ceildiv": ("floordiv", "modulo"),
}
_DEFINED = ("minimum", "maximum", "modulo", "floordiv", "ceildiv", "ispow2")
"""In an order in which one calls those before it alone."""


class _InexpressibleError(Exception):
    """Something that whole-number C++ has no word for."""


def c_text(expression: Expression, identifiers: Mapping[str, str]) -> str | None:
    """An expression as C++ over ``int`` and ``bool`` constants.

    Exact divisions are written ``/``: where they are whole, as somebody else must see to.

    Args:
        expression: what to write.
        identifiers: the C++ constant that each name stands for.

    Returns:
        The text; None when the expression uses other names, text, floats, true division, or
        powers other than small constant ones.
    """
    try:
        return _text(expression.root, identifiers)[0]
    except _InexpressibleError:
        return None


def functions_of(texts: Sequence[str]) -> tuple[str, ...]:
    """The functions that texts of `c_text` call, with those that they call, as to be defined."""
    called = {name for text in texts for name in re.findall(r"(\w+)\(", text)}
    called |= {inner for name in called for inner in _CALLS.get(name, ())}
    return tuple(name for name in _DEFINED if name in called)


def _text(node: Node, identifiers: Mapping[str, str]) -> tuple[str, int]:
    """The text of a tree, and how tightly its top binds in C++."""
    if isinstance(node, Name):
        if node.name not in identifiers:
            raise _InexpressibleError
        return identifiers[node.name], _TIGHTEST
    if isinstance(node, Constant):
        return _literal(node)
    if isinstance(node, Junction):
        binding = 2 if node.conjunction else 1
        joint = " && " if node.conjunction else " || "
        return joint.join(_enclosed(each, binding, identifiers) for each in node.operands), binding
    if isinstance(node, Conditional):
        condition, then = (_enclosed(each, 1, identifiers) for each in node.operands[:2])
        return f"{condition} ? {then} : {_enclosed(node.operands[2], 0, identifiers)}", 0
    return _application(node, identifiers)


def _literal(node: Constant) -> tuple[str, int]:
    if isinstance(node.value, bool):
        return str(node.value).lower(), _TIGHTEST
    if not isinstance(node.value, int) or abs(node.value) > _INT_MAX:
        raise _InexpressibleError
    return str(node.value), _TIGHTEST if node.value >= 0 else _UNARY_BINDING


def _application(node: Apply, identifiers: Mapping[str, str]) -> tuple[str, int]:
    match node:
        case Apply(operators.EQUAL, (Apply(operators.REMAINDER, (left, right)), Constant(0))):
            # Whether there is a remainder does not depend on how it is rounded.
            first = _enclosed(left, 6, identifiers)
            return f"{first} % {_enclosed(right, 7, identifiers)} == 0", 3
    if node.operator in _FUNCTIONS:
        operands = ", ".join(_text(each, identifiers)[0] for each in node.operands)
        return f"{_FUNCTIONS[node.operator]}({operands})", _TIGHTEST
    if node.operator in _UNARY:
        operand = _enclosed(node.operands[0], _TIGHTEST, identifiers)
        return _UNARY[node.operator] + operand, _UNARY_BINDING
    if node.operator is operators.POWER:
        return _power(node, identifiers)
    if node.operator not in _BINARY:
        raise _InexpressibleError
    symbol, binding = _BINARY[node.operator]
    left, right = node.operands
    # Comparisons are enclosed in one another: compilers warn of those that look like chains.
    compares = binding in (3, 4)
    first = _enclosed(left, 5 if compares else binding, identifiers)
    second = _enclosed(right, 5 if compares else binding + 1, identifiers)
    return f"{first} {symbol} {second}", binding


def _power(node: Apply, identifiers: Mapping[str, str]) -> tuple[str, int]:
    base, exponent = node.operands
    if not isinstance(exponent, Constant) or exponent.value not in range(
        1, _LARGEST_UNROLLED_POWER + 1
    ):
        raise _InexpressibleError
    factor = _enclosed(base, 6, identifiers)
    return " * ".join([factor] * int(exponent.value)), 6


def _enclosed(node: Node, binding: int, identifiers: Mapping[str, str]) -> str:
    text, own = _text(node, identifiers)
    return f"({text})" if own < binding else text
