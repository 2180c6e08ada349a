"""Products that a call of `matmul` is made of, from the shapes and strides of its operands.

The rules are those of `numpy.matmul`: an operand of one dimension is a row on the left and a
column on the right, and the result lacks the other one; all dimensions but the last two are a
stack, and stacks are broadcast. Nothing here looks at an array.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.core.errors import OperandError

SMALL_SLICE = 1 << 16
"""A stack of matrices of fewer elements is copied where that makes one product of many."""


@dataclass(frozen=True, slots=True)
class Strided:
    """Shape and strides of an operand.

    Attributes:
        shape: elements along every dimension.
        strides: elements from one to the next along every dimension; None where it is going to be
            copied row by row in any case.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Factor:
    """Steps that make matrices, as kernels read them, of an operand.

    Attributes:
        first: how many leading dimensions, all of whose matrices are the same, it loses.
        copied: it is copied row by row then.
        shape: what it is then seen as, which copies nothing.
        stack: what all dimensions but the last two are then broadcast to.
        turned: whether its last two dimensions are swapped then, so that rows are contiguous.
    """

    first: int
    copied: bool
    shape: tuple[int, ...]
    stack: tuple[int, ...]
    turned: bool


@dataclass(frozen=True, slots=True)
class Products:
    """Products of one call: one, or a stack of them.

    Attributes:
        shape: of the result.
        stack: how many products along every dimension; none where there is one.
        sizes: m, n and k of each: rows, reduction and columns.
        left: how the left operand is read.
        right: how the right one is read.
    """

    shape: tuple[int, ...]
    stack: tuple[int, ...]
    sizes: tuple[int, int, int]
    left: Factor
    right: Factor

    @property
    def layout(self) -> str:
        """Layout of the factors, as `Gemm.layout` has it."""
        return "".join("t" if factor.turned else "n" for factor in (self.left, self.right))

    def row_major(self) -> Products:
        """The same with copies of what is stored transposed."""
        left, right = (
            replace(factor, copied=factor.copied or factor.turned, turned=False)
            for factor in (self.left, self.right)
        )
        return replace(self, left=left, right=right)

    def are_direct(self, a: tuple[int, ...], b: tuple[int, ...]) -> bool:
        """True if operands of these shapes are matrices that one kernel takes as they are."""
        as_they_are = not any(factor.copied or factor.turned for factor in (self.left, self.right))
        return as_they_are and len(a) == len(b) == 2


def products_of(a: Strided, b: Strided) -> Products:
    """The products of which a call with these operands is made.

    Stacks of A that meet one matrix B are one product of all their rows, where the rows follow
    each other or the matrices are small enough to be copied. A matrix whose columns are contiguous
    is read as stored transposed. Whatever else has no contiguous rows is copied.

    Raises:
        OperandError: the shapes do not fit together.
    """
    shape_a, shape_b = a.shape, b.shape
    if not shape_a or not shape_b:
        raise OperandError(
            "a and b must have at least one dimension, got shapes "
            f"{shape_a} and {shape_b}: scale with * instead"
        )
    a, b = _matrix(a, before=True), _matrix(b, before=False)
    (m, n), (rows, k) = a.shape[-2:], b.shape[-2:]
    if n != rows:
        raise OperandError(
            f"a must have as many columns as b has rows, got shapes {shape_a} and {shape_b}"
        )
    stack = _broadcast(a.shape[:-2], b.shape[:-2], (shape_a, shape_b))
    shape = stack + (m,) * (len(shape_a) > 1) + (k,) * (len(shape_b) > 1)
    if math.prod(stack) == 1:
        return Products(shape, (), (m, n, k), _single(a), _single(b))
    folded = _folded(a) if _is_one(b) and math.prod(a.shape[:-2]) == math.prod(stack) else None
    if folded is not None:
        return Products(shape, (), (math.prod(stack) * m, n, k), folded, _single(b))
    return Products(shape, stack, (m, n, k), _stacked(a, stack), _stacked(b, stack))


def _matrix(operand: Strided, *, before: bool) -> Strided:
    """An operand of at least two dimensions; a vector gets one of length 1."""
    if len(operand.shape) > 1:
        return operand
    shape, strides = operand.shape, operand.strides
    if before:
        return Strided((1, *shape), None if strides is None else (0, *strides))
    return Strided((*shape, 1), None if strides is None else (*strides, 0))


def _broadcast(
    a: tuple[int, ...], b: tuple[int, ...], shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> tuple[int, ...]:
    """Broadcast two stacks; `shapes` are for the message."""
    length = max(len(a), len(b))
    padded = [(1,) * (length - len(stack)) + stack for stack in (a, b)]
    for x, y in zip(*padded, strict=True):
        if x != y and 1 not in (x, y):
            raise OperandError(
                "all dimensions of a and b but the last two must be equal or 1, got shapes "
                f"{shapes[0]} and {shapes[1]}"
            )
    return tuple(y if x == 1 else x for x, y in zip(*padded, strict=True))


def _is_one(operand: Strided) -> bool:
    """True if a stack repeats one matrix."""
    stack = operand.shape[:-2]
    if operand.strides is None:
        return math.prod(stack) == 1
    return all(size == 1 or step == 0 for size, step in zip(stack, operand.strides, strict=False))


def _way(operand: Strided) -> tuple[bool, bool]:
    """True if matrices must be copied, and whether they are stored transposed."""
    if operand.strides is None:
        return True, False
    (rows, columns), (row, column) = operand.shape[-2:], operand.strides[-2:]
    if (columns == 1 or column == 1) and (rows == 1 or row >= columns):
        return False, False
    # Of one row or column, which is copied at no cost beside a product, a layout says nothing.
    turned = min(rows, columns) > 1 and row == 1 and column >= rows
    return not turned, turned


def _single(operand: Strided) -> Factor:
    """One matrix: there are no others, or all are the same."""
    copied, turned = _way(operand)
    stack = operand.shape[:-2]
    first = 0 if math.prod(stack) == 1 else len(stack)
    return Factor(first, copied, operand.shape[-2:], (), turned)


def _stacked(operand: Strided, stack: tuple[int, ...]) -> Factor:
    """As many matrices as there are products."""
    copied, turned = _way(operand)
    return Factor(0, copied, operand.shape, stack, turned)


def _folded(operand: Strided) -> Factor | None:
    """All rows of a stack as one matrix; None where that takes a copy that costs too much."""
    *stack, rows, columns = operand.shape
    matrix = (math.prod(stack) * rows, columns)
    if operand.strides is not None and _follow(operand.shape[:-1], operand.strides[:-1], columns):
        copied, turned = _way(operand)
        if not copied and not turned:
            return Factor(0, False, matrix, (), False)
    if operand.strides is None or rows * columns < SMALL_SLICE:
        return Factor(0, True, matrix, (), False)
    return None


def _follow(sizes: Sequence[int], strides: Sequence[int], columns: int) -> bool:
    """True if rows along several dimensions are all as far apart as the first two."""
    steps = [(size, step) for size, step in zip(sizes, strides, strict=True) if size > 1]
    apart = all(outer == size * inner for (_, outer), (size, inner) in itertools.pairwise(steps))
    return apart and (not steps or steps[-1][1] >= columns)
