"""Rows by number: one as it is, several as a list, as sequences have them."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, SupportsIndex, TypeVar

from autotune.core.errors import SpaceError

if TYPE_CHECKING:
    from collections.abc import Callable

_PointT = TypeVar("_PointT")

LARGEST_LISTING = 2**28
"""Rows that may be listed."""


def row_number(row: SupportsIndex, size: int, what: str = "space") -> int:
    """The number of a row from 0 on; negative ones count from the end.

    Raises:
        IndexError: there is no such row.
        TypeError: it is no whole number.
    """
    number = index(row)
    if not -size <= number < size:
        raise IndexError(f"row {number} is outside a {what} of {size} rows")
    return number % size


def row_slice(rows: slice, size: int, point: Callable[[int], _PointT]) -> list[_PointT]:
    """The points of a slice.

    Raises:
        SpaceError: they are too many to list.
    """
    numbers = range(*rows.indices(size))
    if numbers and abs(numbers[-1] - numbers[0]) // abs(numbers.step) >= LARGEST_LISTING:
        raise SpaceError(
            f"a slice lists at most {LARGEST_LISTING} rows: "
            "sample the space, or index it row by row, instead"
        )
    return [point(number) for number in numbers]
