"""Reading fields of a stranger's JSON: each is checked, and a wrong one is named."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeGuard

from autotune.core.errors import InputError
from autotune.core.printable import LINE, printable, shown
from autotune.store.strict_json import INTEGER_LIMIT

if TYPE_CHECKING:
    from autotune.core.configuration import Value

_LONGEST_LINE = 1000
_LONGEST_KEY = 200


def mapping(value: Any, key: str) -> dict[str, Any]:
    """An object.

    Raises:
        InputError: it is something else.
    """
    if not isinstance(value, dict):
        raise wrong(value, key, "an object")
    return value


def sequence(value: Any, key: str) -> list[Any]:
    """An array.

    Raises:
        InputError: it is something else.
    """
    if not isinstance(value, list):
        raise wrong(value, key, "an array")
    return value


def text(value: Any, key: str) -> str:
    """A text.

    Raises:
        InputError: it is something else.
    """
    if not isinstance(value, str):
        raise wrong(value, key, "a text")
    return value


def line(value: Any, key: str, *, empty: bool = True) -> str:
    """One line of text that may be printed as it is: a name, a device, a parameter's value.

    Raises:
        InputError: it is something else, or longer than any name is.
    """
    words = text(value, key)
    if len(words) > _LONGEST_LINE or not LINE.fullmatch(words) or not (words or empty):
        raise wrong(words, key, f"one line of printable text, at most {_LONGEST_LINE} characters")
    return words


def names(value: Any, key: str) -> list[str]:
    """Distinct parameter names, at least one.

    Raises:
        InputError: it is something else.
    """
    found = [text(name, f"{key}[{number}]") for number, name in enumerate(sequence(value, key))]
    if not found or len(set(found)) < len(found):
        raise wrong(value, key, "distinct parameter names")
    return found


def scalar(value: Any, key: str) -> Value:
    """A parameter's value.

    Raises:
        InputError: it is not a number, a text or a boolean.
    """
    if isinstance(value, (bool, str)) or is_number(value):
        return value
    raise wrong(value, key, "a number, a text or a boolean")


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether it is a finite number, an integer one of 64 bits; booleans are none."""
    # An integer may be too large for a float, and then for everything else.
    if type(value) is int:
        return -INTEGER_LIMIT <= value < INTEGER_LIMIT
    return isinstance(value, float) and math.isfinite(value)


def wrong(value: object, key: str, expected: str) -> InputError:
    """What is raised for a value: where it is, what was expected there, and what it is.

    Keys are the file's own, and may be anything.
    """
    where = key if len(key) <= _LONGEST_KEY else f"{key[: _LONGEST_KEY - 3]}..."
    where = printable(where).replace("\n", "\\n")
    return InputError(f"{where}: expected {expected}, got {shown(value)}")
