"""What a call of any operation's kernel must look like, wherever its operands are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.errors import OperandError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
