"""What a product must be: random operands, float64 references, and the error that is allowed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.core.dtypes import DTYPES
from autotune.core.errors import InputError
from autotune.operations.formula import Formula

Matrix: TypeAlias = NDArray[Any]

FULL_PRODUCTS = 2**31
"""Multiplications up to which every element is compared; beyond, rows, columns and an identity."""

FULL_ELEMENTS = 2**24
"""Elements of C up to which a float64 copy of it is kept."""

SAMPLES = 8
"""Rows and columns compared exactly where not every element is."""

VECTORS = 16
"""Random vectors of the identity: a fault that one of them misses half the time passes all with
probability 2**-16."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far C may be from the float64 reference.

    With S = |alpha| |A| |B| + |beta| |C0|, the error of element ij may be `factor` times S_ij, or,
    where the class promises accuracy only in norm, `factor` times the largest element of S; and
    `rounding` times the magnitude of the reference; and `absolute`.
    """

    factor: float
    normwise: bool
    rounding: float = 0.0
    absolute: float = 0.0

    @classmethod
    def of(
        cls, accuracy: str, dtype: str, sizes: tuple[int, int, int], out_dtype: str | None = None
    ) -> Tolerance:
        """The tolerance of an accuracy class.

        Operands are taken as they were drawn, in their own type: they are exact. What follows is
        about the type that products are summed in, float32 for operands of 16 bits, whose
        products it holds exactly (2 x 11 and 2 x 8 bits of significand fit 24): eps is of that
        type, u = eps / 2.

        `ieee`: 16 eps. For any data, rounding errors of an inner product are within n u S and,
        with high probability, within a multiple of sqrt(n) u S; for data of mean zero, as used
        here, within a multiple of u S that does not grow with n at all, whatever the order of
        summation (Higham and Mary, "Sharper probabilistic backward error analysis for basic
        linear algebra kernels with random data", SIAM J. Sci. Comput. 42, 2020). The worst
        order, one running sum, stays below 3 eps up to n = 32768. The rest is margin, and covers
        the rounding of the reference itself where the problem is float64. A dropped or doubled
        term is off by about 1/n: thousands of eps at n = 4096.

        `strassen`: 8 eps 4.5^(L/2), L recursion levels down to 32. The bound of one level of
        Winograd's variant grows by 18 where the textbook product grows by 4
        (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd edition, section 23.2.2;
        Strassen's own by 12), so relative to S by 4.5; rounding errors of random data add up
        like a random walk, by its square root. Measured: a factor of 2.1 to 2.4 per level.
        The bound is one for finite operands, and operands of checks are finite. An Inf or NaN in
        A or B makes Inf or NaN of elements of C that are finite in the textbook product, since
        whole blocks are added and subtracted before they are multiplied; in class `ieee` it stays
        in its row of A, or its column of B.

        A result of another type than the sums is rounded to it, once, at the end: off by at most
        u' |C_ij|, where u' is that type's unit roundoff, and among its subnormal numbers by half
        the smallest one (Higham, section 2.1, where (2.8) adds the second to the first).
        C_ij is what was summed; that it differs from the reference adds u' times the above, which
        the margin holds. This part is relative to the result, not to S: data of mean zero cancel,
        so that |C_ij| is about S_ij / sqrt(n). A kernel that rounds every partial sum to 16 bits
        is off by a random walk of such roundings, and stands out; within u' S_ij it would not.

        Args:
            accuracy: the accuracy class of the kernel.
            dtype: element type of the operands.
            sizes: m, n, k.
            out_dtype: element type of the result; None means `dtype`.

        Raises:
            InputError: no tolerance is known for the class.
        """
        sums, result = DTYPES[dtype].accumulated, DTYPES[out_dtype or dtype]
        eps = 2 * sums.unit_roundoff
        final = (0.0, 0.0) if result is sums else (result.unit_roundoff, result.smallest / 2)
        if accuracy == "ieee":
            return cls(16 * eps, False, *final)
        if accuracy == "strassen":
            levels = max(0, math.ceil(math.log2(min(sizes) / 32)))
            return cls(8 * eps * 4.5 ** (levels / 2), True, *final)
        raise InputError(f"accuracy must be ieee or strassen to be verified, got {accuracy!r}")

    def allowed(self, scale: Matrix, largest: float, expected: Matrix) -> Matrix:
        """How far each element may be off.

        Args:
            scale: S.
            largest: its largest element.
            expected: the reference.
        """
        allowed = np.multiply(self.factor, largest if self.normwise else scale)
        if self.rounding:
            allowed = allowed + self.rounding * np.abs(expected) + self.absolute
        return np.asarray(allowed)


@dataclass(frozen=True, slots=True)
class Case:
    """One multiplication to check.

    Attributes:
        m: rows of A and C.
        n: the reduction.
        k: columns of B and C.
        alpha: scales the product.
        beta: scales C; zero means that C must not be read.
        padding: elements between the end of a row and the start of the next, in every operand.
        distribution: of the operands' elements: "uniform" in (-1, 1) or "normal".
    """

    m: int
    n: int
    k: int
    alpha: float = 1.0
    beta: float = 0.0
    padding: int = 0
    distribution: str = "uniform"

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k} alpha={self.alpha:g} beta={self.beta:g}"


SMALL_CASES = (
    Case(1, 1, 1),
    Case(1, 7, 1, alpha=-1.5, beta=2.0),
    Case(5, 1, 3, beta=1.0, padding=3),
    Case(2, 301, 2, alpha=0.5, distribution="normal"),
    Case(3, 2, 130, beta=-0.25, padding=1),
    Case(131, 4, 3, alpha=2.0),
    Case(17, 33, 9, alpha=0.75, beta=-1.0, padding=5),
    Case(64, 64, 64, alpha=-1.0, beta=0.5),
    Case(65, 127, 63, alpha=1.25, padding=7, distribution="normal"),
)
"""Small and ragged sizes, other alpha and beta, padded rows: under 2 ms together for any kernel
worth timing."""


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Random operands of a case, and what comes of them.

    Attributes:
        a: A as stored.
        b: B as stored.
        c: C before the call; None where beta is zero and C must not be read.
        reference: what C must be after it.
    """

    a: Matrix
    b: Matrix
    c: Matrix | None
    reference: FullReference | SampledReference

    @classmethod
    def of(
        cls,
        case: Case,
        dtype: str,
        layout: str,
        rng: np.random.Generator,
        formula: Formula | None = None,
        out_dtype: str | None = None,
    ) -> Drawn:
        """Draw operands and compute, in float64, their product or what a formula says."""
        a_shape = (case.n, case.m) if layout[0] == "t" else (case.m, case.n)
        b_shape = (case.k, case.n) if layout[1] == "t" else (case.n, case.k)
        a = _random(rng, a_shape, case.distribution, dtype)
        b = _random(rng, b_shape, case.distribution, dtype)
        c = None
        if case.beta != 0:
            c = _random(rng, (case.m, case.k), case.distribution, out_dtype or dtype)
        factors = (a.T if layout[0] == "t" else a, b.T if layout[1] == "t" else b)
        if formula is not None:
            # No rows, columns or identity stand for all of it: it is computed whole.
            return cls(a, b, c, FullReference(*factors, c, case, formula))
        if case.m * case.n * case.k <= FULL_PRODUCTS and case.m * case.k <= FULL_ELEMENTS:
            return cls(a, b, c, FullReference(*factors, c, case))
        return cls(a, b, c, SampledReference(*factors, c, case, rng))


class FullReference:
    """Every element, against a float64 product.

    Attributes:
        expected: what C should be, in float64.
        scale: |alpha| |A| |B| + |beta| |C0|, which tolerances are relative to.
        largest: the largest element of `scale`.
    """

    def __init__(
        self,
        a: Matrix,
        b: Matrix,
        c: Matrix | None,
        case: Case,
        formula: Formula | None = None,
    ) -> None:
        if formula is not None:
            a64, b64 = a.astype(np.float64), b.astype(np.float64)
            c64 = None if c is None else c.astype(np.float64)
            self.expected = formula.evaluate(a64, b64, c64, case.alpha, case.beta)
            self.scale = formula.magnitude(a64, b64, c64, case.alpha, case.beta)
        else:
            self.expected = case.alpha * _product(a, b)
            self.scale = abs(case.alpha) * _product(np.abs(a), np.abs(b))
            if c is not None:
                self.expected += case.beta * c.astype(np.float64)
                self.scale += abs(case.beta) * np.abs(c.astype(np.float64))
        self.largest = float(self.scale.max())

    def error(self, c: Matrix, tolerance: Tolerance) -> float:
        """The largest error relative to `tolerance`; NaN where C is NaN."""
        allowed = tolerance.allowed(self.scale, self.largest, self.expected)
        return _worst(c, self.expected, allowed)


class SampledReference:
    """Some rows and columns against float64, and all of C against C v = alpha A (B v) + beta C0 v.

    The elements of v are -1 or 1 at random. Where element ij of C may be off by t_ij, the
    component (C v)_i may be off by 6 sqrt(sum_j t_ij^2): Hoeffding's inequality leaves a chance of
    2 exp(-18) to a C with every element at its limit. The row sums of squares come, without
    forming |A| |B|, from the triangle inequality: the 2-norm of row i of S is at most
    |alpha| sum_j |a_ij| ||B_j|| + |beta| ||C0_i||, and close to it for random data. That of row i
    of the reference, which the rounding of results is relative to, is the root mean square of
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
        self, a: Matrix, b: Matrix, c: Matrix | None, case: Case, rng: np.random.Generator
    ) -> None:
        rows, columns = _pick(case.m, rng), _pick(case.k, rng)
        self.rows = rows
        self.columns = columns
        self._row_part = FullReference(a[rows], b, None if c is None else c[rows], case)
        self._column_part = FullReference(
            a, b[:, columns], None if c is None else c[:, columns], case
        )
        self.vectors = rng.choice([-1.0, 1.0], (case.k, VECTORS))
        self._expected = case.alpha * _product(a, _product(b, self.vectors))
        self._scale = abs(case.alpha) * _product(np.abs(a), _norms(b))
        if c is not None:
            self._expected += case.beta * _product(c, self.vectors)
            self._scale += abs(case.beta) * _norms(c)
        self._magnitude = np.sqrt(np.mean(self._expected**2, axis=1, keepdims=True))
        self._largest = float(self._scale.max())
        self._width = case.k

    def error(self, c: Matrix, tolerance: Tolerance) -> float:
        """The largest error relative to `tolerance`; NaN where C is NaN."""
        return self.error_of(
            c[self.rows], c[:, self.columns], _product(c, self.vectors), tolerance
        )

    def error_of(
        self, rows: Matrix, columns: Matrix, image: Matrix, tolerance: Tolerance
    ) -> float:
        """The same, of the parts of C that it takes: its `rows`, its `columns`, and C v."""
        of_row = replace(tolerance, absolute=tolerance.absolute * math.sqrt(self._width))
        allowed = of_row.allowed(self._scale, self._largest, self._magnitude)
        errors = (
            self._row_part.error(rows, tolerance),
            self._column_part.error(columns, tolerance),
            _worst(image, self._expected, self._DEVIATIONS * allowed),
        )
        return float(np.max(errors))  # unlike max(), propagates NaN


def _worst(values: Matrix, expected: Matrix, allowed: Matrix) -> float:
    error = np.abs(values.astype(np.float64, copy=False) - expected)
    return float(np.divide(error, allowed, out=error).max())


def _norms(matrix: Matrix) -> Matrix:
    """The 2-norm of every row, as a column."""
    squares = np.einsum("ij,ij->i", matrix, matrix, dtype=np.float64, casting="unsafe")
    return np.asarray(np.sqrt(squares)[:, None])


def _product(a: Matrix, b: Matrix) -> Matrix:
    """A product in float64, by blocks of the reduction so that only blocks are converted."""
    result = np.zeros((a.shape[0], b.shape[1]))
    for start in range(0, a.shape[1], 1024):
        block = slice(start, start + 1024)
        result += a[:, block].astype(np.float64) @ b[block].astype(np.float64)
    return result


def _pick(count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Up to `SAMPLES` of `count` indices: the first, the last, and random ones between."""
    if count <= SAMPLES:
        return np.arange(count)
    inner = rng.choice(np.arange(1, count - 1), SAMPLES - 2, replace=False)
    return np.sort(np.concatenate([[0, count - 1], inner]))


def _random(
    rng: np.random.Generator, shape: tuple[int, int], distribution: str, dtype: str
) -> Matrix:
    values = rng.uniform(-1, 1, shape) if distribution == "uniform" else rng.normal(size=shape)
    return values.astype(DTYPES[dtype].numpy)
