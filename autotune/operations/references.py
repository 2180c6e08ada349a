"""References of results: random operands, float64 products, and the error that is allowed."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.core.dtypes import DTYPES, ELEMENTS
from autotune.core.errors import ExpressionError, InputError
from autotune.operations.accuracy import Tolerance
from autotune.operations.cases import SPECIAL, Case
from autotune.operations.formula import Formula
from autotune.operations.parts import Array
from autotune.operations.problem import Problem, multiplies
from autotune.operations.python_reference import PythonReference

Matrix: TypeAlias = NDArray[Any]

FULL_PRODUCTS = 2**31
"""Multiplications up to which every element is compared; beyond, rows, columns and an identity."""

FULL_ELEMENTS = 2**24
"""Elements of C up to which a float64 copy of it is kept."""

SAMPLES = 8
"""Rows and columns compared exactly where not every element is."""

_SHORT = 64
"""Terms of a sum one of which may be much larger than others."""

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
    """

    error: float
    place: tuple[int, ...] | None = None
    found: float = math.nan
    expected: float = math.nan


def largest_deviation(
    values: NDArray[Any], expected: NDArray[Any], allowed: NDArray[Any]
) -> Deviation:
    """The element that is farthest off.

    Where NaN or infinity is expected, or more than the type of the values holds, the same must be
    there.

    Args:
        values: what was computed.
        expected: what it should be, in float64.
        allowed: how far each element may be off.
    """
    numbers = values.astype(np.float64, copy=False)
    with np.errstate(all="ignore"):
        error = np.abs(numbers - expected)
        # Where nothing may be off nothing is, as above the diagonal of a triangle.
        exact = (allowed == 0) & (error == 0)
        relative = np.divide(error, allowed, out=error)
        relative[np.broadcast_to(exact, relative.shape)] = 0
        largest = float(relative.max())
        if largest <= 1:
            return Deviation(largest)
        # What the type cannot hold as a number is compared as it holds it.
        stored = expected.astype(values.dtype).astype(np.float64)
        beyond = ~np.isfinite(stored)
        same = beyond & ((stored == numbers) | np.isnan(stored) & np.isnan(numbers))
        relative[beyond & ~(relative <= 1)] = np.inf
        # How far a number may be off is not known where terms that it does not show are infinite.
        relative[same | ~beyond & np.isnan(allowed) & np.isfinite(numbers)] = 0
    worst = np.where(np.isnan(relative), np.inf, relative).argmax()
    place = tuple(map(int, np.unravel_index(worst, relative.shape)))
    return Deviation(float(relative[place]), place, float(numbers[place]), float(expected[place]))


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Random operands of a case, and what comes of them.

    Attributes:
        inputs: as stored, by name.
        before: the output before the call; None where it must not be read.
        reference: what the output must be after it.
    """

    inputs: Mapping[str, Matrix]
    before: Matrix | None
    reference: FullReference | SampledReference

    @classmethod
    def of(cls, case: Case, problem: Problem, rng: np.random.Generator) -> Drawn:
        """Draw operands and compute, in float64, what the operation makes of them.

        Args:
            case: sizes, scalars and distribution.
            problem: operation, dtype and layout; its own sizes do not matter.
            rng: draws the operands.

        Raises:
            InputError: elements of a type come out equal, which shows nothing.
        """
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            if not case.special:
                return cls._of(case, problem, rng)
            warnings.simplefilter("ignore")  # of NaN and infinity
            try:
                return cls._of(case, problem, rng)
            except ExpressionError:  # a function that takes finite numbers alone
                return cls._of(case.drawn_from("uniform"), problem, rng)

    @classmethod
    def _of(cls, case: Case, problem: Problem, rng: np.random.Generator) -> Drawn:
        here = problem.with_sizes(*case.sizes)
        defined = problem.defined
        scalars = case.scalars_of(defined, problem.dtype)
        # In a long sum a large term drowns the rest, of which tensor cores cut off too much then.
        large = multiplies(defined) and case.sizes[1] <= _SHORT
        inputs = {
            each.name: _random(
                rng, each.shape, case.distribution, each.dtype, large, max(case.sizes)
            )
            if each.most is None
            else _bounded(rng, each, case.distribution)
            for each in here.operands
            if not each.written
        }
        output = next(each for each in here.operands if each.written)
        before = None
        if defined.reads_output(scalars):
            before = _random(rng, output.shape, case.distribution, output.dtype, large)
        named = problem.named(inputs)
        if not multiplies(defined):
            # No rows, columns or identity stand for all of it: it is computed whole.
            known = np.zeros(output.shape) if before is None else before
            values = {**named, output.name: known, **scalars}
            whole = FullReference.of_formula(defined.result, values)
            if whole.expected.shape != output.shape:
                raise InputError(
                    f"{defined.result.text} must give the shape {output.shape} of {output.name} "
                    f"at {case}, and gives {whole.expected.shape}"
                )
            return cls(inputs, before, whole)
        factors, alpha, beta = (named["A"], named["B"]), scalars["alpha"], scalars["beta"]
        if math.prod(case.sizes) <= FULL_PRODUCTS and math.prod(output.shape) <= FULL_ELEMENTS:
            reference = FullReference.of_product(*factors, before, alpha, beta)
            return cls(inputs, before, reference)
        return cls(inputs, before, SampledReference(*factors, before, alpha, beta, rng))


class FullReference:
    """Every element, against what float64 gives.

    Attributes:
        expected: what the output should be, in float64.
        scale: what tolerances are relative to; of a product |alpha| |A| |B| + |beta| |C0|.
        largest: the largest element of `scale`.
    """

    def __init__(self, expected: Matrix, scale: Matrix) -> None:
        self.expected = expected
        self.scale = scale
        self.largest = float(np.max(scale, initial=0.0, where=np.isfinite(scale)))

    @classmethod
    def of_product(
        cls, a: Matrix, b: Matrix, c: Matrix | None, alpha: float, beta: float
    ) -> FullReference:
        """That of alpha A B + beta C0.

        Args:
            a: A.
            b: B.
            c: C0; None where beta is zero.
            alpha: scales the product.
            beta: scales C0.
        """
        expected = alpha * _product(a, b)
        scale = abs(alpha) * _product(np.abs(a), np.abs(b))
        if c is not None:
            expected += beta * c.astype(np.float64)
            scale += abs(beta) * np.abs(c.astype(np.float64))
        return cls(expected, scale)

    @classmethod
    def of_formula(
        cls, formula: Formula | PythonReference, values: Mapping[str, Any]
    ) -> FullReference:
        """That of a formula, or of a function of Python.

        Args:
            formula: what the output becomes.
            values: of operands and scalars.
        """
        exact = {name: np.asarray(value).astype(np.float64) for name, value in values.items()}
        return cls(formula.evaluate(exact), formula.magnitude(exact))

    def error(self, c: Matrix, tolerance: Tolerance) -> float:
        """The largest error relative to `tolerance`; NaN where the output wrongly is NaN."""
        return self.worst(c, tolerance).error

    def worst(self, c: Matrix, tolerance: Tolerance) -> Deviation:
        """The element whose error relative to `tolerance` is largest.

        Where NaN or infinity is expected, or more than the type of `c` holds, the same must be
        there.
        """
        allowed = tolerance.allowed(self.scale, self.largest, self.expected)
        return largest_deviation(c, self.expected, allowed)


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
        self._row_part = FullReference.of_product(
            a[rows], b, None if c is None else c[rows], alpha, beta
        )
        self._column_part = FullReference.of_product(
            a, b[:, columns], None if c is None else c[:, columns], alpha, beta
        )
        self.vectors = rng.choice([-1.0, 1.0], (b.shape[1], VECTORS))
        self._expected = alpha * _product(a, _product(b, self.vectors))
        self._scale = abs(alpha) * _product(np.abs(a), _norms(b))
        if c is not None:
            self._expected += beta * _product(c, self.vectors)
            self._scale += abs(beta) * _norms(c)
        self._magnitude = np.sqrt(np.mean(self._expected**2, axis=1, keepdims=True))
        self._largest = float(self._scale.max())
        self._width = b.shape[1]

    def worst(self, c: Matrix, tolerance: Tolerance) -> Deviation:
        """The element farthest off, relative to `tolerance`; its error is NaN where C is NaN."""
        return self.worst_of(
            c[self.rows], c[:, self.columns], _product(c, self.vectors), tolerance
        )

    def worst_of(
        self, rows: Matrix, columns: Matrix, image: Matrix, tolerance: Tolerance
    ) -> Deviation:
        """The same, of the parts of C that it takes: its `rows`, its `columns`, and C v."""
        of_row = replace(tolerance, absolute=tolerance.absolute * math.sqrt(self._width))
        allowed = of_row.allowed(self._scale, self._largest, self._magnitude)
        found = [
            _placed(self._row_part.worst(rows, tolerance), self.rows, None),
            _placed(self._column_part.worst(columns, tolerance), None, self.columns),
            replace(
                largest_deviation(image, self._expected, self._DEVIATIONS * allowed), place=None
            ),
        ]
        # NaN is worse than all; of faults of a kind, one that has a place is told.
        return max(found, key=lambda each: (not each.error <= 1, bool(each.place), each.error))


def _placed(
    found: Deviation, rows: NDArray[np.int64] | None, columns: NDArray[np.int64] | None
) -> Deviation:
    """The deviation in some rows or columns, by its place in the whole."""
    if found.place is None:
        return found
    row, column = found.place
    row = row if rows is None else int(rows[row])
    return replace(found, place=(row, column if columns is None else int(columns[column])))


def _norms(matrix: Matrix) -> Matrix:
    """The 2-norm of every row, as a column."""
    squares = np.einsum("ij,ij->i", matrix, matrix, dtype=np.float64, casting="unsafe")
    return np.asarray(np.sqrt(squares)[:, None])


def _product(a: Matrix, b: Matrix) -> Matrix:
    """A product in float64, by blocks of the reduction so that only blocks are converted."""
    result = np.zeros((a.shape[0], b.shape[1]))
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        # What BLAS libraries make of NaN and infinity is their own affair.
        return np.asarray(np.einsum("ij,jk->ik", a.astype(np.float64), b.astype(np.float64)))
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


def _bounded(rng: np.random.Generator, array: Array, distribution: str) -> Matrix:
    """Integers from 0 to the most that there may be.

    Those that ascend end with that. Uniform ones are about equally far apart; normal ones come of
    a few numbers, so that many are equal, and three times in four end before.
    """
    count, most = math.prod(array.shape), array.most or 0
    if not array.ascending:
        drawn = rng.integers(0, most, count, endpoint=True)
    elif distribution == "uniform":
        drawn = np.cumsum(rng.multinomial(most, np.full(count, 1 / count)))
    else:
        few = rng.integers(0, most, 1 + count // 2, endpoint=True)
        drawn = np.sort(rng.choice([*few, 0, most], count))
    return drawn.astype(ELEMENTS[array.dtype].numpy).reshape(array.shape)


def _random(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    distribution: str,
    dtype: str,
    large: bool,
    terms: int = 1,
) -> Matrix:
    """Random elements of a type, drawn by its kind.

    Args:
        rng: draws them.
        shape: of the array.
        distribution: of floating elements; integers are uniform.
        dtype: element type.
        large: whether elements of `SPECIAL` operands may be large.
        terms: products of integers that are summed, at most: so many fit.
    """
    row = DTYPES[dtype]
    if row.kind == "integer":
        sums = 8 * row.accumulated.itemsize - 3  # a scalar may double them
        limit = min(math.isqrt(2**sums // terms), int(np.iinfo(row.numpy).max))
        return rng.integers(-limit, limit, shape, row.numpy, endpoint=True)
    normal = distribution == "normal"
    values = rng.normal(size=shape) if normal else rng.uniform(-1, 1, shape)
    if distribution == SPECIAL:
        power = (20 if row.smallest < 2.0**-100 else 5) if large else 3
        chosen = (np.nan, np.inf, -np.inf, 0.0, -0.0, 2.0**power, -(2.0**power), 2.0**-power)
        # What is read again beyond an edge, to be multiplied by zero, is the last element: it must
        # be all that is not finite in its row and column.
        inner = np.arange(values.size).reshape(shape)[(slice(-1),) * len(shape)].reshape(-1)
        several = len(chosen) * (1 + min(shape) // 64)
        places = rng.permutation(inner)[: min(several, 1 + inner.size // 8)]
        values.flat[places] = np.resize(rng.permutation(chosen), len(places))
        values.flat[-1] = np.inf
    drawn = values.astype(row.numpy)
    _check_varied(dtype)
    return drawn


@functools.cache
def _check_varied(dtype: str) -> None:
    """Refuse a type whose random elements come out equal, which shows nothing.

    Raises:
        InputError: they do.
    """
    drawn = np.linspace(-1, 1, 64)[1:-1].astype(DTYPES[dtype].numpy)
    if (drawn == drawn[0]).all():
        raise InputError(
            f"operands of {dtype} cannot be verified: random elements are all {drawn[0]}"
        )
