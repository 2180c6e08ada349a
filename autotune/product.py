"""Operations of one's own: products that a family file defines by a formula."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from autotune.errors import InputError
from autotune.formula import Formula
from autotune.printable import shown
from autotune.problem import Gemm
from autotune.space import Expression


@dataclass(frozen=True, slots=True)
class Operation:
    """What the families of an operation compute.

    Attributes:
        name: the operation's name.
        formula: what C becomes.
        flops: how many floating-point operations that takes: an expression over M, N and K.
    """

    name: str
    formula: Formula
    flops: str


@dataclass(frozen=True, slots=True)
class Product(Gemm):
    """C[M x K] from A[M x N] and B[N x K] by a formula of a user's own.

    Attributes:
        defined: the operation.
    """

    defined: Operation = field(kw_only=True)

    @property
    def operation(self) -> str:
        """The operation's name."""
        return self.defined.name

    @property
    def formula(self) -> Formula:
        """What C becomes."""
        return self.defined.formula

    @property
    def flops(self) -> int:
        """Floating-point operations, as the operation counts them.

        Raises:
            InputError: it counts none for these sizes.
        """
        count = Expression.parse(self.defined.flops).evaluate(self.sizes)
        if isinstance(count, str) or not 1 <= count < 2**63:
            raise InputError(
                f"flops of operation {self.defined.name!r} must be a number >= 1, "
                f"got {shown(count)} for {self.label}"
            )
        return int(count)

    def key(self) -> dict[str, Any]:
        """Every field of a matrix product, and the formula."""
        shared = {each.name: getattr(self, each.name) for each in fields(Gemm)}
        return {**shared, "formula": self.formula.text}
