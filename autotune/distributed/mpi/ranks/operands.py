"""Operands of a check, placed where a distributed program takes them, between guard zones."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from autotune.distributed.mpi.gpu.rank import GpuRank
from autotune.distributed.mpi.loading import Plan
from autotune.measuring.harness import OTHER_CONTENTS
from autotune.operations.cases import Case
from autotune.operations.guarded import GuardedArray
from autotune.operations.problem import GEMM
from autotune.operations.references import Matrix
from autotune.operations.verification import ProductCheck, Verdict

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm


class Block(Protocol):
    """A rank's block of an operand, at an address of its own, which stays.

    Attributes:
        operand: as a plan takes it.
    """

    operand: Any

    def write(self, values: Matrix) -> None:
        """Store a block; all around it becomes guard."""

    def read(self) -> tuple[Matrix, bool]:
        """The block on the host, and True if the guards are intact."""


class _HostBlock:
    def __init__(self, shape: tuple[int, int], dtype: str) -> None:
        self._guarded = GuardedArray(shape, dtype)
        self.operand = self._guarded.array

    def write(self, values: Matrix) -> None:
        self._guarded.poison()
        self.operand[...] = values

    def read(self) -> tuple[Matrix, bool]:
        return self.operand, self._guarded.damage() is None


class _GpuBlock:
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


def checksum(block: Matrix) -> int:
    """A number that is equal for equal elements."""
    return zlib.crc32(np.ascontiguousarray(block).data.cast("B")) if block.size else 0


class PlacedCheck:
    """One check as all ranks see it; every method is called by all of them.

    Args:
        comm: the ranks.
        case: the product.
        check: operands and reference, on rank 0; None elsewhere.
        plan: multiplies them.
        distributed: every rank keeps blocks, instead of rank 0 everything.
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
        self._blocks: list[Block] = []
        self._sums: list[int] = []
        self._result: Matrix | None = None
        if distributed:
            mine = [(slice(*rows), slice(*columns)) for rows, columns in plan.homes()]
            self._homes = comm.gather(mine, 0)

    @property
    def contents(self) -> int:
        """Number of contents that A and B of the problem have in turns."""
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
            values = self._hand_out()
            self._sums = [checksum(block) for block in values[:2]]
            if not self._blocks:  # and then at the addresses that the program knows
                self._blocks = [
                    _HostBlock(block.shape, self._dtype)
                    if self._gpu is None
                    else _GpuBlock(block.shape, self._dtype, self._gpu)
                    for block in values
                ]
            for block, content in zip(self._blocks, values, strict=True):
                block.write(content)

    def call(self) -> None:
        """Multiply."""
        alpha, beta = self._case.scalars_of(GEMM).values()
        if self._distributed:
            a, b, c = (block.operand for block in self._blocks)
            self._plan.on_blocks(a, b, c, alpha, beta)
        elif self._check is not None:
            self._plan.from_root(self._check.a, self._check.b, self._check.c, alpha, beta)
        else:
            self._plan.from_root(None, None, None, alpha, beta)

    def judge(self, accuracy: str) -> Verdict:
        """Judge memory and result after a call that followed `prepare`: alike on every rank."""
        return self._judge(ProductCheck.judge, accuracy)

    def judge_again(self, accuracy: str) -> Verdict:
        """The same after one of many calls: a result that was right is not computed again."""
        return self._judge(ProductCheck.judge_again, accuracy)

    def _judge(self, judge: Callable[[ProductCheck, str], Verdict], accuracy: str) -> Verdict:
        for rank, flaw in enumerate(self._comm.allgather(self._flaw())):
            if flaw:
                return Verdict(math.inf, f"{self._case}: {flaw} on rank {rank}", damaged=True)
        self._collect()
        mine = None if self._check is None else judge(self._check, accuracy)
        verdict: Verdict = self._comm.bcast(mine, 0)
        return verdict

    def _flaw(self) -> str:
        """The harm that a call has done to this rank's blocks, if any."""
        for number, (name, block) in enumerate(zip("ABC", self._blocks, strict=False)):
            self._result, intact = block.read()
            if not intact:
                return f"wrote outside {name}"
            if name != "C" and checksum(self._result) != self._sums[number]:
                return f"modified {name}, an input,"
        return ""

    def _collect(self) -> None:
        """Bring C back to rank 0, which judges it."""
        if not self._distributed:
            return
        assert self._result is not None  # the last block that was looked at
        mine = np.ascontiguousarray(self._result)
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
        """This rank's blocks of A, B and C, each a message of its own, however large."""
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
            blocks.append(np.empty((rows[1] - rows[0], columns[1] - columns[0]), self._dtype))
            self._comm.Recv(blocks[-1], 0)
        return blocks
