"""What was meant by a name that is not there."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """The end of an error message: the known name nearest to the one given, or nothing."""
    close = difflib.get_close_matches(given.lower(), list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else ""
