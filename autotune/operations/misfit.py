"""Why the operands of a formula do not fit together, in words."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.core.errors import ExpressionError
from autotune.operations.formula import FUNCTIONS, Formula

if TYPE_CHECKING:
    from collections.abc import Mapping


def misfit(formula: Formula, values: Mapping[str, Any], sizes: Mapping[int, str]) -> str:
    """The innermost part of a formula whose own parts do not fit, and the shapes of those.

    Args:
        formula: one that cannot be evaluated.
        values: of every name that it mentions, an array or a number.
        sizes: what to call an extent.

    Returns:
        As in ``'A @ C' does not fit: A is M x N, C is M x K``.
    """
    node = _innermost(formula.tree, values)
    parts = dict.fromkeys(ast.unparse(each) for each in _parts(node))
    shapes = (f"{text} is {shape_text(_value(text, values), sizes)}" for text in parts)
    return f"{ast.unparse(node)!r} does not fit: {', '.join(shapes)}"


def shape_text(value: Any, sizes: Mapping[int, str]) -> str:
    """The shape of an array, in the names of the sizes."""
    shape = np.shape(value)
    return " x ".join(sizes.get(each, str(each)) for each in shape) if shape else "a number"


def _innermost(node: ast.expr, values: Mapping[str, Any]) -> ast.expr:
    """A part that cannot be evaluated, though all its parts can."""
    for part in _parts(node):
        try:
            _value(ast.unparse(part), values)
        except ExpressionError:
            return _innermost(part, values)
    return node


def _value(text: str, values: Mapping[str, Any]) -> Any:
    return Formula(text).evaluate(values)


def _parts(node: ast.expr) -> list[ast.expr]:
    """The operands of a part; axes and offsets, which come after a function's, are left out."""
    match node:
        case ast.BinOp(left=left, right=right):
            return [left, right]
        case ast.UnaryOp(operand=operand):
            return [operand]
        case ast.Call(func=ast.Name(id=name), args=given):
            return given[: FUNCTIONS[name].arrays]
    return []
