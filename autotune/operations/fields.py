"""Problems: the fields and properties that those of all operations have."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from autotune.core.dtypes import DTYPES, dtype_name
from autotune.core.errors import ProblemError
from autotune.core.printable import shown
from autotune.core.suggestions import must_be
from autotune.operations.accuracy import ACCURACIES
from autotune.operations.parts import Array

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Self

    from autotune.operations.operation import Operation


class Problem:
    """A problem: an operation at one shape, of one element type.

    Fields, which a problem never changes:
        defined: the operation.
        shape: its sizes, in the operation's order.
        dtype: element type of the operands.
        out_dtype: element type of the result; None means the usual one.
        accuracy: the loosest accuracy class a kernel may have.
        threads: cap on CPU threads; None means all that the process may use.
        layout: which operands are stored transposed, where the operation leaves that open.
    """

    __slots__ = ()

    if TYPE_CHECKING:  # fields of some, properties of others

        @property
        def defined(self) -> Operation: ...  # noqa: D102

        @property
        def shape(self) -> tuple[int, ...]: ...  # noqa: D102

        @property
        def dtype(self) -> str: ...  # noqa: D102

        @property
        def out_dtype(self) -> str | None: ...  # noqa: D102

        @property
        def accuracy(self) -> str: ...  # noqa: D102

        @property
        def threads(self) -> int | None: ...  # noqa: D102

        @property
        def layout(self) -> str: ...  # noqa: D102

    @property
    def operation(self) -> str:
        """The operation's name: the first folder of a family's path."""
        return self.defined.name

    @property
    def result_dtype(self) -> str:
        """Element type of the result."""
        return self.out_dtype or DTYPES[self.dtype].result

    @property
    def itemsize(self) -> int:
        """Bytes per element of the operands."""
        return DTYPES[self.dtype].itemsize

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes by name and `element_sizes`: names in scope of a family's expressions."""
        named = zip(self.defined.sizes, self.shape, strict=True)
        return {**dict(named), **element_sizes(self.dtype)}

    @property
    def operands(self) -> tuple[Array, ...]:
        """The operands as stored, in the order of a call."""
        return self.defined.arrays(self.sizes, self.dtype, self.result_dtype)

    @property
    def flops(self) -> int:
        """Floating-point operations of the textbook algorithm, as the operation counts them."""
        return self.defined.evaluated(self.defined.flops, self.sizes)

    @property
    def traffic(self) -> int:
        """Bytes of the operands, each moved once."""
        return sum(each.nbytes for each in self.operands)

    @property
    def label(self) -> str:
        """Sizes, dtype and whatever differs from the defaults, as part of a file name."""
        parts = ["x".join(map(str, self.shape)), self.dtype]
        if self.out_dtype is not None:
            parts.append(f"to-{self.out_dtype}")
        if self.layout != "nn":
            parts.append(self.layout)
        if self.accuracy != DTYPES[self.dtype].accuracy:
            parts.append(self.accuracy)
        if self.threads is not None:
            parts.append(f"{self.threads}-thread" + ("s" if self.threads > 1 else ""))
        return "-".join(parts)

    def named(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Stored operands, by name, as the formula means them."""
        return dict(arrays)

    def key(self) -> dict[str, Any]:
        """Every field as JSON-able values: the problem's part of a cache key."""
        raise NotImplementedError

    def with_sizes(self, *shape: int) -> Self:
        """The same problem at other sizes; raises ProblemError where one is out of range."""
        raise NotImplementedError


def element_sizes(dtype: str) -> dict[str, int]:
    """Bytes of an operand's element, ``itemsize``, and of a sum of products, ``acc_itemsize``."""
    row = DTYPES[dtype]
    return {"itemsize": row.itemsize, "acc_itemsize": row.accumulated.itemsize}


def positive(name: str, value: Any) -> int:
    """A field that is a whole number >= 1.

    Raises:
        ProblemError: it is not; the message names it. So do the functions below.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number < 1 or isinstance(value, bool):
        raise ProblemError(f"{name} must be a whole number >= 1, got {shown(value)}")
    return number


def dtype_of(name: str, value: Any) -> str:
    """A field that is a dtype: a name, or anything NumPy understands as one."""
    text = str(value if isinstance(value, str) else getattr(value, "__name__", str(value)))
    plain = dtype_name(text)
    if plain not in DTYPES:
        raise ProblemError(must_be(name, text, DTYPES))
    return plain


def one_of(name: str, value: Any, allowed: Collection[str]) -> None:
    """Refuse a field that is none of the values allowed."""
    if value not in allowed:
        raise ProblemError(must_be(name, str(value), allowed))


def check_common(problem: Any) -> None:
    """Normalise dtype, out_dtype, accuracy and threads of a frozen problem.

    No accuracy class stands for the usual one of the dtype.
    """

    def put(name: str, value: object) -> None:
        object.__setattr__(problem, name, value)

    put("dtype", dtype_of("dtype", problem.dtype))
    if problem.out_dtype is not None:
        out_dtype = dtype_of("out_dtype", problem.out_dtype)
        put("out_dtype", None if out_dtype == DTYPES[problem.dtype].result else out_dtype)
    if problem.accuracy is None or problem.accuracy == "":
        put("accuracy", DTYPES[problem.dtype].accuracy)
    one_of("accuracy", problem.accuracy, ACCURACIES)
    if problem.threads is not None:
        put("threads", positive("threads", problem.threads))
