"""ScaLAPACK's product by ctypes: pdgemm on a grid, and pdgemr2d from rank 0 and back.

The library must be built for the MPI that mpi4py uses. ScaLAPACK stores columns contiguously: what
is given here are transposes, C' = B' A', so that NumPy's arrays are used as they are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from autotune.distributed.grid import ProcessGrid, factorisations

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

BLOCKS = (32, 64, 128, 256)
"""Block sizes tried."""


def variants(ranks: int) -> Iterator[tuple[ProcessGrid, int]]:
    """Grids of all ranks and of half of them, and block sizes."""
    for used in sorted({ranks, max(1, ranks // 2)}):
        for grid in factorisations(used, layers=False):
            for block in BLOCKS:
                yield grid, block


class Scalapack:
    """The library on a communicator.

    Args:
        path: the shared library.
        comm: the ranks; every one of them makes every call.
    """

    def __init__(self, path: str, comm: Intracomm) -> None:
        from mpi4py import MPI

        self.comm = comm
        self.library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        self.handle = self.library.Csys2blacs_handle(MPI._handleof(comm))

    def blas(self) -> str:
        """Which kernels its OpenBLAS has chosen; empty for another BLAS."""
        try:
            chosen = self.library.openblas_get_corename
        except AttributeError:
            return ""
        chosen.restype = ctypes.c_char_p
        return f"OpenBLAS with its kernels for {chosen().decode()}"

    def context(self, grid: ProcessGrid) -> int:
        """A BLACS context of the first ranks; -1 on those that are not in it."""
        context = ctypes.c_int(self.handle)
        self.library.Cblacs_gridinit(ctypes.byref(context), b"Row", grid.rows, grid.columns)
        return context.value if self.comm.rank < grid.size else -1


class Product:
    """C = A B for square float64 matrices on a grid, in ScaLAPACK's block-cyclic distribution.

    Args:
        scalapack: the library.
        grid: its ranks.
        size: rows and columns of each matrix.
        block: rows and columns of a block.
    """

    def __init__(self, scalapack: Scalapack, grid: ProcessGrid, size: int, block: int) -> None:
        self._library = scalapack.library
        self._rank = scalapack.comm.rank
        self._size = size
        self._all = scalapack.context(ProcessGrid(1, scalapack.comm.size))
        self._root = scalapack.context(ProcessGrid(1, 1))
        self._context = scalapack.context(grid)
        row, column, _ = grid.place(self._rank) or (0, 0, 0)
        indices = np.arange(size)
        self.rows = indices[indices // block % grid.rows == row]
        self.columns = indices[indices // block % grid.columns == column]
        self.active = self._context >= 0
        shape = (len(self.columns), len(self.rows)) if self.active else (1, 1)
        # Transposed, as NumPy sees it: columns of the grid divide the rows of C.
        self.a, self.b, self.c = (np.zeros(shape) for _ in "abc")
        self._descriptor = self._describe(self._context, block, max(1, len(self.rows)))
        self._whole = self._describe(self._root, size, size)

    def hand_out(self, a: np.ndarray, b: np.ndarray) -> None:
        """Take this rank's blocks of matrices that every rank has, which is not timed."""
        if self.active:
            place = np.ix_(self.columns, self.rows)
            self.a[...], self.b[...] = a[place], b[place]

    def on_blocks(self) -> None:
        """The product of what ranks have."""
        if not self.active:
            return
        one, zero = (ctypes.byref(ctypes.c_double(value)) for value in (1.0, 0.0))
        extents = [_by_reference(self._size)] * 3
        # The transpose of A B is that of B times that of A.
        matrices = (self._described(matrix) for matrix in (self.b, self.a))
        left, right = matrices
        self._library.pdgemm_(
            b"N", b"N", *extents, one, *left, *right, zero, *self._described(self.c)
        )

    def from_root(self, a: np.ndarray | None, b: np.ndarray | None, c: np.ndarray | None) -> None:
        """The product of rank 0's whole matrices, in its C."""
        self._move(a, self._whole, self.a, self._descriptor)
        self._move(b, self._whole, self.b, self._descriptor)
        self.on_blocks()
        self._move(self.c, self._descriptor, c, self._whole)

    def error(self, right: np.ndarray) -> float:
        """The largest deviation of this rank's blocks of C from a matrix that it has whole."""
        if not self.active:
            return 0.0
        return float(np.abs(self.c - right[np.ix_(self.columns, self.rows)]).max(initial=0.0))

    def free(self) -> None:
        """Give the contexts back."""
        for context in (self._all, self._root, self._context):
            if context >= 0:
                self._library.Cblacs_gridexit(context)

    def _describe(self, context: int, block: int, leading: int) -> ctypes.Array[ctypes.c_int]:
        """A descriptor: dense, context, rows, columns, block of both, first ranks, leading."""
        size = self._size
        return (ctypes.c_int * 9)(1, context, size, size, block, block, 0, 0, leading)

    def _described(self, matrix: np.ndarray) -> tuple[object, ...]:
        origin = _by_reference(1)
        return matrix.ctypes.data_as(ctypes.c_void_p), origin, origin, self._descriptor

    def _move(
        self,
        source: np.ndarray | None,
        described: ctypes.Array[ctypes.c_int],
        target: np.ndarray | None,
        described_there: ctypes.Array[ctypes.c_int],
    ) -> None:
        """Cpdgemr2d, by all ranks: a matrix from one distribution to another."""
        address, address_there = (
            None if matrix is None else matrix.ctypes.data_as(ctypes.c_void_p)
            for matrix in (source, target)
        )
        self._library.Cpdgemr2d(
            *(self._size, self._size, address, 1, 1, described),
            *(address_there, 1, 1, described_there, self._all),
        )


def _by_reference(value: int) -> ctypes._CArgObject:
    """Fortran takes everything by reference."""
    return ctypes.byref(ctypes.c_int(value))
