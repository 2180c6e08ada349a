"""Places of guarded operands in one piece of device memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.core.dtypes import DTYPES
from autotune.operations.guarded import GUARD_BYTES, strides_of

if TYPE_CHECKING:
    from autotune.operations.parts import Array

_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Placement:
    """A guarded operand within a slab of memory.

    Attributes:
        shape: of the operand.
        strides: elements from one to the next along every dimension.
        itemsize: bytes per element.
        offset: bytes from the start of the slab to the first element; the guard zone lies before
            it, another one after the last row.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    offset: int

    @property
    def rows(self) -> int:
        """Of a matrix."""
        return self.shape[0]

    @property
    def columns(self) -> int:
        """Elements of a row."""
        return self.shape[-1]

    @property
    def stride(self) -> int:
        """Elements from one row of a matrix to the next."""
        return self.strides[0]

    @property
    def elements(self) -> int:
        """Elements from the first to the end of the last row, padding included."""
        return self.shape[0] * self.strides[0]

    @property
    def guard(self) -> int:
        """Elements of one guard zone."""
        return GUARD_BYTES // self.itemsize

    @property
    def start(self) -> int:
        """Bytes from the start of the slab to the guard zone before the operand."""
        return self.offset - GUARD_BYTES

    @property
    def end(self) -> int:
        """Bytes from the start of the slab to the end of the guard zone after the operand."""
        return self.offset + (self.elements + self.guard) * self.itemsize


@dataclass(frozen=True, slots=True)
class SlabLayout:
    """Operands of one call, as stored, in one piece of memory.

    Attributes:
        placements: where each lies, by name, in the operation's order.
        size: bytes of the slab.
    """

    placements: Mapping[str, Placement]
    size: int

    def operands(self, base: int) -> tuple[int, ...]:
        """Address and strides, from the outermost to the last but one, of all operands."""
        return tuple(
            number
            for placed in self.placements.values()
            for number in (base + placed.offset, *placed.strides[:-1])
        )


def lay_out(arrays: Sequence[Array], padding: int) -> SlabLayout:
    """Place operands one after the other, guard zones between them.

    Padded ones start one element off alignment: kernels must not count on either.

    Args:
        arrays: the operands.
        padding: elements after every row, and after every matrix of several, of those that are
            not packed.
    """
    placements: dict[str, Placement] = {}
    start = 0
    for array in arrays:
        itemsize = DTYPES[array.dtype].itemsize
        shift = itemsize if padding else 0
        strides = strides_of(array.shape, 0 if array.packed else padding)
        placed = Placement(array.shape, strides, itemsize, start + GUARD_BYTES + shift)
        placements[array.name] = placed
        start = -(-placed.end // _ALIGNMENT) * _ALIGNMENT
    return SlabLayout(placements, start)
