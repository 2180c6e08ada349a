"""A kernel's call in exported programs: sizes, operands with their strides, scalars, arguments."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autotune.core.dtypes import ELEMENTS
from autotune.operations.drawing import integer_limits
from autotune.operations.formula import Formula
from autotune.operations.parts import Argument, Array, Kind, operand_arguments

if TYPE_CHECKING:
    from autotune.core.dtypes import Dtype
    from autotune.operations.operation import Operation
    from autotune.operations.problem import Problem

_TAKEN = frozenset(
    {
        *("ARGUMENTS", "EOF", "FLOPS", "NULL", "OPERANDS", "RUNTIME", "STEPS"),
        *("STATIC_SHARED_BYTES", "WORKSPACE_BYTES", "ZEROED_BYTES"),
    }
)
"""Constants that exported programs have anyway."""

_TAKEN_ARGUMENTS = frozenset({"out", "self", "stream"})
"""Arguments that their calls have anyway."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A size or a stride of the record's problem.

    Attributes:
        argument: its name in kernels: "m", "lda".
        name: of the constant in programs: "M", "LDA".
        value: in elements.
        kind: size or stride.
        operands: of a size, the operands that it is a dimension of.
    """

    argument: str
    name: str
    value: int
    kind: Kind
    operands: tuple[str, ...] = ()

    @classmethod
    def of(cls, argument: Argument, value: int, operands: tuple[str, ...] = ()) -> Constant:
        """The constant of an argument."""
        name = argument.name.upper()
        name += "_" if name in _TAKEN or name == argument.name else ""
        return cls(argument.name, name, value, argument.kind, operands)


@dataclass(frozen=True, slots=True)
class ExportedOperand:
    """An operand in programs.

    Attributes:
        name: in the operation.
        argument: in programs.
        dimensions: as stored, in words: ("M", "N").
        shape: elements along each dimension, as stored; empty for a single number.
        dtype: of its elements.
        written: true of an output.
        read: true of an output that is changed in place.
        packed: true where its rows must follow each other.
        strides: arguments of kernels.
        drawn: the array that checks draw.
    """

    name: str
    argument: str
    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: Dtype
    written: bool
    read: bool
    packed: bool
    strides: tuple[Constant, ...]
    drawn: Array

    @property
    def number(self) -> Dtype:
        """The type of its numbers: a complex element is two real ones, a boolean one a byte."""
        if self.dtype.kind == "boolean":
            return ELEMENTS["uint8"]
        return self.dtype.accumulated if self.dtype.kind == "complex" else self.dtype

    @property
    def extents(self) -> tuple[int, ...]:
        """Its numbers along each dimension, and along one of two where elements are complex."""
        return (*self.shape, 2) if self.dtype.kind == "complex" else self.shape or (1,)


@dataclass(frozen=True, slots=True)
class ExportedCall:
    """A kernel's call in programs.

    Attributes:
        statement: the computation in one line: "C = alpha * A @ B + beta * C".
        sizes: in the operation's order.
        operands: in the operation's order; some of them are written.
        scalars: names and defaults, in the operation's order.
        scalar_types: of those, in their order.
        arguments: of the kernel, in order, without the workspace and what follows it.
        reads: when the output is read, a condition on scalars in Python: "beta != 0", "True";
            empty where it never is.
    """

    statement: str
    sizes: tuple[Constant, ...]
    operands: tuple[ExportedOperand, ...]
    scalars: tuple[tuple[str, float], ...]
    scalar_types: tuple[Dtype, ...]
    arguments: tuple[Argument, ...]
    reads: str

    @classmethod
    def of(cls, problem: Problem) -> ExportedCall:
        """The call of a problem's kernels."""
        defined, result = problem.defined, problem.defined.result
        formula = ast.unparse(result.tree) if isinstance(result, Formula) else result.head
        shaped = {
            size: tuple(operand.name for operand in defined.operands if size in operand.shape)
            for size in defined.sizes
        }
        return cls(
            statement=f"{', '.join(each.name for each in defined.outputs)} = {formula}",
            sizes=tuple(
                Constant.of(Argument(defined.spelled(name), Kind.SIZE), value, shaped[name])
                for name, value in zip(defined.sizes, problem.shape, strict=True)
            ),
            operands=_operands(problem),
            scalars=tuple(
                (name, int(default) if name in dict(defined.integers) else default)
                for name, default in defined.scalars
            ),
            scalar_types=tuple(
                ELEMENTS[name] for name in defined.scalar_types(problem.dtype).values()
            ),
            arguments=tuple(
                replace(each, name=_argument(each.name)) if each.kind is Kind.ADDRESS else each
                for each in defined.arguments
            ),
            reads=_reads(defined),
        )

    @property
    def strides(self) -> tuple[Constant, ...]:
        """Of all operands, in their order."""
        return tuple(stride for operand in self.operands for stride in operand.strides)

    @property
    def inputs(self) -> tuple[ExportedOperand, ...]:
        """The operands that a call is given: those that are not written, or in place."""
        return tuple(each for each in self.operands if each.read or not each.written)

    @property
    def written(self) -> tuple[ExportedOperand, ...]:
        """The operands that are written."""
        return tuple(each for each in self.operands if each.written)

    @property
    def made(self) -> tuple[ExportedOperand, ...]:
        """The operands that are only written, which a call in Python takes as `out`."""
        return tuple(each for each in self.written if not each.read)

    @property
    def output(self) -> ExportedOperand:
        """The first operand that is written."""
        return self.written[0]

    @property
    def mixed(self) -> bool:
        """True if operands are of several types."""
        return len({each.dtype.name for each in self.operands}) > 1

    @property
    def in_place(self) -> tuple[ExportedOperand, ...]:
        """The operands that are changed in place."""
        return tuple(each for each in self.written if each.read)

    def called(self, operand: ExportedOperand) -> str:
        """The name of an operand where Python calls with arrays: `out`, of one that is made."""
        return "out" if self.made == (operand,) else operand.argument

    def constant(self, argument: str) -> Constant:
        """The size or the stride that an argument is."""
        return {one.argument: one for one in (*self.sizes, *self.strides)}[argument]

    def place(self, argument: str) -> int:
        """The place among the operands of the one whose address an argument is."""
        return [each.argument for each in self.operands].index(argument)

    def scalar_type(self, name: str) -> Dtype:
        """The type that a scalar is passed in."""
        types = zip(self.scalars, self.scalar_types, strict=True)
        return {scalar: dtype for (scalar, _), dtype in types}[name]


def _argument(name: str) -> str:
    """The name of an operand in programs."""
    return f"{name}_" if name in _TAKEN_ARGUMENTS else name


def _operands(problem: Problem) -> tuple[ExportedOperand, ...]:
    defined = problem.defined
    taken = {argument.name for argument in defined.arguments}
    found = []
    drawn = drawn_arrays(problem)
    for operand, stored, array in zip(defined.operands, problem.operands, drawn, strict=True):
        address, *strides = operand_arguments(
            operand.name, len(operand.shape), written=operand.written
        )
        # Elements from one to the next, of matrices and of rows that follow each other.
        steps = [math.prod(stored.shape[place + 1 :]) for place in range(len(strides))]
        transposed = operand.name in problem.turned
        *outer, rows, columns = ("", "", *operand.shape)
        found.append(
            ExportedOperand(
                name=operand.name,
                argument=_argument(address.name),
                dimensions=(*outer[2:], columns, rows) if transposed else operand.shape,
                shape=stored.shape if operand.shape else (),
                dtype=ELEMENTS[stored.dtype],
                written=operand.written,
                read=operand.read,
                packed=stored.packed,
                strides=tuple(
                    Constant.of(stride, step)
                    for stride, step in zip(strides, steps, strict=True)
                    if stride.name in taken
                ),
                drawn=array,
            )
        )
    return tuple(found)


def drawn_arrays(problem: Problem) -> tuple[Array, ...]:
    """The operands that checks draw: of integers, with the most that they may be.

    That is as far as kernels are verified: places, perhaps, where the type is the operand's own.
    """

    def bounded(array: Array, own: str) -> Array:
        kind = ELEMENTS[array.dtype].kind
        if array.most is not None or kind not in ("integer", "boolean"):
            return array
        if kind == "boolean":
            return replace(array, most=1)
        most = (
            min(problem.shape) - 1 if own else integer_limits(array.dtype, max(problem.shape))[1]
        )
        return replace(array, most=most)

    pairs = zip(problem.operands, problem.defined.operands, strict=True)
    return tuple(bounded(array, operand.dtype) for array, operand in pairs)


def _reads(defined: Operation) -> str:
    scalars = [name for name, _ in defined.scalars]
    places = [
        " and ".join(f"{name} != 0" for name in scalars if name in factors) or "True"
        for output in defined.outputs
        if not output.read
        for factors in defined.result.factors_of(output.name)
    ]
    return "True" if "True" in places else " or ".join(dict.fromkeys(places))
