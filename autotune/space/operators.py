"""Operators of the expression language, on one value and on a column: one for each of many rows.

Every operator has a scalar form, which is the definition, and a vectorised form that takes the
fast way where NumPy is certain to give what the scalar form gives: integers are tracked by a bound
on their magnitude, so that nothing wraps around. Where it is not certain the vectorised form
returns None and `elementwise` applies the scalar form row by row.
"""

from __future__ import annotations

import ast
import math
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.core.printable import shown
from autotune.space.columns import (
    INT32_MAX,
    INT64_MAX,
    Column,
    Mask,
    MisuseError,
    UndefinedError,
    both,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.core.configuration import Value

FLOAT_EXACT = 2**53  # integers up to here convert to float64 without rounding
_FAST_EXPONENT = 64
CALL = 8
"""The binding of a function's call, and of what cannot be taken apart."""
LARGEST_BITS = 10_000
"""Bits of the largest integer: no size comes near, and the text of strangers must not hang."""
_TOO_LARGE = f"it is beyond {LARGEST_BITS} bits"


def _numbers(symbol: str, *values: Value) -> None:
    for value in values:
        if isinstance(value, str):
            raise MisuseError(f"{symbol} takes numbers, not the text {shown(value)}")


def _arithmetic(symbol: str, function: Callable[..., Any]) -> Callable[..., Value]:
    def scalar(*values: Value) -> Value:
        _numbers(symbol, *values)
        try:
            result: Value = function(*values)
        except (ZeroDivisionError, OverflowError) as error:
            raise UndefinedError(_undefined(symbol, values, str(error))) from None
        if isinstance(result, int) and result.bit_length() > LARGEST_BITS:
            raise UndefinedError(_undefined(symbol, values, _TOO_LARGE))
        return result

    return scalar


def _undefined(symbol: str, values: tuple[Value, ...], why: str) -> str:
    return f"{f' {symbol} '.join(map(shown, values))} has no value: {why}"


def exact_quotient(left: Any, right: Any) -> Any:
    """The quotient of a division that must be whole; raises UndefinedError where it is not."""
    quotient, remainder = divmod(left, right)
    if remainder != 0:
        raise UndefinedError(_undefined("/", (left, right), "it is not whole"))
    return quotient


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(base, int) and isinstance(exponent, int) and exponent >= 0:
        # A huge power is not computed at all.
        if exponent * (abs(base).bit_length() - 1) >= LARGEST_BITS:
            raise UndefinedError(_undefined("**", (base, exponent), _TOO_LARGE))
        return base**exponent
    power = base**exponent
    if isinstance(power, complex):
        raise UndefinedError(_undefined("**", (base, exponent), "it is not real"))
    return power


def _whole(symbol: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def scalar(*values: Any) -> Any:
        for value in values:
            if not isinstance(value, int):
                raise MisuseError(f"{symbol} takes whole numbers, not {shown(value)}")
        if symbol in ("<<", ">>") and not 0 <= values[1] <= LARGEST_BITS:
            raise UndefinedError(_undefined(symbol, values, "it is shifted too far"))
        return function(*values)

    return scalar


def _inverted(value: int) -> int:
    return ~int(value)  # of True and False themselves Python is to give it up


def _log2(value: Any) -> float:
    if value > 0:
        return math.log2(value)
    raise UndefinedError(f"log2({shown(value)}) has no value: it takes positive numbers")


def _ordering(symbol: str, function: Callable[[Any, Any], Any]) -> Callable[..., Value]:
    def scalar(left: Value, right: Value) -> Value:
        if isinstance(left, str) != isinstance(right, str):
            raise MisuseError(f"{symbol} cannot order {shown(left)} and {shown(right)}")
        return bool(function(left, right))

    return scalar


def _ceiling_quotient(left: Any, right: Any) -> Any:
    return -(-left // right)


def _is_power_of_two(value: Any) -> bool:
    if value < 1 or value != value or value == float("inf") or value != int(value):
        return False
    return int(value).bit_count() == 1


def _compute(ufunc: np.ufunc, limit: int, *operands: Column) -> Column | None:
    dtype: type[np.number[Any]] = np.int32
    largest = limit
    for operand in operands:
        kind = operand.kind
        if kind == "o":
            return None
        if kind == "f":
            dtype = np.float64
        largest = max(largest, operand.limit)
    if largest > INT64_MAX:
        return None
    if dtype is np.int32:
        if largest > INT32_MAX:
            dtype = np.int64
    else:
        limit = 0
    return Column(ufunc(*[operand.values for operand in operands], dtype=dtype), limit=limit)


def _where_not_zero(divisor: Column) -> Mask:
    values = divisor.values
    if isinstance(values, np.ndarray):
        return None if np.count_nonzero(values) == values.size else values != 0
    return None if values else np.zeros((), dtype=bool)


def _bounded(
    ufunc: np.ufunc, limit: Callable[[int, int], int]
) -> Callable[[Column, Column], Column | None]:
    def vector(left: Column, right: Column) -> Column | None:
        return _compute(ufunc, limit(left.limit, right.limit), left, right)

    return vector


def _divide(left: Column, right: Column) -> Column | None:
    # Python rounds the quotient of two integers once; NumPy would round each of them before.
    if "o" in left.kind + right.kind or max(left.limit, right.limit) > FLOAT_EXACT:
        return None
    values = np.true_divide(left.values, right.values, dtype=np.float64)
    return Column(values, _where_not_zero(right))


def _floor_divide(left: Column, right: Column) -> Column | None:
    result = _compute(np.floor_divide, left.limit, left, right)
    return result and Column(result.values, _where_not_zero(right), result.limit)


def _remainder(left: Column, right: Column) -> Column | None:
    result = _compute(np.remainder, right.limit, left, right)
    return result and Column(result.values, _where_not_zero(right), result.limit)


def _divide_exactly(left: Column, right: Column) -> Column | None:
    quotient = _floor_divide(left, right)
    remainder = _remainder(left, right)
    if quotient is None or remainder is None:
        return None
    whole = np.equal(remainder.values, 0)
    return Column(quotient.values, both(quotient.defined, whole), quotient.limit)


def _raise(base: Column, exponent: Column) -> Column | None:
    # float64 powers may differ from Python's in the last bit, so only integers go the fast way
    if base.kind + exponent.kind != "ii" or exponent.limit > _FAST_EXPONENT:
        return None
    if np.min(exponent.values, initial=0) < 0:
        return None
    return _compute(np.power, max(base.limit, 1) ** exponent.limit, base, exponent)


def _negate(operand: Column) -> Column | None:
    return _compute(np.negative, operand.limit, operand)


def _rowwise(*operands: Column) -> None:
    """None: the scalar form is applied."""


def _bitwise(ufunc: np.ufunc) -> Callable[[Column, Column], Column | None]:
    def vector(left: Column, right: Column) -> Column | None:
        largest = max(left.limit, right.limit)
        arrays = (np.asarray(left.values), np.asarray(right.values))
        if left.kind + right.kind != "ii" or any(each.dtype == bool for each in arrays):
            return None
        return _compute(ufunc, 2 ** largest.bit_length(), left, right)

    return vector


def _power_of_two(operand: Column) -> Column | None:
    if operand.kind != "i":
        return None
    values = np.asarray(operand.values, dtype=np.int64)
    return Column((values > 0) & (values & (values - 1) == 0), limit=1)


def _ceiling_divide(left: Column, right: Column) -> Column | None:
    negated = _negate(left)
    quotient = negated and _floor_divide(negated, right)
    result = quotient and _negate(quotient)
    return result and quotient and Column(result.values, quotient.defined, result.limit)


def _comparable(left: Column, right: Column) -> bool:
    kinds = left.kind + right.kind
    largest = INT64_MAX if kinds == "ii" else FLOAT_EXACT
    return "o" not in kinds and left.limit <= largest and right.limit <= largest


def _ordered(ufunc: np.ufunc) -> Callable[[Column, Column], Column | None]:
    def vector(left: Column, right: Column) -> Column | None:
        if not _comparable(left, right):
            return None
        return Column(ufunc(left.values, right.values), limit=1)

    return vector


def _equality(ufunc: np.ufunc) -> Callable[[Column, Column], Column | None]:
    def vector(left: Column, right: Column) -> Column | None:
        dtype = None if _comparable(left, right) else object
        values = np.asarray(ufunc(left.values, right.values, dtype=dtype), dtype=bool)
        return Column(values, limit=1)

    return vector


def _extreme(ufunc: np.ufunc, better: np.ufunc) -> Callable[[Column, Column], Column | None]:
    def vector(left: Column, right: Column) -> Column | None:
        if left.kind == right.kind == "f":
            # as Python chooses, also among NaNs: the first unless the second is better
            chosen = np.where(better(right.values, left.values), right.values, left.values)
            return Column(chosen)
        if left.kind == right.kind == "i":
            return _compute(ufunc, max(left.limit, right.limit), left, right)
        return None

    return vector


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """One operator of the language.

    Attributes:
        symbol: how it is written.
        scalar: the definition, on Python values; raises UndefinedError and MisuseError.
        vector: the same on columns, or None where only `scalar` is certain to be right. At least
            one operand is an array; rows that an operand leaves undefined may hold anything.
        python: Python's own node of it; None where it has none.
        binding: how tightly it binds its operands; a call is bound most tightly.
        bits: of a result by those of integer operands, where Python's node gives what `scalar`
            gives; None where it may not.
    """

    symbol: str
    scalar: Callable[..., Value]
    vector: Callable[..., Column | None]
    python: type[ast.AST] | None = None
    binding: float = CALL
    bits: Callable[..., int] | None = None

    @property
    def decides(self) -> bool:
        """True if its values are truth values."""
        return self.symbol in _DECIDING

    def __reduce__(self) -> str:
        # There is one of each, known by its name here: functions do not pickle, and `is` tells
        # operators apart.
        return next(name for name, each in globals().items() if each is self)


def _plain(
    symbol: str, function: Callable[..., Any], vector: Callable[..., Any], *rest: Any
) -> Operator:
    return Operator(symbol, _arithmetic(symbol, function), vector, *rest)


def _bits(
    symbol: str, function: Callable[..., Any], vector: Callable[..., Any], *rest: Any
) -> Operator:
    return _plain(symbol, _whole(symbol, function), vector, *rest)


def _order(
    symbol: str, function: Callable[[Any, Any], Any], ufunc: np.ufunc, python: type[ast.AST]
) -> Operator:
    return Operator(symbol, _ordering(symbol, function), _ordered(ufunc), python, 3)


def _sum(left: int, right: int) -> int:
    return max(left, right) + 1


def _quotient(left: int, right: int) -> int:
    return max(left, 1)


ADD = _plain("+", operator.add, _bounded(np.add, operator.add), ast.Add, 4, _sum)
SUBTRACT = _plain("-", operator.sub, _bounded(np.subtract, operator.add), ast.Sub, 4, _sum)
MULTIPLY = _plain(
    "*", operator.mul, _bounded(np.multiply, operator.mul), ast.Mult, 5, operator.add
)
DIVIDE = _plain("/", operator.truediv, _divide, ast.Div, 5)
DIVIDE_EXACTLY = _plain("/", exact_quotient, _divide_exactly, None, 5, _quotient)
FLOOR_DIVIDE = _plain("//", operator.floordiv, _floor_divide, ast.FloorDiv, 5, _quotient)
REMAINDER = _plain("%", operator.mod, _remainder, ast.Mod, 5, lambda left, right: right)
POWER = _plain("**", _power, _raise, ast.Pow, 7)
NEGATE = _plain("-", operator.neg, _negate, ast.USub, 6, operator.pos)
PLUS = _plain(
    "+",
    operator.pos,
    lambda each: _compute(np.positive, each.limit, each),
    ast.UAdd,
    6,
    operator.pos,
)
MINIMUM = _plain("min", min, _extreme(np.minimum, np.less), None, CALL, max)
MAXIMUM = _plain("max", max, _extreme(np.maximum, np.greater), None, CALL, max)
CEILING_DIVIDE = _plain("ceildiv", _ceiling_quotient, _ceiling_divide, None, CALL, _quotient)
IS_POWER_OF_TWO = _plain("ispow2", _is_power_of_two, _power_of_two)
ABSOLUTE = _plain("abs", abs, lambda each: _compute(np.absolute, each.limit, each))
LOG2 = _plain("log2", _log2, _rowwise)
OR = _bits("|", operator.or_, _bitwise(np.bitwise_or), ast.BitOr, 3.2)
XOR = _bits("^", operator.xor, _bitwise(np.bitwise_xor), ast.BitXor, 3.4)
AND = _bits("&", operator.and_, _bitwise(np.bitwise_and), ast.BitAnd, 3.6)
LEFT = _bits("<<", operator.lshift, _rowwise, ast.LShift, 3.8)
RIGHT = _bits(">>", operator.rshift, _rowwise, ast.RShift, 3.8)
INVERT = _bits("~", _inverted, _rowwise, ast.Invert, 6)
NOT = Operator("not", operator.not_, lambda each: Column(~each.truth(), limit=1), ast.Not, 2)
EQUAL = Operator("==", operator.eq, _equality(np.equal), ast.Eq, 3)
NOT_EQUAL = Operator("!=", operator.ne, _equality(np.not_equal), ast.NotEq, 3)
LESS = _order("<", operator.lt, np.less, ast.Lt)
LESS_EQUAL = _order("<=", operator.le, np.less_equal, ast.LtE)
GREATER = _order(">", operator.gt, np.greater, ast.Gt)
GREATER_EQUAL = _order(">=", operator.ge, np.greater_equal, ast.GtE)

BY_PYTHON = {
    each.python: each
    for each in list(globals().values())
    if isinstance(each, Operator) and each.python is not None
}
"""Operators by Python's nodes; ``/`` is the one that need not be whole."""

_DECIDING = frozenset({"not", "==", "!=", "<", "<=", ">", ">=", "ispow2"})
TAKES_TEXT = frozenset({"not", "==", "!="})
"""Symbols of the operators that accept any mixture of text and numbers."""
