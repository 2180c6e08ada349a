"""References of results: random operands, float64 products, and the error that is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from autotune.operations.accuracy import Relative, Tolerance
from autotune.operations.hard import norm_of_errors, norms
from autotune.operations.sums import (
    Sums,
    blocks,
    multiplication,
    pieces,
    product,
    root_mean_square,
)

Matrix: TypeAlias = NDArray[Any]

SAMPLES = 8
"""Rows and columns compared exactly where not every element is."""

VECTORS = 16
"""Random vectors of the identity: a fault that one of them misses half the time passes all with
probability 2**-16."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """The element of a result that is farthest off.

    Attributes:
        error: relative to what is allowed; 1 is the limit, NaN where the result is NaN and must
            not be.
        place: its indices; None where no single element is known to be off.
        found: its value.
        expected: what it should be.
        norm: Frobenius norm of the errors, relative to that of the result, of all elements or of
            sampled rows; None where it is not known.
        name: the output that it is of.
    """

    error: float
    place: tuple[int, ...] | None = None
    found: complex = math.nan
    expected: complex = math.nan
    norm: float | None = None
    name: str = ""


def largest_deviation(
    values: NDArray[Any], expected: NDArray[Any], allowed: NDArray[Any]
) -> Deviation:
    """The element that is farthest off.

    Where NaN or infinity is expected, or more than the type of the values holds, the same must be
    there.

    Args:
        values: what was computed.
        expected: what it should be, in float64, complex128 or integers.
        allowed: how far each element may be off; it may be one number for all.
    """
    allowed, worst = np.broadcast_to(allowed, values.shape), Deviation(0.0)
    for rows in pieces(values.shape):
        found = _largest_of_piece(values[rows], expected[rows], allowed[rows])
        if not found.error <= worst.error:
            worst = found
            if found.place is not None:
                first, *others = found.place
                worst = replace(found, place=(rows.start + first, *others))
        if math.isnan(worst.error):  # which nothing is farther off than
            break
    return worst


def _largest_of_piece(
    values: NDArray[Any], expected: NDArray[Any], allowed: NDArray[Any]
) -> Deviation:
    """The same, where all is made at once."""
    wide = np.complex128 if values.dtype.kind == "c" else np.float64
    numbers = values.astype(wide, copy=False)
    with np.errstate(all="ignore"):
        error = np.abs(numbers - expected)
        if values.dtype.kind in "iub":  # of which float64 does not tell all apart
            error = np.where(values == expected, 0.0, np.maximum(error, 1.0))
        # Where nothing may be off nothing is, as above the diagonal of a triangle.
        exact = (allowed == 0) & (error == 0)
        relative = np.divide(error, allowed, out=error)
        relative[np.broadcast_to(exact, relative.shape)] = 0
        largest = float(relative.max())
        if largest <= 1:
            return Deviation(largest)
        # What the type cannot hold as a number is compared as it holds it.
        stored = expected.astype(values.dtype).astype(wide)
        beyond = ~np.isfinite(stored)
        same = beyond & _alike(numbers, stored, allowed)
        relative[beyond & ~(relative <= 1)] = np.inf
        # How far a number may be off is not known where terms that it does not show are infinite.
        relative[same | ~beyond & np.isnan(allowed) & np.isfinite(numbers)] = 0
    worst = np.where(np.isnan(relative), np.inf, relative).argmax()
    place = tuple(map(int, np.unravel_index(worst, relative.shape)))
    number = complex if values.dtype.kind == "c" else float
    return Deviation(
        float(relative[place]), place, number(numbers[place]), number(expected[place])
    )


def _alike(
    numbers: NDArray[Any], stored: NDArray[Any], allowed: NDArray[Any]
) -> NDArray[np.bool_]:
    """True where numbers are what is expected, which is compared part by part of complex ones."""
    same = np.ones(numbers.shape, bool)
    for found, wanted in ((numbers.real, stored.real), (numbers.imag, stored.imag)):
        near = np.isfinite(found) & np.isfinite(wanted) & ~(np.abs(found - wanted) > allowed)
        same &= near | (found == wanted) | np.isnan(found) & np.isnan(wanted)
    return same


@dataclass(frozen=True, slots=True, eq=False)
class Norms:
    """2-norms of the rows of A and of the columns of B, and what is added to their products.

    Attributes:
        rows: of A, times |alpha|: a column.
        columns: of B: a row.
        added: C0; None where nothing is added.
        beta: scales it.
    """

    rows: Matrix
    columns: Matrix
    added: Matrix | None = None
    beta: float = 0.0

    def product(self) -> Matrix:
        """|alpha| ||a_i|| ||b_j|| + |beta| |C0_ij|."""
        scale = self.rows * self.columns
        if self.added is not None:
            scale += abs(self.beta) * np.abs(self.added.astype(np.float64))
        return np.asarray(scale)


class FullReference:
    """Every element, against what float64 gives.

    Attributes:
        expected: what the output should be, in float64, complex128 or integers.
        scale: S; of a product |alpha| |A| |B| + |beta| |C0|.
        largest: the largest element of `scale`.
        norms: what larger scales are made of; None where operands are not multiplied alone.
        columns: those of the output that are compared; None compares all.
        tolerance: the user's own: relative to an element or the root mean square of all, whichever
            is larger; of integers how far they may be off. None where none was given.
    """

    def __init__(
        self,
        expected: Matrix,
        scale: Matrix,
        norms: Norms | None = None,
        columns: NDArray[np.int64] | None = None,
        tolerance: float | None = None,
    ) -> None:
        self.columns = columns
        self.expected = expected
        self.scale = scale
        self.largest = float(np.max(scale, initial=0.0, where=np.isfinite(scale)))
        self.norms = norms
        self.tolerance = tolerance

    @classmethod
    def of_product(
        cls,
        a: Matrix,
        b: Matrix,
        c: Matrix | None,
        alpha: float,
        beta: float,
        multiply: Callable[[Matrix, Matrix], Matrix] | None = None,
    ) -> FullReference:
        """That of alpha A B + beta C0.

        Args:
            a: A.
            b: B.
            c: C0; None where beta is zero.
            alpha: scales the product.
            beta: scales C0.
            multiply: computes A B, of elements whose squares may underflow; None does so in
                float64.
        """
        if multiply is not None:
            sums = Sums(multiply(a, b), product(np.abs(a), np.abs(b)), norms(a, 1), norms(b, 0))
            return cls.of_sums(sums, c, alpha, beta)
        sums = Sums.zero(a.shape[0], b.shape[1])
        multiply = multiplication(a, b)
        for left, right in blocks(a, b):
            sums.product += multiply(left, right)
            sums.scale += multiply(np.abs(left), np.abs(right))
            sums.add_squares(left, right)
        return cls.of_sums(sums.rooted(), c, alpha, beta)

    @classmethod
    def of_sums(cls, sums: Sums, c: Matrix | None, alpha: float, beta: float) -> FullReference:
        """That of alpha A B + beta C0, of what is known of A and B."""
        expected, scale = alpha * sums.product, abs(alpha) * sums.scale
        if c is not None:
            before = c.astype(np.float64)
            expected += beta * before
            scale += abs(beta) * np.abs(before)
        return cls(expected, scale, Norms(abs(alpha) * sums.rows, sums.columns, c, beta))

    def error(self, c: Matrix, tolerance: Tolerance) -> float:
        """The largest error relative to `tolerance`; NaN where the output wrongly is NaN."""
        return self.worst(c, tolerance).error

    def worst(self, c: Matrix, tolerance: Tolerance) -> Deviation:
        """The element whose error relative to `tolerance` is largest.

        Where NaN or infinity is expected, or more than the type of `c` holds, the same must be
        there.
        """
        values = c if self.columns is None else c[..., self.columns]
        found = largest_deviation(values, self.expected, self.most(tolerance, c.dtype))
        norm = norm_of_errors(values, self.expected)
        if self.columns is None or found.place is None:
            return replace(found, norm=norm)
        *outer, column = found.place
        return replace(found, place=(*outer, int(self.columns[column])), norm=norm)

    def most(self, tolerance: Tolerance, dtype: DTypeLike) -> Matrix:
        """The error that each element may have, of an output of a type."""
        exact = np.dtype(dtype).kind in "iub"
        return np.asarray(self.tolerance or 0.0) if exact else self.allowed(tolerance)

    def allowed(self, tolerance: Tolerance) -> Matrix:
        """The same of floating elements."""
        if self.tolerance is not None:
            sizes = np.abs(self.expected)
            if sizes.dtype != self.expected.dtype:  # of an infinite complex number the other part
                parts = np.abs([self.expected.real, self.expected.imag])
                finite = np.max(parts, axis=0, initial=0.0, where=np.isfinite(parts))
                sizes = np.where(np.isfinite(sizes), sizes, finite)
            return np.asarray(self.tolerance * np.maximum(sizes, root_mean_square(sizes)))
        return tolerance.allowed(self.relative_to(tolerance.relative), self.expected)

    def relative_to(self, relative: Relative) -> Matrix | float:
        """The scale of errors of elements; S where norms are not known, which is less."""
        if relative == "largest":
            return self.largest
        if relative == "norms" and self.norms is not None:
            return self.norms.product()
        return self.scale


class SampledReference:
    """Some rows and columns against float64, and all of C against C v = alpha A (B v) + beta C0 v.

    The elements of v are -1 or 1 at random. Where element ij of C may be off by t_ij, the
    component (C v)_i may be off by 6 sqrt(sum_j t_ij^2): Hoeffding's inequality leaves a chance of
    2 exp(-18) to a C with every element at its limit. The row sums of squares come, without
    forming |A| |B|, from the triangle inequality: the 2-norm of row i of S is at most
    |alpha| sum_j |a_ij| ||B_j|| + |beta| ||C0_i||, and close to it for random data; where errors
    are relative to norms it is |alpha| ||a_i|| ||B|| + |beta| ||C0_i||. That of row i of the
    reference, which the rounding of results is relative to, is the root mean square of
    (C v)_i over the vectors: its expectation is exact, and with `VECTORS` of them it comes out
    less than a third of it with a chance below 1e-5. Roundings to nearest have a standard
    deviation of 0.4 of their limit, so that even then five of those are allowed.

    Attributes:
        rows: which rows of C are compared.
        columns: which columns.
        vectors: the vectors v, one a column.
    """

    _DEVIATIONS = 6.0

    def __init__(
        self,
        a: Matrix,
        b: Matrix,
        c: Matrix | None,
        alpha: float,
        beta: float,
        rng: np.random.Generator,
    ) -> None:
        rows, columns = _pick(a.shape[0], rng), _pick(b.shape[1], rng)
        self.rows = rows
        self.columns = columns
        self.vectors = rng.choice([-1.0, 1.0], (b.shape[1], VECTORS))
        height, width = a.shape[0], b.shape[1]
        of_rows, of_columns = Sums.zero(len(rows), width), Sums.zero(height, len(columns))
        image, terms = np.zeros((height, VECTORS)), np.zeros((height, 1))
        squares = 0.0
        for left, right in blocks(a, b):  # all that is wanted of them while they are at hand
            image += left @ (right @ self.vectors)
            of_b = np.einsum("ij,ij->i", right, right)[:, None]
            squares += float(of_b.sum())
            some = left[rows], right[:, columns]
            of_rows.product += some[0] @ right
            of_columns.product += left @ some[1]
            of_rows.add_squares(some[0], right)
            of_columns.add_squares(left, some[1])
            left, right = np.abs(left), np.abs(right)
            of_rows.scale += left[rows] @ right
            of_columns.scale += left @ right[:, columns]
            terms += left @ np.sqrt(of_b)
        parts = (None, None) if c is None else (c[rows], c[:, columns])
        self._row_part = FullReference.of_sums(of_rows.rooted(), parts[0], alpha, beta)
        self._column_part = FullReference.of_sums(of_columns.rooted(), parts[1], alpha, beta)
        self._expected = alpha * image
        self._scales: dict[Relative, Matrix | float] = {
            "terms": abs(alpha) * terms,
            "norms": abs(alpha) * of_columns.rooted().rows * math.sqrt(squares),
        }
        if c is not None:
            self._expected += beta * product(c, self.vectors)
            added = abs(beta) * norms(c, 1)
            self._scales = {relative: each + added for relative, each in self._scales.items()}
        self._scales["largest"] = float(np.max(self._scales["terms"]))
        self._magnitude = np.sqrt(np.mean(self._expected**2, axis=1, keepdims=True))
        self._width = b.shape[1]

    def worst(self, c: Matrix, tolerance: Tolerance) -> Deviation:
        """The element farthest off, relative to `tolerance`; its error is NaN where C is NaN."""
        return self.worst_of(c[self.rows], c[:, self.columns], product(c, self.vectors), tolerance)

    def worst_of(
        self, rows: Matrix, columns: Matrix, image: Matrix, tolerance: Tolerance
    ) -> Deviation:
        """The same, of the parts of C that it takes: its `rows`, its `columns`, and C v."""
        of_row = replace(tolerance, absolute=tolerance.absolute * math.sqrt(self._width))
        allowed = of_row.allowed(self._scales[tolerance.relative], self._magnitude)
        found = [
            _placed(self._row_part.worst(rows, tolerance), self.rows, None),
            _placed(self._column_part.worst(columns, tolerance), None, self.columns),
            replace(
                largest_deviation(image, self._expected, self._DEVIATIONS * allowed), place=None
            ),
        ]
        # NaN is worse than all; of faults of a kind, one that has a place is told.
        worst = max(found, key=lambda each: (not each.error <= 1, bool(each.place), each.error))
        return replace(worst, norm=found[0].norm)


def _placed(
    found: Deviation, rows: NDArray[np.int64] | None, columns: NDArray[np.int64] | None
) -> Deviation:
    """The deviation in some rows or columns, by its place in the whole."""
    if found.place is None:
        return found
    row, column = found.place
    row = row if rows is None else int(rows[row])
    return replace(found, place=(row, column if columns is None else int(columns[column])))


def _pick(count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Up to `SAMPLES` of `count` indices: the first, the last, and random ones between."""
    if count <= SAMPLES:
        return np.arange(count)
    inner = rng.choice(np.arange(1, count - 1), SAMPLES - 2, replace=False)
    return np.sort(np.concatenate([[0, count - 1], inner]))
