"""The time that ranks wait for each other, its clock, and the variable that changes it."""

from __future__ import annotations

import math
import os
import time

from autotune.core.errors import InputError

VARIABLE = "AUTOTUNE_MPI_TIMEOUT"
"""Environment variable with the seconds that ranks wait for each other."""

DEFAULT_S = 60.0


def patience_s(default_s: float = DEFAULT_S) -> float:
    """Seconds to wait for other ranks: those of the environment variable, or the default.

    Raises:
        InputError: the variable is not a positive number.
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        return default_s
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InputError(
            f"{VARIABLE} must be the seconds that ranks wait for each other, got {text!r}: give a "
            f"positive number, or unset it for {default_s:g}"
        )
    return seconds


def is_set() -> bool:
    """Tell whether somebody has said how long to wait."""
    return bool(os.environ.get(VARIABLE))


class OwnTime:
    """Seconds that this process has been running, as far as it looked.

    Time between two looks counts as `most_s` at most: a process that was stopped, or a machine
    that slept, has not been waiting meanwhile.

    Attributes:
        seconds: the sum so far.
    """

    def __init__(self, most_s: float = 1.0) -> None:
        self.seconds = 0.0
        self._most_s = most_s
        self._last = time.monotonic()

    def look(self) -> float:
        """Count the time since the last look; the sum."""
        now = time.monotonic()
        self.seconds += min(now - self._last, self._most_s)
        self._last = now
        return self.seconds
