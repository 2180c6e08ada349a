"""Columns: the values of a subexpression over many rows, and how they are known to be bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np

from autotune.core.errors import InputError

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
