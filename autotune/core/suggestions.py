"""Error messages for a name that is not there: what there is, and what was meant."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from autotune.core.printable import shown

_LONGEST_LISTING = 50


def must_be(what: str, given: object, known: Collection[str]) -> str:
    """An error's text: the rule, the value, and the likely meaning."""
    return f"{what} must be one of {listed(known)}, got {shown(given)}{did_you_mean(given, known)}"


def listed(known: Collection[str]) -> str:
    """The names there are; of very many the first."""
    first = ", ".join(list(known)[:_LONGEST_LISTING])
    more = len(known) - _LONGEST_LISTING
    return first if more <= 0 else f"{first} and {more} more"


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """The end of an error message: the known name nearest to the one given, or nothing.

    Whether letters are capitals does not count.
    """
    meant = nearest(given, known)
    return "" if meant is None else f"; did you mean {meant!r}?"


def nearest(given: object, known: Iterable[str]) -> str | None:
    """The known name nearest to what was given, whatever letters are capitals; None if none is.

    A name of the same words in another order is the nearest.
    """
    if not isinstance(given, str):
        return None
    names = {name.lower(): name for name in known}
    words = sorted(given.lower().split("_"))
    if same := [name for name in names if sorted(name.split("_")) == words]:
        return names[same[0]]
    close = difflib.get_close_matches(given.lower(), names, 1)
    return names[close[0]] if close else None
