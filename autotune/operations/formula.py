"""Formulas: what an operation computes, in one line of text that verification evaluates."""

from __future__ import annotations

import ast
import contextlib
import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from autotune.core.errors import ExpressionError

Function: TypeAlias = Callable[..., Any]

_LONGEST = 400
_LARGEST = 1e30  # fits every element type
_FARTHEST = 2**20  # of an axis or a shift
_FEW = 2**12  # elements, of which the error function is computed one by one


class _Known(NamedTuple):
    """A function of formulas.

    Attributes:
        arrays: how many arrays it takes.
        whole: how many whole numbers it takes after them, at least and at most.
        value: what it computes.
        magnitude: the same of the arrays' magnitudes: what rounding errors are relative to. None
            where that depends on the values too (`_BENDS`).
    """

    arrays: int
    whole: tuple[int, int]
    value: Function
    magnitude: Function | None


def _shift(array: Any, *offsets: int) -> Any:
    """The array moved by so many places along its first dimensions; zeros come in."""
    if np.ndim(array) < len(offsets):
        raise ValueError(f"shift by {len(offsets)} offsets takes an array of as many dimensions")
    moved = np.zeros_like(array)
    taken, given = [], []
    for size, offset in zip(np.shape(array), offsets, strict=False):
        kept = max(0, size - abs(offset))
        start = min(max(0, -offset), size)
        taken.append(slice(start, start + kept))
        start = min(max(0, offset), size)
        given.append(slice(start, start + kept))
    moved[tuple(given)] = array[tuple(taken)]
    return moved


def _relu(array: Any) -> Any:
    return np.maximum(array, 0)


def _sigmoid(array: Any) -> Any:
    with np.errstate(over="ignore"):  # then it is 0
        return 1 / (1 + np.exp(-array))


def _silu(array: Any) -> Any:
    return array * _sigmoid(array)


def _phi(array: Any) -> Any:
    """Distribution function of the standard normal distribution."""
    scaled = np.asarray(array, np.float64) * math.sqrt(0.5)
    if scaled.size > _FEW:
        with contextlib.suppress(ImportError):  # where kernels are verified it is there
            from scipy.special import erf  # late: look-ups need none of it

            return 0.5 * (1 + erf(scaled))
    values = np.fromiter(map(math.erf, scaled.flat), np.float64, scaled.size)
    return 0.5 * (1 + values.reshape(scaled.shape))


def _gelu(array: Any) -> Any:
    """The argument times `_phi` of it: Hendrycks and Gimpel, arXiv 1606.08415."""
    return array * _phi(array)


def _gelu_tanh(array: Any) -> Any:
    """The same by their formula with tanh: 0.5 (1 + tanh u) is sigmoid(2 u)."""
    return array * _sigmoid(2 * GELU_SCALE * (array + GELU_CUBE * array**3))


GELU_SCALE, GELU_CUBE = math.sqrt(2 / math.pi), 0.044715
"""u = scale (x + cube x^3)."""


FUNCTIONS: Mapping[str, _Known] = {
    "tril": _Known(1, (0, 0), np.tril, np.tril),
    "triu": _Known(1, (0, 0), np.triu, np.triu),
    # Neither is farther off than the worse of the two.
    "maximum": _Known(2, (0, 0), np.maximum, np.maximum),
    "minimum": _Known(2, (0, 0), np.minimum, np.maximum),
    "relu": _Known(1, (0, 0), _relu, _relu),
    "sum": _Known(1, (1, 1), np.sum, np.sum),
    "max": _Known(1, (1, 1), np.max, np.max),
    "shift": _Known(1, (1, 3), _shift, _shift),
    "exp": _Known(1, (0, 0), np.exp, None),
    "tanh": _Known(1, (0, 0), np.tanh, None),
    "sigmoid": _Known(1, (0, 0), _sigmoid, None),
    "silu": _Known(1, (0, 0), _silu, None),
    "gelu": _Known(1, (0, 0), _gelu, None),
    "gelu_tanh": _Known(1, (0, 0), _gelu_tanh, None),
}
"""The functions of formulas, by name."""
_BINARY: Mapping[type[ast.operator], Function] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.MatMult: operator.matmul,
}
# To add magnitudes up, nothing is subtracted.
_ADDING: Mapping[type[ast.operator], Function] = {**_BINARY, ast.Sub: operator.add}


@dataclass(frozen=True, slots=True)
class Formula:
    """The formula of an operation's output, as in ``alpha * tril(A) @ B + beta * C``.

    Numbers, names of operands and scalars, ``+ - * @`` with NumPy's broadcasting, and functions:
    ``tril``, ``triu`` (the elements on and below, on and above the diagonal), ``maximum``,
    ``minimum``, ``relu``, ``exp``, ``tanh``, ``sigmoid``, ``silu``, ``gelu`` (by the error
    function), ``gelu_tanh``, ``sum(X, axis)``, ``max(X, axis)`` and ``shift(X, i, j)`` (moved by
    i rows and j columns, zeros come in). Parsed, never executed.

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
            _check(self.tree)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            if isinstance(error, ExpressionError):
                raise
            raise ExpressionError(f"{self.text!r} is not a formula: {error}") from error

    @property
    def tree(self) -> ast.expr:
        """The parsed tree; nothing of it may be changed."""
        return _parsed(self.text)

    @property
    def names(self) -> frozenset[str]:
        """The operands and scalars that it mentions."""
        return frozenset(_names(self.tree))

    @property
    def functions(self) -> frozenset[str]:
        """The functions that it calls."""
        calls = (each.func for each in ast.walk(self.tree) if isinstance(each, ast.Call))
        return frozenset(each.id for each in calls if isinstance(each, ast.Name))

    @property
    def is_masked(self) -> bool:
        """True if it has triangles, whose zeros kernels leave out: with infinity they make NaN."""
        return not self.functions.isdisjoint(("tril", "triu"))

    def factors_of(self, name: str) -> tuple[frozenset[str], ...]:
        """For each place of a name, the names that multiply it there."""
        return tuple(_factors(self.tree, name, frozenset()))

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """Evaluate the output, in the precision of the operands.

        Args:
            values: of every name that it mentions, an array or a number.

        Raises:
            ExpressionError: shapes do not fit together.
        """
        return self._computed(lambda: _evaluate(self.tree, values))

    def magnitude(self, values: Mapping[str, Any]) -> Any:
        """The same with every term's absolute value: what rounding errors are relative to.

        Args:
            values: of every name that it mentions, an array or a number.

        Raises:
            ExpressionError: shapes do not fit together.
        """
        return self._computed(lambda: _magnitude(self.tree, values))

    def _computed(self, compute: Callable[[], Any]) -> Any:
        try:
            return compute()
        except (TypeError, ValueError, IndexError) as error:
            if isinstance(error, ExpressionError):
                raise
            raise ExpressionError(f"{self.text!r} does not fit together: {error}") from error


@functools.lru_cache(maxsize=256)
def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _check(node: ast.expr) -> None:
    """Refuse whatever is not in the language."""
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float() as number):
            if abs(number) < _LARGEST:
                return
        case ast.Name():
            return
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            _check(operand)
            return
        case ast.BinOp(left=left, op=symbol, right=right) if type(symbol) in _BINARY:
            _check(left)
            _check(right)
            return
        case ast.Call(func=ast.Name(id=name), args=given, keywords=[]) if name in FUNCTIONS:
            known = FUNCTIONS[name]
            least, most = known.whole
            whole = given[known.arrays :]
            fits = len(given) >= known.arrays and least <= len(whole) <= most
            if fits and all(_whole(each) is not None for each in whole):
                for each in given[: known.arrays]:
                    _check(each)
                return
    raise ExpressionError(
        "a formula is made of numbers, operands and scalars, + - * @ and "
        f"{', '.join(FUNCTIONS)}, got {ast.unparse(node)!r}"
    )


def _whole(node: ast.expr) -> int | None:
    """An axis or an offset; None where it is not a whole number written out."""
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as number)):
            number = -number
        case ast.Constant(value=int() as number):
            pass
        case _:
            return None
    return number if abs(number) < _FARTHEST and not isinstance(number, bool) else None


def _names(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Name(id=name):
            yield name
        case ast.UnaryOp(operand=operand):
            yield from _names(operand)
        case ast.BinOp(left=left, right=right):
            yield from _names(left)
            yield from _names(right)
        case ast.Call(args=given):
            for each in given:
                yield from _names(each)


def _factors(node: ast.expr, name: str, outer: frozenset[str]) -> Iterator[frozenset[str]]:
    """For each place of a name: the names that multiply it there."""
    match node:
        case ast.Name(id=found):
            if found == name:
                yield outer
        case ast.UnaryOp(operand=operand):
            yield from _factors(operand, name, outer)
        case ast.BinOp(left=left, op=symbol, right=right):
            for part, other in ((left, right), (right, left)):
                is_factor = isinstance(symbol, ast.Mult) and isinstance(other, ast.Name)
                more = {other.id} if is_factor and isinstance(other, ast.Name) else set()
                yield from _factors(part, name, outer | more)
        case ast.Call(args=given):
            for each in given:
                yield from _factors(each, name, outer)


def _evaluate(node: ast.expr, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name):
            return names[name]
        case ast.UnaryOp(operand=operand):
            return -_evaluate(operand, names)
        case ast.BinOp(left=left, op=symbol, right=right):
            return _BINARY[type(symbol)](_evaluate(left, names), _evaluate(right, names))
        case ast.Call(func=ast.Name(id=name), args=given):
            known = FUNCTIONS[name]
            arrays = [_evaluate(each, names) for each in given[: known.arrays]]
            return known.value(*arrays, *map(_whole, given[known.arrays :]))
    raise ExpressionError(f"{ast.unparse(node)!r} is no part of a formula")


def _magnitude(node: ast.expr, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=int() | float() as number):
            return abs(float(number))
        case ast.Name(id=name):
            return np.abs(names[name])
        case ast.UnaryOp(operand=operand):
            return _magnitude(operand, names)
        case ast.BinOp(left=left, op=symbol, right=right):
            return _ADDING[type(symbol)](_magnitude(left, names), _magnitude(right, names))
        case ast.Call(func=ast.Name(id=name), args=given):
            known = FUNCTIONS[name]
            magnitudes = [_magnitude(each, names) for each in given[: known.arrays]]
            if known.magnitude is not None:
                return known.magnitude(*magnitudes, *map(_whole, given[known.arrays :]))
            return _bend(name, _evaluate(given[0], names), magnitudes[0])
    raise ExpressionError(f"{ast.unparse(node)!r} is no part of a formula")


def _bend(name: str, value: Any, magnitude: Any) -> Any:
    """Of a smooth function: its own rounding, and that of its argument times its slope."""
    own, slope = _BENDS[name](value)
    return np.abs(own) + np.abs(slope) * magnitude


def _bend_of_exp(x: Any) -> tuple[Any, Any]:
    result = np.exp(x)
    return result, result


def _bend_of_tanh(x: Any) -> tuple[Any, Any]:
    result = np.tanh(x)
    return result, 1 - result**2


def _bend_of_sigmoid(x: Any) -> tuple[Any, Any]:
    gate = _sigmoid(x)
    return 1, gate * (1 - gate)


def _bend_of_silu(x: Any) -> tuple[Any, Any]:
    gate = _sigmoid(x)
    return x, gate * (1 + x * (1 - gate))


def _bend_of_gelu(x: Any) -> tuple[Any, Any]:
    return x, _phi(x) + x * np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)


def _bend_of_gelu_tanh(x: Any) -> tuple[Any, Any]:
    gate = _sigmoid(2 * GELU_SCALE * (x + GELU_CUBE * x**3))
    inner = 2 * GELU_SCALE * (1 + 3 * GELU_CUBE * x**2)
    return x, gate * (1 + x * (1 - gate) * inner)


_BENDS: Mapping[str, Callable[[Any], tuple[Any, Any]]] = {
    "exp": _bend_of_exp,
    "tanh": _bend_of_tanh,
    "sigmoid": _bend_of_sigmoid,
    "silu": _bend_of_silu,
    "gelu": _bend_of_gelu,
    "gelu_tanh": _bend_of_gelu_tanh,
}
"""Of smooth functions: what their own rounding is relative to, and their slope.

A gate from 0 to 1 is 1 plus or minus something, in every implementation there is: it is rounded
relative to 1, and x times a gate relative to x.
"""


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
