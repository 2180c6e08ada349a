"""Units of work of a family's programs: what the model counts, from the family's file."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from autotune.core.configuration import Configuration
from autotune.core.errors import SpaceError
from autotune.space import UndefinedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from autotune.core.configuration import Value
    from autotune.core.device import DeviceLimits
    from autotune.families.family import KernelFamily

Tile = tuple[int, int, int]


def unit_of(
    family: KernelFamily,
    configuration: Mapping[str, Value],
    dtype: str,
    limits: DeviceLimits,
) -> tuple[Tile, int]:
    """Rows, columns and reduction steps of a unit, and the parts of the reduction.

    Raises:
        SpaceError: the family has no [work], or it has no value that is a whole number of at
            least 1 for this configuration.
    """
    work = family.work
    if work is None:
        raise SpaceError(f"family {family.name!r} has no [work]: no model speaks of it")
    known = {**limits.names(), **family.constants(family.conform(configuration), dtype)}
    values = []
    for expression in (*work.tile, work.parts):
        try:
            value = expression.evaluate(known)
        except UndefinedError as error:
            raise SpaceError(f"family {family.name!r} has no unit of work: {error}") from error
        if value != int(value) or value < 1:
            raise SpaceError(
                f"family {family.name!r}: {expression.text} in [work] must be a whole number "
                f">= 1, is {value}"
            )
        values.append(int(value))
    rows, columns, steps, parts = values
    return (rows, columns, steps), parts


def free_parameters(family: KernelFamily) -> tuple[str, ...]:
    """Parameters that are passed at the call, and whose effect the model knows."""
    if family.work is None:
        return ()
    named = frozenset().union(*(each.names for each in (*family.work.tile, family.work.parts)))
    return tuple(name for name in family.runtime_parameters if name in named)


def program_of(family: KernelFamily, configuration: Configuration) -> Configuration:
    """The same for all configurations that differ in free parameters only: those are lowest."""
    return Configuration(
        {**configuration, **{name: _values(family, name)[0] for name in free_parameters(family)}}
    )


def variants(family: KernelFamily, configuration: Configuration) -> Iterator[Configuration]:
    """A program with every choice of its free parameters."""
    free = free_parameters(family)
    for chosen in itertools.product(*(_values(family, name) for name in free)):
        yield Configuration({**configuration, **dict(zip(free, chosen, strict=True))})


def _values(family: KernelFamily, name: str) -> tuple[Value, ...]:
    [values] = [each.values for each in family.parameters if each.name == name]
    return values
