"""Functions of parameters, called with every combination of the values that they use."""

from __future__ import annotations

import inspect
import itertools
import math
import random
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from autotune.core.errors import InputError
from autotune.core.suggestions import did_you_mean, listed

Called: TypeAlias = "Callable[[Mapping[str, Any]], Any]"
"""A function of the values of names."""

_ROWS = 100_000
"""Combinations that a function is called with, at most."""


def of_values(
    function: Callable[..., Any], known: Sequence[str]
) -> tuple[Called, list[str] | None]:
    """A function that takes names, or one dictionary of them, as one of a dictionary.

    Returns:
        The function, and the names that it takes; None of one that takes a dictionary.

    Raises:
        InputError: it takes something else.
    """
    found = inspect.signature(function).parameters
    taken = [*found]
    if any(each.kind is each.VAR_KEYWORD for each in found.values()):
        return lambda values: function(**values), None
    if all(name in known for name in taken):
        return lambda values: function(*[values[name] for name in taken]), taken
    if len(taken) != 1:
        unknown = next(name for name in taken if name not in known)
        raise InputError(
            f"{head(function)} must take parameters by name, or one dictionary of them, and "
            f"{unknown} is none of {listed(known)}{did_you_mean(unknown, known)}"
        )
    return function, None


def head(function: Callable[..., Any]) -> str:
    """Its name and what it takes."""
    taken = ", ".join(inspect.signature(function).parameters)
    return f"{getattr(function, '__name__', function)!s}({taken})"


def meant(function: Callable[..., Any], error: Exception, known: Sequence[str]) -> str:
    """The end of a message: what a function of a dictionary that fails may have meant."""
    (*_, argument) = inspect.signature(function).parameters
    asked = error.args[0] if isinstance(error, KeyError) and error.args else argument
    return (
        f"; {argument} is no parameter but a dictionary of {listed(known)}"
        f"{did_you_mean(asked, known)}"
    )


class Parameters(UserDict[str, Any]):
    """Values that remember which of them were asked for, one by one or all."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.names: dict[str, None] = {}

    def __getitem__(self, name: str) -> Any:
        self.names[name] = None
        return super().__getitem__(name)


def tabulated(
    called: Called,
    parameters: Mapping[str, Sequence[Any]],
    told: str,
    names: Sequence[str] = (),
    most: int | None = None,
) -> tuple[Sequence[str], dict[tuple[Any, ...], Any]]:
    """The results of a function for all combinations of the parameters that it uses.

    Args:
        called: the function.
        parameters: the values of each.
        told: what it is called, for messages.
        names: what it is known to use.
        most: how many combinations are drawn where there are more; None takes all.

    Returns:
        The names that it uses, and results by places of their values.

    Raises:
        InputError: there are too many combinations.
    """
    usual = {name: values[0] for name, values in parameters.items()}
    found: dict[tuple[Any, ...], Any] = {}
    choices = [range(len(parameters[name])) for name in names]
    every: Iterable[tuple[int, ...]] = itertools.product(*choices)
    if most is not None and math.prod(map(len, choices)) > most:
        draw = random.Random(0)
        every = [tuple(map(draw.choice, choices)) for _ in range(most)]
    for places in every:
        if len(found) >= _ROWS:
            raise InputError(f"{told} must be arithmetic: it has more than {_ROWS} combinations")
        row = {name: parameters[name][at] for name, at in zip(names, places, strict=True)}
        used = Parameters(usual | row)
        found[places] = called(used)
        if further := [name for name in used.names if name not in names]:
            return tabulated(called, parameters, told, [*names, *further], most)
    return names, found
