"""Restrictions, with their reasons, and what a configuration that breaks one is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.core.configuration import Value
    from autotune.space.expression import Expression


@dataclass(frozen=True, slots=True)
class Restriction:
    """A rule that every valid configuration meets.

    A configuration for which the expression is undefined does not meet it.

    Attributes:
        expression: what must hold.
        reason: why, in a few words.
    """

    expression: Expression
    reason: str = ""

    @property
    def text(self) -> str:
        """The expression as it was written."""
        return self.expression.text


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a configuration is not valid.

    Attributes:
        restriction: the rule that it breaks.
        reason: why there is that rule.
        values: the numbers that the rule is about, by name.
    """

    restriction: str
    reason: str
    values: Mapping[str, Value]

    def __str__(self) -> str:
        numbers = ", ".join(f"{name} = {value}" for name, value in self.values.items())
        rule = f"{self.restriction}: {self.reason}" if self.reason else self.restriction
        return f"{rule} ({numbers})" if numbers else rule


@dataclass(frozen=True, slots=True)
class FunnelStep:
    """The rest of a space after one restriction.

    Attributes:
        expr: the restriction's text.
        reason: why there is that restriction.
        remaining: configurations that meet it and all before it; None when counting them would
            take too long.
    """

    expr: str
    reason: str
    remaining: int | None


def whole_divisions(definitions: Mapping[str, Expression]) -> list[Restriction]:
    """The restrictions that definitions imply: their exact divisions must be whole.

    In the order of the definitions, each once.
    """
    implied: dict[str, Restriction] = {}
    for name, definition in definitions.items():
        for numerator, denominator in definition.divisions():
            expression = numerator.is_multiple_of(denominator)
            quotient = numerator.over(denominator)
            reason = f"{quotient} must be a whole number ({name})"
            implied.setdefault(expression.text, Restriction(expression, reason))
    return list(implied.values())
