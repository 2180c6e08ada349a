"""Rows that are scored: all of a space, or those worth it of a large one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.search.model.features import Points
    from autotune.search.study_space import StudySpace

LARGEST_LISTED = 131_072
"""Spaces up to this many rows are scored whole."""

_DRAWN = 65_536
"""Rows drawn uniformly from a larger space."""

_DRAWN_SLOWLY = 1_024
"""The same where rows exceed 64 bits and NumPy cannot help."""


class Candidates:
    """Rows as the model sees them by `describe`; all of the space where `rows` is None."""

    def __init__(
        self,
        space: StudySpace,
        describe: Callable[[Sequence[int]], Points],
        rows: Sequence[int] | None,
    ) -> None:
        self._space = space
        self._describe = describe
        self._rows: Sequence[int] = range(space.size) if rows is None else rows
        self._positions = None if rows is None else {row: at for at, row in enumerate(rows)}
        self.points: Points = describe(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def whole(self) -> bool:
        """Every row of the space is a candidate."""
        return self._positions is None

    def row(self, position: int) -> int:
        """The row of a candidate."""
        return self._rows[position]

    def positions(self, rows: Iterable[int]) -> list[int]:
        """Positions of those rows that are candidates."""
        if self._positions is None:
            return list(rows)
        return [self._positions[row] for row in rows if row in self._positions]

    def widen(self, centre: int) -> Points:
        """Add a row and its neighbours; returns those that were not there before."""
        if self._positions is None:
            return self.points[:0]
        near = (centre, *neighbours(self._space, centre))
        new = [row for row in near if row not in self._positions]
        self._positions.update(zip(new, range(len(self), len(self) + len(new)), strict=True))
        self._rows = [*self._rows, *new]
        added = self._describe(new)
        self.points = self.points + added
        return added


def drawn_rows(space: StudySpace, centres: Collection[int], *seed: int) -> list[int] | None:
    """Rows of a large space to score: a uniform draw, some good rows and their neighbours.

    They ascend; None when the space is small enough to be scored whole.
    """
    if space.size <= LARGEST_LISTED:
        return None
    count = _DRAWN if space.size < 2**63 else _DRAWN_SLOWLY
    random = seeded(*seed)
    rows = {random.randrange(space.size) for _ in range(count)}
    rows.update(centres)
    for centre in centres:
        rows.update(neighbours(space, centre))
    return sorted(rows)


def neighbours(space: StudySpace, row: int) -> Iterator[int]:
    """The valid rows that differ from one in a single parameter."""
    params = space.params(row)
    for name, value in params.items():
        for other in space.choices[name]:
            if other != value:
                # Another family has other parameters: such a point is incomplete, and no row.
                found = space.row({**params, name: other})
                if found is not None:
                    yield found


def seeded(*seed: int) -> Random:
    """A generator of Python's own: a space may have more rows than NumPy's can count."""
    state = np.random.SeedSequence(seed).generate_state(4)
    return Random(int.from_bytes(state.tobytes(), "little"))
