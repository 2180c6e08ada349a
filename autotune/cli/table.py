"""Plain text for people: tables, and lines that are folded where the terminal ends."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

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
        return label.rstrip()
    return textwrap.fill(
        text,
        width(),
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_long_words=False,
        break_on_hyphens=False,
    )


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[str] = (),
    *,
    fold: bool = False,
) -> str:
    """Columns padded to their widest cell.

    Args:
        header: the columns' names.
        rows: a cell for every column.
        right: names of the columns that are aligned right.
        fold: whether the last column, which is of words, is folded where it is too wide.
    """
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    numeric = [name in right for name in header]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(cells, widths, numeric, strict=True)
        ]
        if not fold:
            return "  ".join(padded).rstrip()
        return folded("".join(f"{cell}  " for cell in padded[:-1]), cells[-1])

    return "\n".join([line(header), *(line(row) for row in rows)])
