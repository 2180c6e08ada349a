"""Operands in device memory: where they lie, how they are guarded, and how many sets there are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.core.dtypes import ELEMENTS, WORDS, Dtype
from autotune.gpu.driver import activated, driver
from autotune.gpu.matrix import DeviceMatrix
from autotune.operations.guarded import GUARD_BYTES
from autotune.operations.parts import strides_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from autotune.operations.parts import Array
    from autotune.operations.poke import Place
    from autotune.operations.references import Matrix

L2_MULTIPLE = 2.5
"""Size of all rotating operand sets together, in level-2 caches."""

MAX_SETS = 2048
"""Sets at most: problems so small that these do not fill the cache are timed from it."""

_MEMORY_SHARE = 0.6
"""Of the free memory, what the sets may take."""

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
        """Rows of a matrix."""
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
        padding: elements after every row and every matrix of several, unless they are packed.
    """
    placements: dict[str, Placement] = {}
    start = 0
    for array in arrays:
        itemsize = ELEMENTS[array.dtype].itemsize
        shift = max(2, itemsize) if padding else 0
        strides = strides_of(array.shape, 0 if array.packed else padding)
        placed = Placement(array.shape, strides, itemsize, start + GUARD_BYTES + shift)
        placements[array.name] = placed
        start = -(-placed.end // _ALIGNMENT) * _ALIGNMENT
    return SlabLayout(placements, start)


def padded(placement: Placement, values: Matrix) -> NDArray[np.unsignedinteger[Any]]:
    """The words of a matrix and of its padding, which holds what guard zones hold: whole rows."""
    size = placement.itemsize
    words = np.full((placement.rows, placement.stride), WORDS[size].poison, f"u{size}")
    words[:, : placement.columns] = values.view(words.dtype)
    return words


def rotation_sets(set_bytes: int, l2_bytes: int, free_bytes: int) -> int:
    """Number of operand sets, so that none is in the cache when its turn comes."""
    wanted = math.ceil(L2_MULTIPLE * l2_bytes / set_bytes)
    possible = int(_MEMORY_SHARE * free_bytes) // set_bytes
    return max(1, min(wanted, possible, MAX_SETS))


class Slab:
    """A slab on the device, filled with what guard zones hold.

    Args:
        layout: where its matrices lie.
        fill: `Support.fill`.

    Attributes:
        layout: where its matrices lie.
        base: its address.
    """

    def __init__(self, layout: SlabLayout, fill: Callable[[int, int, int], None]) -> None:
        self.layout = layout
        self._allocation = driver().allocate(layout.size)
        self.base = int(self._allocation)
        for placed in layout.placements.values():
            size = placed.elements * placed.itemsize + 2 * GUARD_BYTES
            word = min(placed.itemsize, 8)
            fill(self.base + placed.start, size // word, word)

    def store(self, placement: Placement, values: Matrix) -> None:
        """Copy values from the host into one of the matrices; its padding stays what it was."""
        driver().upload(self.base + placement.offset, padded(placement, values))


class OperandSets:
    """One set of operands, and copies of it to rotate through.

    Args:
        first: the set that is copied.
        count: how many there are, the first included.
    """

    def __init__(self, first: Slab, count: int) -> None:
        self.bases = [first.base]
        self._copies: Any = None
        if count > 1:
            size = first.layout.size
            self._copies = driver().allocate((count - 1) * size)
            self.bases += [int(self._copies) + i * size for i in range(count - 1)]
            for base in self.bases[1:]:
                driver().duplicate(base, first.base, size)


class SetMemory:
    """The operands of one set, element by element; see `autotune.operations.poke.Memory`."""

    def __init__(self, arrays: Sequence[Array], layout: SlabLayout, base: int) -> None:
        self.base = base
        self._layout = layout
        self._dtypes = {array.name: ELEMENTS[array.dtype] for array in arrays}
        self._output = next(array.name for array in arrays if array.written)
        self._spoilt = 0

    def read(self, name: str, place: Place) -> float:
        """An element of an operand."""
        return float(self._bits(name, place).view(self._dtypes[name].numpy)[0])

    def write(self, name: str, place: Place, value: float) -> None:
        """Set it."""
        row = self._dtypes[name]
        driver().upload(self._address(name, place), np.array([value], row.numpy).view(_word(row)))

    def spoil(self, place: Place) -> None:
        """Put into one element what an unwritten one holds; of integers, what it does not."""
        row, bits = self._dtypes[self._output], self._bits(self._output, place)
        exact = row.kind in ("integer", "boolean")
        spoilt = ~bits if exact else np.full_like(bits, row.word.poison)
        self._spoilt = int(spoilt[0])
        driver().upload(self._address(self._output, place), spoilt)

    def spoilt(self, place: Place) -> bool:
        """Is it still there?"""
        return bool((self._bits(self._output, place) == self._spoilt).all())

    def _bits(self, name: str, place: Place) -> NDArray[Any]:
        row = self._dtypes[name]
        bits = np.empty(row.itemsize // np.dtype(_word(row)).itemsize, _word(row))
        driver().download(bits, self._address(name, place))
        return bits

    def _address(self, name: str, place: Place) -> int:
        placed = self._layout.placements[name]
        elements = sum(index * step for index, step in zip(place, placed.strides, strict=True))
        return self.base + placed.offset + elements * placed.itemsize


def _word(row: Dtype) -> str:
    """The type of an element's bits, which drivers take where they do not know the element's."""
    return f"u{min(row.itemsize, 8)}"


class GuardedMatrix:
    """A matrix in memory of its own between guard zones, written and read by way of the host.

    Attributes:
        matrix: where it is.
    """

    def __init__(self, device: int, shape: tuple[int, int], dtype: str, padding: int = 0) -> None:
        row = ELEMENTS[dtype]
        stride = shape[1] + padding
        self._placement = Placement(shape, (stride, 1), row.itemsize, GUARD_BYTES)
        self._poison = row.word.poison
        with activated(device):
            self._memory = driver().allocate(self._placement.end)
        start = int(self._memory) + GUARD_BYTES
        self.matrix = DeviceMatrix(device, start, shape, (stride, 1), row.numpy, self)

    def write(self, values: Matrix) -> None:
        """Store a matrix of the host; all around it becomes guard."""
        placed = self._placement
        whole = np.full(placed.elements + 2 * placed.guard, self._poison, f"u{placed.itemsize}")
        whole[placed.guard :][: placed.elements] = padded(placed, values).reshape(-1)
        with activated(self.matrix.device):
            driver().upload(int(self._memory), whole)
            driver().synchronize()

    def read(self) -> tuple[Matrix, bool]:
        """The matrix on the host, and whether the guards are what they were."""
        placed = self._placement
        whole = np.empty(placed.elements + 2 * placed.guard, f"u{placed.itemsize}")
        with activated(self.matrix.device):
            driver().download(whole, int(self._memory))
        before, body, after = np.split(whole, [placed.guard, placed.guard + placed.elements])
        body = body.reshape(placed.rows, placed.stride)
        guards = before, after, body[:, placed.columns :]
        intact = all(bool((guard == self._poison).all()) for guard in guards)
        return body[:, : placed.columns].view(self.matrix.dtype), intact

    def free(self) -> None:
        """Give the memory back."""
        with activated(self.matrix.device):
            self._memory.free()
