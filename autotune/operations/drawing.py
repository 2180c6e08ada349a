"""Random elements of operands, by their type."""

from __future__ import annotations

import functools
import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.core.dtypes import ELEMENTS
from autotune.core.errors import InputError
from autotune.operations.cases import SPECIAL
from autotune.operations.parts import Array

Matrix: TypeAlias = NDArray[Any]

MANY = 2**20
"""Elements beyond which those of an array are drawn from `_NUMBERS` random numbers: a weight of a
language model takes a fifth of the time then."""

_NUMBERS = 2**16
"""As many as 16 random bits choose from."""

_AT_A_TIME = 2**18
"""Elements that are drawn together: what they are made of stays in the caches."""


def bounded_integers(rng: np.random.Generator, array: Array, distribution: str) -> Matrix:
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


def integer_limits(dtype: str, terms: int) -> tuple[int, int]:
    """The least and the most that integers may be of which so many products are summed."""
    row = ELEMENTS[dtype]
    sums = 8 * row.accumulated.itemsize - 3  # a scalar may double them
    limit = min(math.isqrt(2**sums // terms), int(np.iinfo(row.numpy).max))
    return max(-limit, int(np.iinfo(row.numpy).min)), max(limit, 1)


def random_elements(
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
    row = ELEMENTS[dtype]
    if row.kind == "integer":
        return rng.integers(*integer_limits(dtype, terms), shape, row.numpy, endpoint=True)
    if row.kind == "boolean":
        return rng.integers(2, size=shape).astype(row.numpy)
    if row.kind == "complex":
        real, imaginary = (
            random_elements(rng, shape, distribution, row.accumulation, large) for _ in range(2)
        )
        return np.asarray((real + 1j * imaginary.astype(np.float64)).astype(row.numpy))
    if math.prod(shape) > MANY and distribution != SPECIAL:
        numbers = random_elements(rng, (_NUMBERS,), distribution, dtype, large)
        drawn = np.empty(math.prod(shape), row.numpy)
        for start in range(0, drawn.size, _AT_A_TIME):
            part = drawn[start : start + _AT_A_TIME]
            places = rng.bit_generator.random_raw(-(-part.size // 4)).view(np.uint16)
            part[:] = numbers[places[: part.size]]
        return drawn.reshape(shape)
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
    drawn = np.linspace(-1, 1, 64)[1:-1].astype(ELEMENTS[dtype].numpy)
    if (drawn == drawn[0]).all():
        raise InputError(
            f"operands of {dtype} cannot be verified: random elements are all {drawn[0]}"
        )
