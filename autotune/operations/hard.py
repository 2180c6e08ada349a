"""Hard operands: those that tell accuracy classes apart, and products in twice the precision.

Kernels that divide operands into parts pass on random elements of one size whatever they leave
out. Each kind of operands here defeats a shortcut: a part, a slice or a modulus too few, scales
that do not reach, sums in one accumulator that truncates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.operations.sums import pieces

Matrix: TypeAlias = NDArray[Any]
Factors: TypeAlias = tuple[NDArray[np.float64], NDArray[np.float64]]
Sizes: TypeAlias = tuple[int, int, int]

_GRADED = 20
"""A graded reduction is of 2^-20 to 2^20: further apart than half a float32's significand."""

_LARGE = 0.4
"""Of a type's largest exponent: so large are rows of A and columns of B whose products fit it."""


def _normal(rng: np.random.Generator, sizes: Sizes) -> Factors:
    m, n, k = sizes
    return rng.normal(size=(m, n)), rng.normal(size=(n, k))


def _positive(rng: np.random.Generator, sizes: Sizes, _: np.finfo[Any]) -> Factors:
    """U(0, 1): sums grow, so that truncations of one sign add up."""
    m, n, k = sizes
    return rng.random((m, n)), rng.random((n, k))


def _constant(rng: np.random.Generator, sizes: Sizes, _: np.finfo[Any]) -> Factors:
    """Rows of A of equal elements, and columns of B: roundings of a row are all the same."""
    m, n, k = sizes
    a, b = rng.uniform(1, 2, (m, 1)), rng.uniform(1, 2, (1, k))
    return np.repeat(a, n, axis=1), np.repeat(b, n, axis=0)


def _outliers(rng: np.random.Generator, sizes: Sizes, about: np.finfo[Any]) -> Factors:
    """The same with one element of each 2^8 times as large: digits left out have one sign, too."""
    a, b = _constant(rng, sizes, about)
    a[:, 0] *= 2**8
    b[-1] *= 2**8
    return a, b


def _octaves(rng: np.random.Generator, sizes: Sizes, _: np.finfo[Any]) -> Factors:
    """40 octaves in every row: single products dominate, so that no errors average out."""
    m, n, k = sizes

    def one(shape: tuple[int, int]) -> NDArray[np.float64]:
        return np.asarray(np.exp2(rng.uniform(-20, 20, shape)) * rng.choice([-1.0, 1.0], shape))

    return one((m, n)), one((n, k))


def _rows(rng: np.random.Generator, sizes: Sizes, about: np.finfo[Any]) -> Factors:
    """Rows of A and columns of B of all sizes that the type has."""
    (a, b), most = _normal(rng, sizes), int(_LARGE * about.maxexp)
    of_rows = rng.integers(-most, most + 1, (len(a), 1))
    of_columns = rng.integers(-most, most + 1, b.shape[1])
    return np.ldexp(a, of_rows), np.ldexp(b, of_columns)


def _reduction(rng: np.random.Generator, sizes: Sizes, _: np.finfo[Any]) -> Factors:
    """A[:, n] 2^e and B[n, :] 2^-e: products are of one size, factors are not."""
    a, b = _normal(rng, sizes)
    exponents = rng.integers(-_GRADED, _GRADED + 1, len(b))
    return np.ldexp(a, exponents), np.ldexp(b, -exponents[:, None])


def _pair(rng: np.random.Generator, sizes: Sizes, _: np.finfo[Any]) -> Factors:
    """The same of one row and one column, which the largest of all rows and columns hide."""
    a, b = _normal(rng, sizes)
    exponents = rng.integers(-_GRADED, _GRADED + 1, len(b))
    a[0], b[:, 0] = np.ldexp(a[0], exponents), np.ldexp(b[:, 0], -exponents)
    return a, b


def _subnormal(rng: np.random.Generator, sizes: Sizes, about: np.finfo[Any]) -> Factors:
    """Rows of A around the least normal number, and columns of B that bring products back."""
    a, b = _normal(rng, sizes)
    low = about.minexp + rng.integers(2 - about.nmant, about.nmant // 2, (len(a), 1))
    high = int(2 * _LARGE * about.maxexp) * rng.integers(0, 2, b.shape[1])
    return np.ldexp(a, low), np.ldexp(b, high)


def _cancelling(rng: np.random.Generator, sizes: Sizes, about: np.finfo[Any]) -> Factors:
    """The second half of a sum undoes the first but for last bits."""
    a, b = _normal(rng, sizes)
    half = len(b) // 2
    a[:, half : 2 * half] = a[:, :half].astype(about.dtype) * (1 + 4 * float(about.eps))
    b[half : 2 * half] = -b[:half].astype(about.dtype)
    return a, b


POSITIVE, SUBNORMAL = "positive", "subnormal"

DRAWS: Mapping[str, Callable[[np.random.Generator, Sizes, np.finfo[Any]], Factors]] = {
    POSITIVE: _positive,
    "constant": _constant,
    "outliers": _outliers,
    "octaves": _octaves,
    "graded rows": _rows,
    "graded reduction": _reduction,
    "graded pair": _pair,
    "cancelling": _cancelling,
    SUBNORMAL: _subnormal,
}
"""Kinds of hard operands, by the name of their distribution: random elements in float64."""


def draw(
    rng: np.random.Generator, distribution: str, sizes: Sizes, dtype: Any
) -> tuple[Matrix, Matrix]:
    """A and B of a kind, in a type.

    Args:
        rng: draws them.
        distribution: one of `DRAWS`.
        sizes: M, N and K.
        dtype: of NumPy: float32 or float64.
    """
    a, b = DRAWS[distribution](rng, sizes, np.finfo(dtype))
    return a.astype(dtype), b.astype(dtype)


def twofold_product(a: Matrix, b: Matrix) -> NDArray[np.float64]:
    """A B in twice float64's precision, rounded to it once at the end.

    Products and sums are kept with their errors, by the transformations of Dekker and Knuth
    (Ogita, Rump and Oishi, "Accurate sum and dot product", SIAM J. Sci. Comput. 26, 2005,
    algorithm 5.3). Rows and columns are brought to numbers around 1 first, so that no error is
    subnormal.

    Args:
        a: M x N, finite.
        b: N x K, finite.
    """
    rows, columns = _exponents(a, 1), _exponents(b, 0)
    left = np.ldexp(a.astype(np.float64), -rows)
    right = np.ldexp(b.astype(np.float64), -columns)
    (left_high, left_low), (right_high, right_low) = _split(left), _split(right)
    total, rest = np.zeros((2, len(a), b.shape[1]))
    for n in range(len(b)):
        product = np.outer(left[:, n], right[n])
        error = np.outer(left_high[:, n], right_high[n]) - product
        error += np.outer(left_high[:, n], right_low[n])
        error += np.outer(left_low[:, n], right_high[n])
        error += np.outer(left_low[:, n], right_low[n])
        after = total + product
        part = after - total
        rest += error + ((total - (after - part)) + (product - part))
        total = after
    return np.asarray(np.ldexp(total + rest, rows + columns))


def norms(matrix: Matrix, axis: int) -> NDArray[np.float64]:
    """The 2-norm along an axis, which stays with one element; squares do not underflow."""
    exponents = _exponents(matrix, axis)
    scaled = np.ldexp(matrix.astype(np.float64), -exponents)
    return np.asarray(np.ldexp(np.sqrt((scaled**2).sum(axis=axis, keepdims=True)), exponents))


def norm_of_errors(values: Matrix, expected: Matrix) -> float | None:
    """Norm of the errors, relative to that of what is expected; None where that is no number."""
    wide, errors = np.complex128 if values.dtype.kind == "c" else np.float64, 0.0
    with np.errstate(all="ignore"):
        for rows in pieces(values.shape):
            error = values[rows].astype(wide, copy=False) - expected[rows]
            errors = math.hypot(errors, float(np.linalg.norm(error)))
        relative = float(errors / np.linalg.norm(expected))
    return relative if math.isfinite(relative) else None


def _exponents(matrix: Matrix, axis: int) -> NDArray[np.int32]:
    """Exponents of the largest elements along an axis."""
    largest = np.abs(matrix.astype(np.float64)).max(axis=axis, keepdims=True, initial=0.0)
    return np.asarray(np.frexp(largest)[1])


def _split(matrix: NDArray[np.float64]) -> Factors:
    """Numbers as sums of two of 26 bits (Veltkamp's splitting)."""
    scaled = matrix * (2.0**27 + 1)
    high = scaled - (scaled - matrix)
    return high, matrix - high
