"""Ctrl-C waits until a storage operation is whole."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Deliver a SIGINT that arrives inside the block when the block has ended.

    A trial is several writes (created, claimed, its parameters, its end). An interrupt between
    two of them would leave a trial that nobody owns, or the journal's lock file behind. Only the
    main thread receives KeyboardInterrupt, so elsewhere there is nothing to do.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[tuple[int, FrameType | None]] = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: received.append((number, frame)))
    try:
        yield
    finally:
        # None: the handler was not installed from Python and cannot be put back from here.
        signal.signal(signal.SIGINT, signal.SIG_DFL if previous is None else previous)
        if received and callable(previous):
            previous(*received[0])
