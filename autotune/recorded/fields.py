"""Reading fields of a stranger's JSON: each is checked, and a wrong one is named."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeGuard

from autotune.errors import InputError

if TYPE_CHECKING:
    from autotune.configuration import Value


def mapping(value: Any, key: str) -> dict[str, Any]:
    """An object.

    Raises:
        InputError: it is something else.
    """
    if not isinstance(value, dict):
        raise InputError(f"{key}: expected an object, got {describe(value)}")
    return value


def sequence(value: Any, key: str) -> list[Any]:
    """An array.

    Raises:
        InputError: it is something else.
    """
    if not isinstance(value, list):
        raise InputError(f"{key}: expected an array, got {describe(value)}")
    return value


def text(value: Any, key: str) -> str:
    """A text.

    Raises:
        InputError: it is something else.
    """
    if not isinstance(value, str):
        raise InputError(f"{key}: expected a text, got {describe(value)}")
    return value


def names(value: Any, key: str) -> list[str]:
    """Distinct parameter names, at least one.

    Raises:
        InputError: it is something else.
    """
    found = [text(name, f"{key}[{number}]") for number, name in enumerate(sequence(value, key))]
    if not found or len(set(found)) < len(found):
        raise InputError(f"{key}: expected distinct parameter names, got {describe(value)}")
    return found


def scalar(value: Any, key: str) -> Value:
    """A parameter's value.

    Raises:
        InputError: it is not a number, a text or a boolean.
    """
    if isinstance(value, bool | str) or is_number(value):
        return value
    raise InputError(f"{key}: expected a number, a text or a boolean, got {describe(value)}")


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether it is a finite number; booleans are none."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return math.isfinite(value)


def describe(value: Any) -> str:
    """A value in a few words, for an error."""
    words = repr(value)
    return words if len(words) <= 60 else words[:57] + "..."
