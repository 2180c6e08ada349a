"""The standard streams, which may be closed, full, or in an encoding without our signs.

Work is worth more than what is said about it: whatever is wrong with stderr ends no command, and
what is wrong with stdout is told once everything has been stored.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO, cast

from autotune.core.errors import AutotuneError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def standard_streams() -> Iterator[None]:
    """While it is entered, stderr can always be written to, and stdout shows every character."""
    stdout, stderr = sys.stdout, sys.stderr
    _reserve()
    with contextlib.ExitStack() as stack:
        if stderr is None:
            stderr = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123
        if isinstance(stdout, io.TextIOWrapper):
            stack.callback(stdout.reconfigure, errors=stdout.errors)
            stdout.reconfigure(errors="backslashreplace")
        stack.enter_context(contextlib.redirect_stderr(cast(TextIO, _Unfailing(stderr))))
        try:
            yield
        finally:
            try:
                stderr.flush()
            except OSError:
                _abandon(stderr)


def put(text: str, end: str = "\n") -> None:
    """Print to stdout, all of it at once.

    Raises:
        BrokenPipeError: its reader went away.
        AutotuneError: it is closed, or full.
    """
    if sys.stdout is None:
        raise AutotuneError("the result cannot be printed, stdout is closed: give it a place")
    try:
        print(text, end=end, flush=True)
    except BrokenPipeError:
        _abandon(sys.stdout)
        raise
    except OSError as error:
        _abandon(sys.stdout)
        raise AutotuneError(
            f"the result cannot be printed to stdout ({error.strerror}): give it another place"
        ) from error


class _Unfailing:
    """A stream that drops what cannot be written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _reserve() -> None:
    """Open what is closed of the first three files, which others would get in their place.

    What a library writes to stderr would end up in whatever was opened first: a journal.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _abandon(stream: TextIO) -> None:
    """Point a stream at nothing, so that Python, which flushes it at exit, stays quiet."""
    with contextlib.suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)
