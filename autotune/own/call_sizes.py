"""The sizes of a call: those that its operands have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from autotune.arrays.host import check_plain
from autotune.core.errors import InputError, OperandError
from autotune.operations.calls import check_call, outputs_of_call
from autotune.operations.operation import Operation
from autotune.operations.parts import Operand


def sizes_of_call(
    operation: Operation,
    inputs: Sequence[Any],
    out: Any,
    said: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, int]:
    """The sizes by name that operands have.

    Args:
        operation: what is computed.
        inputs: the operands that are not written, in order.
        out: the output; None where it is to be allocated.
        said: sizes that the call says by name.

    Raises:
        OperandError: there are too few or too many, one is no array, or shapes do not fit each
            other; the message names the operand.
    """
    check_call(operation, inputs, {})
    outs = outputs_of_call(operation, out)
    made = [each for each in operation.outputs if not each.read]
    given = [*zip(operation.inputs, inputs, strict=True), *zip(made, outs, strict=True)]
    given = [(operand, array) for operand, array in given if array is not None]
    sizes = dict(said)
    origins = dict.fromkeys(said, "the call")
    shapes: dict[str, tuple[int, ...]] = {}
    for operand, array in given:
        shape = shapes[operand.name] = _shape(operation, operand, array)
        for name, size in zip(operand.shape, shape, strict=True):
            if name not in operation.sizes:
                continue
            if sizes.setdefault(name, size) != size:
                raise OperandError(
                    f"{operation.name}: {operand.name} has {name} = {size}, and "
                    f"{origins[name]} has {name} = {sizes[name]}"
                )
            origins.setdefault(name, operand.name)
    sizes = operation.solve([(each.shape, shapes[each.name]) for each, _ in given], sizes)
    for name in operation.sizes:
        if name not in sizes:
            names = ", ".join(each.name for each in made)
            raise OperandError(
                f"{operation.name}: no input says what {name} is: pass {name}= or "
                + (f"out={names}" if len(made) == 1 else f"out=({names})")
            )
    for operand, _ in given:
        _check(operation, operand, shapes[operand.name], sizes)
    return sizes


def _shape(operation: Operation, operand: Operand, array: Any) -> tuple[int, ...]:
    wanted = " x ".join(operand.shape)
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        raise OperandError(
            f"{operation.name}: {operand.name} must be an array {wanted}, "
            f"got {type(array).__name__}"
        )
    if isinstance(array, np.ndarray):
        check_plain(operand.name, array)
    shape = tuple(int(size) for size in array.shape)
    if len(shape) != len(operand.shape) or 0 in shape:
        some = f"{wanted}, with elements" if 0 in shape else wanted
        raise OperandError(f"{operation.name}: {operand.name} must be {some}, got shape {shape}")
    return shape


def _check(
    operation: Operation, operand: Operand, shape: tuple[int, ...], sizes: dict[str, int]
) -> None:
    try:
        wanted = tuple(operation.evaluated(text, sizes) for text in operand.shape)
    except InputError as error:
        raise OperandError(str(error)) from error
    if shape != wanted:
        raise OperandError(
            f"{operation.name}: {operand.name} must be {' x '.join(operand.shape)}, which is "
            f"{' x '.join(map(str, wanted))} here, got shape {shape}"
        )
