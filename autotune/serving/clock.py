"""Clocks for single calls of a program."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

Reading: TypeAlias = "Callable[[], tuple[float, ...] | None]"
"""Seconds that a call took, and another one right after it, if there was one; None while that is
not known, and NaN where it never will be."""

AGAIN_S = 1e-3
"""Calls of the host shorter than this are timed once more: caches have their operands then."""


class Clock(Protocol):
    """Times calls where their operands are.

    Attributes:
        waits: whether a call returns when it has computed: a program waits for each one more.
    """

    waits: bool

    def runs(self, like: Any) -> bool:
        """True if calls with operands like this can be timed now: a capture computes nothing."""
        ...

    def time(self, call: Callable[[], Any], like: Any, *, twice: bool) -> tuple[Any, Reading]:
        """Make a call with operands like this, and time it; its errors are raised.

        With `twice` it may be made once more, with nothing of the caller's written.
        """
        ...

    def time_cold(self, call: Callable[[], Any], like: Any, *, again: bool) -> tuple[float, ...]:
        """Seconds of a call as in a program of many layers: caches have `like` alone.

        With `again`, those of a call that finds them there, too, as in a small program. It is
        made some times, and waited for. NaN where nothing is known of it.

        Raises:
            AutotuneError, MemoryError, RuntimeError: of the call, or memory is lacking.
        """
        ...


class HostClock:
    """A clock of calls that have computed their result when they return."""

    waits = True

    def runs(self, like: Any) -> bool:
        """See `Clock.runs`."""
        return True

    def time(self, call: Callable[[], Any], like: Any, *, twice: bool) -> tuple[Any, Reading]:
        """See `Clock.time`."""
        begin = time.perf_counter()
        result = call()
        end = time.perf_counter()
        first = end - begin
        if not twice or first > AGAIN_S:
            return result, lambda: (first,)
        call()
        again = time.perf_counter() - end
        return result, lambda: (first, again)

    def time_cold(self, call: Callable[[], Any], like: Any, *, again: bool) -> tuple[float, ...]:
        """See `Clock.time_cold`: nobody asks."""
        return (math.nan,)
