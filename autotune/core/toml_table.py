"""Reading a TOML file key by key, with errors that name the file and the key."""

from __future__ import annotations

import errno
import re
import tomllib
from typing import TYPE_CHECKING, Any, NoReturn

from autotune.core.errors import FamilyError, InputError
from autotune.core.printable import shown
from autotune.core.reading import read_regular
from autotune.core.suggestions import did_you_mean, listed, must_be, nearest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
"""The names that families, operations, parameters and derived names may have."""

LARGEST_FILE = 1 << 18
"""Bytes that a file may have."""

LONGEST_TEXT = 2000
"""Characters that a text may have."""

_KEY = re.compile(r"[\w.\[\]*-]{1,100}", re.ASCII)

_MISSING: Any = object()


class Table:
    """One table of a TOML file. Keys are taken one by one; `close` refuses what is left.

    A key that somebody takes or looks for is one that there is, as `close` says.

    Every method that takes a key raises an error naming file, key and what was expected: a
    FamilyError, unless the table was read with another.

    Attributes:
        path: the file.
        source: the text of the whole file.
    """

    def __init__(
        self,
        path: Path,
        source: str,
        key: str,
        entries: Mapping[str, Any],
        error: type[InputError] = FamilyError,
    ) -> None:
        self.source = source
        self._error = error
        self.path = path
        self._key = key
        self._entries = entries
        self._taken: set[str] = set()
        self._known: dict[str, None] = {}

    @classmethod
    def read(cls, path: Path, error: type[InputError] = FamilyError) -> Table:
        """The top-level table of a file.

        Args:
            path: the file.
            error: what is raised when something is wrong with it, or with any table in it.

        Raises:
            InputError: the file cannot be read, is not UTF-8, or is not TOML.
        """
        try:
            content = read_regular(path, LARGEST_FILE)
            source = content.decode("utf-8").replace("\r\n", "\n")
            return cls(path, source, "", tomllib.loads(source), error)
        except UnicodeDecodeError as fault:
            raise error(f"{path}: must be UTF-8 text: {fault}") from fault
        except OSError as fault:
            if fault.errno == errno.EFBIG:
                raise error(f"{path}: must have at most {LARGEST_FILE} bytes") from fault
            raise error(f"{path}: cannot be read: {fault.strerror}") from fault
        except tomllib.TOMLDecodeError as fault:
            raise error(f"{path}: must be valid TOML: {fault}") from fault
        except RecursionError as fault:
            raise error(f"{path}: must not be nested deeply: {fault}") from fault
        except ValueError as fault:  # a number of more digits than Python converts, say
            raise error(f"{path}: must be usable TOML: {str(fault).partition(';')[0]}") from fault

    def __contains__(self, key: str) -> bool:
        self._known[key] = None
        return key in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def fail(self, key: str, expected: str) -> NoReturn:
        """Refuse what is under `key`, saying what was expected."""
        raise self._error(f"{self.path}: {self._full(key)} {expected}")

    def close(self) -> None:
        """Refuse keys that nobody has taken."""
        for key in self._entries:
            if key not in self._taken:
                meant = did_you_mean(key, self._known)
                self.fail(key, f"is not a key; there are {listed(self._known)}{meant}")

    def text(self, key: str) -> str:
        """One line of text."""
        value = self._take(key)
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            self.fail(key, f"must be one line of text, got {shown(value)}")
        if len(value) > LONGEST_TEXT:
            self.fail(key, f"must have at most {LONGEST_TEXT} characters, has {len(value)}")
        return value

    def name(self, key: str) -> str:
        """A text that matches `NAME`."""
        value = self.text(key)
        if not NAME.fullmatch(value):
            self.fail(key, f"must be letters, digits and underscores, got {shown(value)}")
        return value

    def whole(self, key: str, least: int = 1) -> int:
        """A whole number, at least `least` and below 2**48: so are bytes that a machine has."""
        value = self._take(key)
        if type(value) is not int or value < least:
            self.fail(key, f"must be a whole number >= {least}, got {shown(value)}")
        if value >= 2**48:
            self.fail(key, f"must be a whole number < 2^48, got {shown(value)}")
        return value

    def flag(self, key: str) -> bool:
        """A boolean; false when it is not there."""
        value = self._take(key, False)
        if not isinstance(value, bool):
            self.fail(key, f"must be true or false, got {shown(value)}")
        return value

    def choice(self, key: str, allowed: Collection[str]) -> str:
        """One of the texts in `allowed`."""
        return self._one_of(key, self._take(key), allowed)

    def choices(
        self, key: str, allowed: Collection[str], default: tuple[str, ...]
    ) -> tuple[str, ...]:
        """A list of different texts, each in `allowed`."""
        values = self.items(key, list(default))
        chosen = tuple(self._one_of(key, value, allowed) for value in values)
        if len(set(chosen)) < len(chosen):
            self.fail(key, f"must not repeat a value, got {', '.join(chosen)}")
        return chosen

    def items(self, key: str, default: Any = _MISSING) -> list[Any]:
        """A list with at least one item."""
        values = self._take(key, default)
        if not isinstance(values, list) or not values:
            self.fail(key, f"must be a list with at least one item, got {shown(values)}")
        return values

    def value(self, key: str) -> Any:
        """Whatever is there; None when nothing is."""
        return self._take(key, None)

    def table(self, key: str, default: Any = _MISSING) -> Table:
        """The table under `key`."""
        entries = self._take(key, default)
        if not isinstance(entries, dict):
            self.fail(key, f"must be a table, got {shown(entries)}")
        return self._below(self._full(key), entries)

    def tables(self, key: str) -> list[Table]:
        """The array of tables under `key`; empty when it is not there."""
        entries = self._take(key, [])
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            self.fail(key, f"must be an array of tables ([[{key}]]), got {shown(entries)}")
        return [
            self._below(f"{self._full(key)}[{number}]", entry)
            for number, entry in enumerate(entries, start=1)
        ]

    def _below(self, key: str, entries: Mapping[str, Any]) -> Table:
        return Table(self.path, self.source, key, entries, self._error)

    def _take(self, key: str, default: Any = _MISSING) -> Any:
        self._taken.add(key)
        self._known[key] = None
        value = self._entries.get(key, default)
        if value is _MISSING:
            close = nearest(key, self._entries)
            self.fail(key, "is missing" + (f" (is {close!r} meant for it?)" if close else ""))
        return value

    def _one_of(self, key: str, value: Any, allowed: Collection[str]) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise self._error(f"{self.path}: {must_be(self._full(key), value, allowed)}")
        return value

    def _full(self, key: str) -> str:
        shortened = key if _KEY.fullmatch(key) else shown(key)
        return f"{self._key}.{shortened}" if self._key else shortened
