"""Reading the small text files in which Linux describes a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def text_of(path: Path) -> str:
    """The text of a file, stripped; empty where there is none to read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def integer_of(text: str) -> int:
    """A decimal or hexadecimal whole number; 0 when it is not one."""
    try:
        return int(text, 0)
    except ValueError:
        return 0
