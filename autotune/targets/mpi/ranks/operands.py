"""Operands of a check, placed where a distributed program takes them."""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.measuring.plan import OTHER_CONTENTS
from autotune.operations.problem import GEMM
from autotune.operations.verification import ProductCheck, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpi4py.MPI import Intracomm

    from autotune.operations.cases import Case
    from autotune.operations.references import Matrix
    from autotune.targets.mpi.gpu.rank import GpuRank
    from autotune.targets.mpi.loading import Plan


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
        self._sums: list[int] = []
        if distributed:
            mine = [(slice(*rows), slice(*columns)) for rows, columns in plan.homes()]
            self._homes = comm.gather(mine, 0)

    @property
    def contents(self) -> int:
        """How many contents A and B of the problem have in turns."""
        return 1 + len(OTHER_CONTENTS)

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
            self._sums = [_checksum(block) for block in blocks[:2]]
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

    def judge(self, accuracy: str) -> Verdict:
        """Judge memory and result after a call that followed `prepare`: alike on every rank.

        Args:
            accuracy: the accuracy class that the program promises.
        """
        return self._judge(ProductCheck.judge, accuracy)

    def judge_again(self, accuracy: str) -> Verdict:
        """The same after one of many calls: what was right before is not computed again."""
        return self._judge(ProductCheck.judge_again, accuracy)

    def _judge(self, judge: Callable[[ProductCheck, str], Verdict], accuracy: str) -> Verdict:
        modified = self._comm.allgather(self._modified())
        for rank, names in enumerate(modified):
            if names:
                told = f"{self._case}: modified {names[0]}, an input, on rank {rank}"
                return Verdict(math.inf, told, damaged=True)
        self._collect()
        mine = None if self._check is None else judge(self._check, accuracy)
        verdict: Verdict = self._comm.bcast(mine, 0)
        return verdict

    def _modified(self) -> list[str]:
        """Which of this rank's blocks of A and B are not what was handed out."""
        if not self._distributed:
            return []  # rank 0 judges its own
        return [
            name
            for name, block, sum_ in zip("AB", self._blocks, self._sums, strict=False)
            if _checksum(block if self._gpu is None else self._gpu.fetch(block)) != sum_
        ]

    def _collect(self) -> None:
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


def _checksum(block: Matrix) -> int:
    return zlib.crc32(np.ascontiguousarray(block).data.cast("B")) if block.size else 0
