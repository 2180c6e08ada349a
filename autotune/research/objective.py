"""Statements of recordings about their numbers: whether they are times, and in which unit.

Replay, scores and priors minimise, so a file whose objective is no time is refused: its optimum
would be its slowest configuration.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from autotune.core import checks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.core.errors import InputError

TIME = "time"
"""The objective of files that state none."""

SECONDS: Mapping[str, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
"""Units of recorded times."""

_SPELLINGS: Mapping[str, str] = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), "s"),
    # The benchmark hub writes "miliseconds".
    **dict.fromkeys(("ms", "millisecond", "milliseconds", "milisecond", "miliseconds"), "ms"),
    **dict.fromkeys(("us", "\u00b5s", "\u03bcs", "microsecond", "microseconds"), "us"),
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds"), "ns"),
}


def time_unit(stated: str) -> str:
    """A unit of time by its symbol; "" where the word is none."""
    return _SPELLINGS.get(stated.strip().casefold(), "")


def is_time(name: str) -> bool:
    """Recognise an objective without a unit as a time, by its name as Kernel Tuner does."""
    return name.startswith(TIME)


def no_time(where: str, stated: object) -> InputError:
    """The error for an objective that is no time, or for several."""
    return checks.wrong(
        where, 'one time (name "time" there to read the times, if the file has them)', stated
    )


def replayed_unit(where: str, stated: object) -> str:
    """The unit in a replay file's objective, like "time (ms), lower is better".

    Raises:
        InputError: more is better, or nothing says that less is.
    """
    words = checks.line(where, stated).casefold()
    more = re.search("higher|larger|greater|more|max", words)
    if words and (more or not re.search("time|lower|smaller|less|min", words)):
        raise checks.wrong(where, 'a value of which less is better, like "time (ms)"', stated)
    unit = re.search(r"\((.*?)\)", words)
    return time_unit(unit[1]) if unit else ""
