"""How exported programs call a kernel: operands, strides, scalars and arguments, with names."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.core.dtypes import DTYPES
from autotune.operations.formula import Formula
from autotune.operations.parts import Argument, Kind, operand_arguments
from autotune.operations.problem import Gemm

if TYPE_CHECKING:
    from autotune.core.dtypes import Dtype
    from autotune.operations.operation import Operation
    from autotune.operations.problem import Problem

_TAKEN = frozenset(
    {
        "ARGUMENTS",
        "EOF",
        "FLOPS",
        "NULL",
        "OPERANDS",
        "RUNTIME",
        "STATIC_SHARED_BYTES",
        "STEPS",
        "WORKSPACE_BYTES",
        "ZEROED_BYTES",
    }
)
"""Constants that exported programs have anyway."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A size or a stride of the record's problem.

    Attributes:
        argument: what kernels call it: "m", "lda".
        name: of the constant in programs: "M", "LDA".
        value: in elements.
        kind: what it is.
        operands: of a size, the operands that it is a dimension of.
    """

    argument: str
    name: str
    value: int
    kind: Kind
    operands: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExportedOperand:
    """An operand, as programs have it.

    Attributes:
        name: what the operation calls it.
        argument: what programs call it.
        dimensions: as stored, in words: ("M", "N").
        shape: elements along each dimension, as stored.
        dtype: of its elements.
        written: whether it is the output.
        packed: whether its rows must follow each other.
        strides: that kernels are told of.
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
    """What a program calls a kernel with.

    Attributes:
        statement: what is computed, in one line: "C = alpha * A @ B + beta * C".
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
        return cls(
            statement=f"{defined.output.name} = {formula}",
            sizes=tuple(
                _constant(Argument(name.lower(), Kind.SIZE), value, _dimension_of(problem, name))
                for name, value in zip(defined.sizes, problem.shape, strict=True)
            ),
            operands=tuple(_operands(problem)),
            scalars=defined.scalars,
            arguments=defined.arguments,
            reads=_reads(defined),
        )

    @property
    def strides(self) -> tuple[Constant, ...]:
        """Of all operands, in their order."""
        return tuple(stride for each in self.operands for stride in each.strides)

    @property
    def inputs(self) -> tuple[ExportedOperand, ...]:
        """The operands that are not written."""
        return tuple(each for each in self.operands if not each.written)

    @property
    def output(self) -> ExportedOperand:
        """The operand that is written."""
        return next(each for each in self.operands if each.written)

    def constant(self, argument: str) -> Constant:
        """The size or the stride that an argument is."""
        known = {each.argument: each for each in (*self.sizes, *self.strides)}
        return known[argument]


def _operands(problem: Problem) -> list[ExportedOperand]:
    defined = problem.defined
    turned = {}
    if isinstance(problem, Gemm):
        turned = dict(zip("AB", problem.layout, strict=True))
    taken = {each.name for each in defined.arguments}
    found = []
    for operand, stored in zip(defined.operands, problem.operands, strict=True):
        backwards = turned.get(operand.name) == "t"
        address, *strides = operand_arguments(
            operand.name, len(operand.shape), written=operand.written
        )
        # Elements from one to the next, of matrices and of rows that follow each other.
        steps = [math.prod(stored.shape[place + 1 :]) for place in range(len(strides))]
        found.append(
            ExportedOperand(
                name=operand.name,
                argument=address.name,
                dimensions=operand.shape[::-1] if backwards else operand.shape,
                shape=stored.shape,
                dtype=DTYPES[stored.dtype],
                written=operand.written,
                packed=stored.packed,
                strides=tuple(
                    _constant(stride, step)
                    for stride, step in zip(strides, steps, strict=True)
                    if stride.name in taken
                ),
            )
        )
    return found


def _reads(defined: Operation) -> str:
    scalars = [name for name, _ in defined.scalars]
    places = [
        " and ".join(f"{name} != 0" for name in scalars if name in factors) or "True"
        for factors in defined.result.factors_of(defined.output.name)
    ]
    return "True" if "True" in places else " or ".join(dict.fromkeys(places))


def _dimension_of(problem: Problem, size: str) -> tuple[str, ...]:
    return tuple(each.name for each in problem.defined.operands if size in each.shape)


def _constant(argument: Argument, value: int, operands: tuple[str, ...] = ()) -> Constant:
    name = argument.name.upper()
    return Constant(
        argument.name, f"{name}_" if name in _TAKEN else name, value, argument.kind, operands
    )
