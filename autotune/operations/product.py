"""Products of one's own: what a family file defines by a formula over A, B and C."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from autotune.operations.formula import Formula
from autotune.operations.operation import Operation
from autotune.operations.problem import FACTORS, GEMM, Gemm, MatrixOperation, gemm_from_key


class ProductOperation(MatrixOperation):
    """A matrix product whose formula is a user's own."""

    __slots__ = ()

    def at(self, shape: tuple[int, ...], **fields: Any) -> Product:
        """The problem of one shape."""
        m, n, k = shape
        return Product(m, n, k, **fields, defined=self)

    def problem_from_key(self, key: Mapping[str, Any]) -> Product:
        """Rebuild a problem from its key.

        Raises:
            ProblemError: a field is missing, unknown, or out of range, or the formula is another.
        """
        return Product(**gemm_from_key(self.without_formula(key)).key(), defined=self)


def product_operation(
    name: str, formula: Formula, flops: str, *, finite: bool = False
) -> ProductOperation:
    """The operation that computes C from A, B and C by a formula.

    Args:
        name: what users call it.
        formula: what C becomes.
        flops: how many floating-point operations that takes: an expression over M, N and K.
        finite: whether kernels are right for finite operands alone.

    Raises:
        InputError: the formula gives no matrix M x K.
    """
    return ProductOperation(
        name,
        GEMM.sizes,
        FACTORS,
        formula,
        flops,
        GEMM.scalars,
        entry=GEMM.entry,
        finite=finite,
    )


@dataclass(frozen=True, slots=True)
class Product(Gemm):
    """C[M x K] from A[M x N] and B[N x K] by a formula of a user's own.

    Attributes:
        defined: the operation.
    """

    defined: Operation = field(kw_only=True)

    def key(self) -> dict[str, Any]:
        """Every field of a matrix product, and the formula."""
        shared = {each.name: getattr(self, each.name) for each in fields(Gemm)}
        return {**shared, "formula": self.defined.result.text}
