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
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from autotune.operations.problem import Gemm

    Column = NDArray[np.float64]

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
    def traffic(self) -> tuple[float, float, float, float]:
        """Counts of `TRAFFIC`."""
        m, n, k, itemsize = self.m, self.n, self.k, self.itemsize
        return 1.0, m * n * itemsize, n * k * itemsize, m * k * itemsize

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
        return misalignment(a), misalignment(b)

    @property
    def c_unaligned(self) -> bool:
        """True if the rows of C are no whole vectors."""
        return misalignment(self.k * self.itemsize) > 0

    @property
    def circumstances(self) -> dict[str, float]:
        """Those in which terms count: 1 where they hold."""
        a, b = self.unaligned
        held = {
            "": True,
            "A unaligned": a > 0,
            "B unaligned": b > 0,
            "A or B unaligned": a > 0 or b > 0,
            "A between": a == BETWEEN_WORDS,
            "B between": b == BETWEEN_WORDS,
            "C unaligned": self.c_unaligned,
        }
        return {name: 1.0 for name, holds in held.items() if holds}


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
        if not self.far:
            return 0.0, 0.0
        a, b, c = sizes.m * sizes.n, sizes.n * sizes.k, sizes.m * sizes.k
        largest, every = max(a, b) * sizes.itemsize, (a + b + c) * sizes.itemsize
        return _beyond(largest, self.near), _beyond(every, self.far)


BY_WORDS, BETWEEN_WORDS = 1, 2
"""The misalignment of rows, see `Sizes.unaligned`."""


def misalignment(row_bytes: int) -> int:
    """That of rows of so many bytes; see `Sizes.unaligned`."""
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


class Share(NamedTuple):
    """A part of a term, as it is counted.

    Attributes:
        of: what is counted: one of `COUNTS`.
        times: a key of `Programs.times`, which it is multiplied by.
        where: the same of sizes: one of `Sizes.circumstances`, "near" and "far" of `Chip.beyond`,
            and of `SECTORS`, which are a program's.
    """

    of: str
    times: str = ""
    where: str = ""


class Term(NamedTuple):
    """A term of the time of a program.

    Attributes:
        name: as portfolios have it.
        shares: what is counted for it, added up.
        by: what its price is proportional to, from one tile to another: a step's "volume", the
            "area" of C, or nothing.
        gpu: its price before anything is known, per unit of that, on a device of many places.
        cpu: likewise of one place, whose units follow each other, so that each is a wave and a
            wave costs no more than a unit does.
    """

    name: str
    shares: tuple[Share, ...]
    by: str = ""
    gpu: float = 0.0
    cpu: float = 0.0


TRAFFIC = ("call", "bytes of A", "bytes of B", "bytes of C")
WAVES = ("full", "last", "in a row", "every")
COUNTS = (
    *TRAFFIC,
    *(f"steps, {each}" for each in WAVES),
    *(f"tiles, {each}" for each in WAVES),
    "bytes of blocks",
)
"""Counts that sizes alone decide; a unit's steps and the tiles that it goes through, of the units
in full waves or the last one, of one unit after the other, and of every unit of a place; what
units with equal shares write of C."""

SECTORS = "sectors of A", "sectors of B"
"""Circumstances: what a step brings in vain of an operand."""

EVERY = "steps, every"

TABLE = (
    Term("call", (Share("call"),), "", 2e-6, 5e-7),
    Term("steps of full waves", (Share("steps, full", "volume"),), "volume", 6e-12, 1.5e-11),
    Term("steps of the last wave", (Share("steps, last", "volume"),), "volume", 5e-12),
    Term("steps in a row", (Share("steps, in a row", "volume"),), "volume", 1e-12),
    Term("units", (Share("tiles, every", "area"),), "area", 1e-11, 1e-10),
    Term("waves", (Share("tiles, in a row"),), "", 1e-6),
    Term("bytes of A", (Share("bytes of A"),), "", 1.5e-13, 2e-11),
    Term("bytes of B", (Share("bytes of B"),), "", 1.5e-13, 2e-11),
    Term("bytes of C", (Share("bytes of C"),), "", 2.5e-13, 4e-11),
    Term("bytes of parts", (Share("bytes of C", "written"), Share("bytes of blocks")), "", 4e-13),
    Term("sum of parts", (Share("call", "by kernel"),), "", 2e-6),
    Term("steps, rows of A unaligned", (Share(EVERY, "uncopied", "A unaligned"),), "volume"),
    Term("steps, rows of B unaligned", (Share(EVERY, "uncopied", "B unaligned"),), "volume"),
    Term("sum in a block", (Share("call", "in block"),), "area", 4e-11),
    Term("copies", (Share("call", "copied", "A or B unaligned"),), "", 2e-6),
    Term(
        "bytes copied",
        tuple(Share(f"bytes of {each}", "copied", f"{each} unaligned") for each in "AB"),
        "",
        6e-13,
    ),
    Term("sectors in vain", tuple(Share(EVERY, "", each) for each in SECTORS), "", 1e-9),
    # Waiting for memory takes as long however large the tile is.
    Term("steps, an operand beyond the near cache", (Share(EVERY, "volume", "near"),)),
    Term("steps, all beyond the far cache", (Share(EVERY, "volume", "far"),)),
    Term("steps, rows of A between words", (Share(EVERY, "uncopied", "A between"),), "volume"),
    Term("steps, rows of B between words", (Share(EVERY, "uncopied", "B between"),), "volume"),
    Term(
        "units, rows of C unaligned",
        (Share("tiles, every", "stored", "C unaligned"),),
        "area",
        2e-10,
    ),
)
"""All that is counted and priced, in the order of the prices."""

TERMS = tuple(each.name for each in TABLE)
"""The names of the terms."""

FIRST_TERMS = 16
"""Those that every portfolio has prices for: later ones stand behind them."""
