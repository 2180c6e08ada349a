"""Operations: what is computed, of which operands, and what that takes."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from autotune.core.dtypes import DEFAULT_DTYPE, DTYPES
from autotune.core.errors import ExpressionError, InputError, ProblemError
from autotune.core.printable import shown
from autotune.core.suggestions import must_be
from autotune.operations.fields import LAYOUTS, check_common, element_sizes, one_of, positive
from autotune.operations.formula import Formula, misfit, shape_text
from autotune.operations.parts import (
    Argument,
    Array,
    Kind,
    Operand,
    check_expression,
    check_names,
    check_no_keyword,
    operand_arguments,
    parsed,
)
from autotune.operations.python_reference import PythonReference
from autotune.space import UndefinedError

_DIMENSIONS = 3
_LARGEST_EXAMPLE = 2**20


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation: an output, by a formula, from inputs and scalars.

    Attributes:
        name: what users call it, and the entry of kernels.
        sizes: names of the sizes, in the order of a shape.
        operands: in the order of a call; one of them is written.
        result: what that one becomes.
        flops: how many floating-point operations that takes, an expression over the sizes.
        scalars: their names and defaults, in the order of the entry.
        summary: one line for listings.
        cases: shapes to verify kernels at; empty where ragged ones are made.
        finite: whether kernels are right for finite operands alone; if not, NaN and infinity come
            out where the reference has them.
        baselines: by target, what its kernels are compared with, as the target calls it.
        entry: names of sizes, scalars and operands in the order of the kernels' arguments; empty
            where that is this one.
        takes: names of the kernels' arguments themselves, strides among them, in any order; empty
            where `entry` says. Sizes may be left out, and so may strides: then the rows of the
            operand follow each other.
        product: the operation whose families compute it, with what follows their product as an
            epilogue (`autotune.operations.epilogue`); empty where it has families of its own only.
        layouts: whether problems have a layout: operands A and B, matrices or stacks of them, may
            be stored transposed. The output's columns follow from those of B alone.

    Raises:
        InputError: the parts do not fit together; the message begins with the part's name.
    """

    name: str
    sizes: tuple[str, ...]
    operands: tuple[Operand, ...]
    result: Formula | PythonReference
    flops: str
    scalars: tuple[tuple[str, float], ...] = ()
    summary: str = ""
    cases: tuple[tuple[int, ...], ...] = ()
    finite: bool = False
    baselines: tuple[tuple[str, str], ...] = ()
    entry: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    product: str = ""
    layouts: bool = False

    def __post_init__(self) -> None:
        check_no_keyword("operation", self.name)
        check_names(self.sizes, self.operands, self.scalars)
        known = {*self.sizes, *element_sizes(DEFAULT_DTYPE)}
        for operand in self.operands:
            if not 1 <= len(operand.shape) <= _DIMENSIONS:
                raise InputError(
                    f"operands.{operand.name}.shape must have 1 to {_DIMENSIONS} dimensions, "
                    f"got {len(operand.shape)}"
                )
            for text in operand.shape:
                check_expression(f"operands.{operand.name}.shape", text, set(self.sizes))
            operand.check_elements(set(self.sizes))
        plain = set(itertools.chain(*(operand.shape for operand in self.operands)))
        for name in self.sizes:
            if name not in plain:
                raise InputError(f"sizes must be dimensions of operands, and {name} is none")
        if sum(operand.written for operand in self.operands) != 1:
            raise InputError('operands must be of role "in" but one, of role "out"')
        factors = [each for each in self.inputs if each.name in ("A", "B")]
        if self.layouts and (len(factors) < 2 or any(len(each.shape) < 2 for each in factors)):
            raise InputError("layouts must be false, but for inputs A and B, matrices or stacks")
        check_expression("flops", self.flops, known)
        for shape in self.cases:
            if len(shape) != len(self.sizes):
                raise InputError(f"cases must be shapes {self.shape_text}, got {shown(shape)}")
        if self.entry:
            first = self.entry[: len(self.sizes)]
            rest = sorted(self.entry[len(self.sizes) :])
            others = sorted([name for name, _ in self.scalars] + [o.name for o in self.operands])
            if first != self.sizes or rest != others:
                raise InputError(
                    "entry must name every size, in order, and then every scalar and operand once"
                )
        if self.takes:
            _check_takes(self)
        _check_arguments(self)
        _check_result(self)

    @property
    def shape_text(self) -> str:
        """A shape's text, as ``MxN``."""
        return "x".join(self.sizes)

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """The operands that are not written."""
        return tuple(each for each in self.operands if not each.written)

    @property
    def output(self) -> Operand:
        """The operand that is written."""
        return next(each for each in self.operands if each.written)

    @property
    def laid_out(self) -> bool:
        """True if problems say how A and B, which it multiplies, are stored (`layout`)."""
        return bool(self.product) or self.layouts

    @property
    def order(self) -> tuple[str, ...]:
        """Names of sizes, scalars and operands in the order of the kernels' arguments."""
        scalars = (name for name, _ in self.scalars)
        return self.entry or (*self.sizes, *scalars, *(each.name for each in self.operands))

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The arguments of kernels, in order; parameters passed at the call come after."""
        return _arguments(self)

    @property
    def packed(self) -> frozenset[str]:
        """The operands of which kernels take no strides, though they have some."""
        return _packed(self)

    def reads_output(self, scalars: Mapping[str, float]) -> bool:
        """Return whether the output is read too: where no zero multiplies it in the formula.

        Args:
            scalars: those that do not have their defaults.
        """
        known = {**dict(self.scalars), **scalars}
        return any(
            all(known.get(name, 1.0) != 0 for name in factors)
            for factors in _factors(self.result, self.output.name)
        )

    def sizes_of(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
        """The sizes by name that operands of some shapes have.

        Args:
            shapes: of the operands, in order.
        """
        sizes: dict[str, int] = {}
        for operand, shape in zip(self.operands, shapes, strict=True):
            sizes.update(zip(operand.shape, shape, strict=True))
        return sizes

    def evaluated(self, text: str, sizes: Mapping[str, int]) -> int:
        """A whole number >= 1 that an expression of the operation stands for.

        Raises:
            InputError: it is none for these sizes.
        """
        try:
            value = parsed(text).evaluate(sizes)
        except UndefinedError as error:
            raise InputError(f"operation {self.name!r}: {error}") from error
        if isinstance(value, str) or not 1 <= value < 2**63:
            rule = "< 2^63" if not isinstance(value, str) and value >= 2**63 else ">= 1"
            raise InputError(
                f"{text} of operation {self.name!r} must be a number {rule}, got {shown(value)} "
                "for " + "x".join(str(sizes[name]) for name in self.sizes)
            )
        return int(value)

    def arrays(self, sizes: Mapping[str, int], dtype: str, result_dtype: str) -> tuple[Array, ...]:
        """The operands at some sizes, as stored."""
        return tuple(
            Array(
                operand.name,
                tuple(self.evaluated(text, sizes) for text in operand.shape),
                operand.dtype or (result_dtype if operand.written else dtype),
                operand.written,
                operand.name in self.packed,
                self.evaluated(operand.most, sizes) if operand.most else None,
                operand.ascending,
            )
            for operand in self.operands
        )

    def parse_shape(self, text: str) -> tuple[int, ...]:
        """Sizes from a text like ``MxN``: whole numbers >= 1.

        Raises:
            ProblemError: anything else; the message names the text.
        """
        parts = text.lower().split("x")
        count = len(self.sizes)
        rule = ">= 1"
        if len(parts) == count and all(part.isascii() and part.isdigit() for part in parts):
            if any(len(part.lstrip("0")) >= 20 for part in parts):
                rule = "< 2^63"
            elif min(sizes := tuple(map(int, parts))) >= 1:
                return sizes
        words = {1: "one whole number", 2: "two whole numbers", 3: "three whole numbers"}
        raise ProblemError(
            f"a shape is {self.shape_text} with {words.get(count, f'{count} whole numbers')} "
            f"{rule}, got {shown(text)}"
        )

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
        if formula != self.result.text:
            raise ProblemError(
                f"operation {self.name!r} computes {self.result.text} here, not {formula}"
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
        if self.accuracy != DTYPES[self.dtype].accuracy:
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
        dtype: element type of the operands: a name or anything NumPy understands as a dtype.
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
        check_common(self)

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
            "formula": self.defined.result.text,
        }

    def with_sizes(self, *shape: int) -> Self:
        """The same problem at other sizes."""
        return replace(self, shape=shape)


@functools.lru_cache(maxsize=256)
def _factors(formula: Formula | PythonReference, name: str) -> tuple[frozenset[str], ...]:
    return formula.factors_of(name)


@functools.lru_cache(maxsize=256)
def _arguments(operation: Operation) -> tuple[Argument, ...]:
    every = _all_arguments(operation)
    if operation.takes:
        named = {each.name: each for each in every}
        return tuple(named[name] for name in operation.takes)
    return every


@functools.lru_cache(maxsize=256)
def _packed(operation: Operation) -> frozenset[str]:
    taken = {each.name for each in operation.arguments}
    return frozenset(
        each.name
        for each in operation.operands
        if not {part.name for part in _parts(each)} <= taken
    )


def _parts(operand: Operand) -> tuple[Argument, ...]:
    return operand_arguments(
        operand.name, len(operand.shape), written=operand.written, dtype=operand.dtype
    )


def _all_arguments(operation: Operation) -> tuple[Argument, ...]:
    """The arguments of kernels where nothing is left out."""
    parts: dict[str, tuple[Argument, ...]] = {}
    for size in operation.sizes:
        parts[size] = (Argument(size.lower(), Kind.SIZE),)
    for scalar, _ in operation.scalars:
        parts[scalar] = (Argument(scalar, Kind.SCALAR),)
    for each in operation.operands:
        parts[each.name] = _parts(each)
    return tuple(itertools.chain(*(parts[name] for name in operation.order)))


def _check_takes(operation: Operation) -> None:
    """Every operand and every scalar is an argument, and nothing is one twice."""
    if operation.entry:
        raise InputError("arguments must be left out where entry gives their order")
    known = {each.name: each.kind for each in _all_arguments(operation)}
    for number, name in enumerate(operation.takes):
        if name not in known:
            raise InputError(must_be("arguments", name, list(known)))
        if name in operation.takes[:number]:
            raise InputError(f"arguments must not repeat {name!r}")
    for name, kind in known.items():
        if kind in (Kind.ADDRESS, Kind.SCALAR) and name not in operation.takes:
            raise InputError(
                f"arguments must name all operands and scalars, and {name} is missing"
            )


def _check_arguments(operation: Operation) -> None:
    names = [argument.name for argument in operation.arguments]
    # What addresses are called in Python.
    names += [f"{each.name.lower()}_address" for each in operation.operands]
    for name in names:
        if names.count(name) > 1 or name == operation.name:
            raise InputError(f"operands must leave names of arguments apart, and {name!r} is not")


def _examples(operation: Operation) -> Iterator[dict[str, int]]:
    """Sizes of which no two are equal, and others where expressions need larger ones."""
    for first in (3, 17):
        yield {name: first + number for number, name in enumerate(operation.sizes)}


def _check_result(operation: Operation) -> None:
    """The formula mentions what there is, and gives an array of the output's shape."""
    known = [each.name for each in operation.operands] + [name for name, _ in operation.scalars]
    for name in sorted(operation.result.names - {*known}):
        raise InputError(f"result must mention operands and scalars: {must_be('it', name, known)}")
    if isinstance(operation.result, PythonReference):
        return  # it is run to verify, and not before
    for sizes in _examples(operation):
        arrays = operation.arrays(sizes, DEFAULT_DTYPE, DEFAULT_DTYPE)
        if sum(math.prod(each.shape) for each in arrays) > _LARGEST_EXAMPLE:
            continue
        values: dict[str, Any] = {each.name: np.zeros(each.shape) for each in arrays}
        values |= dict(operation.scalars)
        names = _extents(operation, sizes)
        try:
            with np.errstate(all="ignore"):
                result = operation.result.evaluate(values)
        except ExpressionError as error:
            fault = misfit(operation.result, values, names)
            raise InputError(f"result must fit its operands, and {fault}") from error
        wanted = next(each.shape for each in arrays if each.written)
        if np.shape(result) != wanted:
            raise InputError(
                f"result must have the shape {' x '.join(operation.output.shape)} of "
                f"{operation.output.name}, and {operation.result.text!r} is "
                f"{shape_text(result, names)}"
            )


def _extents(operation: Operation, sizes: Mapping[str, int]) -> dict[int, str]:
    """The names of operands' extents: sizes by their names, others by their expressions."""
    texts = itertools.chain(*(operand.shape for operand in operation.operands))
    found = {operation.evaluated(text, sizes): text for text in texts}
    return found | {size: name for name, size in sizes.items()}


def baseline_of(operation: Operation, target: str) -> str | None:
    """The baseline of an operation on a target; None where it names none."""
    return dict(operation.baselines).get(target)
