"""Search spaces as JSON-able documents: written beside measurements, and built again from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.core import checks
from autotune.space.expression import Expression
from autotune.space.parameter import Restriction, whole_divisions
from autotune.space.search_space import SearchSpace
from autotune.space.union import SpaceUnion


@dataclass(frozen=True, slots=True)
class _Rule:
    """An expression; `exact`: its divisions must be whole."""

    expr: str
    reason: str = ""
    exact: bool = False

    @property
    def expression(self) -> Expression:
        return Expression.parse(self.expr, exact_division=self.exact)


@dataclass(frozen=True, slots=True)
class _Family:
    """The space of one family."""

    parameters: dict[checks.Line, tuple[checks.Scalar, ...]]
    restrictions: tuple[_Rule, ...] = ()
    definitions: dict[checks.Line, _Rule] = field(default_factory=dict)
    constants: dict[checks.Line, checks.Scalar] = field(default_factory=dict)


def write_spaces(space: SearchSpace | SpaceUnion) -> dict[str, dict[str, Any]]:
    """Everything that decides which configurations are valid, by family; "" is an unnamed one.

    Of a space that was made from a list of configurations, these are the values alone.
    """
    spaces = space.spaces if isinstance(space, SpaceUnion) else {"": space}
    return {name: _written(own) for name, own in spaces.items()}


def read_spaces(document: object) -> SearchSpace | SpaceUnion:
    """The space that `write_spaces` wrote: the same rows, restrictions and digest.

    Raises:
        InputError: a key is missing or not what it should be, or an expression is none.
        SpaceError: values or names do not make a space.
    """
    if not isinstance(document, dict) or not document:
        raise checks.wrong("spaces", "an object with at least one family", document)
    spaces = {
        checks.line("spaces", name): _read(checks.checked(own, _Family, f"spaces.{name}"))
        for name, own in document.items()
    }
    return spaces[""] if spaces.keys() == {""} else SpaceUnion(spaces)


def _written(space: SearchSpace) -> dict[str, Any]:
    implied = len(whole_divisions(space.definitions))
    parts = {
        "parameters": {each.name: list(each.values) for each in space.parameters},
        "restrictions": [
            _rule(each.expression) | ({"reason": each.reason} if each.reason else {})
            for each in space.restrictions[implied:]
        ],
        "definitions": {name: _rule(each) for name, each in space.definitions.items()},
        "constants": space.constants,
    }
    return {name: part for name, part in parts.items() if part}


def _rule(expression: Expression) -> dict[str, Any]:
    return {"expr": expression.text} | ({"exact": True} if expression.divisions() else {})


def _read(family: _Family) -> SearchSpace:
    definitions: Mapping[str, Expression] = {
        name: rule.expression for name, rule in family.definitions.items()
    }
    return SearchSpace(
        family.parameters,
        [Restriction(rule.expression, rule.reason) for rule in family.restrictions],
        constants=family.constants,
        definitions=definitions,
    )
