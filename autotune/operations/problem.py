"""Problems: what a kernel is tuned for.

The convention of matrix products is ``C[M x K] = alpha * A[M x N] @ B[N x K] + beta * C``,
row-major, with N the reduction. BLAS calls our N "k" and our K "n".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from autotune.core.arguments import must
from autotune.core.dtypes import DEFAULT_DTYPE
from autotune.core.errors import InputError, ProblemError
from autotune.core.printable import shown
from autotune.operations.accuracy import ACCURACIES as ACCURACIES
from autotune.operations.accuracy import admits as admits
from autotune.operations.fields import LAYOUTS as LAYOUTS
from autotune.operations.fields import check_common, one_of, positive
from autotune.operations.fields import element_sizes as element_sizes
from autotune.operations.formula import Formula
from autotune.operations.operation import Operation
from autotune.operations.operation import Problem as Problem
from autotune.operations.parts import Array, Operand


class MatrixOperation(Operation):
    """An operation whose problems are those of matrix products: C from A and B."""

    __slots__ = ()

    @property
    def laid_out(self) -> bool:
        """True: problems say how A and B are stored."""
        return True

    def at(self, shape: tuple[int, ...], **fields: Any) -> Gemm:
        """The problem of one shape."""
        m, n, k = shape
        return Gemm(m, n, k, **fields)

    def problem_from_key(self, key: Mapping[str, Any]) -> Gemm:
        """Rebuild a problem from its key."""
        return gemm_from_key(key)


FACTORS = (Operand("A", ("M", "N")), Operand("B", ("N", "K")), Operand("C", ("M", "K"), True))
"""The operands of matrix products, where no layout says otherwise."""

GEMM = MatrixOperation(
    name="gemm",
    sizes=("M", "N", "K"),
    operands=FACTORS,
    result=Formula("alpha * A @ B + beta * C"),
    flops="2 * M * N * K",
    scalars=(("alpha", 1.0), ("beta", 0.0)),
    summary="Matrix product",
    baselines=(("cuda", "cublas.gemm"), ("numba-cuda", "cublas.gemm")),
    entry=("M", "N", "K", "alpha", "A", "B", "beta", "C"),
)
"""The general matrix product."""

OPERATIONS: Mapping[str, Operation] = {GEMM.name: GEMM}
"""The operations that come with the engine, by name; family files define others."""


@dataclass(frozen=True, slots=True)
class Gemm(Problem):
    """A general matrix product ``C[M x K] = alpha * A[M x N] @ B[N x K] + beta * C``.

    Attributes:
        m: rows of A and C.
        n: the reduction: columns of A, rows of B.
        k: columns of B and C.
        dtype: element type of A and B: a name, or a dtype or a scalar type of NumPy's.
        out_dtype: element type of C; None means `dtype`, or the sums' of integers.
        layout: which operands are stored transposed; "nt" takes B as a K x N array.
        accuracy: the loosest accuracy class a kernel may have; empty means native for 16-bit
            operands, ieee for others.
        threads: cap on CPU threads; None means all that the process may use.

    Raises:
        ProblemError: a field is out of range; the message names the field and what it takes.
    """

    m: int
    n: int
    k: int
    dtype: str = DEFAULT_DTYPE
    out_dtype: str | None = None
    layout: str = "nn"
    accuracy: str = ""
    threads: int | None = None

    @classmethod
    def from_blas(cls, m: int, n: int, k: int, **fields: Any) -> Self:
        """The product that BLAS calls m, n, k: C is m x n, and k is the reduction.

        Args:
            m: rows of A and C.
            n: columns of B and C, our K.
            k: the reduction, our N.
            **fields: dtype, layout and the rest, as for a `Gemm`.
        """
        return cls(m, k, n, **fields)

    @property
    def blas(self) -> tuple[int, int, int]:
        """The sizes in BLAS's names m, n and k."""
        return self.m, self.k, self.n

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            object.__setattr__(self, name, positive(name, getattr(self, name)))
        one_of("layout", self.layout, LAYOUTS)
        check_common(self)

    @property
    def defined(self) -> Operation:
        """The operation itself."""
        return GEMM

    @property
    def shape(self) -> tuple[int, ...]:
        """m, n, k."""
        return self.m, self.n, self.k

    @property
    def a_shape(self) -> tuple[int, int]:
        """Shape of A as stored: M x N, or N x M when the layout says transposed."""
        return (self.n, self.m) if self.layout[0] == "t" else (self.m, self.n)

    @property
    def b_shape(self) -> tuple[int, int]:
        """Shape of B as stored: N x K, or K x N when the layout says transposed."""
        return (self.k, self.n) if self.layout[1] == "t" else (self.n, self.k)

    @property
    def c_shape(self) -> tuple[int, int]:
        """Shape of C: M x K."""
        return (self.m, self.k)

    @property
    def operands(self) -> tuple[Array, ...]:
        """A, B and C as stored."""
        return (
            Array("A", self.a_shape, self.dtype),
            Array("B", self.b_shape, self.dtype),
            Array("C", self.c_shape, self.result_dtype, written=True),
        )

    def key(self) -> dict[str, Any]:
        """Every field by name, as JSON-able values."""
        return {name: getattr(self, name) for name in _FIELDS}

    def with_sizes(self, *shape: int) -> Self:
        """The same problem at other sizes.

        Raises:
            ProblemError: they are not three, or one is out of range.
        """
        if len(shape) != len(self.shape):
            raise ProblemError(f"a shape of {self.operation} is MxNxK, got {shown(shape)}")
        m, n, k = shape
        return replace(self, m=m, n=n, k=k)


_FIELDS = tuple(each.name for each in fields(Gemm))


def check_problem(problem: Any) -> None:
    """Refuse what is no problem of any operation.

    Raises:
        InputError: it is something else; the message says what.
    """
    expected = "a problem, like Gemm(96, 64, 80)"
    must("problem", expected, problem, isinstance(problem, Problem))


def multiplies(operation: Operation) -> bool:
    """Return whether an operation is ``alpha A B + beta C`` of matrices, as libraries compute."""
    return isinstance(operation, MatrixOperation) and operation.result == GEMM.result


def product_of(problem: Problem) -> Gemm | None:
    """The matrix product that a problem is, or begins with; None where there is none."""
    if isinstance(problem, Gemm):
        return problem if multiplies(problem.defined) else None
    if problem.defined.product != GEMM.name:
        return None
    m, n, k = problem.shape
    shared = {name: getattr(problem, name) for name in _FIELDS[3:]}
    return Gemm(m, n, k, **shared)


def gemm_from_key(key: Mapping[str, Any]) -> Gemm:
    """Rebuild a problem from `Gemm.key`.

    Raises:
        ProblemError: a field is missing, unknown, or out of range.
    """
    try:
        return Gemm(**key)
    except TypeError as error:
        raise ProblemError(
            f"a gemm problem needs m, n, k and known fields, got {shown(dict(key))}"
        ) from error


def only_gemm(problem: Problem, where: str) -> Gemm:
    """The problem, where nothing but matrix products can be computed.

    Args:
        problem: what is to be computed.
        where: what cannot compute anything else, for the message.

    Raises:
        InputError: it is another operation.
    """
    if not isinstance(problem, Gemm) or problem.defined is not GEMM:
        raise InputError(
            f"{where} divides matrix products and nothing else, got operation "
            f"{problem.operation!r}: use target cpu or cuda"
        )
    return problem


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
