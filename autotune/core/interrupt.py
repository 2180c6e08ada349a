"""Requests to stop: the first ends the work in hand in good order, the second at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import ClassVar, Self

from autotune.core.deadline import Deadline

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask to stop: Ctrl-C, an ending session or batch job, a closed terminal."""

STOP_S = 4.0
"""Seconds within which a run that is asked to stop has measured its finalists."""

GRACE_S = 1.0
"""Seconds of that for the trial that is being measured."""


class Signalled(KeyboardInterrupt):
    """A request to stop that was meant to be obeyed at once.

    Attributes:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Signals:
    """While it is entered, requests to stop end up in `handle`; in the main thread only.

    A signal that was ignored before (a shell's background job, `nohup`) stays ignored. Used as a
    context manager. Of several, one inside the other, the innermost handles a signal; the outer
    ones learn of it when they are the innermost again.

    Attributes:
        number: of the signal that came first; None while there was none.
    """

    _entered: ClassVar[list[Signals]] = []

    def __init__(self) -> None:
        self.number: int | None = None
        self._previous: dict[int, signal._HANDLER] = {}

    @property
    def requested(self) -> bool:
        """True if an end was asked for."""
        return self.number is not None

    def handle(self, number: int) -> None:
        """Do what a signal asks for.

        Raises:
            Signalled: it is to be obeyed at once.
        """
        self.number = number
        raise Signalled(number)

    def say(self, text: str) -> None:
        """Tell the user; called from within a signal handler."""

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._entered.append(self)
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if self in self._entered:
            self._entered.remove(self)
        if self.number is not None:
            self.leave(self.number)

    def leave(self, number: int) -> None:
        """Pass on what was asked for, now that nothing of one's own is in the way."""

    @property
    def outer(self) -> Signals | None:
        """The one that this one is inside of."""
        others = [signals for signals in self._entered if signals is not self]
        return others[-1] if others else None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.handle(number)


def asked_to_stop() -> bool:
    """True if one that is entered has seen a request, or been told of one by those inside."""
    return any(signals.requested for signals in Signals._entered)


class Interrupt(Signals):
    """Turns the first request to stop into `requested`; the second raises `Signalled`.

    A program that is asked to terminate while it calls `tune` is to do so: where nobody else
    listens, SIGTERM and SIGHUP are delivered again at the end. Ctrl-C ends the search alone.

    Args:
        deadline: of the run, which then has `STOP_S` seconds left.
        doing: what is still done after the first request, for people.
    """

    def __init__(
        self, deadline: Deadline | None = None, doing: str = "measuring the finalists"
    ) -> None:
        super().__init__()
        self._deadline = deadline or Deadline()
        self._doing = doing

    def handle(self, number: int) -> None:
        """Note the first; obey the second.

        Raises:
            Signalled: it is the second.
        """
        if self.number is not None:
            raise Signalled(number)
        self.number = number
        self._deadline.hasten(STOP_S, GRACE_S)
        if self.outer is not None:
            self.outer.say(f"stopping: {self._doing}; Ctrl-C again to stop now")

    def leave(self, number: int) -> None:
        """Tell whoever is outside, or the program itself."""
        if self.outer is not None:
            self.outer.number = number
        elif number != signal.SIGINT:
            signal.raise_signal(number)


class CommandSignals(Signals):
    """A command's: obeyed at once unless an `Interrupt` is inside; `say` writes what it is told.

    Args:
        write: shows a line of text, from within a signal handler.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__()
        self._write = write

    def say(self, text: str) -> None:
        """Tell the user; called from within a signal handler."""
        self._write(text)
