"""A kernel's call in exported programs: sizes, operands with their strides, scalars, arguments."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.core.dtypes import ELEMENTS
from autotune.core.errors import InputError
from autotune.operations.formula import Formula
from autotune.operations.parts import Argument, Kind, operand_arguments

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
        name += "_" if name in _TAKEN else ""
        return cls(argument.name, name, value, argument.kind, operands)


@dataclass(frozen=True, slots=True)
class ExportedOperand:
    """An operand in programs.

    Attributes:
        name: in the operation.
        argument: in programs.
        dimensions: as stored, in words: ("M", "N").
        shape: elements along each dimension, as stored.
        dtype: of its elements.
        written: true of the output.
        packed: true where its rows must follow each other.
        strides: arguments of kernels.
    """

    name: str
    argument: str
    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: Dtype
    written: bool
    packed: bool
    strides: tuple[Constant, ...]


@dataclass(frozen=True, slots=True)
class ExportedCall:
    """A kernel's call in programs.

    Attributes:
        statement: the computation in one line: "C = alpha * A @ B + beta * C".
        sizes: in the operation's order.
        operands: in the operation's order; one of them is written.
        scalars: names and defaults, in the operation's order.
        arguments: of the kernel, in order, without the workspace and what follows it.
        reads: when the output is read, a condition on scalars in Python: "beta != 0", "True";
            empty where it never is.
    """

    statement: str
    sizes: tuple[Constant, ...]
    operands: tuple[ExportedOperand, ...]
    scalars: tuple[tuple[str, float], ...]
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
            statement=f"{defined.output.name} = {formula}",
            sizes=tuple(
                Constant.of(Argument(name.lower(), Kind.SIZE), value, shaped[name])
                for name, value in zip(defined.sizes, problem.shape, strict=True)
            ),
            operands=_operands(problem),
            scalars=defined.scalars,
            arguments=defined.arguments,
            reads=_reads(defined),
        )

    @property
    def strides(self) -> tuple[Constant, ...]:
        """Of all operands, in their order."""
        return tuple(stride for operand in self.operands for stride in operand.strides)

    @property
    def inputs(self) -> tuple[ExportedOperand, ...]:
        """The operands that are not written."""
        return tuple(operand for operand in self.operands if not operand.written)

    @property
    def output(self) -> ExportedOperand:
        """The operand that is written."""
        return next(operand for operand in self.operands if operand.written)

    def constant(self, argument: str) -> Constant:
        """The size or the stride that an argument is."""
        return {one.argument: one for one in (*self.sizes, *self.strides)}[argument]


def _operands(problem: Problem) -> tuple[ExportedOperand, ...]:
    defined = problem.defined
    taken = {argument.name for argument in defined.arguments}
    found = []
    for operand, stored in zip(defined.operands, problem.operands, strict=True):
        if stored.most is not None:
            raise InputError(
                f"{problem.operation} takes integers {operand.name}, which exported programs do "
                "not draw: use autotune.load"
            )
        address, *strides = operand_arguments(
            operand.name, len(operand.shape), written=operand.written
        )
        # Elements from one to the next, of matrices and of rows that follow each other.
        steps = [math.prod(stored.shape[place + 1 :]) for place in range(len(strides))]
        transposed = operand.name in problem.turned
        *outer, rows, columns = ("", *operand.shape)
        found.append(
            ExportedOperand(
                name=operand.name,
                argument=address.name,
                dimensions=(*outer[1:], columns, rows) if transposed else operand.shape,
                shape=stored.shape,
                dtype=ELEMENTS[stored.dtype],
                written=operand.written,
                packed=stored.packed,
                strides=tuple(
                    Constant.of(stride, step)
                    for stride, step in zip(strides, steps, strict=True)
                    if stride.name in taken
                ),
            )
        )
    return tuple(found)


def _reads(defined: Operation) -> str:
    scalars = [name for name, _ in defined.scalars]
    places = [
        " and ".join(f"{name} != 0" for name in scalars if name in factors) or "True"
        for factors in defined.result.factors_of(defined.output.name)
    ]
    return "True" if "True" in places else " or ".join(dict.fromkeys(places))
