"""The example operations, and what tests need to call their kernels by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autotune.families.family import KernelFamily
from autotune.operations.formula import Formula
from autotune.operations.operation import Operation
from autotune.operations.parts import Kind, Operand
from autotune.targets.families import find_operation, load_families

FOLDER = Path(__file__).parents[1] / "examples" / "operations"
LARGE: Mapping[str, tuple[int, ...]] = {
    "gemv": (4096, 4096),
    "row_sum": (4096, 4096),
    "batched_gemm": (1024, 64, 64, 64),
    "stencil": (4096, 4096),
}
"""A shape that fills a machine, of each operation with a family of its own."""

SUM = Operation(
    name="add",
    sizes=("M", "N"),
    operands=(
        Operand("x", ("M", "N")),
        Operand("z", ("M", "N")),
        Operand("y", ("M", "N"), written=True),
    ),
    result=Formula("x + z"),
    flops="M * N",
)
"""One that is no product."""


def example(name: str) -> Operation:
    """An example operation."""
    return find_operation(name, [FOLDER])


def family_of(name: str, target: str) -> KernelFamily:
    """The one family that an example has on a target."""
    (family,) = load_families(target=target, operation=name, extra=[FOLDER]).values()
    return family


def entry_values(
    operation: Operation,
    shape: Sequence[int],
    operands: Sequence[np.ndarray],
    scalars: Mapping[str, float],
) -> list[Any]:
    """The values of a kernel's arguments, in order; arrays stand for their addresses.

    Args:
        operation: what is computed.
        shape: its sizes, in order.
        operands: arrays, in the operation's order.
        scalars: the value of each.
    """
    sizes = {name.lower(): size for name, size in zip(operation.sizes, shape, strict=True)}
    arrays = {
        each.name.lower(): array for each, array in zip(operation.operands, operands, strict=True)
    }

    def value(name: str, kind: Kind) -> Any:
        match kind:
            case Kind.SIZE:
                return sizes[name]
            case Kind.SCALAR:
                return scalars[name]
            case Kind.ADDRESS:
                return arrays[name]
            case Kind.LEADING:
                array = arrays[name.removeprefix("ld")]
                return array.strides[-2] // array.itemsize
            case Kind.BATCH:
                array = arrays[name.removesuffix("_stride")]
                return array.strides[0] // array.itemsize

    return [value(argument.name, argument.kind) for argument in operation.arguments]
