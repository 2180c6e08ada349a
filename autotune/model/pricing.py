"""The seconds of all programs for a shape that nobody has seen, while its caller waits.

They are `price` of what `Programs.count` counts, to the last places. Arrays of some hundred
programs are handled in about half a microsecond, whatever is done with them, so that their number
counts: what does not depend on sizes is multiplied once, and roundings follow each other directly.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from autotune.model.terms import (
    BETWEEN_WORDS,
    BY_WORDS,
    LESS,
    MORE,
    SECTOR_BYTES,
    TERMS,
    UNIT,
    Programs,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from autotune.model.terms import Chip, Column, Sizes


class Priced:
    """Programs and their prices: the seconds of each, and nothing else of it.

    Those whose units have equal shares are taken last, so that they are a slice of all.

    Args:
        units: as for `Programs`.
        resident: likewise.
        chip: likewise.
        prices: of the programs, shape (terms, programs).
        layout: of all problems.
        itemsize: likewise, bytes of an element.

    Attributes:
        order: the numbers of the programs as `seconds` has them.
    """

    def __init__(
        self,
        units: NDArray[np.float64],
        resident: NDArray[np.float64] | float,
        chip: Chip,
        prices: NDArray[np.float64],
        layout: str,
        itemsize: int,
    ) -> None:
        shares = units[:, UNIT.index("share")]
        self.order = np.argsort(shares > 0, kind="stable")
        resident = np.broadcast_to(np.asarray(resident, np.float64), len(units))[self.order]
        units, prices = units[self.order], prices[:, self.order]
        programs = Programs(units, resident, chip)
        places, self._chip = chip.places, chip
        rows, columns, step, parts = np.ascontiguousarray(units.T[:4])
        # A reduction that is divided into parts, and those into steps, is one of longer steps.
        self._per_size = LESS / np.array([rows, columns, step * parts])
        self._resident, slots = resident, resident * places
        self._per_slot, self._per_place = MORE * parts / slots, LESS * parts / places

        of = dict(zip(TERMS, prices, strict=True))
        fixed = of["call"] + of["sum of parts"] * programs.by_kernel
        fixed = fixed + of["sum in a block"] * programs.in_block
        bytes_of_c = of["bytes of C"] + of["bytes of parts"] * programs.written
        full = of["steps of full waves"] * resident + of["steps in a row"]
        last = of["steps of the last wave"]
        (words_a, words_b), (more_a, more_b) = (
            [of[f"steps, rows of {each} {how}"] * programs.as_they_are for each in "AB"]
            for how in ("unaligned", "between words")
        )
        copied = of["bytes copied"] * programs.copied
        self._of_calls, self._of_steps = {}, {}
        for ill in itertools.product((0, BY_WORDS, BETWEEN_WORDS), repeat=2):
            a, b = map(bool, ill)
            slow = a * words_a + (ill[0] == BETWEEN_WORDS) * more_a
            slow = slow + (b * words_b + (ill[1] == BETWEEN_WORDS) * more_b)
            self._of_calls[ill] = np.array(
                [
                    fixed + (a or b) * of["copies"] * programs.copied,
                    of["bytes of A"] + a * copied,
                    of["bytes of B"] + b * copied,
                    bytes_of_c,
                ]
            )
            steps = np.array([full + slow * resident, last + slow, of["steps in a row"]])
            self._of_steps[ill] = steps * programs.volume
        # Of full waves, of the last one, and of any.
        in_waves = np.array([resident, np.ones(len(units)), np.zeros(len(units))])
        self._of_near, self._of_far = (
            of[f"steps, {each} cache"] * in_waves * programs.volume
            for each in ("an operand beyond the near", "all beyond the far")
        )
        sector = in_waves * of["sectors in vain"]
        self._of_rows = [
            {
                rows: sector * programs.in_vain(operand, rows, layout, itemsize)
                for rows in range(itemsize, 2 * SECTOR_BYTES, itemsize)
            }
            for operand in range(2)
        ]
        unit, wave = of["units"] * programs.area, of["waves"]
        ragged = of["units, rows of C unaligned"] * programs.area * programs.into_rows
        # Where the rows of C are whole vectors, and where they are not.
        units_of = unit, unit + ragged
        self._of_units = [np.array([each * resident + wave, each, wave]) for each in units_of]

        count = len(programs.even)
        self._even = slice(len(units) - count, None) if count else None
        if self._even is not None:
            even = self._even
            self._parts, self._slots = parts[even], slots[even]
            self._per_slot[even] /= self._parts
            self._per_place[even] /= self._parts
            self._per_share, self._least = MORE / shares[self.order][even], np.ones(count)
            self._of_tile, self._of_pass = [each[even] for each in units_of], wave[even]
            self._of_parts = of["bytes of parts"][even] * programs.tile_elements

    def seconds(self, sizes: Sizes) -> Column:
        """Predicted seconds of every program, ordered by `order`. The array is fresh."""
        m, n, k, itemsize = sizes.m, sizes.n, sizes.k, sizes.itemsize
        unaligned = sizes.unaligned
        traffic = np.array((1.0, m * n * itemsize, n * k * itemsize, m * k * itemsize))
        found: Column = traffic.dot(self._of_calls[unaligned])
        tiles = self._per_size * np.array(((m,), (k,), (n,)), np.float64)
        np.ceil(tiles, tiles)
        units, steps = tiles[0], tiles[2]
        units *= tiles[1]
        even = self._even
        if even is not None:
            further = found[even]
            further += self._share_out(units[even], steps[even], sizes)
        waves = np.empty_like(tiles)
        full, last, begun = waves[0], waves[1], waves[2]
        np.floor(units * self._per_slot, full)
        units *= self._per_place
        units -= full * self._resident
        np.ceil(units, last)
        np.sign(last, begun)
        a, b = sizes.row_kinds
        of_steps = self._of_rows[0][a] + self._of_rows[1][b]
        of_steps += self._of_steps[unaligned]
        near, far = self._chip.beyond(sizes)
        if near or far:
            of_steps += near * self._of_near + far * self._of_far
        of_steps *= steps
        of_steps += self._of_units[sizes.c_unaligned]
        waves *= of_steps
        found += full
        found += last
        found += begun
        return found

    def _share_out(self, units: Column, steps: Column, sizes: Sizes) -> Column:
        """Give those units that a device holds equal shares of the steps of all tiles.

        Args:
            units: tiles; afterwards those units.
            steps: of a tile; afterwards of a unit.
            sizes: of the problem.

        Returns:
            Seconds for the tiles that units go through beside their first one, and for the parts
            of C that they write. All units are in one wave.
        """
        units *= self._parts
        every = units * steps
        blocks = every * self._per_share
        np.floor(blocks, blocks)
        np.maximum(blocks, self._least, out=blocks)
        np.minimum(blocks, self._slots, out=blocks)
        tiles = units / blocks
        units[:] = blocks
        every /= blocks
        np.ceil(every, steps)
        of_tile = np.ceil(blocks * self._per_place[self._even])
        of_tile *= self._of_tile[sizes.c_unaligned]
        of_tile += self._of_pass
        tiles *= of_tile
        blocks *= self._of_parts
        blocks *= sizes.itemsize
        tiles += blocks
        return tiles
