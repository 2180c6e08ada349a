"""Values, configurations and candidates: the points of a search space."""

from __future__ import annotations

import json
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from dataclasses import dataclass
from typing import TypeAlias

Value: TypeAlias = bool | int | float | str
"""A value of a tunable parameter."""


class Configuration(Mapping[str, Value]):
    """One value for every parameter of a space: an immutable, hashable mapping.

    Equal to any mapping with the same items, so ``space[0] == {"x": 1}`` works.
    """

    __slots__ = ("_hash", "_items")

    def __init__(self, items: Mapping[str, Value]) -> None:
        self._items: dict[str, Value] = dict(items)
        self._hash: int | None = None

    def __getitem__(self, name: str) -> Value:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def keys(self) -> KeysView[str]:
        """The names."""
        return self._items.keys()

    def items(self) -> ItemsView[str, Value]:
        """Names with values."""
        return self._items.items()

    def values(self) -> ValuesView[Value]:
        """The values."""
        return self._items.values()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Configuration):
            return self._items == other._items
        return super().__eq__(other)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self._items.items()))
        return self._hash

    def __reduce__(self) -> tuple[type[Configuration], tuple[dict[str, Value]]]:
        # The kept hash is this process's: hashes of text differ from one to the next.
        return Configuration, (self._items,)

    def __repr__(self) -> str:
        return f"Configuration({self._items!r})"

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self._items.items())

    @property
    def json(self) -> str:
        """One line of JSON with sorted keys: equal configurations give equal text."""
        return json.dumps(self._items, sort_keys=True, separators=(", ", ": "))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration of one kernel family: what a study proposes and an evaluator measures."""

    family: str
    configuration: Configuration

    def __str__(self) -> str:
        return f"{self.family}: {self.configuration}"
