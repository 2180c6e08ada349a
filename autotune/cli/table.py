"""Text for people: tables, and lines that are folded where the terminal ends."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

from autotune.cli.style import Style, plain, remarked, styled

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
