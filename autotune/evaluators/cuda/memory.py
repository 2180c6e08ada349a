"""Operands in device memory: where they lie, how they are guarded, and how many sets there are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.evaluators.cuda.driver import driver
from autotune.guarded import GUARD_BYTES, POISON

if TYPE_CHECKING:
    from autotune.evaluators.cuda.support import Support
    from autotune.references import Case, Matrix

L2_MULTIPLE = 2.5
"""How many times the level-2 cache the rotating operand sets fill together."""

MAX_SETS = 2048
"""Sets at most: problems so small that these do not fill the cache are timed from it."""

_MEMORY_SHARE = 0.6
"""Of the free memory, what the sets may take."""

_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Placement:
    """A guarded row-major matrix within a slab of memory.

    Attributes:
        rows: of the matrix.
        columns: of the matrix.
        stride: elements from one row to the next.
        itemsize: bytes per element.
        offset: bytes from the start of the slab to the first element; the guard zone lies before
            it, another one after the last row.
    """

    rows: int
    columns: int
    stride: int
    itemsize: int
    offset: int

    @property
    def elements(self) -> int:
        """Elements from the first to the end of the last row, padding included."""
        return self.rows * self.stride

    @property
    def guard(self) -> int:
        """Elements of one guard zone."""
        return GUARD_BYTES // self.itemsize

    @property
    def end(self) -> int:
        """Bytes from the start of the slab to the end of the guard zone after the matrix."""
        return self.offset + (self.elements + self.guard) * self.itemsize


@dataclass(frozen=True, slots=True)
class SlabLayout:
    """A, B and C of one multiplication, as stored, in one piece of memory.

    Attributes:
        a: where A lies.
        b: where B lies.
        c: where C lies.
        size: bytes of the slab.
    """

    a: Placement
    b: Placement
    c: Placement
    size: int


def lay_out(
    a_shape: tuple[int, int], b_shape: tuple[int, int], case: Case, itemsize: int
) -> SlabLayout:
    """Place the operands of a case one after the other, guard zones between them.

    Padded ones start one element off alignment: kernels must not count on either.

    Args:
        a_shape: of A as stored.
        b_shape: of B as stored.
        case: sizes and padding.
        itemsize: bytes per element.
    """
    placements: list[Placement] = []
    start = 0
    for rows, columns in (a_shape, b_shape, (case.m, case.k)):
        shift = itemsize if case.padding else 0
        placement = Placement(
            rows, columns, columns + case.padding, itemsize, start + GUARD_BYTES + shift
        )
        placements.append(placement)
        start = -(-placement.end // _ALIGNMENT) * _ALIGNMENT
    a, b, c = placements
    return SlabLayout(a, b, c, start)


def rotation_sets(set_bytes: int, l2_bytes: int, free_bytes: int) -> int:
    """How many operand sets to rotate through, so that none is in the cache when its turn comes.

    Args:
        set_bytes: one set's operands.
        l2_bytes: the device's level-2 cache.
        free_bytes: device memory that is free.
    """
    wanted = math.ceil(L2_MULTIPLE * l2_bytes / set_bytes)
    possible = int(_MEMORY_SHARE * free_bytes) // set_bytes
    return max(1, min(wanted, possible, MAX_SETS))


class Slab:
    """A slab on the device, filled with what guard zones hold.

    Attributes:
        layout: where its matrices lie.
        base: its address.
    """

    def __init__(self, layout: SlabLayout, support: Support) -> None:
        self.layout = layout
        self._allocation = driver().allocate(layout.size)
        self.base = int(self._allocation)
        itemsize = layout.a.itemsize
        support.fill(self.base, layout.size // itemsize, POISON[itemsize])

    def store(self, placement: Placement, values: Matrix) -> None:
        """Copy values from the host into one of the matrices; its padding stays what it was."""
        words = np.full(
            (placement.rows, placement.stride), POISON[placement.itemsize], f"u{values.itemsize}"
        )
        words[:, : placement.columns] = values.view(words.dtype)
        driver().upload(self.base + placement.offset, words)


class OperandSets:
    """One set of operands, and copies of it to rotate through.

    Args:
        first: the set that is copied.
        count: how many there are, the first included.
    """

    def __init__(self, first: Slab, count: int) -> None:
        self.layout = first.layout
        self.bases = [first.base]
        self._copies: Any = None
        if count > 1:
            size = self.layout.size
            self._copies = driver().allocate((count - 1) * size)
            self.bases += [int(self._copies) + i * size for i in range(count - 1)]
            for base in self.bases[1:]:
                driver().duplicate(base, first.base, size)

    def __len__(self) -> int:
        return len(self.bases)

    def operands(self, number: int) -> tuple[int, int, int, int, int, int]:
        """Address and leading dimension of A, B and C of a set; numbers go round."""
        return operands(self.layout, self.bases[number % len(self.bases)])


def operands(layout: SlabLayout, base: int) -> tuple[int, int, int, int, int, int]:
    """Address and leading dimension of A, B and C of a slab."""
    a, b, c = layout.a, layout.b, layout.c
    return base + a.offset, a.stride, base + b.offset, b.stride, base + c.offset, c.stride
