"""The shape of emitted CUDA C++: long parameter lists and assertions in several lines."""

from __future__ import annotations

import re

WIDTH = 100
"""Columns that a line may have."""

_DEEPEST = 60
_ASSERT = re.compile(r'(static_assert\()(.*), ("(?:[^"\\]|\\.)*"\);)')
_JOINTS = re.compile(r"(?<= &&) |(?<= \|\|) ")


def laid_out(text: str, arguments: str) -> str:
    """Emitted source with the lines broken that templates leave long.

    Args:
        text: the source.
        arguments: the kernels' parameter list, as templates were given it.
    """
    lines: list[str] = []
    for line in text.split("\n"):
        if len(line) > WIDTH and arguments and arguments in line:
            lines += _parameters(line, arguments)
        elif len(line) > WIDTH and (found := _ASSERT.fullmatch(line)):
            lines += _assertion(*found.groups())
        else:
            lines.append(line)
    return "\n".join(lines)


def _parameters(line: str, arguments: str) -> list[str]:
    """A line with the parameter list, one below the other and as many in a line as fit."""
    head, _, tail = line.partition(arguments)
    first = head
    column = len(head)
    parts = arguments.split(", ")
    longest = max(map(len, parts)) + len(tail)
    if column > _DEEPEST or column + longest >= WIDTH:  # they would not fit beside it
        column = len(head) - len(head.lstrip()) + 4
        first = " " * column
    lines = _filled(first, column, parts, ", ", len(tail))
    lines[-1] += tail
    return lines if first is head else [head, *lines]


def _assertion(opening: str, condition: str, ending: str) -> list[str]:
    """An assertion with its reason in a line of its own."""
    column = len(opening)
    lines = _filled(opening, column, _JOINTS.split(condition), " ", 1)
    lines[-1] += ","
    reason, indent = ending.removesuffix(");"), " " * column
    while len(indent) + len(reason) + 2 > WIDTH:
        cut = reason.rfind(" ", 1, WIDTH - column - 2)
        if cut <= 1:
            break
        lines.append(f'{indent}{reason[: cut + 1]}"')
        reason = f'"{reason[cut + 1 :]}'
    return [*lines, f"{indent}{reason});"]


def _filled(first: str, column: int, parts: list[str], joint: str, reserve: int) -> list[str]:
    """Parts in as few lines as they fit, the others indented to a column."""
    lines = [first]
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        added = part if last else part + joint.rstrip()
        separated = f" {added}" if lines[-1].strip() and number else added
        room = WIDTH - (reserve if last else 0)
        if number and len(lines[-1]) + len(separated) > room:
            lines.append(" " * column + added)
        else:
            lines[-1] += separated
    return lines
