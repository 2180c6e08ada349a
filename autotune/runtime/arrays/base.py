"""What a library of arrays does for `matmul`: says how they lie, views, copies and stores them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, SupportsInt

import numpy as np

from autotune.core.errors import OperandError, OperandTypeError
from autotune.core.printable import shown
from autotune.operations.calls import is_complex, number, real

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from autotune.runtime.shapes import Factor, Spread


class Look(NamedTuple):
    """All of an operand that decides how it is multiplied; hashable.

    Attributes:
        shape: elements along every dimension.
        strides: from one to the next along every dimension, as the library counts them.
        dtype: of the elements, the library's object.
        place: what else decides; a library's own.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    place: Any = None


class Core(NamedTuple):
    """Which of a result's dimensions are those of each product; others are of a stack.

    Attributes:
        rows: whether there are such.
        columns: whether there are such.
    """

    rows: bool
    columns: bool


class Library(Protocol):
    """A library of arrays, as far as `matmul` goes.

    Attributes:
        name: with its version.
    """

    name: str

    def __hash__(self) -> int: ...

    def keeps(self, a: Any, b: Any) -> bool:
        """Whether a product is the library's at first sight; asked in every call."""
        ...

    def look(self, array: Any) -> tuple[Any, ...]:
        """What decides how an array is multiplied: the values of a `Look`, in a plain tuple."""
        ...

    def is_watched(self) -> bool:
        """Whether somebody would miss a product in this thread that is not the library's own."""
        ...

    def target(self, a: Look, b: Look) -> str | None:
        """The target where products of such arrays are computed; None leaves them to the library.

        Raises:
            OperandError: they are in different places.
        """
        ...

    def dtype(self, a: Look, b: Look) -> str | None:
        """The name of the element type that a product has; None where no kernel can have it.

        Raises:
            OperandTypeError: the library multiplies no such elements.
        """
        ...

    def is_direct(self, a: Look) -> bool:
        """Whether kernels take such arrays themselves, and not what `seen` makes of them."""
        ...

    def spread(self, operand: Look, dtype: str) -> Spread:
        """How an operand lies once it has an element type."""
        ...

    def working(self, array: Any) -> AbstractContextManager[Any]:
        """While this is entered, new arrays are made where an array is."""
        ...

    def matrices(self, array: Any, factor: Factor, dtype: str) -> Any:
        """An operand as the matrices that kernels read; copied where the factor says so."""
        ...

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str) -> Any:
        """A new array beside another one."""
        ...

    def seen(self, array: Any) -> Any:
        """An array as kernels take it, in the same memory."""
        ...

    def finished(self, result: Any) -> Any:
        """A result without dimensions, as the library returns those."""
        ...

    def takes(self, out: Any, shape: tuple[int, ...], dtype: str, inputs: tuple[Any, ...]) -> bool:
        """Whether kernels can write to `out` as it is: it fits, and lies apart from the inputs."""
        ...

    def aligned(self, array: Any) -> Any:
        """An operand whose elements lie at multiples of their size: a copy, or itself."""
        ...

    def store(self, out: Any, result: Any, beta: Any, core: Core) -> Any:
        """Set ``out = result + beta out`` by the library's rules; returns `out`.

        Raises:
            OperandError: it does not fit, or `beta` is no number for its elements.
        """
        ...

    def batches(self, a: Look, work: int) -> bool:
        """Whether stacks of products of so many multiplications each are better left to it."""
        ...

    def is_exact(self, array: Any) -> bool:
        """Whether its own products are as exact as kernels', by its settings as they are now."""
        ...

    def multiply(self, a: Any, b: Any, out: Any, alpha: Any, beta: Any) -> Any:
        """``alpha a @ b + beta out`` by the library itself, which says what it refuses."""
        ...


def scale(name: str, value: Any, dtype: np.dtype[Any]) -> Any:
    """A scalar as a number that changes no element type and loses nothing that elements hold.

    Args:
        name: of the scalar.
        value: a number, of Python or NumPy.
        dtype: of the elements it scales; objects take whatever multiplies them.

    Raises:
        OperandTypeError: it is no number, or none that elements of that kind can be scaled by.
        OperandError: it is one that they cannot hold.
    """
    if dtype.kind == "b":
        return bool(real(name, value))
    if dtype.kind in "iu":
        return _whole(name, value, dtype)
    held = number(name, value)
    if dtype.kind not in "fc":
        return held
    if dtype.kind == "c" and is_complex(held):
        return held if dtype.char == "G" else complex(held)
    return real(name, held, np.longdouble if dtype.char in "gG" else float)


def _whole(name: str, value: Any, dtype: np.dtype[Any]) -> int:
    """A number for whole elements, which have more digits than a float."""
    whole = real(name, value, _int)
    if whole is None:
        raise OperandTypeError(
            f"{name} must be a whole number for elements that are, got {shown(value)}: convert a "
            "or b to a floating type"
        )
    limits = np.iinfo(dtype)
    if not limits.min <= whole <= limits.max:
        raise OperandError(
            f"{name} must be from {limits.min} to {limits.max} for elements of {dtype}, got "
            f"{shown(value)}: convert the operands to a type that holds it"
        )
    return int(whole)


def _int(value: Any) -> int | None:
    """A number as the integer that it is equal to; None where there is none."""
    if not isinstance(value, SupportsInt):
        value = float(value)
    if value != value or abs(value) == math.inf:
        return None
    whole = int(value)
    return whole if whole == value else None


def is_usual(alpha: Any, beta: Any) -> bool:
    """Whether a product is neither scaled nor added to anything, by real numbers of Python."""
    of_python = isinstance(alpha, float | int) and isinstance(beta, float | int)
    return of_python and alpha == 1 and beta == 0


def core_of(a: Any, b: Any) -> Core:
    """What products of two operands have: a vector on the left makes no rows."""
    return Core(np.ndim(a) > 1, np.ndim(b) > 1)


def only(out: Any) -> Any:
    """An output that may be in a tuple, as ufuncs take those that they have several of."""
    return out[0] if isinstance(out, tuple) and len(out) == 1 else out


def out_is_missing(beta: Any) -> OperandError:
    """What to say where `beta` scales an output that is not there."""
    return OperandError(f"beta = {shown(beta)} scales what out holds: pass out=, or use beta = 0")
