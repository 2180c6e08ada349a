"""What a compiler has against an emitted source, with the lines that it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_AROUND = 3


def fault_documents(text: str, faults: Sequence[tuple[int, str]]) -> list[dict[str, Any]]:
    """Every error, with its line, counted from 1, and the numbered lines around it."""
    lines = text.split("\n")
    documents = []
    for line, message in faults:
        first = max(1, line - _AROUND)
        around = range(first, min(len(lines), line + _AROUND) + 1)
        documents.append(
            {
                "line": line,
                "message": message,
                "source": {str(number): lines[number - 1] for number in around},
            }
        )
    return documents


def fault_text(documents: Sequence[dict[str, Any]]) -> str:
    """The same for people; the line that is meant is marked."""
    parts = []
    for each in documents:
        parts.append(f"line {each['line']}: {each['message']}")
        for number, line in each["source"].items():
            mark = ">" if number == str(each["line"]) else " "
            parts.append(f"{mark}{number:>6} | {line}".rstrip())
    return "\n".join(parts)
