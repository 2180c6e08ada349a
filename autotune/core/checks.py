"""Values of documents that others wrote, checked by types; faults name the path, rule and value.

A type says what a field may hold: ``Positive`` is a finite number above zero, ``Line`` one line
of printable text. `checked` reads builtins as JSON has them into any such type, or into a
dataclass of them; keys that the dataclass does not have are passed over.
"""

import itertools
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, TypeAlias, TypeGuard, TypeVar

import msgspec
from msgspec import Meta

from autotune.core.configuration import Configuration, Value
from autotune.core.errors import InputError
from autotune.core.printable import LINE, printable, shown

Checked = TypeVar("Checked")

INTEGER_LIMIT = 2**63
"""Whole numbers must lie in [-INTEGER_LIMIT, INTEGER_LIMIT)."""

_LARGEST = 1.7976931348623157e308
_CHARACTER = LINE.pattern.removesuffix("*")
_PATTERNS = {
    "line": rf"\A{_CHARACTER}+\Z",
    "empty": rf"\A{_CHARACTER}*\Z",
    "id": r"\A[0-9a-f]{12}\Z",
    "sha256": r"\A[0-9a-f]{64}\Z",
    "identifier": r"\A[A-Za-z_][A-Za-z0-9_]{0,255}\Z",
}
_RULES = dict(
    zip(
        map(repr, _PATTERNS.values()),
        (
            "one line of printable text",
            "one line of printable text, or empty",
            "a record id of 12 hex digits",
            "a SHA-256 in hex",
            "a C identifier",
        ),
        strict=True,
    )
)

Line: TypeAlias = Annotated[str, Meta(pattern=_PATTERNS["line"])]
AnyLine: TypeAlias = Annotated[str, Meta(pattern=_PATTERNS["empty"])]
RecordId: TypeAlias = Annotated[str, Meta(pattern=_PATTERNS["id"])]
Sha256: TypeAlias = Annotated[str, Meta(pattern=_PATTERNS["sha256"])]
Identifier: TypeAlias = Annotated[str, Meta(pattern=_PATTERNS["identifier"])]
Whole: TypeAlias = Annotated[int, Meta(ge=0, le=INTEGER_LIMIT - 1)]
Count: TypeAlias = Annotated[int, Meta(ge=1, lt=2**31)]
Positive: TypeAlias = Annotated[float, Meta(gt=0, le=_LARGEST)]
NotNegative: TypeAlias = Annotated[float, Meta(ge=0, le=_LARGEST)]
Integer: TypeAlias = Annotated[int, Meta(ge=-INTEGER_LIMIT, le=INTEGER_LIMIT - 1)]
Finite: TypeAlias = Annotated[float, Meta(ge=-_LARGEST, le=_LARGEST)]
Scalar: TypeAlias = bool | Integer | Finite | AnyLine
Scalars: TypeAlias = Mapping[Line, Scalar]
Texts: TypeAlias = Mapping[Line, AnyLine]

_LONGEST_NAME = 120
_LONGEST_LINE = 1000
_MOST_TRIED = 100


def checked(value: object, kind: type[Checked] | Any, name: str = "$") -> Checked:
    """The value as one of a type.

    Args:
        value: builtins, as JSON has them.
        kind: a type, of those above or built of them.
        name: what messages call the value.

    Raises:
        InputError: something of it is of the wrong type or out of range; the message has its path,
            the rule and the value.
    """
    try:
        return msgspec.convert(value, kind, dec_hook=_configuration)
    except msgspec.ValidationError as error:
        raise _fault(str(error), value, kind, name) from error
    except UnicodeEncodeError as error:
        raise wrong(f"a key of {name}", "one line of printable text", error.object) from error
    except RecursionError as error:
        raise InputError(f"{name} must not be nested so deep") from error


def _configuration(kind: type, value: object) -> Any:
    if kind is not Configuration:
        raise NotImplementedError(f"documents hold no {kind.__name__}")
    try:
        return Configuration(msgspec.convert(value, Scalars))
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error  # to which msgspec adds where that is


def _fault(message: str, value: object, kind: Any, name: str) -> InputError:
    """Msgspec's message as one of ours."""
    told, *places = message.split(" - at ")
    # Of a configuration the inner path comes first.
    is_key = any(place.startswith("`key`") for place in places)
    path = "".join(
        place.removeprefix("`key` in ").strip("`").removeprefix("$") for place in reversed(places)
    )
    if missing := re.match("Object missing required field `(.*)`", told):
        where = f" in {name}{path}" if path else ""
        return InputError(f"key {missing[1]!r} is missing{where}")
    if is_key:
        found = _culprit(value, kind, _steps(path))
        return wrong(f"a key of {name}{path}", _rule(told), found)
    steps = _steps(path)
    if "..." in steps:
        place = steps.index("...")
        steps[place] = key = _culprit(value, kind, steps[:place])
        path = path.replace("[...]", f".{key}", 1)
    return wrong(f"{name}{path}", _rule(told), _found(value, steps))


def _rule(told: str) -> str:
    """The rule of a message of msgspec's in our words."""
    rule, _, pattern = told.removeprefix("Expected ").partition(" matching regex ")
    if pattern:
        return _RULES[pattern]
    if not told.startswith("Expected"):  # "Number out of range"
        return _WORDS["float"]
    rule = rule.partition(", got ")[0]
    if rule.startswith("`array` of length"):
        *_, relation, count = rule.split()
        return f"an array of {_LENGTHS.get(relation, '')}{count} values"
    rule = rule.replace("bool | int | float | str", "scalar").replace(" | ", "` or `")
    rule = re.sub("`(.*?)`", lambda found: _WORDS.get(found[1], found[1]), rule)
    for limit in (f" <= {_LARGEST!r}", f" >= {-_LARGEST!r}"):
        rule = rule.replace(limit, "")
    rule = rule.replace(f"<= {INTEGER_LIMIT - 1}", "< 2^63")
    return re.sub(r"(\d)\.0\b", r"\1", rule)


_LENGTHS = {"<=": "at most ", ">=": "at least "}
_WORDS = {
    "scalar": "a finite number, true, false, or one line of printable text",
    "float": "a finite number",
    "int": "a whole number",
    "str": "one line of printable text",
    "object": "an object",
    "array": "an array",
    "bool": "true or false",
}


def _steps(path: str) -> list[Any]:
    """The keys and numbers of a path; "..." where msgspec does not say which key it was."""
    return [
        name or (int(number) if number.isdecimal() else number)
        for name, number in re.findall(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]", path)
    ]


def _found(value: Any, steps: list[Any]) -> Any:
    for step in steps:
        value = value[step]
    return value


def _culprit(value: Any, kind: Any, steps: list[Any]) -> Any:
    """The key of an object that is wrong, or whose value is."""
    among = _found(value, steps)
    for key in itertools.islice(among, _MOST_TRIED):
        try:
            msgspec.convert(_with(value, steps, {key: among[key]}), kind, dec_hook=_configuration)
        except msgspec.ValidationError:
            return key
    return "..."


def _with(value: Any, steps: list[Any], item: object) -> Any:
    """A copy of a document with another item in one place."""
    if not steps:
        return item
    copy = list(value) if isinstance(value, list | tuple) else dict(value)
    copy[steps[0]] = _with(value[steps[0]], steps[1:], item)
    return copy


def text(name: str, value: object, *, empty: bool = False) -> str:
    """One line of printable text; `empty` allows the empty one."""
    return checked(value, AnyLine if empty else Line, name)


def line(name: str, value: object, *, empty: bool = True) -> str:
    """A text that may be printed anywhere: a device, a unit, a parameter's value."""
    words = text(name, value, empty=empty)
    if len(words) > _LONGEST_LINE:
        raise wrong(name, f"one line of printable text, at most {_LONGEST_LINE} characters", value)
    return words


def scalar(name: str, value: object) -> Value:
    """True, false, a 64-bit whole number, a finite number, or one line of text."""
    if type(value) in (bool, int, float) and (type(value) is bool or is_number(value)):
        return value  # recordings have millions of them
    return checked(value, Scalar, name)


def is_number(value: object) -> TypeGuard[int | float]:
    """Say whether it is a finite number, an integer one of 64 bits; booleans are none."""
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
    found: list[str] = checked(value, list[Line], name)
    if not found or len(set(found)) < len(found):
        raise wrong(name, "distinct parameter names", value)
    return found


def mapping(name: str, value: object) -> Mapping[str, Any]:
    """An object whose keys are printable texts."""
    return checked(value, Mapping[Line, Any], name)


def interval(name: str, value: object) -> tuple[float, float]:
    """Two numbers above zero, NumPy's too, the lower first."""
    if isinstance(value, list | tuple):
        value = [float(each) if isinstance(each, float) else each for each in value]
    found: tuple[float, float] = checked(value, tuple[Positive, Positive], name)
    low, high = found
    if low > high:
        raise wrong(name, "two numbers, the lower first", value)
    return low, high


def moment(name: str, value: object) -> str:
    """A moment in UTC, brought to one spelling, so that the order of texts is that of time."""
    try:
        parsed = datetime.fromisoformat(text(name, value))
        if parsed.utcoffset() is None:
            raise ValueError
        return _canonical(parsed)
    except (ValueError, OverflowError) as error:
        raise wrong(name, "a time with its zone, like 2026-01-31T12:00:00Z", value) from error


def utc_now() -> str:
    """This moment, as stored."""
    return _canonical(datetime.now(UTC))


def _canonical(moment: datetime) -> str:
    plain = moment.astimezone(UTC).replace(tzinfo=None)
    return plain.isoformat(timespec="microseconds") + "Z"


def versioned(what: str, document: object, version: int, remedy: str) -> Mapping[str, Any]:
    """A document of a format's version.

    Raises:
        InputError: it is no object, or of another version; the remedy ends the message.
    """
    fields = mapping(f"a {what}", document)
    if "format" not in fields:
        raise InputError("key 'format' is missing")
    if type(found := fields["format"]) is not int or found != version:
        raise InputError(f"{what} format must be {version}, got {shown(found)}: {remedy}")
    return fields


def wrong(name: str, expected: str, value: object) -> InputError:
    """The error for a value; names are the file's own, and may be anything."""
    where = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..."
    where = printable(where).replace("\n", "\\n")
    return InputError(f"{where} must be {expected}, got {shown(value)}")
