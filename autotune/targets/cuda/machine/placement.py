"""Where guarded operands lie in one piece of device memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.operations.guarded import GUARD_BYTES

if TYPE_CHECKING:
    from autotune.operations.references import Case

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
    a_shape: tuple[int, int],
    b_shape: tuple[int, int],
    case: Case,
    itemsize: int,
    out_itemsize: int | None = None,
) -> SlabLayout:
    """Place the operands of a case one after the other, guard zones between them.

    Padded ones start one element off alignment: kernels must not count on either.

    Args:
        a_shape: of A as stored.
        b_shape: of B as stored.
        case: sizes and padding.
        itemsize: bytes per element of A and B.
        out_itemsize: of C; None means `itemsize`.
    """
    out_itemsize = out_itemsize or itemsize
    placements: list[Placement] = []
    start = 0
    for (rows, columns), size in (
        (a_shape, itemsize),
        (b_shape, itemsize),
        ((case.m, case.k), out_itemsize),
    ):
        offset = start + GUARD_BYTES + (size if case.padding else 0)
        placement = Placement(rows, columns, columns + case.padding, size, offset)
        placements.append(placement)
        start = -(-placement.end // _ALIGNMENT) * _ALIGNMENT
    a, b, c = placements
    return SlabLayout(a, b, c, start)
