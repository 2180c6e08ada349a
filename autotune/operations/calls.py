"""Checks of a kernel's call, for any operation, wherever its operands are."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.core.dtypes import ELEMENTS
from autotune.core.errors import OperandError, OperandTypeError
from autotune.core.printable import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autotune.operations.operation import Operation


def check_call(
    operation: Operation, inputs: Sequence[object], scalars: Mapping[str, object]
) -> None:
    """Refuse a call with too few or too many inputs, or with scalars that there are not.

    Raises:
        OperandError: the message says what the operation takes.
    """
    names = [each.name for each in operation.inputs]
    if len(inputs) != len(names):
        raise OperandError(
            f"{operation.name} takes {len(names)} inputs, {', '.join(names)}, got {len(inputs)}"
        )
    known = [name for name, _ in operation.scalars]
    for name in scalars:
        if name not in known:
            raise OperandError(
                f"{operation.name} takes the scalars {', '.join(known) or '(none)'}, got {name}"
            )


def check_unread(operation: Operation, scalars: Mapping[str, float]) -> None:
    """Refuse a call without an output where that is read.

    Args:
        operation: what is computed.
        scalars: those that do not have their defaults.

    Raises:
        OperandError: some scalar that is not zero scales what the output holds.
    """
    if not operation.reads_output(scalars):
        return
    for name, value in scalars.items():
        if value != 0 and not operation.reads_output({**scalars, name: 0.0}):
            raise OperandError(
                f"{name} = {value} scales what out holds: pass out=, or use {name} = 0"
            )
    raise OperandError(f"{operation.name} reads what out holds: pass out=")


def outputs_of_call(operation: Operation, out: Any) -> list[Any]:
    """The outputs that a call is given, None for those to allocate; in place there are others.

    Args:
        operation: what is computed.
        out: None, the only output, or one for each.

    Raises:
        OperandError: there are others, or too few.
    """
    made = [each.name for each in operation.outputs if not each.read]
    if out is None:
        return [None] * len(made)
    given = [out] if len(made) == 1 else out
    if not isinstance(given, (list, tuple)) or len(given) != len(made):
        must = f"the outputs {', '.join(made)}" if made else "left out: it changes in place"
        got = type(out).__name__ + (f" of {len(out)}" if isinstance(out, (list, tuple)) else "")
        raise OperandError(f"out of {operation.name} must be {must}, got {got}")
    return [*given]


def out_overlaps(name: str, out: str = "out") -> OperandError:
    """The error of an output that shares an element with another operand."""
    return OperandError(f"{out} overlaps {name} in memory: pass a separate array as {out}")


def number(name: str, value: Any, wanted: str = "a number") -> Any:
    """A scalar as the number that it is: one of Python, or of whatever else multiplies.

    Args:
        name: of the scalar.
        value: a number, or an array without dimensions that holds one.
        wanted: what it must be, for the message.

    Raises:
        OperandTypeError: text, several numbers or none, or a time.
    """
    if type(value) in (float, int):
        return value
    shape = getattr(value, "shape", None)
    if shape is None:
        held = value
    elif shape == () and hasattr(value, "item"):
        is_time = getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M")
        held = None if is_time else value.item()
    else:
        held = None
    kind = type(held)
    if hasattr(kind, "__mul__") and not hasattr(kind, "__len__"):
        return held
    given = f"an array of shape {shape}" if shape else shown(value)
    raise OperandTypeError(f"{name} must be {wanted}, got {given}: pass one of Python or NumPy")


def typed(operation: Operation, scalars: Mapping[str, Any]) -> dict[str, Any]:
    """Scalars of a call as kernels take them: real numbers, or integers.

    Raises:
        OperandTypeError: one is something else.
        OperandError: one does not fit.
    """
    whole = dict(operation.integers)
    return {
        name: integer(name, value, whole[name]) if name in whole else real(name, value)
        for name, value in scalars.items()
    }


def integer(name: str, value: Any, dtype: str) -> int:
    """A scalar of an integer type.

    Raises:
        OperandTypeError: it is no integer.
        OperandError: it is too large.
    """
    try:
        found = operator.index(number(name, value, "an integer"))
    except TypeError as error:
        raise OperandTypeError(f"{name} must be an integer, got {shown(value)}") from error
    limit = 2 ** (8 * ELEMENTS[dtype].itemsize - 1)
    if not -limit <= found < limit:
        raise OperandError(f"{name} must be an integer that {dtype} holds, got {shown(value)}")
    return found


def is_complex(held: object) -> bool:
    """Return whether a number is of a complex type, whatever its imaginary part is."""
    return isinstance(held, complex | np.complexfloating)


def real(name: str, value: Any, made: Callable[[Any], Any] = float) -> Any:
    """A scalar for real elements.

    Args:
        name: of the scalar.
        value: whatever `number` takes that is not complex: whether a call is refused should not
            depend on how an imaginary part was rounded.
        made: makes it a number of the precision that is wanted.

    Raises:
        OperandTypeError: it is no real number.
        OperandError: it is one that is too large, or stands for none.
    """
    if type(value) is made:
        return value
    held = number(name, value, "a real number")
    try:
        if not is_complex(held):
            return made(held)
        reason = "pass its real part"
    except TypeError as error:
        reason = str(error)
    except (ValueError, ArithmeticError) as error:
        raise OperandError(
            f"{name} must be a real number that fits, got {shown(value)}: {error}"
        ) from error
    raise OperandTypeError(f"{name} must be a real number, got {shown(value)}: {reason}")
