"""What the time of a product is made of: terms that are counted, each at a price to be learned.

A program covers C with tiles; the reduction of a tile may be divided into parts. A part of a tile
is a *unit*: a thread block of a GPU. Every multiprocessor (a *place*) holds some units at a time,
wave after wave, and the last wave may be partly empty. What a unit's steps cost where a place has
all it can hold and where it has fewer, what starting a wave costs, what a byte of the operands and
of the partial sums costs: those are the prices, and none of them is below zero. The terms are
those of analytical models (Stream-K, Osama et al., 2023; tritonBLAS, 2025); the prices are fitted
to measurements, as in ISAAC (Tillet and Cox, 2017), but for each program by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Column = NDArray[np.float64]

TERMS = (
    "call",
    "steps of full waves",
    "steps of the last wave",
    "steps in a row",
    "units",
    "waves",
    "bytes of A",
    "bytes of B",
    "bytes of C",
    "bytes of parts",
    "sum of parts",
    "steps, rows of A unaligned",
    "steps, rows of B unaligned",
)
"""What is counted, in the order of the prices."""

VECTOR_BYTES = 16
"""Rows whose length is no multiple of it cannot be read in whole vectors."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a product as the terms need them.

    Attributes:
        m: rows of C.
        n: reduction.
        k: columns of C.
        itemsize: bytes of an element.
        layout: which operands are stored transposed.
    """

    m: int
    n: int
    k: int
    itemsize: int
    layout: str = "nn"

    @property
    def unaligned(self) -> tuple[bool, bool]:
        """Whether the rows of A, and of B, as they are stored, are no whole vectors."""
        a = self.n if self.layout[0] == "n" else self.m
        b = self.k if self.layout[1] == "n" else self.n
        return a * self.itemsize % VECTOR_BYTES != 0, b * self.itemsize % VECTOR_BYTES != 0


class Programs:
    """Programs whose terms are counted together; all arrays have one element a program.

    Args:
        tiles: rows, columns and reduction steps of a unit, of each program.
        parts: that the reduction is divided into.
        resident: units that a place holds at a time.
        places: multiprocessors of the device; 1 where units follow each other.
    """

    def __init__(
        self,
        tiles: Sequence[tuple[int, int, int]],
        parts: Sequence[int],
        resident: Sequence[int],
        places: int,
    ) -> None:
        shape = np.asarray(tiles, dtype=np.float64).reshape(-1, 3)
        self._rows, self._columns, self._steps = np.ascontiguousarray(shape.T)
        self._parts = np.asarray(parts, dtype=np.float64)
        self._divided = (self._parts > 1).astype(np.float64)
        self._resident = np.asarray(resident, dtype=np.float64)
        self._places = float(places)
        self._slots = self._resident * places
        # One evaluation a call of a shape that is new: what can be is computed once.
        self._rows_inverse, self._columns_inverse, self._steps_inverse, self._parts_inverse = (
            1.0 / each for each in (self._rows, self._columns, self._steps, self._parts)
        )
        self._slots_inverse = 1.0 / self._slots
        self._counted = np.empty((len(TERMS), len(self._parts)))

    def __len__(self) -> int:
        return len(self._parts)

    def count(self, sizes: Sizes) -> NDArray[np.float64]:
        """The terms of every program, shape (terms, programs); overwritten by the next call."""
        m, n, k, itemsize = sizes.m, sizes.n, sizes.k, sizes.itemsize
        counted = self._counted
        units = np.ceil(m * self._rows_inverse - _ROUNDING)
        units *= np.ceil(k * self._columns_inverse - _ROUNDING)
        units *= self._parts
        steps = np.ceil(n * self._steps_inverse - _ROUNDING)
        steps *= self._parts_inverse
        np.ceil(steps - _ROUNDING, out=steps)
        full = np.floor(units * self._slots_inverse + _ROUNDING)
        last = np.ceil((units - full * self._slots) / self._places - _ROUNDING)
        waves = full + (last > 0)
        counted[0] = 1.0
        np.multiply(full * self._resident, steps, out=counted[1])
        np.multiply(last, steps, out=counted[2])
        np.multiply(waves, steps, out=counted[3])
        np.add(full * self._resident, last, out=counted[4])
        counted[5] = waves
        counted[6] = m * n * itemsize
        counted[7] = n * k * itemsize
        counted[8] = m * k * itemsize
        np.multiply(self._parts, self._divided * (m * k * itemsize), out=counted[9])
        counted[10] = self._divided
        a_unaligned, b_unaligned = sizes.unaligned
        if a_unaligned or b_unaligned:
            steps = counted[1] + counted[2]
        counted[11] = steps if a_unaligned else 0.0
        counted[12] = steps if b_unaligned else 0.0
        return counted


_ROUNDING = 1e-9
"""Products by inverses may be off in the last place; quotients of sizes are farther from whole."""


def price(counted: NDArray[Any], prices: NDArray[Any]) -> Column:
    """Seconds, of terms and prices of shape (terms, programs)."""
    return np.asarray(np.einsum("tp,tp->p", counted, prices))
