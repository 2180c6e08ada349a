"""Checks for the fields of stored documents: the value back, or an `InputError` naming the field.

Every function takes the field's name, for the message, and the value as it came.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from autotune.core.errors import InputError
from autotune.core.printable import LINE, shown
from autotune.store.strict_json import INTEGER_LIMIT

if TYPE_CHECKING:
    from autotune.core.configuration import Value

_LONGEST_NAME = 120


def text(name: str, value: object, *, empty: bool = False) -> str:
    """One line of printable text; `empty` allows the empty one."""
    if not isinstance(value, str) or not LINE.fullmatch(value) or not (value or empty):
        raise _wrong(name, "one line of printable text", value)
    return value


def count(name: str, value: object, *, minimum: int = 0) -> int:
    """A whole number of 64 bits that is at least `minimum`."""
    if isinstance(value, int) and not isinstance(value, bool) and minimum <= value < INTEGER_LIMIT:
        return value
    raise _wrong(name, f"a whole number >= {minimum}", value)


def number(name: str, value: object, *, zero: bool = False) -> float:
    """A finite number above zero; `zero` allows zero itself."""
    if isinstance(value, float) or (type(value) is int and abs(value) < INTEGER_LIMIT):
        real = float(value)
        if math.isfinite(real) and (real > 0 or (zero and real == 0)):
            return real
    raise _wrong(name, f"a finite number {'>=' if zero else '>'} 0", value)


def scalar(name: str, value: object) -> Value:
    """True, false, a 64-bit whole number, a finite number, or one line of text."""
    if isinstance(value, str):
        return text(name, value, empty=True)
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and -INTEGER_LIMIT <= value < INTEGER_LIMIT:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise _wrong(name, "a finite number, true, false, or one line of text", value)


def mapping(name: str, value: object) -> Mapping[str, Any]:
    """An object whose keys are printable texts."""
    if not isinstance(value, Mapping):
        raise _wrong(name, "an object", value)
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
        raise _wrong(name, "two numbers", value)
    low, high = number(name, value[0]), number(name, value[1])
    if low > high:
        raise _wrong(name, "two numbers, the lower first", value)
    return low, high


def moment(name: str, value: object) -> str:
    """A moment in UTC, brought to one spelling, so that the order of texts is that of time."""
    try:
        parsed = datetime.fromisoformat(text(name, value))
        if parsed.utcoffset() is None:
            raise ValueError
        return canonical(parsed)
    except (ValueError, OverflowError) as error:
        raise _wrong(name, "a time with its zone, like 2026-01-31T12:00:00Z", value) from error


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


def _wrong(name: str, expected: str, value: object) -> InputError:
    where = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..."
    return InputError(f"{where} must be {expected}, got {shown(value)}")
