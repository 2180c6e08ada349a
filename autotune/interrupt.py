"""Ctrl-C as a request: the first one ends the work in hand, the second one means it."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class Interrupt:
    """Turns the first SIGINT into `requested`; the second raises KeyboardInterrupt as usual.

    Used as a context manager. Outside the main thread, where handlers cannot be set, it does
    nothing and `requested` stays False.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: signal._HANDLER = None

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
