"""ScaLAPACK's pdgemm under mpiexec, on its best grid. Prints one line of JSON.

``mpiexec -n RANKS python scalapack_gemm.py LIBRARY SIZE BLOCK``: float64, square, operands already
in the block-cyclic distribution that ScaLAPACK wants. The library must be built for the MPI that
mpi4py uses.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from autotune.evaluators.mpi.timing import time_together, timed_together
from autotune.evaluators.rounds import Series
from autotune.grid import ProcessGrid, factorisations

comm = MPI.COMM_WORLD


def main(library: str, size: int, block: int) -> None:
    scalapack = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    found = [
        measure(scalapack, grid, size, block) for grid in factorisations(comm.size, layers=False)
    ]
    series, error, grid = min(found, key=lambda each: each[0].median_s)
    if comm.rank == 0:
        low_s, high_s = series.interval_s
        told = {"grid": str(grid), "median_s": series.median_s, "low_s": low_s, "high_s": high_s}
        print(json.dumps({**told, "error": error}))


def measure(
    scalapack: ctypes.CDLL, grid: ProcessGrid, size: int, block: int
) -> tuple[Series, float, ProcessGrid]:
    """Time of a product, its largest error against NumPy, and the grid again."""
    context = ctypes.c_int(scalapack.Csys2blacs_handle(MPI._handleof(comm)))
    scalapack.Cblacs_gridinit(ctypes.byref(context), b"Row", grid.rows, grid.columns)
    row, column, _ = grid.place(comm.rank) or (0, 0, 0)
    indices = np.arange(size)
    rows = indices[indices // block % grid.rows == row]
    columns = indices[indices // block % grid.columns == column]

    rng = np.random.default_rng(0)
    whole_a, whole_b = rng.random((size, size)), rng.random((size, size))
    a, b = (np.asfortranarray(whole[np.ix_(rows, columns)]) for whole in (whole_a, whole_b))
    c = np.zeros_like(a, order="F")
    call = pdgemm(scalapack, context, size, block, (a, b, c))
    timed_together(comm, call)
    series = time_together(
        comm, call, budget_s=1.0, interval=0.02, deadline_s=10.0, enough=lambda low_s: False
    )
    right = (whole_a @ whole_b)[np.ix_(rows, columns)]
    error = comm.allreduce(float(np.abs(c - right).max(initial=0.0)), MPI.MAX)
    scalapack.Cblacs_gridexit(context)
    return series, error / (size * np.finfo("float64").eps), grid


def pdgemm(
    scalapack: ctypes.CDLL,
    context: ctypes.c_int,
    size: int,
    block: int,
    operands: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> Callable[[], None]:
    """A call of C = A B; Fortran takes everything by reference."""

    def by_reference(value: int) -> ctypes._CArgObject:
        return ctypes.byref(ctypes.c_int(value))

    described = []
    for matrix in operands:
        descriptor = (ctypes.c_int * 9)()
        failed = ctypes.c_int()
        scalapack.descinit_(
            descriptor,
            *(by_reference(value) for value in (size, size, block, block, 0, 0)),
            ctypes.byref(context),
            by_reference(max(1, matrix.shape[0])),
            ctypes.byref(failed),
        )
        if failed.value:
            raise ValueError(f"descinit refused its argument {-failed.value}")
        origin = by_reference(1)
        described.append((matrix.ctypes.data_as(ctypes.c_void_p), origin, origin, descriptor))
    a, b, c = described
    extents = [by_reference(size)] * 3
    one, zero = (ctypes.byref(ctypes.c_double(value)) for value in (1.0, 0.0))

    def call() -> None:
        scalapack.pdgemm_(b"N", b"N", *extents, one, *a, *b, zero, *c)

    return call


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
