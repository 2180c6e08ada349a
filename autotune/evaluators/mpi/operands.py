"""Operands of a check, placed where a distributed program takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from autotune.verification import Check

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from autotune.references import Case, Matrix


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
    """

    def __init__(
        self, comm: Intracomm, case: Case, check: Check | None, plan: Plan, distributed: bool
    ) -> None:
        self._comm = comm
        self._case = case
        self._check = check
        self._plan = plan
        self._distributed = distributed
        self._homes: list[list[tuple[slice, slice]]] | None = None
        self._blocks: list[Matrix] = []
        if distributed:
            mine = [(slice(*rows), slice(*columns)) for rows, columns in plan.homes()]
            self._homes = comm.gather(mine, 0)

    def prepare(self) -> None:
        """Put C into its state before a call, and the blocks where they belong."""
        if self._check is not None:
            self._check.prepare()
        if self._distributed:
            self._blocks = self._hand_out()

    def call(self) -> None:
        """Multiply."""
        alpha, beta = self._case.alpha, self._case.beta
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
        parts: list[Matrix] | None = self._comm.gather(self._blocks[2], 0)
        if self._check is not None and parts is not None and self._homes is not None:
            for homes, part in zip(self._homes, parts, strict=True):
                self._check.c[homes[2]] = part

    def _hand_out(self) -> list[Matrix]:
        """This rank's blocks of A, B and C."""
        parts: list[Any] | None = None
        if self._check is not None and self._homes is not None:
            whole = self._check.a, self._check.b, self._check.c
            parts = [
                [np.array(matrix[home]) for matrix, home in zip(whole, homes, strict=True)]
                for homes in self._homes
            ]
        blocks: list[Matrix] = self._comm.scatter(parts, 0)
        return blocks
