"""Operands of a check, placed on the GPUs where a program takes them, between guard rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from autotune.core.dtypes import DTYPES
from autotune.operations.verification import ProductCheck, Verdict
from autotune.targets.cuda.driver.context import activated
from autotune.targets.cuda.driver.interface import driver
from autotune.targets.cuda.machine.matrix import DeviceMatrix

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from autotune.core.grid import Span
    from autotune.operations.references import Matrix
    from autotune.targets.hybrid.loading import Plan


class GuardedBlock:
    """Rows of a matrix in a GPU's memory, a guard row before and one after them.

    Args:
        device: the driver's number of the GPU.
        rows: which rows of the matrix.
        columns: how many columns.
        dtype: element type.
        padding: guard elements after every row.

    Attributes:
        rows: which rows of the matrix.
        matrix: where they are.
    """

    def __init__(self, device: int, rows: Span, columns: int, dtype: str, padding: int) -> None:
        self.rows = rows
        row = DTYPES[dtype]
        itemsize = row.itemsize
        self._dtype = row.numpy
        self._words = np.dtype(f"u{itemsize}")
        height, stride = rows[1] - rows[0], columns + padding
        self._shape = (height + 2, stride)
        self._poison = row.word.poison
        with activated(device):
            self._memory = driver().allocate((height + 2) * stride * itemsize)
        start = int(self._memory) + stride * itemsize
        shape = height, columns
        self.matrix = DeviceMatrix(device, start, shape, (stride, 1), self._dtype)

    def store(self, whole: Matrix) -> None:
        """Its rows of a matrix of the host; all around them becomes guard."""
        image = np.full(self._shape, self._poison, self._words)
        image[1:-1, : self.matrix.shape[1]] = whole[slice(*self.rows)].view(self._words)
        with activated(self.matrix.device):
            driver().upload(int(self._memory), image)
            driver().synchronize()

    def load(self, whole: Matrix) -> bool:
        """Into its rows of a matrix of the host; whether the guards are what they were."""
        image = np.empty(self._shape, self._words)
        with activated(self.matrix.device):
            driver().download(image, int(self._memory))
        inner = image[1:-1, : self.matrix.shape[1]]
        whole[slice(*self.rows)] = inner.view(self._dtype)
        guards: tuple[NDArray[np.unsignedinteger], ...] = (
            image[0],
            image[-1],
            image[1:-1, self.matrix.shape[1] :],
        )
        return all((guard == self._poison).all() for guard in guards)

    def free(self) -> None:
        """Give the memory back."""
        with activated(self.matrix.device):
            self._memory.free()


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

    def judge(self, accuracy: str, *, inputs: bool = True) -> Verdict:
        """Judge memory and result after a call that followed `prepare`.

        Args:
            accuracy: the accuracy class that the program promises.
            inputs: whether A and B are brought back from the GPUs as well, so that it shows if a
                call has modified them.
        """
        check = self._check
        operands = [("C", self._c, check.c)]
        if inputs:
            operands += [("A", self._a, check.a), ("B", self._b, check.b)]
        for name, blocks, whole in operands:
            for block in blocks:
                if not block.load(whole):
                    return Verdict(
                        math.inf,
                        f"{check.case}: wrote outside {name} on GPU {block.matrix.device}",
                        damaged=True,
                    )
        return check.judge(accuracy)

    def run(self, plan: Plan, accuracy: str) -> Verdict:
        """Prepare, call and judge."""
        self.prepare()
        self.call(plan)
        return self.judge(accuracy)

    def free(self) -> None:
        """Give the GPUs' memory back."""
        for block in (*self._a, *self._b, *self._c):
            block.free()
