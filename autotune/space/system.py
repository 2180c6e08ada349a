"""Splits restrictions into independent parts, and builds or counts each on its own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, TypeVar

from autotune.core.errors import ExpressionError
from autotune.space.building import Dimension, TooManyError, build
from autotune.space.diagram import Diagram
from autotune.space.terms import Term, TermTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from autotune.core.configuration import Value
    from autotune.space.expression import Expression
    from autotune.space.parameter import TunableParameter

_ResultT = TypeVar("_ResultT")

_COUNTING_ALLOWANCE = 20_000_000
"""Evaluations that counting one part may take: some seconds, and a gigabyte at worst."""


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters that restrictions connect, with the rows that are valid for them together.

    Attributes:
        positions: where its parameters stand in the space, ascending.
        diagram: the rows of codes of these parameters.
    """

    positions: tuple[int, ...]
    diagram: Diagram

    @property
    def size(self) -> int:
        """Number of rows."""
        return self.diagram.size


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
        fixed = {p.name: p.values[0] for p in parameters if len(p.values) == 1}
        positions = {p.name: at for at, p in enumerate(parameters) if p.name not in fixed}
        textual = frozenset(p.name for p in parameters if p.has_text)
        self._restrictions = restrictions
        self._terms = TermTable(positions, {**constants, **fixed}, textual)
        self._conjuncts = [self._terms.conjuncts(restriction) for restriction in restrictions]

    def groups(self) -> list[Group]:
        """The valid rows of every part, in order of the parts' first parameters.

        Raises:
            ExpressionError: a restriction is given text where it takes numbers, in a row that
                meets all before it.
        """
        return self._with_guards(self._groups)

    def remaining(self) -> list[int | None]:
        """Configurations left by the first, the first two, ... of the restrictions.

        None where counting would take too long; raises what `groups` raises.
        """
        return self._with_guards(self._remaining)

    def _with_guards(self, compute: Callable[[], list[_ResultT]]) -> list[_ResultT]:
        """Compute with restrictions apart, which is fast, unless one needs those before it."""
        try:
            return compute()
        except ExpressionError:
            guarded = [
                self._terms.conjuncts(restriction, self._restrictions[:number])
                for number, restriction in enumerate(self._restrictions)
            ]
            if guarded == self._conjuncts:
                raise
            self._conjuncts = guarded
        return compute()

    def _groups(self) -> list[Group]:
        conjuncts = [term for terms in self._conjuncts for term in terms]
        if not _constants_hold(conjuncts):
            count = len(self._parameters)
            return [Group(tuple(range(count)), Diagram.of_nothing(count))]
        return [Group(part, self._diagram(part, terms)) for part, terms in self._parts(conjuncts)]

    def _remaining(self) -> list[int | None]:
        counts: dict[tuple[int, ...], int | None] = {
            (position,): len(parameter.values)
            for position, parameter in enumerate(self._parameters)
        }
        remaining: list[int | None] = []
        kept: list[Term] = []
        for added in self._conjuncts:
            kept += added
            touched = reduce(or_, (term.scope for term in added), 0)
            counts = {
                part: counts[part]
                if part in counts and not any(touched >> position & 1 for position in part)
                else self._count(part, terms)
                for part, terms in self._parts(kept)
            }
            remaining.append(_product(counts.values()) if _constants_hold(kept) else 0)
        return remaining

    def _parts(self, conjuncts: Sequence[Term]) -> list[tuple[tuple[int, ...], list[Term]]]:
        """Positions of connected parameters, with the conjuncts that are about them."""
        joined: list[int] = []
        for scope in {term.scope for term in conjuncts}:
            touching = [part for part in joined if part & scope]
            joined = [part for part in joined if not part & scope]
            joined.append(reduce(or_, touching, scope))
        parts: dict[int, tuple[list[int], list[Term]]] = {}
        for position in range(len(self._parameters)):
            bit = 1 << position
            part = next((part for part in joined if part & bit), bit)
            parts.setdefault(part, ([], []))[0].append(position)
        for part, (_, terms) in parts.items():
            terms += [term for term in conjuncts if term.scope & part]
        return [(tuple(positions), terms) for positions, terms in parts.values()]

    def _diagram(
        self, part: tuple[int, ...], conjuncts: Sequence[Term], allowance: int | None = None
    ) -> Diagram:
        if not conjuncts:
            (position,) = part
            return Diagram.of_all(len(self._parameters[position].values))
        dimensions = [
            Dimension(
                position,
                self._terms.parameter(self._parameters[position].name),
                self._parameters[position].column(),
            )
            for position in part
        ]
        return build(dimensions, conjuncts, allowance)

    def _count(self, part: tuple[int, ...], conjuncts: Sequence[Term]) -> int | None:
        try:
            return self._diagram(part, conjuncts, _COUNTING_ALLOWANCE).size
        except TooManyError:
            return None


def _constants_hold(conjuncts: Iterable[Term]) -> bool:
    """Return whether the conjuncts that are about no parameter hold."""
    return all(bool(term.holds({})) for term in conjuncts if not term.scope)


def _product(counts: Iterable[int | None]) -> int | None:
    """The product; an unknown factor makes it unknown, unless another one is 0."""
    product = 1
    unknown = False
    for count in counts:
        unknown = unknown or count is None
        product *= 1 if count is None else count
    return None if unknown and product else product
