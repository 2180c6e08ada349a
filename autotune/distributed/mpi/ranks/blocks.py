"""A rank's blocks of distributed operands, between guard zones: on the host, or in its GPU."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from autotune.operations.guarded import GuardedArray

if TYPE_CHECKING:
    from autotune.distributed.mpi.gpu.rank import GpuRank
    from autotune.operations.references import Matrix


class Block(Protocol):
    """A block at an address of its own, which stays.

    Attributes:
        operand: as a plan takes it.
    """

    operand: Any

    def write(self, values: Matrix) -> None:
        """Store a block; all around it becomes guard."""
        ...

    def read(self) -> tuple[Matrix, bool]:
        """The block on the host, and whether the guards are what they were."""
        ...


def block_of(shape: tuple[int, int], dtype: str, gpu: GpuRank | None) -> Block:
    """A block where plans expect it.

    Args:
        shape: rows and columns.
        dtype: element type.
        gpu: the rank's; None where blocks are in the memory of the host.
    """
    return _HostBlock(shape, dtype) if gpu is None else _GpuBlock(shape, dtype, gpu)


def checksum(block: Matrix) -> int:
    """Equal for equal elements."""
    return zlib.crc32(np.ascontiguousarray(block).data.cast("B")) if block.size else 0


class _HostBlock:
    """See `Block`."""

    def __init__(self, shape: tuple[int, int], dtype: str) -> None:
        self._guarded = GuardedArray(shape, dtype)
        self.operand = self._guarded.array

    def write(self, values: Matrix) -> None:
        self._guarded.poison()
        self.operand[...] = values

    def read(self) -> tuple[Matrix, bool]:
        return self.operand, self._guarded.damage() is None


class _GpuBlock:
    """See `Block`."""

    def __init__(self, shape: tuple[int, int], dtype: str, gpu: GpuRank) -> None:
        from autotune.gpu.measure import memory as guarded

        self._gpu = gpu
        self._guarded = guarded.GuardedMatrix(gpu.machine.ordinal, shape, dtype)
        matrix = self._guarded.matrix
        self.operand = gpu.at(matrix.address, shape, matrix.dtype, self._guarded)

    def write(self, values: Matrix) -> None:
        self._gpu.synchronize()
        self._guarded.write(values)

    def read(self) -> tuple[Matrix, bool]:
        self._gpu.synchronize()
        return self._guarded.read()
