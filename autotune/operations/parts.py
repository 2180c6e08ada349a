"""Parts of an operation: its operands, and the names that everything is called by."""

from __future__ import annotations

import functools
import keyword
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from autotune.core.dtypes import ELEMENTS
from autotune.core.errors import ExpressionError, InputError
from autotune.core.printable import shown
from autotune.core.suggestions import must_be
from autotune.space import Expression, UndefinedError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")
_MOST = 16  # sizes, operands, scalars
_DIMENSIONS = 5
_RESERVED: Mapping[str, frozenset[str]] = {
    # A problem's key has its sizes beside others.
    "sizes": frozenset(
        {
            *("t", "itemsize", "acc_itemsize", "operation", "dtype", "out_dtype"),
            *("accuracy", "threads", "layout", "formula"),
        }
    ),
    "operands": frozenset({"t"}),
    "scalars": frozenset({"t", "out", "stream", "self"}),
}
"""Names that calls, sources or expressions have for something else."""
_KEYWORDS = """
alignas alignof asm auto bitand bitor bool case catch char compl concept const const_cast
consteval constexpr constinit decltype default delete do double dynamic_cast enum explicit
export extern false float friend goto inline int long mutable namespace new noexcept nullptr
operator private protected public register reinterpret_cast requires restrict short signed
sizeof static static_assert static_cast struct switch template this thread_local throw true
typedef typeid typename typeof union unsigned using virtual void volatile wchar_t xor
"""
"""Those of C and C++ that are none of Python's; in lower case, as names of arguments are."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One of an operation's operands: an array of which the last dimension is contiguous.

    Attributes:
        name: what formulas call it.
        shape: expressions over the operation's sizes, one for each dimension, 1 to 5; none for a
            single number that is written.
        written: whether it is what the operation computes.
        dtype: element type; empty for that of the problem.
        most: an expression over the sizes: elements, of an integer type, are from 0 to that; empty
            where they are drawn as others are.
        ascending: whether none of those is less than the one before.
        read: whether what it holds before matters too, where it is written: it is given at a call
            as the inputs are, and changed in place.
    """

    name: str
    shape: tuple[str, ...]
    written: bool = False
    dtype: str = ""
    most: str = ""
    ascending: bool = False
    read: bool = False

    def check(self, sizes: set[str]) -> None:
        """Refuse a shape, a type or bounds of elements that there cannot be.

        Raises:
            InputError: the message begins with the operand's name.
        """
        name = f"operands.{self.name}"
        least = 0 if self.written and not self.read else 1
        if not least <= len(self.shape) <= _DIMENSIONS:
            raise InputError(
                f"{name}.shape must have {least} to {_DIMENSIONS} dimensions, got "
                f"{len(self.shape)}"
            )
        for text in self.shape:
            check_expression(f"{name}.shape", text, sizes)
        if self.dtype and self.dtype not in ELEMENTS:
            raise InputError(must_be(f"{name}.dtype", self.dtype, ELEMENTS))
        if self.most:
            check_expression(f"{name}.most", self.most, sizes)
        if bool(self.most) > (bool(self.dtype) and ELEMENTS[self.dtype].kind == "integer"):
            raise InputError(f"{name}.most must be left out: it is for a dtype of integers")
        if self.ascending and (not self.most or len(self.shape) != 1):
            raise InputError(
                f"{name}.ascending must be left out: it is for one dimension of integers with a "
                "most"
            )


@dataclass(frozen=True, slots=True)
class Array:
    """An operand of a problem, as stored.

    Attributes:
        name: what formulas call it.
        shape: elements along each dimension.
        dtype: element type.
        written: whether it is what is computed.
        packed: whether its rows follow each other: kernels are not told how far apart they are.
        most: the largest element of integers that are bounded; None for others.
        ascending: whether none of those is less than the one before.
        read: whether it is written in place of what it held.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    written: bool = False
    packed: bool = False
    most: int | None = None
    ascending: bool = False
    read: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * ELEMENTS[self.dtype].itemsize


def strides_of(shape: Sequence[int], padding: int = 0) -> tuple[int, ...]:
    """Elements from one to the next along every dimension of an array in row-major order.

    Args:
        shape: elements along every dimension.
        padding: elements after every row, and after every matrix of several.
    """
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * size + padding
    return tuple(reversed(strides))


def plain_strides(
    shape: Sequence[int], strides: Sequence[int], *, shared: bool = False
) -> tuple[int, ...] | None:
    """Elements from one to the next along every dimension, as kernels are given them.

    Args:
        shape: elements along every dimension.
        strides: elements from one to the next, as an array says; along a dimension of one it may
            say anything.
        shared: whether all matrices of a stack may be one, at a distance of zero.

    Returns:
        None where the last dimension is not contiguous, or elements have places in common.
    """
    found: list[int] = []
    least = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        found.append(least if size == 1 else stride)
        least = found[-1] * size
    if found and found[0] != 1:
        return None
    apart = [(step, size) for step, size in zip(found, reversed(shape), strict=True) if size > 1]
    if shared and len(shape) > 2 and apart and apart[-1][0] == 0:
        apart.pop()
    least = 1
    for step, size in sorted(apart):  # matrices may lie side by side
        if step < least:
            return None
        least = step * size
    return tuple(reversed(found))


@functools.lru_cache(maxsize=1024)
def parsed(text: str) -> Expression:
    """An expression over sizes, of which every division is whole."""
    return Expression.parse(text, exact_division=True)


def check_names(
    sizes: Sequence[str],
    operands: Sequence[Operand],
    scalars: Sequence[tuple[str, float]],
    *,
    small: bool,
) -> None:
    """Refuse names that formulas, sources or calls could not tell apart.

    Args:
        sizes: names of sizes.
        operands: the operands.
        scalars: names and defaults of scalars.
        small: whether sources call all of them by small letters.

    Raises:
        InputError: the message begins with what the name is of.
    """
    groups = {
        "sizes": tuple(sizes),
        "operands": tuple(each.name for each in operands),
        "scalars": tuple(name for name, _ in scalars),
    }
    seen: dict[str, str] = {}
    for key, names in groups.items():
        if len(names) > _MOST or (not names and key != "scalars"):
            raise InputError(f"{key} must be one to {_MOST}, got {len(names)}")
        for name in names:
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise InputError(f"{key} must have names like M or alpha, got {shown(name)}")
            lower = name.lower()
            if keyword.iskeyword(lower) or lower in _RESERVED[key]:
                raise InputError(
                    f"{key} must not be called {name!r}, which calls and sources have for "
                    f"something else: call it {name + '_'!r}, say"
                )
            check_no_keyword(key, name)
            # Sizes have capitals of their own where something else has their small letters.
            for other, of in seen.items():
                alike = small or other == name or of == key or "sizes" not in (of, key)
                if alike and other.lower() == lower:
                    apart = "" if other == name else ": capitals tell no names apart in sources"
                    raise InputError(
                        f"{key} must not repeat {name!r}, {other!r} in {of} already{apart}"
                    )
            seen[name] = key
    for name, default in scalars:
        if name != name.lower() or not math.isfinite(default):
            raise InputError(f"scalars.{name} must be a finite number, its name in lower case")


def check_no_keyword(key: str, name: str) -> None:
    """Refuse a name that sources of C or C++ cannot have.

    Raises:
        InputError: the message begins with the key.
    """
    if name.lower() in _KEYWORDS.split():
        raise InputError(
            f"{key} must not be called {name!r}, a keyword of C or C++, which kernels are written "
            f"in: call it {name + '_'!r}, say"
        )


def check_expression(key: str, text: str, names: set[str]) -> None:
    """Refuse what is not an expression over some names.

    Raises:
        InputError: the message begins with the key.
    """
    try:
        found = parsed(text).names
    except ExpressionError as error:
        raise InputError(f"{key} is not an expression: {error}") from error
    for name in sorted(found - names):
        raise InputError(f"{key} = {shown(text)}: {must_be('a name', name, sorted(names))}")


class Kind(Enum):
    """The kind of an argument."""

    SIZE = "size"
    SCALAR = "scalar"
    ADDRESS = "address"
    LEADING = "leading"
    """Elements from one row of an operand to the next."""
    BATCH = "batch"
    """Elements from one matrix of an operand to the next."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of an entry.

    Attributes:
        name: what it is called, where addresses are not called otherwise by the language.
        kind: what it is.
        written: of an address: whether the kernel writes there.
        dtype: of an address: the elements' type; empty for that of the problem.
    """

    name: str
    kind: Kind
    written: bool = False
    dtype: str = ""


def operand_arguments(
    name: str, dimensions: int, *, written: bool, dtype: str = ""
) -> tuple[Argument, ...]:
    """The address of an operand and its strides, from the outermost to the last but one.

    Args:
        name: the operand's.
        dimensions: how many it has, up to 5; the last one is contiguous.
        written: whether the kernel writes it.
        dtype: its element type; empty for that of the problem.
    """
    lower = name.lower()
    strides = (
        Argument(f"{lower}_stride3", Kind.BATCH),
        Argument(f"{lower}_stride2", Kind.BATCH),
        Argument(f"{lower}_stride", Kind.BATCH),
        Argument(f"ld{lower}", Kind.LEADING),
    )
    apart = max(0, dimensions - 1)
    return (Argument(lower, Kind.ADDRESS, written, dtype), *strides[len(strides) - apart :])


_FAR = 5040
"""A size where expressions are linear that have a least or largest value, a multiple of much."""


def solved(text: str, extent: int | None, known: Mapping[str, int]) -> tuple[str, int] | None:
    """The size that an operand's extent says: its name and value.

    Args:
        text: an expression over sizes, of which one is not known and comes in linearly.
        extent: what it stands for; None for what it is at a size of `_FAR`.
        known: the others.

    Returns:
        None where it says no size, or none that is whole and at least 1.
    """
    expression = parsed(text)
    unknown = expression.names - known.keys()
    if len(unknown) != 1:
        return None
    (name,) = unknown

    def at(value: int) -> float:
        try:
            found = expression.evaluate({**known, name: value})
        except UndefinedError:
            return math.nan
        return math.nan if isinstance(found, str) else found

    first, step = at(_FAR), (at(3 * _FAR) - at(_FAR)) / (2 * _FAR)
    if math.isnan(step) or step == 0:
        return None
    wanted = first if extent is None else extent
    value = round(_FAR + (wanted - first) / step)
    near = [each for each in (value - 1, value, value + 1) if at(each) == wanted]
    return (name, value) if value >= 1 and near == [value] else None
