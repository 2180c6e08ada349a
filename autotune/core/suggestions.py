"""Error messages for a name that is not there: what there is, and what was meant."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from autotune.core.printable import shown


def must_be(what: str, given: str, known: Collection[str]) -> str:
    """What something must be, what it is, and what was probably meant."""
    return (
        f"{what} must be one of {', '.join(known)}, got {shown(given)}{did_you_mean(given, known)}"
    )


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """The end of an error message: the known name nearest to the one given, or nothing.

    Whether letters are capitals does not count.
    """
    names = {name.lower(): name for name in known}
    close = difflib.get_close_matches(given.lower(), names, 1)
    return f"; did you mean {names[close[0]]!r}?" if close else ""
