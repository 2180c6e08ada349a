"""Operands in device memory: where they lie, how they are guarded, and how many sets there are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from autotune.targets.cuda.driver.interface import driver
from autotune.targets.cuda.machine.guarded import padded

if TYPE_CHECKING:
    from autotune.operations.references import Matrix
    from autotune.targets.cuda.machine.placement import Placement, SlabLayout
    from autotune.targets.cuda.measure.support import Support

L2_MULTIPLE = 2.5
"""How many times the level-2 cache the rotating operand sets fill together."""

MAX_SETS = 2048
"""Sets at most: problems so small that these do not fill the cache are timed from it."""

_MEMORY_SHARE = 0.6
"""Of the free memory, what the sets may take."""


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
        for each in layout.placements.values():
            support.fill(self.base + each.start, each.elements + 2 * each.guard, each.itemsize)

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


def operands(layout: SlabLayout, base: int) -> tuple[int, ...]:
    """Address and strides, from the outermost to the last but one, of the operands of a slab."""
    return tuple(
        number
        for placed in layout.placements.values()
        for number in (base + placed.offset, *placed.strides[:-1])
    )
