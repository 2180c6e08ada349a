"""Sums over the reduction of large products, in float64, block by block."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Matrix: TypeAlias = NDArray[Any]

_BLOCK = 2**19
"""Elements of a block in float64: it stays in the caches, and its memory is used again."""


@dataclass(slots=True, eq=False)
class Sums:
    """Sums over the reduction of a product of A and B.

    Attributes:
        product: A B.
        scale: |A| |B|.
        rows: 2-norms of the rows of A, or their squares: a column.
        columns: those of the columns of B: a row.
    """

    product: Matrix
    scale: Matrix
    rows: Matrix
    columns: Matrix

    @classmethod
    def zero(cls, height: int, width: int) -> Sums:
        """Those of no terms."""
        shapes = (height, width), (height, width), (height, 1), (1, width)
        return cls(*map(np.zeros, shapes))

    def add_squares(self, left: Matrix, right: Matrix) -> None:
        """Add those of columns of A and rows of B."""
        self.rows += np.einsum("ij,ij->i", left, left)[:, None]
        self.columns += np.einsum("ij,ij->j", right, right)

    def rooted(self) -> Sums:
        """The same with norms, of squares."""
        return replace(self, rows=np.sqrt(self.rows), columns=np.sqrt(self.columns))


def pieces(shape: tuple[int, ...]) -> Iterator[slice]:
    """Runs along the first axis, of so few elements that what is made of them stays in caches."""
    rows = max(1, _BLOCK * shape[0] // max(1, math.prod(shape)))
    yield from (slice(first, first + rows) for first in range(0, shape[0], rows))


def root_mean_square(values: Matrix) -> float:
    """That of the real elements that are finite; zero where there are none."""
    flat = values.ravel()
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(np.dot(flat, flat)) / max(1, flat.size)
    if not math.isfinite(mean):
        known = flat[np.isfinite(flat)]
        mean = float(np.mean(np.square(known))) if known.size else 0.0
    return math.sqrt(mean)


def product(a: Matrix, b: Matrix) -> Matrix:
    """A product in float64."""
    multiply, result = multiplication(a, b), np.zeros((a.shape[0], b.shape[1]))
    for left, right in blocks(a, b):
        result += multiply(left, right)
    return result


def multiplication(a: Matrix, b: Matrix) -> Callable[[Matrix, Matrix], Matrix]:
    """The multiplication of their blocks.

    What BLAS libraries make of NaN and infinity is their own affair.
    """
    if np.isfinite(a).all() and np.isfinite(b).all():
        return np.matmul
    return functools.partial(np.einsum, "ij,jk->ik")


def blocks(a: Matrix, b: Matrix) -> Iterator[tuple[Matrix, Matrix]]:
    """Columns of A and rows of B in float64, by blocks of the reduction."""
    step = max(1, _BLOCK // max(a.shape[0], b.shape[1]))
    for start in range(0, a.shape[1], step):
        block = slice(start, start + step)
        yield a[:, block].astype(np.float64), b[block].astype(np.float64)
