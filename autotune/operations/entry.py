"""What an emitted kernel takes: the arguments of an operation's entry, in order."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What an argument is."""

    SIZE = "size"
    SCALAR = "scalar"
    ADDRESS = "address"
    LEADING = "leading"
    """Elements from one row of an operand to the next."""
    BATCH = "batch"
    """Elements from one matrix of an operand to the next."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of an entry.

    Attributes:
        name: what it is called, where addresses are not called otherwise by the language.
        kind: what it is.
        written: of an address: whether the kernel writes there.
    """

    name: str
    kind: Kind
    written: bool = False


def operand_arguments(name: str, dimensions: int, *, written: bool) -> tuple[Argument, ...]:
    """The address of an operand and its strides, from the outermost to the last but one.

    Args:
        name: the operand's.
        dimensions: how many it has, 1 to 3; the last one is contiguous.
        written: whether the kernel writes it.
    """
    lower = name.lower()
    strides = (
        Argument(f"{lower}_stride", Kind.BATCH),
        Argument(f"ld{lower}", Kind.LEADING),
    )
    return (Argument(lower, Kind.ADDRESS, written), *strides[3 - dimensions :])
