"""The product of independent groups, row by row, without listing it."""

from __future__ import annotations

import math
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from autotune.space.system import Group


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
            for position, code in zip(
                group.positions, group.diagram.row_codes(local), strict=True
            ):
                codes[position] = code
        return codes

    def codes(self, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """The same for many rows, shape (rows, parameters)."""
        codes = np.empty((len(rows), self._parameters), dtype=np.int32, order="F")
        for group in reversed(self.groups):
            if group.size:
                rows, local = np.divmod(rows, group.size)
                columns = group.diagram.codes(local)
                for position, column in zip(group.positions, columns, strict=True):
                    codes[:, position] = column
        return codes

    def columns(self, values: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """The values of every parameter in every row.

        Args:
            values: what the codes of every parameter stand for.
        """
        columns = _empty_columns([each.dtype for each in values], self.size)
        for group, weight in zip(self.groups, self.weights, strict=True):
            own = [values[position] for position in group.positions]
            for position, column in zip(
                group.positions, group.diagram.columns(own, weight), strict=True
            ):
                if len(column):
                    columns[position].reshape(-1, len(column))[:] = column
        return columns

    def find(self, codes: Sequence[int]) -> int | None:
        """The row with these codes, or None."""
        row = 0
        for group in self.groups:
            local = group.diagram.find([codes[position] for position in group.positions])
            if local is None:
                return None
            row = row * group.size + local
        return row


def _empty_columns(dtypes: Sequence[np.dtype[Any]], rows: int) -> list[NDArray[Any]]:
    """A column of every type.

    Those of one type lie in one block, which the system provides far faster than many small ones.
    """
    numbers = Counter(dtypes)
    blocks = {dtype: iter(np.empty((count, rows), dtype)) for dtype, count in numbers.items()}
    return [next(blocks[dtype]) for dtype in dtypes]
