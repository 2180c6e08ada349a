"""A request to stop waits until a storage operation is whole."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from autotune.core.interrupt import SIGNALS

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Deliver a signal of `SIGNALS` that arrives inside the block when the block has ended.

    A trial is several writes (created, claimed, its parameters, its end). An interrupt between
    two of them would leave a trial that nobody owns, or the journal's lock file behind. Only the
    main thread handles signals, so elsewhere there is nothing to do.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    previous = {
        number: signal.signal(number, lambda number, frame: received.append(number))
        for number in SIGNALS
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            # None: the handler was not installed from Python and cannot be put back from here.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for each in received:
            signal.raise_signal(each)
