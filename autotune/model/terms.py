"""Terms of a product's time: features that are counted, each at a coefficient to be learned.

A program covers C with tiles; the reduction of a tile may be divided into parts. A part of a tile
is a *unit*: a thread block of a GPU. Every multiprocessor (a *place*) holds some units at a time,
wave after wave, and the last wave may be partly empty. What a unit's steps cost where a place has
all it can hold and where it has fewer, what starting a wave costs, what a byte of the operands and
of the partial sums costs: those are the prices, and none of them is below zero. Memory comes in
sectors: where a unit reads runs of a few bytes from many rows, most of what comes is not what it
wants, and that has a price, too. The terms are
those of analytical models (Stream-K, Osama et al., 2023; tritonBLAS, 2025); the prices are fitted
to measurements, as in ISAAC (Tillet and Cox, 2017), but for each program by itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from autotune.operations.problem import Gemm

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
    "sum in a block",
    "copies",
    "bytes copied",
    "sectors in vain",
    "steps, an operand beyond the near cache",
    "steps, all beyond the far cache",
    "steps, rows of A between words",
    "steps, rows of B between words",
    "units, rows of C unaligned",
)
"""The counted terms, in the order of the prices."""

FIRST_TERMS = 16
"""Those that every portfolio has prices for: later ones stand behind them."""

VECTOR_BYTES = 16
"""Rows whose length is no multiple of it cannot be read in whole vectors."""

WORD_BYTES = 4
"""Rows whose length is no multiple of it begin between words, which are what is copied."""

SECTOR_BYTES = 32
"""The bytes that a GPU's memory and caches deliver at a time, from a multiple on."""


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

    @classmethod
    def of(cls, problem: Gemm) -> Sizes:
        """Those of a problem."""
        return cls(problem.m, problem.n, problem.k, problem.itemsize, problem.layout)

    @property
    def products(self) -> float:
        """The number of products to be added up: M N K."""
        return float(self.m) * self.n * self.k

    @property
    def row_bytes(self) -> tuple[int, int]:
        """Of A and of B, as they are stored."""
        a = self.n if self.layout[0] == "n" else self.m
        b = self.k if self.layout[1] == "n" else self.n
        return a * self.itemsize, b * self.itemsize

    @property
    def unaligned(self) -> tuple[int, int]:
        """The misalignment of the rows of A, and of B, as they are stored.

        0 are whole vectors, `BY_WORDS` no whole vectors but words, `BETWEEN_WORDS` not even those.
        """
        a, b = self.row_bytes
        return _ill(a), _ill(b)

    @property
    def c_unaligned(self) -> bool:
        """True if the rows of C are no whole vectors."""
        return _ill(self.k * self.itemsize) > 0

    @property
    def row_kinds(self) -> tuple[int, int]:
        """The bytes of short rows of A, and of B, that runs lie in as they lie in those here."""
        a, b = self.row_bytes
        return kind_of_rows(a), kind_of_rows(b)


@dataclass(frozen=True, slots=True)
class Chip:
    """The figures of a device that terms are counted with.

    Attributes:
        places: multiprocessors; 1 of a CPU, whose units follow each other.
        near: bytes of the largest cache that a core has for itself; 0 has none of its own count,
            as on a GPU, whose units bring tiles from wherever they are in good time.
        far: bytes of the last cache; likewise.
    """

    places: int
    near: int = 0
    far: int = 0

    def beyond(self, sizes: Sizes) -> tuple[float, float]:
        """The bytes of the larger operand beyond the near cache, and of all beyond the far one.

        0 is within and 1 is beyond; what has half of the cache to what has twice as much is partly
        there, by the logarithm of its size.
        """
        a, b, c = sizes.m * sizes.n, sizes.n * sizes.k, sizes.m * sizes.k
        largest, every = max(a, b) * sizes.itemsize, (a + b + c) * sizes.itemsize
        return _beyond(largest, self.near), _beyond(every, self.far)


BY_WORDS, BETWEEN_WORDS = 1, 2
"""The misalignment of rows, see `Sizes.unaligned`."""


def _ill(row_bytes: int) -> int:
    if row_bytes % VECTOR_BYTES == 0:
        return 0
    return BETWEEN_WORDS if row_bytes % WORD_BYTES else BY_WORDS


def _beyond(count: int, cache: int) -> float:
    return min(max(0.5 + 0.5 * math.log2(count / cache), 0.0), 1.0) if cache else 0.0


@dataclass(frozen=True, slots=True)
class Unit:
    """A work tile of a program, for one choice of what is passed at the call.

    Attributes:
        tile: rows and columns of C, and reduction steps.
        parts: that the reduction is divided into.
        in_block: whether the last unit of a tile adds up its parts, and not a kernel of its own.
        copied: whether operands with unaligned rows are copied first.
        share: least steps of a unit, where units are as many as the device holds and have equal
            shares of the steps of all tiles; 0 where every tile has units of its own.
        volume: of the tile, relative to that which the program's prices are of.
        area: of the tile's part of C, likewise.
    """

    tile: tuple[int, int, int]
    parts: int = 1
    in_block: bool = False
    copied: bool = False
    share: int = 0
    volume: float = 1.0
    area: float = 1.0

    @property
    def row(self) -> tuple[float, ...]:
        """It as a row of a table, in the order of `UNIT`."""
        flags = float(self.in_block), float(self.copied), float(self.share)
        return (*map(float, self.tile), float(self.parts), *flags, self.volume, self.area)


UNIT = ("rows", "columns", "steps", "parts", "in_block", "copied", "share", "volume", "area")
"""The columns of a table of units: a `Unit`'s fields."""


class Programs:
    """Programs whose terms are counted together.

    Args:
        units: a row for each program, shape (programs, `UNIT`).
        resident: units that a place holds at a time, of each program or of all.
        chip: the device.

    Attributes:
        resident: as given, of each program.
        parts, volume, area, copied: columns of `UNIT`.
        by_kernel: 1 where a kernel of its own adds up parts, else 0.
        in_block: parts that a unit adds up.
        written: parts of C that are written before they are added up.
        as_they_are: 0 where operands with unaligned rows are copied first, else 1.
        into_rows: 1 where the units of a GPU store rows of C, 0 where they store parts for another
            kernel; a CPU's stores need no alignment.
        tiles: rows, columns and steps of a unit's tile, shape (3, programs).
        even: the programs whose units have equal shares.
        tile_elements: of C, of a tile of those.
    """

    def __init__(
        self,
        units: NDArray[np.float64],
        resident: NDArray[np.float64] | float,
        chip: Chip,
    ) -> None:
        rows, columns, steps, parts, in_block, copied, share, volume, area = np.ascontiguousarray(
            units.T
        )
        self.resident = np.broadcast_to(np.asarray(resident, dtype=np.float64), len(units))
        self.parts, self.volume, self.area = parts, volume, area
        places = chip.places
        self._chip = chip
        self._slots = self.resident * places
        self.tiles = np.array([rows, columns, steps])
        self._tiles, self._per_part = LESS / self.tiles, LESS / parts
        self._per_slot, self._per_place = MORE / self._slots, LESS / places
        divided = parts > 1
        self.by_kernel = np.asarray(divided & (in_block == 0), np.float64)
        self.in_block = np.where(divided & (in_block != 0), parts, 0.0)
        self.written = np.where(divided & (share == 0), parts, 0.0)
        self.copied, self.as_they_are = copied, 1.0 - copied
        self._in_sectors = places > 1
        self.into_rows = self._in_sectors * (1.0 - self.by_kernel)
        self.even = np.flatnonzero(share)
        self._share, self.tile_elements = share[self.even], (rows * columns)[self.even]
        self._counted = np.empty((len(TERMS), len(parts)))
        self._counted[0] = 1.0

    @classmethod
    def of(cls, units: Sequence[Unit], resident: float, chip: Chip) -> Programs:
        """The same from single units."""
        return cls(np.array([each.row for each in units]), resident, chip)

    def __len__(self) -> int:
        return len(self.parts)

    def divided(self, sizes: Sizes) -> Division:
        """The division of a problem among the places, by program."""
        tiles = self._tiles * np.array([[sizes.m], [sizes.k], [sizes.n]])
        np.ceil(tiles, out=tiles)
        units = tiles[0] * tiles[1]
        units *= self.parts
        steps = tiles[2]
        steps *= self._per_part
        np.ceil(steps, out=steps)
        blocks = segments = None
        if len(even := self.even):
            every = units[even] * steps[even]
            blocks = np.minimum(self._slots[even], np.maximum(every // self._share, 1.0))
            # A unit's first and last tile are other units', too.
            segments = np.ones(len(self))
            segments[even] = units[even] / blocks + 1.0
            units[even], steps[even] = blocks, np.ceil(every / blocks)
        full = units * self._per_slot
        np.floor(full, out=full)
        units -= full * self._slots
        last = np.ceil(units * self._per_place)
        return Division(full, last, last > 0, steps, segments, blocks)

    def in_vain(self, operand: int, rows: int, layout: str, itemsize: int) -> Column:
        """Sectors that a step of each program brings of an operand beyond what it wants.

        A CPU's caches keep what is beside a run until it is wanted.

        Args:
            operand: 0 for A, 1 for B.
            rows: bytes of the operand's rows, or of others of their kind.
            layout: which operands are stored transposed.
            itemsize: bytes of an element.
        """
        if not self._in_sectors:
            return np.zeros(len(self))
        down, across = self.tiles[[0, 2]] if operand == 0 else self.tiles[[2, 1]]
        runs, length = (down, across) if layout[operand] == "n" else (across, down)
        # Rows of a copy begin where sectors do.
        read = 1.0 if rows % VECTOR_BYTES == 0 else self.as_they_are
        return np.asarray(read * runs * sectors_in_vain(length * itemsize, rows))

    def count(self, sizes: Sizes) -> NDArray[np.float64]:
        """The terms of every program, shape (terms, programs); overwritten by the next call."""
        m, n, k, itemsize = sizes.m, sizes.n, sizes.k, sizes.itemsize
        counted = self._counted
        full, last, begun, steps, segments, blocks = self.divided(sizes)
        written = self.written * (m * k)
        if blocks is not None:
            written[self.even] = blocks * self.tile_elements
        waves = full + begun
        full = full * self.resident
        np.multiply(full, steps, out=counted[1])
        np.multiply(last, steps, out=counted[2])
        in_vain = sum(
            self.in_vain(operand, rows, sizes.layout, itemsize)
            for operand, rows in enumerate(sizes.row_bytes)
        )
        np.multiply(counted[1] + counted[2], in_vain, out=counted[16])
        np.multiply(waves, steps, out=counted[3])
        # What a tile costs beside its steps; units with a share of all go from tile to tile.
        np.multiply(full + last, 1.0 if segments is None else segments, out=counted[4])
        np.multiply(waves, 1.0 if segments is None else segments, out=counted[5])
        counted[6] = m * n * itemsize
        counted[7] = n * k * itemsize
        counted[8] = m * k * itemsize
        np.multiply(written, itemsize, out=counted[9])
        counted[10] = self.by_kernel
        # Where the tile itself is chosen at the call, a step is as dear as the tile is large.
        counted[1:4] *= self.volume
        counted[4] *= self.area
        every = counted[1] + counted[2]
        near, far = self._chip.beyond(sizes)
        np.multiply(every, near, out=counted[17])
        np.multiply(every, far, out=counted[18])
        a, b = sizes.unaligned
        if a or b:
            steps = every * self.as_they_are
            copied_bytes = (bool(a) * m * n + bool(b) * n * k) * itemsize
            counted[11] = steps if a else 0.0
            counted[12] = steps if b else 0.0
            counted[14] = self.copied
            np.multiply(self.copied, copied_bytes, out=counted[15])
            counted[19] = steps if a == BETWEEN_WORDS else 0.0
            counted[20] = steps if b == BETWEEN_WORDS else 0.0
        else:
            counted[11:13] = 0.0
            counted[14:16] = 0.0
            counted[19:21] = 0.0
        np.multiply(counted[4], self.into_rows * sizes.c_unaligned, out=counted[21])
        counted[13] = self.in_block
        return counted


class Division(NamedTuple):
    """The division of a problem by programs, an element of each array for a program.

    Attributes:
        full: waves in which places have all they can hold.
        last: units of a place in the wave after those.
        begun: whether there is such a wave.
        steps: of a unit.
        segments: tiles that a unit goes through; None where that is one for all.
        blocks: units with a share of all, of the programs that have such; None where none has.
    """

    full: Column
    last: Column
    begun: NDArray[np.bool_]
    steps: Column
    segments: Column | None
    blocks: Column | None


LESS, MORE = 1 - 1e-12, 1 + 1e-12
"""Products by inverses may be off in the last place: those that are rounded up are taken a little
less, others a little more. Quotients of sizes that are not whole are farther from that."""


def sectors_in_vain(run_bytes: Column, row_bytes: int) -> Column:
    """Sectors that a run of neighbours in a row touches beyond what it would fill, on the average.

    Runs of R bytes that begin at every multiple of g of a sector of S bytes, as often as at any
    other, touch (R + S - g) / S sectors. Of rows that are shorter than a sector every one is
    touched, and brings what is beside the runs.

    Args:
        run_bytes: of each run, a whole number; it begins a whole number of them behind its row.
        row_bytes: of a row, behind which the next one follows.
    """
    whole = np.asarray(run_bytes, np.int64)
    if row_bytes < SECTOR_BYTES:
        return np.asarray(np.maximum(row_bytes - whole, 0) / SECTOR_BYTES)
    begins = np.gcd(np.gcd(whole, row_bytes), SECTOR_BYTES)
    return np.asarray(1.0 - begins / SECTOR_BYTES)


def kind_of_rows(row_bytes: int) -> int:
    """The bytes of the shortest rows in which `sectors_in_vain` is the same, whatever the run."""
    return row_bytes if row_bytes < SECTOR_BYTES else SECTOR_BYTES + row_bytes % SECTOR_BYTES


def price(counted: NDArray[Any], prices: NDArray[Any]) -> Column:
    """Seconds, of terms and prices of shape (terms, programs)."""
    return np.asarray(np.einsum("tp,tp->p", counted, prices))
