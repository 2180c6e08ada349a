"""Operations, and their problems: an operation at one shape, of one element type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from autotune.core.dtypes import DEFAULT_DTYPE, ELEMENTS
from autotune.core.errors import ProblemError
from autotune.core.printable import shown
from autotune.operations.fields import LAYOUTS, check_common, element_sizes, one_of, positive
from autotune.operations.operation_parts import OperationParts
from autotune.operations.parts import Array


class Operation(OperationParts):
    """An operation, whose problems are made by its sizes; fields are those of `OperationParts`."""

    __slots__ = ()

    def at(self, shape: tuple[int, ...], **fields: Any) -> Any:
        """The problem of one shape.

        Args:
            shape: the sizes in order.
            fields: dtype and what else a problem has.

        Raises:
            ProblemError: a field is out of range.
        """
        return OperationProblem(self, shape, **fields)

    def problem(self, **fields: Any) -> Any:
        """A problem of this operation: its sizes by name, and dtype, accuracy or threads.

        Raises:
            ProblemError: a size is missing, or a field is unknown or out of range.
        """
        for name in self.sizes:
            if name not in fields:
                raise ProblemError(
                    f"{self.name} takes the sizes {', '.join(self.sizes)}, and {name} is missing"
                )
        shape = tuple(fields.pop(name) for name in self.sizes)
        try:
            if "layout" in fields and not self.laid_out:
                raise TypeError("layout")
            return self.at(shape, **fields)
        except TypeError as error:
            layout = ", layout" if self.laid_out else ""
            raise ProblemError(
                f"a problem of {self.name} takes {', '.join(self.sizes)}, dtype, out_dtype{layout}"
                f", accuracy and threads, got {', '.join(fields)}"
            ) from error

    def without_formula(self, key: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a problem's key but its formula, which must be this operation's.

        Raises:
            ProblemError: the formula is another, or is missing.
        """
        formula = key.get("formula")
        if formula != self.meaning:
            raise ProblemError(
                f"operation {self.name!r} computes {self.meaning} here, not {formula}"
            )
        return {name: value for name, value in key.items() if name != "formula"}

    def problem_from_key(self, key: Mapping[str, Any]) -> Any:
        """Rebuild a problem from its key.

        Raises:
            ProblemError: a field is missing, unknown, or out of range, or the formula is another.
        """
        fields = self.without_formula(key)
        fields.pop("operation", None)
        sizes = {name: fields.pop(name.lower(), None) for name in self.sizes}
        return self.problem(**sizes, **fields)


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
        return self.out_dtype or ELEMENTS[self.dtype].result

    @property
    def itemsize(self) -> int:
        """Bytes per element of the operands."""
        return ELEMENTS[self.dtype].itemsize

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes by name and `element_sizes`: names in scope of a family's expressions."""
        named = zip(self.defined.sizes, self.shape, strict=True)
        return {**dict(named), **element_sizes(self.dtype)}

    @property
    def operands(self) -> tuple[Array, ...]:
        """The operands as stored, in the order of a call."""
        raise NotImplementedError

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
        if self.accuracy != ELEMENTS[self.dtype].accuracy:
            parts.append(self.accuracy)
        if self.threads is not None:
            parts.append(f"{self.threads}-thread" + ("s" if self.threads > 1 else ""))
        return "-".join(parts)

    @property
    def turned(self) -> frozenset[str]:
        """Names of the operands that are stored transposed."""
        pairs = zip("AB", self.layout, strict=True)
        return frozenset(name for name, stored in pairs if stored == "t")

    def named(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Stored operands, by name, as the formula means them: what is transposed, turned."""
        turned = self.turned
        return {
            name: each.swapaxes(-1, -2) if name in turned else each
            for name, each in arrays.items()
        }

    @property
    def product_sizes(self) -> tuple[int, ...]:
        """Rows, reduction and columns of each product of A and B; of others than those, sizes."""
        if not self.defined.layouts:
            return self.shape
        shapes = {each.name: each.shape[-2:] for each in self.operands}
        (m, n), (_, k) = (
            shapes[name][::-1] if name in self.turned else shapes[name] for name in "AB"
        )
        return m, n, k

    def key(self) -> dict[str, Any]:
        """Every field as JSON-able values: the problem's part of a cache key."""
        raise NotImplementedError

    def with_sizes(self, *shape: int) -> Self:
        """The same problem at other sizes; raises ProblemError where one is out of range."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class OperationProblem(Problem):
    """A problem of an operation of one's own (see `Problem`).

    Attributes:
        defined: the operation.
        shape: its sizes, in order.
        dtype: element type of the operands: a name, or a dtype or a scalar type of NumPy's.
        out_dtype: element type of the output; None means `dtype`, or the sums' of integers.
        accuracy: the loosest accuracy class a kernel may have; empty means native for 16-bit
            operands, ieee for others.
        threads: cap on CPU threads; None means all that the process may use.
        layout: which of A and B are stored transposed, where the operation is `laid_out`.

    Raises:
        ProblemError: a field is out of range; the message names the field and what it takes.
    """

    defined: Operation
    shape: tuple[int, ...]
    dtype: str = DEFAULT_DTYPE
    out_dtype: str | None = None
    accuracy: str = ""
    threads: int | None = None
    layout: str = "nn"

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.defined.sizes):
            raise ProblemError(
                f"a shape of {self.defined.name} is {self.defined.shape_text}, "
                f"got {shown(self.shape)}"
            )
        sizes = zip(self.defined.sizes, self.shape, strict=True)
        object.__setattr__(self, "shape", tuple(positive(*each) for each in sizes))
        one_of("layout", self.layout, LAYOUTS if self.defined.laid_out else LAYOUTS[:1])
        check_common(self, ELEMENTS)

    @property
    def operands(self) -> tuple[Array, ...]:
        """The operands as stored: what the layout says is transposed, with its rows as columns."""
        stored = self.defined.arrays(self.sizes, self.dtype, self.result_dtype)
        if self.layout == "nn":
            return stored
        return tuple(
            replace(each, shape=(*each.shape[:-2], each.shape[-1], each.shape[-2]))
            if each.name in self.turned
            else each
            for each in stored
        )

    def key(self) -> dict[str, Any]:
        """Every field by name, as JSON-able values."""
        named = zip(self.defined.sizes, self.shape, strict=True)
        return {
            "operation": self.operation,
            **{name.lower(): size for name, size in named},
            "dtype": self.dtype,
            "out_dtype": self.out_dtype,
            "accuracy": self.accuracy,
            "threads": self.threads,
            **({} if self.layout == LAYOUTS[0] else {"layout": self.layout}),
            "formula": self.defined.meaning,
        }

    def with_sizes(self, *shape: int) -> Self:
        """The same problem at other sizes."""
        return replace(self, shape=shape)


def baseline_of(operation: Operation, target: str) -> str | None:
    """The baseline of an operation on a target; None where it names none."""
    return dict(operation.baselines).get(target)
