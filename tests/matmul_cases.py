"""Random operands for `matmul`: any shapes, strides and element types that libraries multiply.

Values are small whole numbers, so that a product is exact in whatever order it is summed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SIZES = (1, 1, 2, 3, 5)
NO_NUMBERS: tuple[Any, ...] = (
    None,
    "2",
    "",
    b"2",
    bytearray(b"2"),
    np.str_("2"),
    np.array("2"),
    np.array(None),
    [2],
    (),
    object(),
    np.array([2.0]),
    np.array([0.0, 1.0]),
    np.timedelta64(2, "ns"),
)
"""What scales nothing, though some of it converts to a number, or is false as zero is."""

NOT_REAL: tuple[Any, ...] = (2j, 2 + 0j, 1 + 0j, 0j, np.complex128(2j), np.array(2 + 0j))
TOO_LARGE: tuple[Any, ...] = (10**400, 10**5000, -(10**400))

VIEWS = ("rows", "columns", "apart", "steps", "reversed", "turned", "repeated", "bytes")


@dataclass(frozen=True, slots=True)
class Case:
    """Shapes of two operands that fit together, and how each lies in memory.

    Attributes:
        a: shape of the left one.
        b: shape of the right one.
        views: how they lie, of `VIEWS`.
    """

    a: tuple[int, ...]
    b: tuple[int, ...]
    views: tuple[str, str]


def draw(source: random.Random, views: tuple[str, ...] = VIEWS) -> Case:
    """A case; one in ten has no elements somewhere."""
    m, n, k = (source.choice(SIZES) for _ in range(3))
    stack = [source.choice(SIZES[1:4]) for _ in range(source.choice((0, 0, 1, 1, 2)))]
    if source.random() < 0.1:
        sizes = [m, n, k, *stack]
        sizes[source.randrange(len(sizes))] = 0
        (m, n, k), stack = sizes[:3], sizes[3:]
    a = (n,) if source.random() < 0.15 else (*_part(source, stack), m, n)
    b = (n,) if source.random() < 0.15 else (*_part(source, stack), n, k)
    return Case(a, b, (source.choice(views), source.choice(views)))


def _part(source: random.Random, stack: list[int]) -> list[int]:
    """A stack that is broadcast to another one."""
    kept = [size if source.random() < 0.7 else 1 for size in stack]
    return kept[source.randrange(len(kept) + 1) if source.random() < 0.3 else 0 :]


def values(source: random.Random, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Small whole numbers."""
    numbers = np.random.default_rng(source.getrandbits(32)).integers(-4, 5, shape)
    kind = np.dtype(dtype).kind
    if kind in "ub":
        numbers = abs(numbers)
    return np.asarray(numbers, dtype)


def near(source: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape, or one that differs from it in what libraries may pass over when they store."""
    for change in source.choices(("fewer", "more", "other", "last"), k=source.randrange(3)):
        if change == "more":
            shape = (source.choice((1, 1, 2)), *shape)
        elif change == "fewer":
            shape = shape[1:]
        elif shape:
            place = -1 if change == "last" else source.randrange(len(shape))
            sizes = list(shape)
            sizes[place] = source.choice((1, 2, 3))
            shape = tuple(sizes)
    return shape


def spread(array: NDArray[Any], view: str) -> NDArray[Any]:
    """The same numbers, otherwise in memory."""
    if not array.ndim:
        return array
    if view == "columns":
        return np.asfortranarray(array)
    if view == "apart":
        held = np.zeros((*array.shape[:-1], array.shape[-1] + 3), array.dtype)
        held[..., 2:-1] = array
        return held[..., 2:-1]
    if view == "steps":
        held = np.zeros([2 * size for size in array.shape], array.dtype)
        place = (slice(None, None, 2),) * array.ndim
        held[place] = array
        return held[place]
    if view == "reversed":
        return np.ascontiguousarray(array[(slice(None, None, -1),) * array.ndim])[
            (slice(None, None, -1),) * array.ndim
        ]
    if view == "turned" and array.ndim > 1:
        return np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)
    if view == "repeated" and array.size:
        first = array[(slice(0, 1),) + (slice(None),) * (array.ndim - 1)]
        return np.broadcast_to(first, array.shape)
    if view == "bytes":  # not aligned
        held = np.zeros(array.nbytes + 1, np.uint8)
        view_of = held[1:].view(array.dtype).reshape(array.shape)
        view_of[...] = array
        return view_of
    return array
