"""Formulas: an operation of one's own in one line of text, which verification evaluates."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from autotune.core.errors import ExpressionError

Function: TypeAlias = Callable[..., Any]

NAMES = ("A", "B", "C", "alpha", "beta")
"""What a formula may mention: A is M x N, B is N x K, C is M x K; the others are scalars."""

_BINARY: dict[type[ast.operator], Function] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.MatMult: operator.matmul,
}
_FUNCTIONS: Mapping[str, Function] = {"tril": np.tril, "triu": np.triu, "maximum": np.maximum}
_LONGEST = 200
_LARGEST = 1e30  # fits every element type


@dataclass(frozen=True, slots=True)
class Formula:
    """What C becomes, as in ``alpha * tril(A) @ B + beta * C``.

    Numbers, `NAMES`, ``+ - * @``, and the functions ``tril``, ``triu`` (the elements on and below,
    on and above the diagonal) and ``maximum``. Parsed, never executed.

    Attributes:
        text: the formula.

    Raises:
        ExpressionError: the text is something else; the message names the part.
    """

    text: str

    def __post_init__(self) -> None:
        try:
            if len(self.text) > _LONGEST:
                raise ExpressionError(f"a formula has at most {_LONGEST} characters")
            tree = ast.parse(self.text, mode="eval").body
        except (SyntaxError, ValueError) as error:
            raise ExpressionError(f"{self.text!r} is not a formula: {error}") from error
        try:
            with np.errstate(all="ignore"):
                result = _evaluate(tree, _EXAMPLE, _BINARY, _FUNCTIONS)
        except ExpressionError:
            raise
        except (TypeError, ValueError) as error:
            raise ExpressionError(f"{self.text!r} does not fit together: {error}") from error
        if np.shape(result) != np.shape(_EXAMPLE["C"]):
            raise ExpressionError(f"{self.text!r} must give a matrix M x K, as C is")

    def evaluate(self, a: Any, b: Any, c: Any, alpha: float, beta: float) -> Any:
        """What C becomes, in the precision of the operands.

        Args:
            a: A, M x N.
            b: B, N x K.
            c: C as it was, M x K; None, where it must not be read, counts as zero.
            alpha: the scalar alpha.
            beta: the scalar beta.
        """
        return _evaluate(self._tree(), _values(a, b, c, alpha, beta), _BINARY, _FUNCTIONS)

    def magnitude(self, a: Any, b: Any, c: Any, alpha: float, beta: float) -> Any:
        """The same with every term's absolute value: what rounding errors are relative to."""
        values = {name: np.abs(each) for name, each in _values(a, b, c, alpha, beta).items()}
        return _evaluate(self._tree(), values, _ADDING, _FUNCTIONS, np.abs)

    def _tree(self) -> ast.expr:
        return ast.parse(self.text, mode="eval").body


# A text is tried on matrices of which no two sizes are equal.
_EXAMPLE: Mapping[str, Any] = {
    "A": np.zeros((2, 3)),
    "B": np.zeros((3, 4)),
    "C": np.zeros((2, 4)),
    "alpha": 0.0,
    "beta": 0.0,
}
# To add magnitudes up, nothing is subtracted.
_ADDING: Mapping[type[ast.operator], Function] = {**_BINARY, ast.Sub: operator.add}


def _values(a: Any, b: Any, c: Any, alpha: float, beta: float) -> dict[str, Any]:
    if c is None:
        c = np.zeros((a.shape[0], b.shape[1]), a.dtype)
    return dict(zip(NAMES, (a, b, c, alpha, beta), strict=True))


def _evaluate(
    node: ast.expr,
    names: Mapping[str, Any],
    binary: Mapping[type[ast.operator], Function],
    functions: Mapping[str, Function],
    negate: Function = operator.neg,
) -> Any:
    def value(part: ast.expr) -> Any:
        return _evaluate(part, names, binary, functions, negate)

    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float() as number):
            if abs(number) < _LARGEST:
                return float(number)
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return negate(value(operand))
        case ast.BinOp(left=left, op=symbol, right=right) if type(symbol) in binary:
            return binary[type(symbol)](value(left), value(right))
        case ast.Call(func=ast.Name(id=name), args=operands, keywords=[]) if name in functions:
            if len(operands) == (2 if name == "maximum" else 1):
                return functions[name](*[value(operand) for operand in operands])
    raise ExpressionError(
        f"a formula is made of numbers, {', '.join(NAMES)}, + - * @ and "
        f"{', '.join(_FUNCTIONS)}, got {ast.unparse(node)!r}"
    )
