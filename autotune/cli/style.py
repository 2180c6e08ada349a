"""Colour where a terminal shows it: texts carry marks, which are drawn or dropped when printed.

Marks are characters for private use, two for a styled text whatever the terminal; what strangers
wrote is made printable between marking and drawing (`autotune.core.printable`), so that no escape
code of theirs gets through. In a width a mark counts for nothing.
"""

from __future__ import annotations

import os
import re
from enum import StrEnum
from typing import TextIO


class Style(StrEnum):
    """How a text is to stand out; each is its mark."""

    BOLD = "\uf8e0"
    RED = "\uf8e1"
    GREEN = "\uf8e2"
    YELLOW = "\uf8e3"


_END = "\uf8e4"
_CODES = {Style.BOLD: "1", Style.RED: "1;31", Style.GREEN: "32", Style.YELLOW: "33", _END: "0"}
_MARK = re.compile(f"[{''.join(_CODES)}]")


def styled(text: str, style: Style) -> str:
    """A text with the marks of a style."""
    return f"{style}{text}{_END}" if text else text


def ratio(text: str, value: float) -> str:
    """A speed relative to another: green where it is as fast, yellow where it is slower."""
    return styled(text, Style.GREEN if value >= 1 else Style.YELLOW)


def plain(text: str) -> str:
    """The text without marks: what its width is measured by."""
    return _MARK.sub("", text)


def drawn(text: str, stream: TextIO | None) -> str:
    """The text as it is written to a stream: with colour where that shows it."""
    if not shows_colour(stream):
        return plain(text)
    return _MARK.sub(lambda mark: f"\x1b[{_CODES[mark[0]]}m", text)


def shows_colour(stream: TextIO | None) -> bool:
    """Whether a stream is to have colour: NO_COLOR and FORCE_COLOR say, else whether it can."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def remarked(text: str, laid_out: str) -> str:
    """Marks put back into a text that was laid out without them.

    Args:
        text: with marks.
        laid_out: the same without, its white space changed.
    """
    marks: dict[int, str] = {}  # by how many characters that are not spaces come before
    ends: dict[int, str] = {}
    count = 0
    for character in text:
        if character == _END:
            if marks.pop(count, None) is None:  # otherwise nothing but spaces was marked
                ends[count] = _END
        elif character in _CODES:
            marks[count] = character
        elif not character.isspace():
            count += 1
    done: list[str] = []
    count = 0
    for character in laid_out:
        if character.isspace():
            done.append(character)
        else:
            opened, count = marks.get(count, ""), count + 1
            done.append(f"{opened}{character}{ends.get(count, '')}")
    return "".join(done)
