"""Text on a terminal: colours, tables, and standard streams that may be closed or broken."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TextIO, cast

from autotune.core.errors import AutotuneError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Style(StrEnum):
    """Emphasis of a text, by the mark that begins it."""

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


def error_line(command: str, message: str) -> str:
    """An error as it is written to stderr: one line, whatever a path that it names is like."""
    line = plain(message).replace("\n", r"\n")
    return drawn(f"{command}: {styled('error:', Style.RED)} {line}", sys.stderr)


def shows_colour(stream: TextIO | None) -> bool:
    """True where a stream is to have colour: by NO_COLOR, FORCE_COLOR, else by what it is."""
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


WIDEST = 100
"""Columns of a line at most, however wide the terminal; narrower ones get less."""


def width() -> int:
    """Columns that a line may have."""
    return max(40, min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns))


def folded(label: str, text: str) -> str:
    """A line that begins with a label, folded between words below the place where the text began.

    What is longer than a line, as a path may be, stays in one piece.
    """
    if not text:
        return _trimmed(label)
    begins = plain(label)
    laid_out = textwrap.fill(
        plain(text),
        width(),
        initial_indent=begins,
        subsequent_indent=" " * len(begins),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return label + remarked(text, laid_out[len(begins) :])


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[str] = (),
    *,
    fold: bool = False,
) -> str:
    """Columns padded to their widest cell, under a bold header.

    Args:
        header: the columns' names.
        rows: a cell for every column.
        right: names of the columns that are aligned right.
        fold: whether the last column, which is of words, is folded where it is too wide.
    """
    widths = [
        max(len(plain(row[column])) for row in [header, *rows]) for column in range(len(header))
    ]
    numeric = [name in right for name in header]

    def line(cells: Sequence[str]) -> str:
        gaps = [
            " " * (width - len(plain(cell))) for cell, width in zip(cells, widths, strict=True)
        ]
        padded = [
            gap + cell if is_number else cell + gap
            for cell, gap, is_number in zip(cells, gaps, numeric, strict=True)
        ]
        if not fold:
            return _trimmed("  ".join(padded))
        return folded("".join(f"{cell}  " for cell in padded[:-1]), cells[-1])

    head = [styled(name, Style.BOLD) for name in header]
    return "\n".join([line(head), *(line(row) for row in rows)])


def _trimmed(line: str) -> str:
    return remarked(line, plain(line).rstrip())


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
