"""Terms of many programs counted together, and their seconds while a caller waits for a choice.

Arrays of some hundred programs are handled in about half a microsecond, whatever is done with
them, so that their number counts: what does not depend on sizes is multiplied once, and roundings
follow each other directly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.model.terms import (
    COUNTS,
    SECTORS,
    TABLE,
    TRAFFIC,
    VECTOR_BYTES,
    WAVES,
    kind_of_rows,
    misalignment,
    sectors_in_vain,
)

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from numpy.typing import NDArray

    from autotune.model.terms import Chip, Column, Sizes, Unit

_SHARES = [share for term in TABLE for share in term.shares]
_WHERE = [share.where for share in _SHARES]
_COUNTED = [COUNTS.index(share.of) for share in _SHARES]
_TERM_OF = np.repeat(range(len(TABLE)), [len(term.shares) for term in TABLE])
_FIRST = np.searchsorted(_TERM_OF, range(len(TABLE)))
_SECOND = np.setdiff1d(range(len(_SHARES)), _FIRST)
"""The first share of every term, and the second of those that have two."""

_STEPS, _TILES, _BLOCKS = (
    COUNTS.index(each) for each in (f"steps, {WAVES[0]}", f"tiles, {WAVES[0]}", "bytes of blocks")
)
"""Where the counts of steps, of tiles and of blocks begin."""

LESS, MORE = 1 - 1e-12, 1 + 1e-12
"""Products by inverses may be off in the last place: those that are rounded up are taken a little
less, others a little more. Quotients of sizes that are not whole are farther from that."""


class Programs:
    """Programs whose terms are counted together.

    Args:
        units: a row for each program, shape (programs, `UNIT`); sooner done with where those
            whose units have equal shares are the last.
        resident: units that a place holds at a time, of each program or of all.
        chip: the device.

    Attributes:
        chip: likewise.
        in_sectors: true of a GPU; a CPU's caches keep what a step brings in vain.
        in_waves: weights of what `divide` gives of waves, for each of `WAVES`, shape (4, 3,
            programs).
        factors: of every share of a term, shape (shares, programs).
        even: the programs whose units have equal shares; None where none have.
        tile: elements of C of a tile of those.
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
        self.chip = chip
        places, self.in_sectors = chip.places, chip.places > 1
        self._resident = np.broadcast_to(np.asarray(resident, dtype=np.float64), len(units))
        self._runs = rows, columns, steps
        self._uncopied = 1.0 - copied
        one, none = np.ones(len(units)), np.zeros(len(units))
        self.in_waves = np.array(
            [
                [self._resident, none, none],
                [none, one, none],
                [one, none, one],
                [self._resident, one, none],
            ]
        )
        divided = parts > 1
        by_kernel = np.asarray(divided & (in_block == 0), np.float64)
        times = {
            "": one,
            # Where the tile itself is chosen at the call, a step is as dear as the tile is large.
            "volume": volume,
            "area": area,
            "written": np.where(divided & (share == 0), parts, 0.0),
            "by kernel": by_kernel,
            "in block": np.where(divided & (in_block != 0), parts, 0.0),
            "copied": copied,
            "uncopied": volume * self._uncopied,
            # A GPU's units store rows of C, or parts for another kernel, whose rows are its own;
            # a CPU's stores need no alignment.
            "stored": area * (self.in_sectors * (1.0 - by_kernel)),
        }
        self.factors = np.array([times[each.times] for each in _SHARES])
        # A reduction that is divided into parts, and those into steps, is one of longer steps.
        self._per_size = LESS / np.array([rows, columns, steps * parts])
        slots = self._resident * places
        self._per_slot, self._per_place = MORE * parts / slots, LESS * parts / places
        self.even: slice | NDArray[np.intp] | None = None
        if len(even := np.flatnonzero(share)):
            last = even[0] + len(even) == len(units)
            self.even = slice(int(even[0]), None) if last else even
            self._parts, self._slots = parts[even], slots[even]
            self._per_slot[even] /= self._parts
            self._per_place[even] /= self._parts
            self._per_share, self._least = MORE / share[even], np.ones(len(even))
            self.tile = (rows * columns)[even]

    @classmethod
    def of(cls, units: Sequence[Unit], resident: float, chip: Chip) -> Programs:
        """The same from single units."""
        return cls(np.array([each.row for each in units]), resident, chip)

    def divide(self, sizes: Sizes) -> tuple[NDArray[np.float64], Column, Column, Column]:
        """The division of a problem among the places, by program.

        Returns:
            The waves in which places have all they can hold, units of a place in the wave after
            those, and 1 where there is such a wave, else 0, shape (3, programs); the steps of a
            unit. Of the programs whose units have equal shares: the tiles that a unit goes through
            beside its first one, and the units, which are all in one wave.
        """
        tiles = self._per_size * np.array(((sizes.m,), (sizes.k,), (sizes.n,)), np.float64)
        np.ceil(tiles, tiles)
        units, steps = tiles[0], tiles[2]
        units *= tiles[1]
        further = blocks = steps[:0]
        if (even := self.even) is not None:
            # Those units that a device holds have equal shares of the steps of all tiles.
            further = units[even] * self._parts
            every = further * steps[even]
            blocks = every * self._per_share
            np.floor(blocks, blocks)
            np.maximum(blocks, self._least, out=blocks)
            np.minimum(blocks, self._slots, out=blocks)
            # A unit's first and last tile are other units', too.
            further /= blocks
            every /= blocks
            units[even], steps[even] = blocks, np.ceil(every, every)
        waves = np.empty_like(tiles)
        full, last = waves[0], waves[1]
        np.floor(units * self._per_slot, full)
        units *= self._per_place
        units -= full * self._resident
        np.ceil(units, last)
        np.sign(last, waves[2])
        return waves, steps, further, blocks

    def in_vain(self, operand: int, rows: int, layout: str, itemsize: int) -> Column:
        """Sectors that a step of each program brings of an operand beyond what it wants.

        A CPU's caches keep what is beside a run until it is wanted.

        Args:
            operand: 0 for A, 1 for B.
            rows: bytes of the operand's rows, or of others of their kind.
            layout: which operands are stored transposed.
            itemsize: bytes of an element.
        """
        if not self.in_sectors:
            return np.zeros(len(self._resident))
        down, across = self._runs[::2] if operand == 0 else self._runs[:0:-1]
        runs, length = (down, across) if layout[operand] == "n" else (across, down)
        # Rows of a copy begin where sectors do.
        read = 1.0 if rows % VECTOR_BYTES == 0 else self._uncopied
        return np.asarray(read * runs * sectors_in_vain(length * itemsize, rows))

    def count(self, sizes: Sizes) -> NDArray[np.float64]:
        """The terms of every program, shape (terms, programs)."""
        waves, steps, further, blocks = self.divide(sizes)
        counts = np.zeros((len(COUNTS), len(steps)))
        counts[:_STEPS] = np.array(sizes.traffic)[:, None]
        in_waves = np.einsum("wip,ip->wp", self.in_waves, waves)
        counts[_STEPS:_TILES] = in_waves * steps
        if self.even is not None:
            in_waves[:, self.even] += in_waves[:, self.even] * further
            counts[_BLOCKS, self.even] = blocks * self.tile * sizes.itemsize
        counts[_TILES:_BLOCKS] = in_waves
        near, far = self.chip.beyond(sizes)
        here = {**sizes.circumstances, **dict.fromkeys(SECTORS, 1.0), "near": near, "far": far}
        shares = counts[_COUNTED]
        shares *= self.factors
        shares *= np.array([here.get(each, 0.0) for each in _WHERE])[:, None]
        for operand, rows in enumerate(sizes.row_bytes):
            in_vain = self.in_vain(operand, rows, sizes.layout, sizes.itemsize)
            shares[_WHERE.index(SECTORS[operand])] *= in_vain
        counted = shares[_FIRST]
        counted[_TERM_OF[_SECOND]] += shares[_SECOND]
        return counted


class Priced:
    """Programs at prices: the seconds of each for a shape that nobody has seen.

    Those are `price` of what `Programs.count` counts, to the last places, sooner: what is paid for
    the same thing is added up beforehand.

    Args:
        programs: which.
        prices: of the programs, shape (terms, programs).
        layout: of all problems.
        itemsize: likewise, bytes of an element.
    """

    def __init__(
        self, programs: Programs, prices: NDArray[np.float64], layout: str, itemsize: int
    ) -> None:
        self._programs, self._layout, self._itemsize = programs, layout, itemsize
        self._paid = prices[_TERM_OF] * programs.factors
        self._of_near, self._of_far = self._together({"near"})[1], self._together({"far"})[1]
        self._of_sectors = [self._together({each})[1] for each in SECTORS]
        self._of_kinds: dict[tuple[object, ...], tuple[NDArray[np.float64], ...]] = {}
        self._of_rows: dict[tuple[int, int], NDArray[np.float64]] = {}
        if programs.even is not None:
            blocks = self._paid[_COUNTED.index(_BLOCKS), programs.even]
            self._of_blocks = blocks * programs.tile * itemsize

    def seconds(self, sizes: Sizes) -> Column:
        """Predicted seconds of every program. The array is fresh."""
        programs = self._programs
        a, b = sizes.row_bytes
        kind = misalignment(a), misalignment(b), sizes.c_unaligned
        paid = self._of_kinds.get(kind)
        if paid is None:
            paid = self._of_kinds[kind] = self._together(sizes.circumstances)
        of_traffic, of_steps, of_tiles = paid
        waves, steps, further, blocks = programs.divide(sizes)
        found: Column = np.array(sizes.traffic).dot(of_traffic)
        if programs.in_sectors:
            of_waves = self._of_row(0, kind_of_rows(a)) + self._of_row(1, kind_of_rows(b))
            of_waves += of_steps
        else:
            of_waves = of_steps.copy()
        near, far = programs.chip.beyond(sizes)
        if near or far:
            of_waves += near * self._of_near + far * self._of_far
        of_waves *= steps
        of_waves += of_tiles
        if (even := programs.even) is not None:
            of_waves[:, even] += of_tiles[:, even] * further
            found[even] += blocks * self._of_blocks
        waves *= of_waves
        found += waves[0]
        found += waves[1]
        found += waves[2]
        return found

    def _together(self, here: Container[str]) -> tuple[NDArray[np.float64], ...]:
        """Payments in some circumstances for traffic, and in waves for steps and tiles."""
        programs = self._paid.shape[1]
        traffic, steps, tiles = (np.zeros((rows, programs)) for rows in (len(TRAFFIC), 3, 3))
        for share, count, paid in zip(_SHARES, _COUNTED, self._paid, strict=True):
            if share.where not in here or count == _BLOCKS:
                continue
            if count < _STEPS:
                traffic[count] += paid
            elif count < _TILES:
                steps += paid * self._programs.in_waves[count - _STEPS]
            else:
                tiles += paid * self._programs.in_waves[count - _TILES]
        return traffic, steps, tiles

    def _of_row(self, operand: int, rows: int) -> NDArray[np.float64]:
        """Payments in waves for sectors that come in vain with rows of a kind."""
        found = self._of_rows.get((operand, rows))
        if found is None:
            in_vain = self._programs.in_vain(operand, rows, self._layout, self._itemsize)
            found = self._of_rows[operand, rows] = self._of_sectors[operand] * in_vain
        return found


def price(counted: NDArray[np.float64], prices: NDArray[np.float64]) -> Column:
    """Seconds, of terms and prices of shape (terms, programs)."""
    return np.asarray(np.einsum("tp,tp->p", counted, prices))
