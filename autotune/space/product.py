"""The product of independent groups, row by row, without listing it."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from autotune.space.group import Group


class GroupProduct:
    """Every combination of the groups' rows; the first group is the most significant.

    Attributes:
        groups: over all parameters of a space, each in one of them.
        size: number of rows.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups = tuple(groups)
        self.size = math.prod(group.size for group in groups)
        self._parameters = sum(len(group.positions) for group in groups)

    @cached_property
    def weights(self) -> tuple[int, ...]:
        """Rows of the product that one row of each group stands for."""
        sizes = [group.size for group in self.groups]
        return tuple(math.prod(sizes[number + 1 :]) for number in range(len(sizes)))

    def row_codes(self, row: int) -> list[int]:
        """Positions of one row's values among their parameters'."""
        codes = [0] * self._parameters
        for group in reversed(self.groups):
            row, local = divmod(row, group.size)
            for position, code in zip(group.positions, group.codes[local], strict=True):
                codes[position] = int(code)
        return codes

    def codes(self, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """The same for many rows, shape (rows, parameters)."""
        codes = np.empty((len(rows), self._parameters), dtype=np.int32)
        for group in reversed(self.groups):
            if group.size:
                rows, local = np.divmod(rows, group.size)
                codes[:, group.positions] = group.codes[local]
        return codes

    def column(self, position: int, values: NDArray[np.generic]) -> NDArray[np.generic]:
        """The values of the parameter at `position` in every row."""
        for group, weight in zip(self.groups, self.weights, strict=True):
            if position in group.positions:
                local = values[group.codes[:, group.positions.index(position)]]
                repeats = self.size // max(1, weight * group.size)
                return np.tile(np.repeat(local, weight), repeats)
        raise IndexError(f"no parameter at {position}")

    def find(self, codes: Sequence[int]) -> int | None:
        """The row with these codes, or None."""
        row = 0
        for group in self.groups:
            local = group.find([codes[position] for position in group.positions])
            if local is None:
                return None
            row = row * group.size + local
        return row
