"""Clocks for single calls of a program: nobody waits for what they say."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

Reading: TypeAlias = Callable[[], float | None]
"""Seconds that a call took; None while that is not known, and NaN where it never will be."""


class Clock(Protocol):
    """Times calls where their operands are."""

    def runs(self, like: Any) -> bool:
        """Whether calls can be timed now: those of a capture compute nothing.

        Args:
            like: one of the operands.
        """
        ...

    def time(self, call: Callable[[], Any], like: Any) -> tuple[Any, Reading]:
        """Make a call, and time it.

        Args:
            call: the call; its errors are raised.
            like: one of its operands.
        """
        ...


class HostClock:
    """A clock of calls that have computed their result when they return."""

    def runs(self, like: Any) -> bool:
        """See `Clock.runs`."""
        return True

    def time(self, call: Callable[[], Any], like: Any) -> tuple[Any, Reading]:
        """See `Clock.time`."""
        begin = time.perf_counter()
        result = call()
        seconds = time.perf_counter() - begin
        return result, lambda: seconds
