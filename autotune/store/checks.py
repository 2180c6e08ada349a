"""Checks for the fields of stored documents: the value back, or an `InputError` naming the field.

Every function takes the field's name, for the message, and the value as it came.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeGuard

from autotune.core.errors import InputError
from autotune.core.printable import LINE, printable, shown
from autotune.store.strict_json import INTEGER_LIMIT

if TYPE_CHECKING:
    from autotune.core.configuration import Value

_LONGEST_NAME = 120
_LONGEST_LINE = 1000


def text(name: str, value: object, *, empty: bool = False) -> str:
    """One line of printable text; `empty` allows the empty one."""
    if not isinstance(value, str) or not LINE.fullmatch(value) or not (value or empty):
        raise wrong(name, "one line of printable text", value)
    return value


def line(name: str, value: object, *, empty: bool = True) -> str:
    """A text that may be printed anywhere: a device, a unit, a parameter's value."""
    words = text(name, value, empty=empty)
    if len(words) > _LONGEST_LINE:
        raise wrong(name, f"one line of printable text, at most {_LONGEST_LINE} characters", value)
    return words


def count(name: str, value: object, *, minimum: int = 0, most: int = INTEGER_LIMIT - 1) -> int:
    """A whole number of 64 bits that is at least `minimum`, and at most `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise wrong(name, f"a whole number >= {minimum}", value)
    if most < value < INTEGER_LIMIT:
        raise wrong(name, f"a whole number <= {most}", value)
    if value >= INTEGER_LIMIT:
        raise wrong(name, "a whole number < 2^63", value)
    return value


def number(name: str, value: object, *, zero: bool = False, most: float = math.inf) -> float:
    """A finite number above zero and up to `most`; `zero` allows zero itself."""
    if isinstance(value, float) or (type(value) is int and abs(value) < INTEGER_LIMIT):
        real = float(value)
        if math.isfinite(real) and (real > 0 or (zero and real == 0)) and real <= most:
            return real
    limit = "" if most == math.inf else f" and <= {most:g}"
    raise wrong(name, f"a finite number {'>=' if zero else '>'} 0{limit}", value)


def scalar(name: str, value: object) -> Value:
    """True, false, a 64-bit whole number, a finite number, or one line of text."""
    if isinstance(value, str):
        return text(name, value, empty=True)
    if isinstance(value, bool) or is_number(value):
        return value
    raise wrong(name, "a finite number, true, false, or one line of text", value)


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a finite number, an integer one of 64 bits; booleans are none."""
    # An integer may be too large for a float, and then for everything else.
    if type(value) is int:
        return -INTEGER_LIMIT <= value < INTEGER_LIMIT
    return isinstance(value, float) and math.isfinite(value)


def sequence(name: str, value: object) -> list[Any]:
    """An array."""
    if not isinstance(value, list):
        raise wrong(name, "an array", value)
    return value


def names(name: str, value: object) -> list[str]:
    """Distinct parameter names, at least one."""
    found = [text(f"{name}[{number}]", each) for number, each in enumerate(sequence(name, value))]
    if not found or len(set(found)) < len(found):
        raise wrong(name, "distinct parameter names", value)
    return found


def mapping(name: str, value: object) -> Mapping[str, Any]:
    """An object whose keys are printable texts."""
    if not isinstance(value, Mapping):
        raise wrong(name, "an object", value)
    for key in value:
        text(f"a key of {name}", key)
    return value


def scalars(name: str, value: object) -> dict[str, Value]:
    """An object of scalars."""
    return {key: scalar(f"{name}.{key}", item) for key, item in mapping(name, value).items()}


def texts(name: str, value: object) -> dict[str, str]:
    """An object of texts."""
    return {
        key: text(f"{name}.{key}", item, empty=True) for key, item in mapping(name, value).items()
    }


def interval(name: str, value: object) -> tuple[float, float]:
    """Two numbers above zero, the lower first."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise wrong(name, "two numbers", value)
    low, high = number(name, value[0]), number(name, value[1])
    if low > high:
        raise wrong(name, "two numbers, the lower first", value)
    return low, high


def moment(name: str, value: object) -> str:
    """A moment in UTC, brought to one spelling, so that the order of texts is that of time."""
    try:
        parsed = datetime.fromisoformat(text(name, value))
        if parsed.utcoffset() is None:
            raise ValueError
        return canonical(parsed)
    except (ValueError, OverflowError) as error:
        raise wrong(name, "a time with its zone, like 2026-01-31T12:00:00Z", value) from error


def canonical(moment: datetime) -> str:
    """A moment as stored: UTC, microseconds, always the same length."""
    plain = moment.astimezone(UTC).replace(tzinfo=None)
    return plain.isoformat(timespec="microseconds") + "Z"


def utc_now() -> str:
    """This moment, as stored."""
    return canonical(datetime.now(UTC))


def required(document: Mapping[str, Any], name: str) -> Any:
    """A key that must be there."""
    if name not in document:
        raise InputError(f"key {name!r} is missing")
    return document[name]


def wrong(name: str, expected: str, value: object) -> InputError:
    """What is raised for a value; names are the file's own, and may be anything."""
    where = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..."
    where = printable(where).replace("\n", "\\n")
    return InputError(f"{where} must be {expected}, got {shown(value)}")
