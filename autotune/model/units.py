"""Units of work of a family's programs: what the model counts, from the family's file."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from autotune.core.configuration import Configuration
from autotune.core.errors import SpaceError
from autotune.core.limits import CudaLimits
from autotune.families.bound import Bound
from autotune.families.occupancy import blocks_per_multiprocessor
from autotune.model.terms import Unit
from autotune.operations.problem import Gemm
from autotune.space import UndefinedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from autotune.core.configuration import Value
    from autotune.core.device import DeviceLimits
    from autotune.families.family import KernelFamily

_COUNTS = 4
"""Of the expressions in [work], those that count: the others are flags."""


class Units:
    """The units of one program, whatever its free parameters are.

    Free are the parameters that are passed at the call and that [work] names.

    Args:
        family: the program's family.
        configuration: a value for each of its parameters.
        dtype: element type of the operands.
        limits: of the device.

    Raises:
        SpaceError: the family has no [work], or the configuration is not one of its own.
    """

    def __init__(
        self,
        family: KernelFamily,
        configuration: Mapping[str, Value],
        dtype: str,
        limits: DeviceLimits,
    ) -> None:
        if family.work is None:
            raise SpaceError(f"family {family.name!r} has no [work]: no model speaks of it")
        self._family = family
        self._work = family.work
        self._limits = limits
        bound = Bound(family, configuration, Gemm(1, 1, 1, dtype=dtype), limits)
        self._configuration = bound.configuration
        self._known = bound.constants

    def resident(self, registers: int | None = None, shared_bytes: int | None = None) -> int:
        """Units that a multiprocessor holds at a time; 1 where there is none.

        Args:
            registers: of a thread, as compiled; None takes the family's estimate.
            shared_bytes: of a block, as compiled; None takes the family's.
        """
        if not isinstance(self._limits, CudaLimits):
            return 1
        blocks = blocks_per_multiprocessor(
            self._limits,
            threads=int(self._known["threads"]),
            registers=int(self._known["registers"] if registers is None else registers),
            shared_bytes=int(
                self._known["shared_bytes"] if shared_bytes is None else shared_bytes
            ),
        )
        return max(1, blocks)

    def of(self, configuration: Mapping[str, Value]) -> Unit:
        """What the program does at a time.

        Args:
            configuration: the program's, with other values of free parameters or not.

        Raises:
            SpaceError: [work] has no whole numbers for it, of at least 1 where it counts.
        """
        free = {name: configuration[name] for name in free_parameters(self._family)}
        known = {**self._known, **free}
        values = []
        for place, expression in enumerate(self._work.expressions):
            least = 1 if place < _COUNTS else 0
            where = f"family {self._family.name!r}: {expression.text} in [work]"
            try:
                value = expression.evaluate(known)
            except UndefinedError as error:
                raise SpaceError(f"{where} has no value: {error}") from error
            if value != int(value) or value < least:
                raise SpaceError(f"{where} must be a whole number >= {least}, is {value}")
            values.append(int(value))
        rows, columns, steps, parts, in_block, copied, share = values
        return Unit((rows, columns, steps), parts, bool(in_block), bool(copied), share)

    def variants(self) -> Iterator[Configuration]:
        """The program with every choice of its free parameters."""
        yield from variants(self._family, self._configuration)


def free_parameters(family: KernelFamily) -> tuple[str, ...]:
    """Parameters that are passed at the call, and whose effect the model knows."""
    if family.work is None:
        return ()
    named = frozenset().union(*(each.names for each in family.work.expressions))
    return tuple(name for name in family.runtime_parameters if name in named)


def program_of(family: KernelFamily, configuration: Mapping[str, Value]) -> Configuration:
    """The same for all configurations that differ in free parameters only: those are lowest."""
    lowest = {name: values[0] for name, values in _choices(family).items()}
    return Configuration({**configuration, **lowest})


def variants(family: KernelFamily, configuration: Mapping[str, Value]) -> Iterator[Configuration]:
    """A program with every choice of its free parameters."""
    choices = _choices(family)
    for chosen in itertools.product(*choices.values()):
        yield Configuration({**configuration, **dict(zip(choices, chosen, strict=True))})


def places_of(limits: DeviceLimits) -> int:
    """Multiprocessors of a device; 1 of one that has none: a CPU's tiles follow each other."""
    return int(limits.names().get("multiprocessor_count", 1))


def _choices(family: KernelFamily) -> dict[str, tuple[Value, ...]]:
    free = free_parameters(family)
    return {each.name: each.values for each in family.parameters if each.name in free}
