"""What a library of arrays does for `matmul`: says how they lie, views, copies and stores them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from autotune.core.errors import OperandError, OperandTypeError

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


class Library(Protocol):
    """A library of arrays, as far as `matmul` goes."""

    def __hash__(self) -> int: ...

    def look(self, array: Any) -> tuple[Any, ...]:
        """What decides how an array is multiplied: the values of a `Look`, in a plain tuple."""
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

    def store(self, out: Any, result: Any, beta: float) -> Any:
        """Set ``out = result + beta out`` by the library's rules; returns `out`.

        Raises:
            OperandError: it does not fit.
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


def scale(name: str, value: Any, kind: str) -> Any:
    """A scalar as a number of Python, which changes no element type.

    Args:
        name: of the scalar.
        value: a number, of Python or NumPy.
        kind: of the elements it scales, by NumPy's letter: "b", "i", "u", "f" or "c"; others take
            whatever multiplies them.

    Raises:
        OperandTypeError: it is no number, or none that elements of that kind can be scaled by.
    """
    if kind not in "biufc":
        return value
    try:
        number = complex(value)
    except (TypeError, ValueError) as error:
        raise OperandTypeError(f"{name} must be a number, got {value!r:.40}: {error}") from error
    if kind == "c":
        return number
    if number.imag:
        raise OperandTypeError(f"{name} must be a real number, got {value!r:.40}")
    if kind == "f":
        return number.real
    if not math.isfinite(number.real) or number.real != int(number.real):
        raise OperandTypeError(
            f"{name} must be a whole number for elements that are, got {value!r:.40}: convert a "
            "or b to a floating type"
        )
    return int(number.real)


def out_is_missing(beta: Any) -> OperandError:
    """What to say where `beta` scales an output that is not there."""
    return OperandError(f"beta = {beta} scales what out holds: pass out=, or use beta = 0")
