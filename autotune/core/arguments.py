"""Checks of what a caller gives: the value back, or an `InputError` that names the argument.

Every function takes the argument's name, for the message, and the value as it came.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any, SupportsIndex, TypeGuard

from autotune.core.errors import InputError
from autotune.core.printable import LINE, shown

LARGEST = 2**63 - 1
"""The largest whole number: they are stored in 64 bits."""

MOST_WORKERS = 1024
"""More processes than any machine compiles with; they are started as they are needed."""


def must(
    name: str,
    expected: str,
    value: object,
    holds: object,
    error: type[InputError] = InputError,
) -> None:
    """Refuse a value for which something does not hold.

    Raises:
        InputError: it does not, or the kind of it that is given; the message says what was
            expected. So do the functions below.
    """
    if not holds:
        raise error(f"{name} must be {expected}, got {shown(value)}")


def whole(
    name: str,
    value: Any,
    least: int = 1,
    most: int = LARGEST,
    error: type[InputError] = InputError,
) -> int:
    """A whole number between two; those of NumPy become Python's."""
    number = operator.index(value) if is_whole(value) else least - 1
    if number < least:
        raise error(f"{name} must be a whole number >= {least}, got {shown(value)}")
    limit = "< 2^63" if most == LARGEST else f"<= {most}"
    must(name, f"a whole number {limit}", value, number <= most, error)
    return number


def seed(value: Any) -> int:
    """The seed of random numbers."""
    return whole("seed", value, least=0)


def workers(value: Any) -> int | None:
    """The number of processes that compile; None takes the default."""
    return None if value is None else whole("workers", value, most=MOST_WORKERS)


def seconds(name: str, value: Any) -> float:
    """A duration above zero; an infinite one is no limit."""
    must(name, "more than 0 seconds", value, is_number(value) and value > 0)
    return float(value)


def is_whole(value: object) -> TypeGuard[SupportsIndex]:
    """Return whether something is a whole number, Python's or NumPy's; booleans are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Return whether something is a real number that a float can be; booleans are none."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        float(value)
    except OverflowError:  # an integer of very many digits
        return False
    return True


def text(name: str, value: Any) -> str:
    """One line of text that says something."""
    says = isinstance(value, str) and value and LINE.fullmatch(value)
    must(name, "one line of text", value, says)
    return str(value)


def path(name: str, value: Any) -> Path:
    """A path, as a text or an object of `pathlib`."""
    given = os.fspath(value) if isinstance(value, os.PathLike) else value
    must(name, "the path of a file or a folder", value, isinstance(given, str) and _names(given))
    return Path(given)


def _names(path: str) -> bool:
    """Return whether a text can name a file."""
    try:
        return bool(path) and b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:  # half a character
        return False


def paths(name: str, value: Any) -> tuple[Path, ...]:
    """Several paths; one alone is taken as a list of one."""
    return tuple(path(name, each) for each in _several(name, "a list of paths", value))


def texts(name: str, value: Any) -> tuple[str, ...]:
    """Several texts; one alone is taken as a list of one."""
    return tuple(text(name, each) for each in _several(name, "a list of texts", value))


def mapping(
    name: str, value: Any, example: str, error: type[InputError] = InputError
) -> Mapping[str, Any]:
    """A mapping whose keys are texts, like the one in the example."""
    named = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    must(name, f"a mapping of names like {example}", value, named, error)
    found: Mapping[str, Any] = value
    return found


def _several(name: str, expected: str, value: Any) -> Iterable[Any]:
    if isinstance(value, (str, os.PathLike)):
        return (value,)
    several = isinstance(value, Iterable) and not isinstance(value, (bytes, Mapping))
    must(name, expected, value, several)
    return value  # type: ignore[no-any-return]


def is_on(variable: str) -> bool:
    """True unless an environment variable that is a switch, 1 or 0, is 0.

    Raises:
        InputError: it is neither 0 nor 1.
    """
    told = os.environ.get(variable) or "1"
    if told not in ("0", "1"):
        raise InputError(
            f"{variable} must be 0 or 1, got {shown(told)}: set it to one of them, or unset it"
        )
    return told == "1"
