"""What a kernel must compute, stored for programs that check exported kernels.

Operands need no room: they are drawn by a hash of an element's place, which programs in all
languages compute alike. Of the output some elements are kept, each with how far it may be off.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from autotune.core.dtypes import DTYPES
from autotune.operations.accuracy import Tolerance
from autotune.operations.references import FullReference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.operations.operation import Operation
    from autotune.operations.parts import Array
    from autotune.operations.problem import Problem
    from autotune.operations.references import Matrix

ROW = np.dtype([("place", "<i8"), ("expected", "<f8"), ("allowed", "<f8")])
"""One element of the output: its place, counted row by row, what it should be, and how far from
that it may be."""

MOST = 4096
"""Elements that are kept."""

_SCALARS = (1.5, -0.5, 0.75, 2.0)


def checked_scalars(operation: Operation) -> dict[str, float]:
    """Values of an operation's scalars that checks of exported kernels call it with."""
    names = (name for name, _ in operation.scalars)
    return {name: _SCALARS[number % len(_SCALARS)] for number, name in enumerate(names)}


def drawn(number: int, array: Array) -> Matrix:
    """The elements of an operand, in [-1, 1): murmur3's finalizer of their places.

    Args:
        number: of the operand, from 0 on: another one has other elements.
        array: its shape and type.
    """
    x = np.arange(math.prod(array.shape)).astype(np.uint32)
    x += np.uint32(number * 0x9E3779B9 & 0xFFFFFFFF)
    x ^= x >> 16
    x *= np.uint32(0x85EBCA6B)
    x ^= x >> 13
    x *= np.uint32(0xC2B2AE35)
    x ^= x >> 16
    values = (x >> 8) / 2.0**23 - 1
    return values.astype(DTYPES[array.dtype].numpy).reshape(array.shape)


def expected(problem: Problem, accuracy: str) -> bytes:
    """Elements of what a problem's operation makes of operands that are `drawn`, as `ROW`s.

    Args:
        problem: what is computed.
        accuracy: the accuracy class that the kernel promises.

    Raises:
        ExpressionError: a reference in Python fails.
        InputError: no tolerance is known for the class.
    """
    operands = {each.name: drawn(number, each) for number, each in enumerate(problem.operands)}
    values = {**problem.named(operands), **checked_scalars(problem.defined)}
    reference = FullReference.of_formula(problem.defined.result, values)
    tolerance = Tolerance.of(accuracy, problem.dtype, problem.shape, problem.out_dtype)
    allowed = tolerance.allowed(reference.scale, reference.largest, reference.expected)
    count = reference.expected.size
    places = np.unique(np.fromiter(_places(count), np.int64))
    rows = np.empty(len(places), ROW)
    rows["place"] = places
    rows["expected"] = reference.expected.reshape(-1)[places]
    rows["allowed"] = np.broadcast_to(allowed, reference.expected.shape).reshape(-1)[places]
    return rows.tobytes()


def _places(count: int) -> Iterator[int]:
    """All places; or one in each of many equal parts, and the last one."""
    if count <= MOST:
        yield from range(count)
        return
    random = np.random.default_rng(count)
    for part in range(MOST - 1):
        first, end = (count * each // (MOST - 1) for each in (part, part + 1))
        yield int(random.integers(first, end))
    yield count - 1
