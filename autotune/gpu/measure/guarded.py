"""Matrices in a GPU's memory between guard zones, written and looked at by way of the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.core.dtypes import DTYPES, WORDS
from autotune.gpu.matrix import DeviceMatrix
from autotune.gpu.measure.placement import Placement
from autotune.gpu.nvidia.driver.context import activated
from autotune.gpu.nvidia.driver.interface import driver
from autotune.operations.guarded import GUARD_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from autotune.operations.references import Matrix


def padded(placement: Placement, values: Matrix) -> NDArray[np.unsignedinteger[Any]]:
    """The words of a matrix and of its padding, which holds what guard zones hold.

    Args:
        placement: where the matrix lies.
        values: its elements.

    Returns:
        Its rows, a whole stride of each.
    """
    size = placement.itemsize
    words = np.full((placement.rows, placement.stride), WORDS[size].poison, f"u{size}")
    words[:, : placement.columns] = values.view(words.dtype)
    return words


class GuardedMatrix:
    """A matrix in memory of its own.

    Args:
        device: the driver's number of the GPU.
        shape: rows and columns.
        dtype: element type.
        padding: guard elements after every row.

    Attributes:
        matrix: where it is.
    """

    def __init__(self, device: int, shape: tuple[int, int], dtype: str, padding: int = 0) -> None:
        row = DTYPES[dtype]
        stride = shape[1] + padding
        self._placement = Placement(shape, (stride, 1), row.itemsize, GUARD_BYTES)
        self._poison = row.word.poison
        with activated(device):
            self._memory = driver().allocate(self._placement.end)
        start = int(self._memory) + GUARD_BYTES
        self.matrix = DeviceMatrix(device, start, shape, (stride, 1), row.numpy, self)

    def write(self, values: Matrix) -> None:
        """Store a matrix of the host; all around it becomes guard."""
        placement = self._placement
        whole = np.full(
            placement.elements + 2 * placement.guard, self._poison, f"u{placement.itemsize}"
        )
        whole[placement.guard :][: placement.elements] = padded(placement, values).reshape(-1)
        with activated(self.matrix.device):
            driver().upload(int(self._memory), whole)
            driver().synchronize()

    def read(self) -> tuple[Matrix, bool]:
        """The matrix on the host, and whether the guards are what they were."""
        placement = self._placement
        whole = np.empty(placement.elements + 2 * placement.guard, f"u{placement.itemsize}")
        with activated(self.matrix.device):
            driver().download(whole, int(self._memory))
        before, body, after = np.split(
            whole, [placement.guard, placement.guard + placement.elements]
        )
        body = body.reshape(placement.rows, placement.stride)
        guards = before, after, body[:, placement.columns :]
        intact = all(bool((guard == self._poison).all()) for guard in guards)
        return body[:, : placement.columns].view(self.matrix.dtype), intact

    def free(self) -> None:
        """Give the memory back."""
        with activated(self.matrix.device):
            self._memory.free()
