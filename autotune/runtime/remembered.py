"""Values that are worked out once and remembered, and one way to forget all of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from autotune.serving import resident

Value = TypeVar("Value")

MOST = 4096
"""Keys that are remembered at a time, at a few kilobytes each."""


class Remembered(dict[tuple[Hashable, ...], Value], Generic[Value]):
    """``remembered[key]`` is ``make(*key)``, made when it is first asked for.

    The oldest key gives way where there are too many. Whoever made a value may put another one in
    its place.

    Args:
        make: makes a value.
    """

    def __init__(self, make: Callable[..., Value]) -> None:
        super().__init__()
        self._make = make
        _ALL.append(self)

    def __missing__(self, key: tuple[Hashable, ...]) -> Value:
        made = self._make(*key)
        if len(self) >= MOST:
            self.pop(next(iter(self), ()), None)
        return self.setdefault(key, made)


_ALL: list[Remembered[Any]] = []


def forget() -> None:
    """Drop what products and look-ups hold, so that they see what was tuned or edited since."""
    for each in [*_ALL]:
        each.clear()
    resident.forget()
