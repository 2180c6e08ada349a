"""Run by mpiexec: what ranks do to blocks that they must not. Prints one line of JSON."""

from __future__ import annotations

import ctypes
import json

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from autotune.distributed.mpi.ranks.operands import PlacedCheck
from autotune.operations.cases import Case
from autotune.operations.problem import Gemm
from autotune.operations.verification import ProductCheck

comm = MPI.COMM_WORLD
PROBLEM = Gemm(21, 8, 6, "float64")
CASE = Case(21, 8, 6, scalars={"alpha": 1.5, "beta": -0.5})


class Rows:
    """Rows of C on every rank, all of B on each; the last rank has a fault."""

    def __init__(self, fault: str) -> None:
        self._fault = fault if comm.rank == comm.size - 1 else "none"

    def homes(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        m, n, k = CASE.sizes
        mine = m * comm.rank // comm.size, m * (comm.rank + 1) // comm.size
        return [(mine, (0, n)), ((0, n), (0, k)), (mine, (0, k))]

    def on_blocks(
        self,
        a: NDArray[np.float64],
        b: NDArray[np.float64],
        c: NDArray[np.float64],
        alpha: float,
        beta: float,
    ) -> None:
        c[...] = alpha * (a @ b) + beta * c
        if self._fault == "wrong":
            c[-1, -1] += 1
        elif self._fault == "input":
            b[0, 0] += 1
        elif self._fault in ("before", "after"):
            place = c.ctypes.data + (-8 if self._fault == "before" else c.nbytes)
            ctypes.c_double.from_address(place).value = 0.0

    def from_root(self, *_: object) -> None:
        raise NotImplementedError

    def free(self) -> None:
        pass


told = {}
for fault in ("none", "wrong", "input", "before", "after", "none"):
    rng = np.random.default_rng(0)
    check = ProductCheck(CASE, PROBLEM, rng) if comm.rank == 0 else None
    placed = PlacedCheck(comm, CASE, check, Rows(fault), True, "float64")
    for _ in range(2):
        placed.prepare()
        placed.call()
        verdict = placed.judge("ieee")
        alike = len(set(comm.allgather(repr(verdict)))) == 1
        told[fault] = [verdict.right, verdict.damaged, verdict.reason, alike]
if comm.rank == 0:
    print(json.dumps(told))
