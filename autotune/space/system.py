"""Splits restrictions into independent parts, and enumerates or counts each on its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from autotune.space.enumeration import Enumeration, TooManyError
from autotune.space.group import Group, connected
from autotune.space.radix import MixedRadix

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from autotune.configuration import Value
    from autotune.space.expression import Expression
    from autotune.space.parameter import TunableParameter

_Conjuncts: TypeAlias = "list[tuple[Expression, tuple[int, ...]]]"
"""The conjuncts of one restriction, each with the positions of the parameters it is about."""

_COUNTING_ALLOWANCE = 200_000_000
"""Row evaluations that counting one part may take: some seconds."""


class RestrictionSystem:
    """Restrictions over parameters.

    Args:
        parameters: in declaration order.
        restrictions: over parameters and constants only, definitions inlined.
        constants: values of all other names.
    """

    def __init__(
        self,
        parameters: Sequence[TunableParameter],
        restrictions: Sequence[Expression],
        constants: Mapping[str, Value],
    ) -> None:
        self._parameters = parameters
        # A parameter with one value is a constant, so it does not connect any others.
        single = {p.name: p.values[0] for p in parameters if len(p.values) == 1}
        self._fixed: dict[str, Value] = {**constants, **single}
        textual = frozenset(
            [parameter.name for parameter in parameters if parameter.has_text]
            + [name for name, value in constants.items() if isinstance(value, str)]
        )
        self._conjuncts = [
            [(conjunct, self._positions(conjunct)) for conjunct in restriction.conjuncts(textual)]
            for restriction in restrictions
        ]

    def _positions(self, conjunct: Expression) -> tuple[int, ...]:
        """The parameters that a conjunct is about."""
        return tuple(
            position
            for position, parameter in enumerate(self._parameters)
            if parameter.name in conjunct.names and parameter.name not in self._fixed
        )

    def groups(self) -> list[Group]:
        """The valid rows of every part, in order of the parts' first parameters."""
        if not self._constants_hold(self._conjuncts):
            everything = tuple(range(len(self._parameters)))
            radix = MixedRadix([len(parameter.values) for parameter in self._parameters])
            return [Group(everything, radix, [np.empty(0, dtype=np.int64)] * radix.words)]
        groups = []
        for part, restrictions in self._parts(self._conjuncts):
            enumeration = self._enumeration(part, restrictions)
            groups.append(Group(part, enumeration.radix, enumeration.rows()))
        return groups

    def remaining(self) -> list[int | None]:
        """Configurations left by the first, the first two, ... of the restrictions.

        None where counting would take too long.
        """
        counts: dict[tuple[int, ...], int | None] = {
            (position,): len(parameter.values)
            for position, parameter in enumerate(self._parameters)
        }
        remaining: list[int | None] = []
        for number, added in enumerate(self._conjuncts, start=1):
            kept = self._conjuncts[:number]
            touched = {position for _, positions in added for position in positions}
            counts = {
                part: counts[part]
                if part in counts and touched.isdisjoint(part)
                else self._count(part, restrictions)
                for part, restrictions in self._parts(kept)
            }
            remaining.append(_product(counts.values()) if self._constants_hold(kept) else 0)
        return remaining

    def _parts(
        self, restrictions: Sequence[_Conjuncts]
    ) -> list[tuple[tuple[int, ...], list[Expression]]]:
        """Positions of connected parameters, with the conjuncts that are about them."""
        bound = [
            (conjunct, positions)
            for conjuncts in restrictions
            for conjunct, positions in conjuncts
            if positions
        ]
        parts = connected(len(self._parameters), [positions for _, positions in bound])
        return [
            (part, [conjunct for conjunct, positions in bound if positions[0] in part])
            for part in parts
        ]

    def _constants_hold(self, restrictions: Sequence[_Conjuncts]) -> bool:
        """Whether the conjuncts that are about no parameter hold."""
        return all(
            conjunct.holds(self._fixed)
            for conjuncts in restrictions
            for conjunct, positions in conjuncts
            if not positions
        )

    def _enumeration(
        self, part: tuple[int, ...], restrictions: Sequence[Expression]
    ) -> Enumeration:
        parameters = [self._parameters[position] for position in part]
        return Enumeration(parameters, restrictions, self._fixed)

    def _count(self, part: tuple[int, ...], restrictions: Sequence[Expression]) -> int | None:
        try:
            return self._enumeration(part, restrictions).count(_COUNTING_ALLOWANCE)
        except TooManyError:
            return None


def _product(counts: Iterable[int | None]) -> int | None:
    """The product; an unknown factor makes it unknown, unless another one is 0."""
    product = 1
    unknown = False
    for count in counts:
        unknown = unknown or count is None
        product *= 1 if count is None else count
    return None if unknown and product else product
