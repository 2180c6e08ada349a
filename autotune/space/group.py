"""Groups: parameters that restrictions connect, with the rows that are valid for them together."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from autotune.space.radix import MixedRadix, find_row, sort_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray


class Group:
    """The valid rows of some parameters, in ascending order of their codes.

    Attributes:
        positions: where its parameters stand in the space.
        size: number of rows.
    """

    def __init__(
        self,
        positions: tuple[int, ...],
        radix: MixedRadix,
        words: Sequence[NDArray[np.int64]],
    ) -> None:
        self.positions = positions
        self.size = len(words[0])
        self._radix = radix
        self._words = sort_rows(words)

    @cached_property
    def codes(self) -> NDArray[np.unsignedinteger]:
        """Positions of the values, shape (rows, parameters)."""
        return self._radix.unpack(self._words)

    @property
    def packed(self) -> bytes:
        """The rows as bytes."""
        return b"".join(word.astype("<i8").tobytes() for word in self._words)

    def find(self, codes: Sequence[int]) -> int | None:
        """The row with these codes, one for each of the group's parameters."""
        return find_row(self._words, self._radix.pack(codes))


def connected(count: int, links: Iterable[Sequence[int]]) -> list[tuple[int, ...]]:
    """The connected parts of `count` nodes, each ascending, in order of their first node."""
    parts = [[node] for node in range(count)]
    for link in links:
        joined = sorted({id(parts[node]): parts[node] for node in link}.values())
        merged = sorted(node for part in joined for node in part)
        for node in merged:
            parts[node] = merged
    return [tuple(part) for node, part in enumerate(parts) if part[0] == node]
