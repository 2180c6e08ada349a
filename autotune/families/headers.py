"""Headers that CUDA C++ includes in quotes: their text becomes part of the source.

So whatever names or digests a source covers them, wherever it is compiled, kept or exported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

_COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_QUOTED = re.compile(r'^([ \t]*#[ \t]*include[ \t]*)"([^"\n]+)"([^\n]*)$', re.MULTILINE)
_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once\b[^\n]*\n?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class WithHeaders:
    """A source with the headers that it includes in quotes.

    Attributes:
        text: the source, with their text in place of the lines that include them. A name that no
            folder has is in angle brackets, and left to the compiler's own headers.
        files: the headers.
        missing: what no folder has: line and name.
    """

    text: str
    files: tuple[Path, ...]
    missing: tuple[tuple[int, str], ...]


def with_headers(
    text: str, folders: Sequence[Path], written: Callable[[str], str] = str
) -> WithHeaders:
    """A source with the headers that it includes in quotes, and those that they include.

    A header is looked for beside the one that includes it, and then in the folders.

    Args:
        text: the source.
        folders: where its headers may be, first match wins.
        written: makes of a header's text what is to stand in the source.

    Raises:
        OSError: a header cannot be read.
        UnicodeDecodeError: it is not UTF-8.
    """
    files: dict[Path, str] = {}
    missing: list[tuple[int, str]] = []

    def expanded(source: str, near: Sequence[Path], open_: tuple[Path, ...]) -> str:
        def header(match: re.Match[str]) -> str:
            before, name, after = match.groups()
            found = (folder / name for folder in near)
            path = next((each.resolve() for each in found if each.is_file()), None)
            if path is None:
                missing.append((source.count("\n", 0, match.start()) + 1, name))
                return f"{before}<{name}>{after}"
            if path in open_ or (path in files and _ONCE.search(blanked(files[path]))):
                return f"// {name}: above"  # as its guard, or pragma, would have it
            files[path] = path.read_text(encoding="utf-8")
            body = _replaced(_ONCE, files[path], lambda _: "")
            body = expanded(body, (path.parent, *folders), (*open_, path)).rstrip("\n")
            return f"// {name}:\n{body if open_ else written(body)}"

        return _replaced(_QUOTED, source, header)

    return WithHeaders(expanded(text, folders, ()), tuple(files), tuple(missing))


def without_quotes(text: str) -> str:
    """A source that includes the compiler's own headers alone, whatever folder it runs in."""
    return _replaced(_QUOTED, text, lambda match: f"{match[1]}<{match[2]}>{match[3]}")


def blanked(source: str, *, texts: bool = False) -> str:
    """A source with blanks for comments and, if asked, for what strings hold."""

    def blank(match: re.Match[str]) -> str:
        if match[0].startswith('"') and not texts:
            return match[0]
        return re.sub(r"[^\n]", " ", match[0])

    return _COMMENT.sub(blank, source)


def _replaced(pattern: re.Pattern[str], text: str, made: Callable[[re.Match[str]], str]) -> str:
    """The text with something else for what is found outside of comments."""
    if pattern.search(text) is None:
        return text
    parts, end = [], 0
    for match in pattern.finditer(blanked(text)):
        parts += [text[end : match.start()], made(match)]
        end = match.end()
    return "".join([*parts, text[end:]])
