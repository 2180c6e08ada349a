"""Shapes of matrix products, drawn log-uniformly, and the kinds that they are reported by."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

KINDS = ("one row", "one column", "skinny", "long reduction", "square-like", "other")
"""Every shape is of one kind, the first of these that holds."""

SKINNY = 16
"""Rows or columns of C up to which a product is skinny."""

LONG = 4
"""A reduction is long where it is so many times the larger side of C."""

SQUARE_LIKE = 3
"""Sizes are square-like where none is more than so many times another."""


@dataclass(frozen=True, slots=True)
class Shape:
    """C[m x k] = A[m x n] @ B[n x k]; n is the reduction."""

    m: int
    n: int
    k: int

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Rows of C, reduction, columns of C."""
        return self.m, self.n, self.k

    @property
    def work(self) -> int:
        """Products to be summed."""
        return self.m * self.n * self.k

    @property
    def odd(self) -> bool:
        """Whether all sizes are odd, so that no row but the first is aligned."""
        return self.m % 2 == self.n % 2 == self.k % 2 == 1

    @property
    def few(self) -> int:
        """Rows or columns of C, whichever are fewer."""
        return min(self.m, self.k)

    @property
    def kind(self) -> str:
        """One of `KINDS`."""
        if self.m == 1:
            return "one row"
        if self.k == 1:
            return "one column"
        if self.few <= SKINNY:
            return "skinny"
        if self.n >= LONG * max(self.m, self.k):
            return "long reduction"
        if max(self.sizes) <= SQUARE_LIKE * min(self.sizes):
            return "square-like"
        return "other"

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What shapes are drawn from; all bounds are inclusive.

    Attributes:
        sides: rows and columns of C.
        reduction: products behind an element of C.
        work: products behind all of C.
    """

    sides: tuple[int, int]
    reduction: tuple[int, int]
    work: tuple[float, float]

    def __contains__(self, shape: Shape) -> bool:
        checks = (
            (shape.m, self.sides),
            (shape.n, self.reduction),
            (shape.k, self.sides),
            (shape.work, self.work),
        )
        return all(low <= value <= high for value, (low, high) in checks)


GPU = Bounds(sides=(1, 16384), reduction=(16, 16384), work=(1e6, 2e11))
CPU = Bounds(sides=(1, 4096), reduction=(1, 4096), work=(1e3, 2e11))


def draw(seed: int, bounds: Bounds, multiple: int = 1) -> Iterator[Shape]:
    """Shapes without end, the same ones for the same seed; every third is odd in all sizes.

    Args:
        seed: of the draw.
        bounds: what is not within them is drawn again.
        multiple: more than 1: all sizes are multiples of it, the next ones, and none is odd.
    """
    rng = random.Random(seed)
    number = 0
    while True:
        sizes = [
            _log_uniform(rng, *limits) for limits in (bounds.sides, bounds.reduction, bounds.sides)
        ]
        if multiple > 1:
            shape = Shape(*(-(-size // multiple) * multiple for size in sizes))
        else:
            shape = Shape(*(_made_odd(size) for size in sizes) if number % 3 == 2 else sizes)
        if shape in bounds:
            number += 1
            yield shape


def _log_uniform(rng: random.Random, low: int, high: int) -> int:
    return min(high, int(math.exp(rng.uniform(math.log(low), math.log(high + 1)))))


def _made_odd(size: int) -> int:
    """The size itself or the one below; 2 becomes 1."""
    return size if size % 2 else size - 1
