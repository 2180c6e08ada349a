"""Problems: what a kernel is tuned for.

The convention everywhere is ``C[M x K] = alpha * A[M x N] @ B[N x K] + beta * C``, row-major,
with N the reduction. BLAS calls our N "k" and our K "n".
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, Self

from autotune.core.dtypes import DEFAULT_DTYPE, DTYPES, dtype_name
from autotune.core.errors import ProblemError
from autotune.core.printable import shown
from autotune.core.suggestions import must_be

if TYPE_CHECKING:
    from autotune.operations.formula import Formula

LAYOUTS = ("nn", "nt", "tn", "tt")
"""Which of A and B is stored transposed, A first: "nt" means B is stored K x N."""

ACCURACIES = ("ieee", "fp32", "fp32-normwise", "tf32", "native", "strassen")
"""Accuracy classes. A kernel of class `ieee` satisfies a problem of any class."""


class Problem(Protocol):
    """What the engine needs to know of a problem, whatever the operation."""

    @property
    def operation(self) -> str:
        """The operation's name: the first folder of a family's path."""
        ...

    @property
    def formula(self) -> Formula | None:
        """What is computed, where that is an operation of a user's own."""
        ...

    @property
    def dtype(self) -> str:
        """Element type of the operands."""
        ...

    @property
    def out_dtype(self) -> str | None:
        """Element type of the result; None means `dtype`."""
        ...

    @property
    def accuracy(self) -> str:
        """The loosest accuracy class a kernel may have."""
        ...

    @property
    def sizes(self) -> Mapping[str, int]:
        """Names in scope of a family's expressions: problem sizes and `element_sizes`."""
        ...

    @property
    def flops(self) -> int:
        """Floating-point operations of the textbook algorithm."""
        ...

    @property
    def label(self) -> str:
        """A short unique text, usable in a file name."""
        ...

    def key(self) -> dict[str, Any]:
        """Every field as JSON-able values: the problem's part of a cache key."""
        ...


@dataclass(frozen=True, slots=True)
class Gemm:
    """A general matrix product ``C[M x K] = alpha * A[M x N] @ B[N x K] + beta * C``.

    Attributes:
        m: rows of A and C.
        n: the reduction: columns of A, rows of B.
        k: columns of B and C.
        dtype: element type of A and B: a name or anything NumPy understands as a dtype.
        out_dtype: element type of C; None means `dtype`.
        layout: which operands are stored transposed; "nt" takes B as a K x N array.
        accuracy: the loosest accuracy class a kernel may have.
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
    accuracy: str = "ieee"
    threads: int | None = None

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            object.__setattr__(self, name, _positive(name, getattr(self, name)))
        object.__setattr__(self, "dtype", _dtype("dtype", self.dtype))
        if self.out_dtype is not None:
            out_dtype = _dtype("out_dtype", self.out_dtype)
            object.__setattr__(self, "out_dtype", None if out_dtype == self.dtype else out_dtype)
        _one_of("layout", self.layout, LAYOUTS)
        _one_of("accuracy", self.accuracy, ACCURACIES)
        if self.threads is not None:
            object.__setattr__(self, "threads", _positive("threads", self.threads))

    @property
    def operation(self) -> str:
        """The operation's name."""
        return "gemm"

    @property
    def formula(self) -> Formula | None:
        """What C becomes, where that is not the product above."""
        return None

    @property
    def flops(self) -> int:
        """Multiplications and additions of the textbook algorithm: 2 M N K."""
        return 2 * self.m * self.n * self.k

    @property
    def itemsize(self) -> int:
        """Bytes per element of A and B."""
        return DTYPES[self.dtype].itemsize

    @property
    def result_dtype(self) -> str:
        """Element type of C."""
        return self.out_dtype or self.dtype

    @property
    def operand_bytes(self) -> int:
        """Bytes of A, B and C together."""
        inputs = (self.m + self.k) * self.n * self.itemsize
        return inputs + self.m * self.k * DTYPES[self.result_dtype].itemsize

    @property
    def sizes(self) -> dict[str, int]:
        """M, N, K and `element_sizes`: names in scope of a family's expressions."""
        return {"M": self.m, "N": self.n, "K": self.k, **element_sizes(self.dtype)}

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
    def label(self) -> str:
        """Sizes, dtype and whatever differs from the defaults, joined with dashes."""
        parts = [f"{self.m}x{self.n}x{self.k}", self.dtype]
        if self.out_dtype is not None:
            parts.append(f"to-{self.out_dtype}")
        if self.layout != "nn":
            parts.append(self.layout)
        if self.accuracy != "ieee":
            parts.append(self.accuracy)
        if self.threads is not None:
            parts.append(f"{self.threads}-thread" + ("s" if self.threads > 1 else ""))
        return "-".join(parts)

    def key(self) -> dict[str, Any]:
        """Every field by name, as JSON-able values."""
        return asdict(self)

    def with_sizes(self, m: int, n: int, k: int) -> Self:
        """The same problem at other sizes."""
        return replace(self, m=m, n=n, k=k)


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


def element_sizes(dtype: str) -> dict[str, int]:
    """Bytes of an operand's element, ``itemsize``, and of a sum of products, ``acc_itemsize``."""
    row = DTYPES[dtype]
    return {"itemsize": row.itemsize, "acc_itemsize": row.accumulated.itemsize}


def parse_shape(text: str) -> tuple[int, int, int]:
    """Sizes from ``MxNxK``: three whole numbers >= 1.

    Raises:
        ProblemError: anything else; the message names the text.
    """
    parts = text.lower().split("x")
    if len(parts) == 3 and all(part.isascii() and part.isdigit() for part in parts):
        m, n, k = (int(part) for part in parts)
        if min(m, n, k) >= 1:
            return m, n, k
    raise ProblemError(f"a shape is MxNxK with three whole numbers >= 1, got {shown(text)}")


def admits(wanted: str, offered: str) -> bool:
    """Whether a kernel of accuracy class `offered` may serve a problem that asks for `wanted`."""
    return offered in ("ieee", wanted)


def _positive(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number < 1 or isinstance(value, bool):
        raise ProblemError(f"{name} must be a whole number >= 1, got {shown(value)}")
    return number


def _dtype(name: str, value: Any) -> str:
    text = str(value if isinstance(value, str) else getattr(value, "__name__", str(value)))
    plain = dtype_name(text)
    if plain not in DTYPES:
        raise ProblemError(must_be(name, text, DTYPES))
    return plain


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ProblemError(must_be(name, str(value), allowed))
