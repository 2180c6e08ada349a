"""Operators of the expression language, on one value and on a column: one for each of many rows.

Every operator has a scalar form, which is the definition, and a vectorised form that takes the
fast way where NumPy is certain to give what the scalar form gives: integers are tracked by a bound
on their magnitude, so that nothing wraps around. Where it is not certain the vectorised form
returns None and `elementwise` applies the scalar form row by row.
"""

from __future__ import annotations

import ast
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np

from autotune.core.errors import InputError
from autotune.core.printable import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from autotune.core.configuration import Value

Mask: TypeAlias = "NDArray[np.bool_] | None"
"""Rows that count; None means all of them."""

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
"""The largest magnitude that a column of integers may have."""


class UndefinedError(InputError):
    """An expression has no value here: a division by zero, or one that is not whole."""


class MisuseError(Exception):
    """Operands of a kind that an operator does not take; `Expression` adds the text."""


_KINDS = {"b": "i", "i": "i", "f": "f", bool: "i", int: "i", float: "f"}
"""Kinds of columns, by NumPy's kind of an array and by the type of a value."""


class Column(NamedTuple):
    """The values of a subexpression over many rows.

    Attributes:
        values: an array that broadcasts over the rows, or one value for all of them.
        defined: rows in which the value exists; the others hold anything.
        limit: no integer in `values` is larger in magnitude; 0 when they are not integers.
    """

    values: NDArray[Any] | Value
    defined: Mask = None
    limit: int = 0

    @classmethod
    def of(cls, values: NDArray[Any] | Value) -> Column:
        """Wrap an array, or one value, that every row defines."""
        if isinstance(values, np.ndarray) and values.ndim == 0:
            # NumPy's arithmetic turns these into scalars of its own, which are no values here.
            values = cast("Value", values.item())
        if not isinstance(values, np.ndarray):
            return cls(values, limit=abs(values) if isinstance(values, int) else 0)
        if values.dtype.kind in "iu":
            limit = max(abs(int(values.min())), abs(int(values.max()))) if values.size else 0
            wide = object if limit > INT64_MAX else np.int64
            return cls(values if values.dtype.kind == "i" else values.astype(wide), limit=limit)
        if values.dtype.kind == "f":
            return cls(values.astype(np.float64, copy=False))
        return cls(values, limit=1) if values.dtype == bool else cls(values.astype(object))

    @property
    def is_array(self) -> bool:
        """True if the values differ from row to row."""
        return isinstance(self.values, np.ndarray)

    @property
    def length(self) -> int:
        """Number of values."""
        return self.values.size if isinstance(self.values, np.ndarray) else 1

    @property
    def kind(self) -> str:
        """``i`` for integers and booleans, ``f`` for floats, ``o`` for anything else."""
        values = self.values
        # Steps within an operator may leave one of NumPy's scalars.
        if isinstance(values, np.ndarray | np.generic):
            return _KINDS.get(values.dtype.kind, "o")
        return _KINDS.get(type(values), "o")

    def each(self, transform: Callable[[NDArray[Any]], NDArray[Any]]) -> Column:
        """The column with its rows picked or arranged anew; `values` must be an array."""
        assert isinstance(self.values, np.ndarray)
        defined = None if self.defined is None else transform(self.defined)
        return Column(transform(self.values), defined, self.limit)

    def truth(self) -> NDArray[np.bool_]:
        """Python's truth value of every row."""
        if not isinstance(self.values, np.ndarray) or self.values.dtype == object:
            return np.asarray(np.frompyfunc(bool, 1, 1)(self.values), dtype=bool)
        return self.values if self.values.dtype == bool else self.values != 0


def both(left: Mask, right: Mask) -> Mask:
    """Rows that count in both masks."""
    if left is None or right is None:
        return right if left is None else left
    return left & right


def elementwise(scalar: Callable[..., Value], operands: Sequence[Column], active: Mask) -> Column:
    """Apply the scalar form in the active rows; rows that it leaves undefined are masked."""
    if not any(operand.is_array for operand in operands):
        if active is not None and not active.any():
            return Column(0, np.zeros((), dtype=bool))
        try:
            return Column.of(scalar(*(operand.values for operand in operands)))
        except UndefinedError:
            return Column(0, np.zeros((), dtype=bool))
    mask = np.ones((), dtype=bool) if active is None else active
    *columns, mask = np.broadcast_arrays(
        *(np.asarray(operand.values, dtype=object) for operand in operands), mask
    )
    defined = np.array(mask)
    values = np.zeros(defined.shape, dtype=object)
    for row in zip(*np.nonzero(defined), strict=True):
        try:
            values[row] = scalar(*(column[row] for column in columns))
        except UndefinedError:
            defined[row] = False
    return narrowed(values, defined)


def narrowed(values: NDArray[Any], defined: NDArray[np.bool_]) -> Column:
    """The narrowest column that holds `values`, so that what follows is fast again."""
    mask = None if defined.all() else defined
    kinds = {type(value) for value in values[defined]}
    if kinds == {bool}:
        return Column(values.astype(bool), mask, 1)
    if kinds == {float}:
        return Column(values.astype(np.float64), mask)
    if kinds == {int}:
        limit = max(abs(value) for value in values[defined])
        if limit <= INT64_MAX:
            return Column(values.astype(np.int64), mask, limit)
    return Column(values, mask)


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
    binding: int = CALL
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
