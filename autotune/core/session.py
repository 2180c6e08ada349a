"""The caches of a process, with one way to forget them and one hook of forks.

Whatever is kept of files, devices, kernels and memory is registered here, so that `contents` says
what there is. Functions of their arguments alone may use `functools.cache` as ever.
"""

from __future__ import annotations

import functools
import logging  # noqa: F401 - before the hook below: its lock is then taken after ours
import os
import sys
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, Protocol, TypeVar

Value = TypeVar("Value")
_Held = TypeVar("_Held", bound="_Clearable")

MOST = 4096
"""Keys that a `Remembered` has at a time, at a few kilobytes each."""


class _Clearable(Protocol):
    def clear(self) -> None: ...

    def __len__(self) -> int: ...


class _Cache(NamedTuple):
    """A registered cache: the number of its entries, and how to empty it, if `forget` may."""

    entries: Callable[[], int]
    clear: Callable[[], object] | None


class _Hooks(NamedTuple):
    before: Callable[[], object] | None
    parent: Callable[[], object] | None
    child: Callable[[], object] | None


_CACHES: dict[str, _Cache] = {}
_FORGETTING: list[Callable[[], object]] = []
_HOOKS: list[_Hooks] = []


def keep(name: str, held: _Held, *, lasting: bool = False) -> _Held:
    """Register what a module holds.

    Args:
        name: says what it is of.
        held: a dictionary, say.
        lasting: whether `forget` leaves it: loaded code, devices and what is checked before use.

    Returns:
        The same.
    """
    _CACHES[name] = _Cache(held.__len__, None if lasting else held.clear)
    return held


def cached(
    *, most: int | None = None, lasting: bool = True
) -> Callable[[Callable[..., Value]], functools._lru_cache_wrapper[Value]]:
    """`functools.lru_cache` for a function of more than its arguments: of files, say, or devices.

    Args:
        most: results that are kept; None keeps all.
        lasting: as for `keep`.
    """

    def decorate(function: Callable[..., Value]) -> functools._lru_cache_wrapper[Value]:
        made = functools.lru_cache(maxsize=most)(function)
        _CACHES[f"{function.__module__}.{function.__qualname__}"] = _Cache(
            lambda: made.cache_info().currsize, None if lasting else made.cache_clear
        )
        return made

    return decorate


class Remembered(dict[tuple[Hashable, ...], Value], Generic[Value]):
    """``remembered[key]`` is ``make(*key)``, made when it is first asked for.

    The oldest key gives way where there are too many. Whoever made a value may put another one in
    its place. `forget` empties it.

    Args:
        make: makes a value.
    """

    def __init__(self, make: Callable[..., Value]) -> None:
        super().__init__()
        self._make = make
        keep(f"{make.__module__}.{make.__qualname__}", self)

    def __missing__(self, key: tuple[Hashable, ...]) -> Value:
        made = self._make(*key)
        if len(self) >= MOST:
            self.pop(next(iter(self), ()), None)
        return self.setdefault(key, made)


def on_forget(function: Callable[[], object]) -> None:
    """Have a function called by `forget`, after caches are emptied."""
    _FORGETTING.append(function)


def forget() -> None:
    """Drop what products and look-ups hold, so that they see what was tuned or edited since."""
    for cache in [*_CACHES.values()]:
        if cache.clear is not None:
            cache.clear()
    for function in _FORGETTING:
        function()


def contents() -> dict[str, int]:
    """Entries of every cache of this process, by its name."""
    return {name: cache.entries() for name, cache in _CACHES.items()}


def at_fork(
    *,
    before: Callable[[], object] | None = None,
    parent: Callable[[], object] | None = None,
    child: Callable[[], object] | None = None,
) -> None:
    """Have functions called around forks: the last registered first before, and last after.

    Args:
        before: in the parent, before.
        parent: in the parent, after.
        child: in the child, after.
    """
    _HOOKS.append(_Hooks(before, parent, child))


def _run(functions: list[Callable[[], object] | None]) -> None:
    for function in functions:
        try:
            if function is not None:
                function()
        except Exception:  # the others must run: they give locks back
            sys.excepthook(*sys.exc_info())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _run([hooks.before for hooks in reversed(_HOOKS)]),
        after_in_parent=lambda: _run([hooks.parent for hooks in _HOOKS]),
        after_in_child=lambda: _run([hooks.child for hooks in _HOOKS]),
    )
