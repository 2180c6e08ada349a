"""Operands of a check, placed on the GPUs where a program takes them, between guard rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autotune.gpu.measure.memory import GuardedMatrix
from autotune.operations.verification import ProductCheck, Verdict

if TYPE_CHECKING:
    from autotune.distributed.grid import Span
    from autotune.distributed.hybrid.loading import Plan
    from autotune.operations.references import Matrix


class GuardedBlock(GuardedMatrix):
    """Rows of a matrix, in a GPU's memory.

    Args:
        device: the driver's number of the GPU.
        rows: which rows of the matrix.
        columns: how many columns.
        dtype: element type.
        padding: guard elements after every row.
    """

    def __init__(self, device: int, rows: Span, columns: int, dtype: str, padding: int) -> None:
        super().__init__(device, (rows[1] - rows[0], columns), dtype, padding)
        self._rows = slice(*rows)

    def store(self, whole: Matrix) -> None:
        """Its rows of a matrix of the host; all around them becomes guard."""
        self.write(whole[self._rows])

    def load(self, whole: Matrix) -> bool:
        """Into its rows of a matrix of the host; whether the guards are what they were."""
        whole[self._rows], intact = self.read()
        return intact


class PlacedCheck:
    """A check whose operands are where a plan takes them.

    Args:
        check: the operands on the host, and what C must be.
        dtype: element type.
        operands: "host", "device" or "blocks".
        spans: with blocks, for every GPU the rows of A and C, and those of B.
    """

    def __init__(
        self, check: ProductCheck, dtype: str, operands: str, spans: list[tuple[Span, Span]]
    ) -> None:
        self._check = check
        self._operands = operands
        case = check.case
        m, n, k = case.sizes
        if operands == "device":
            spans = [((0, m), (0, n))]
        elif operands == "host":
            spans = []

        def blocks(which: int, columns: int) -> list[GuardedBlock]:
            return [
                GuardedBlock(device, span[which], columns, dtype, case.padding)
                for device, span in enumerate(spans)
            ]

        self._a, self._b, self._c = blocks(0, n), blocks(1, k), blocks(0, k)
        self.store()

    @property
    def contents(self) -> int:
        """How many contents A and B have in turns."""
        return self._check.contents

    def store(self) -> None:
        """Put A and B where they belong."""
        for block in self._a:
            block.store(self._check.a)
        for block in self._b:
            block.store(self._check.b)

    def turn(self) -> None:
        """Put the next content of A and B there."""
        self._check.turn()
        self.store()

    def prepare(self) -> None:
        """Put C into its state before a call."""
        self._check.prepare()
        for block in self._c:
            block.store(self._check.c)

    def call(self, plan: Plan) -> None:
        """Multiply."""
        check = self._check
        scalars = check.arguments[3:]
        if self._operands == "host":
            plan.from_host(check.a, check.b, check.c, *scalars)
            return
        a, b, c = ([each.matrix for each in blocks] for blocks in (self._a, self._b, self._c))
        if self._operands == "device":
            plan.from_device(a[0], b[0], c[0], *scalars)
        else:
            plan.on_blocks(a, b, c, *scalars)

    def judge(self, accuracy: str) -> Verdict:
        """Judge memory, A and B too, and the result of a call that followed `prepare`.

        Args:
            accuracy: the accuracy class that the program promises.
        """
        check = self._check
        whole = (("A", self._a, check.a), ("B", self._b, check.b), ("C", self._c, check.c))
        for name, blocks, matrix in whole:
            for block in blocks:
                if not block.load(matrix):
                    return Verdict(
                        math.inf,
                        f"{check.case}: wrote outside {name} on GPU {block.matrix.device}",
                        damaged=True,
                    )
        return check.judge(accuracy)

    judge_again = judge
    """After one of many calls A and B are compared as well: they are not read-only here."""

    def run(self, plan: Plan, accuracy: str) -> Verdict:
        """Prepare, call and judge."""
        self.prepare()
        self.call(plan)
        return self.judge(accuracy)

    def free(self) -> None:
        """Give the GPUs' memory back."""
        for block in (*self._a, *self._b, *self._c):
            block.free()
