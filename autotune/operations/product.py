"""Operations of one's own: products that a family file defines by a formula."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from autotune.core.errors import InputError, ProblemError
from autotune.core.printable import shown
from autotune.operations.formula import Formula
from autotune.operations.problem import Gemm, gemm_from_key
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


def problem_from_key(key: Mapping[str, Any], defined: Operation | None) -> Gemm:
    """Rebuild a problem from its key.

    Args:
        key: as `Gemm.key` or `Product.key` gives it.
        defined: its operation, where that is one of a user's own.

    Raises:
        ProblemError: a field is missing, unknown, or out of range, or the formula is another one.
    """
    if defined is None:
        return gemm_from_key(key)
    formula = key.get("formula")
    if formula != defined.formula.text:
        raise ProblemError(
            f"operation {defined.name!r} computes {defined.formula.text} here, not {formula}"
        )
    shared = {name: value for name, value in key.items() if name != "formula"}
    gemm = gemm_from_key(shared)
    return Product(**gemm.key(), defined=defined)
