"""Operands of a check, placed where a distributed program takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from autotune.operations.problem import GEMM
from autotune.operations.verification import ProductCheck

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from autotune.operations.references import Case, Matrix
    from autotune.targets.mpi.gpu.rank import GpuRank


class Plan(Protocol):
    """What an emitted program makes for given sizes (templates/gemm/mpi)."""

    def from_root(
        self, a: Matrix | None, b: Matrix | None, c: Matrix | None, alpha: float, beta: float
    ) -> None:
        """Compute from rank 0's whole operands."""
        ...

    def on_blocks(self, a: Matrix, b: Matrix, c: Matrix, alpha: float, beta: float) -> None:
        """Compute on every rank's own blocks."""
        ...

    def homes(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """This rank's blocks of A, B and C: spans of rows and of columns."""
        ...

    def free(self) -> None:
        """Give communicators and datatypes back."""
        ...


class PlacedCheck:
    """One check as all ranks see it; every method is called by all of them.

    Args:
        comm: the ranks.
        case: what is multiplied.
        check: operands and reference, on rank 0; None elsewhere.
        plan: what multiplies them.
        distributed: whether every rank keeps blocks, or rank 0 everything.
        dtype: element type of the operands.
        gpu: this rank's, in whose memory the blocks are; None where that is the host's.
    """

    def __init__(
        self,
        comm: Intracomm,
        case: Case,
        check: ProductCheck | None,
        plan: Plan,
        distributed: bool,
        dtype: str,
        gpu: GpuRank | None = None,
    ) -> None:
        self._comm = comm
        self._case = case
        self._check = check
        self._plan = plan
        self._distributed = distributed
        self._dtype = dtype
        self._gpu = gpu
        self._homes: list[list[tuple[slice, slice]]] | None = None
        self._blocks: list[Any] = []
        if distributed:
            mine = [(slice(*rows), slice(*columns)) for rows, columns in plan.homes()]
            self._homes = comm.gather(mine, 0)

    def turn(self) -> None:
        """Change the operands; `prepare` puts them where they belong."""
        if self._check is not None:
            self._check.turn()

    def prepare(self) -> None:
        """Put C into its state before a call, and the blocks where they belong."""
        if self._check is not None:
            self._check.prepare()
        if self._distributed:
            blocks = self._hand_out()
            if self._gpu is not None:
                self._blocks = []
                self._blocks = [self._gpu.upload(block) for block in blocks]
                self._gpu.synchronize()
            elif self._blocks:
                # At the addresses that the program knows.
                for mine, block in zip(self._blocks, blocks, strict=True):
                    mine[...] = block
            else:
                self._blocks = blocks

    def call(self) -> None:
        """Multiply."""
        alpha, beta = self._case.scalars_of(GEMM).values()
        if self._distributed:
            a, b, c = self._blocks
            self._plan.on_blocks(a, b, c, alpha, beta)
        elif self._check is not None:
            self._plan.from_root(self._check.a, self._check.b, self._check.c, alpha, beta)
        else:
            self._plan.from_root(None, None, None, alpha, beta)

    def collect(self) -> None:
        """Bring C back to rank 0, which judges it."""
        if not self._distributed:
            return
        mine = self._blocks[2] if self._gpu is None else self._gpu.fetch(self._blocks[2])
        if self._check is None or self._homes is None:
            self._comm.Send(mine, 0)
            return
        for rank, homes in enumerate(self._homes):
            block = self._check.c[homes[2]]
            if rank:
                mine = np.empty(block.shape, block.dtype)
                self._comm.Recv(mine, rank)
            block[...] = mine

    def _hand_out(self) -> list[Matrix]:
        """This rank's blocks of A, B and C; each is a message of its own, however large."""
        if self._check is not None and self._homes is not None:
            whole = self._check.a, self._check.b, self._check.c
            for rank, homes in enumerate(self._homes[1:], 1):
                for matrix, home in zip(whole, homes, strict=True):
                    self._comm.Send(np.array(matrix[home]), rank)
            return [
                np.array(matrix[home]) for matrix, home in zip(whole, self._homes[0], strict=True)
            ]
        blocks = []
        for rows, columns in self._plan.homes():
            shape = rows[1] - rows[0], columns[1] - columns[0]
            blocks.append(np.empty(shape, self._dtype))
            self._comm.Recv(blocks[-1], 0)
        return blocks
