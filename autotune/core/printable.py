"""Untrusted text, brought into a form that may be printed.

A control character in a name drives the terminal that the name is printed on, a lone surrogate
cannot be encoded at all, and a value may be a megabyte long. Errors and the command line's output
pass through `printable`; messages that quote a value quote what `shown` makes of it.
"""

from __future__ import annotations

import re
from reprlib import Repr

LINE = re.compile(
    "[^\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]*"
)
"""One line of text that only shows itself: no control, no change of direction, no surrogate."""

_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_LONGEST = 60
_WIDEST_INTEGER = 192


def printable(text: str) -> str:
    r"""The text with everything written as an escape that would do more than show itself.

    Line ends and tabulators stay; ``\x1b`` becomes the four characters that Python writes it as.
    """
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)


def shown(value: object) -> str:
    """A value in a few words and one line, for a message: what `repr` gives, shortened."""
    words = _SHORT.repr(value)
    return words if len(words) <= _LONGEST else f"{words[: _LONGEST - 3]}..."


def first_line(error: BaseException) -> str:
    """The first line of an error that somebody else raised, for a message of one line."""
    return str(error).partition("\n")[0]


class _Short(Repr):
    """Python's shortened `repr`, which converts any integer to digits and so may refuse one."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = _LONGEST
        self.maxlist = self.maxtuple = self.maxdict = 6

    def repr_int(self, x: int, level: int) -> str:
        if x.bit_length() > _WIDEST_INTEGER:
            return f"an integer of {x.bit_length()} bits"
        return repr(x)


_SHORT = _Short()
