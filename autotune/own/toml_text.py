"""Writing TOML: the few shapes that family files are made of."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

Plain: TypeAlias = "bool | int | float | str"
Entry: TypeAlias = "Plain | Sequence[Plain] | Mapping[str, Entry]"

_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def toml_value(value: Entry) -> str:
    """A value on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return f'"{"".join(map(_escaped, value))}"'
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(name)} = {toml_value(each)}" for name, each in value.items())
        return f"{{ {inner} }}"
    return f"[{', '.join(map(toml_value, value))}]"


def toml_lines(entries: Mapping[str, Entry]) -> list[str]:
    """A line for each key of a table."""
    return [f"{_key(name)} = {toml_value(value)}" for name, value in entries.items()]


def toml_table(name: str, entries: Mapping[str, Entry]) -> list[str]:
    """A table below a line with its name; nothing where it is empty."""
    return ["", f"[{name}]", *toml_lines(entries)] if entries else []


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else toml_value(name)


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    number = ord(character)
    return f"\\u{number:04x}" if number < 32 or number == 127 else character
