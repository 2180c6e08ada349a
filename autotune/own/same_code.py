"""The text of a function, put at the margin, and the code of its file."""

from __future__ import annotations
import __future__

import ast
import builtins
import functools
import inspect
import io
import itertools
import tokenize
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType
from typing import TypeGuard

_FUTURE = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)


def at_margin(lines: Sequence[str]) -> str:
    """Lines of a block less the indentation of the first; what strings hold stays as it is.

    Raises:
        SyntaxError: they are no block of Python.
        tokenize.TokenError: likewise.
    """
    indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    within = set(_within_strings("".join(lines)))
    return "".join(
        line
        if number in within
        else line.removeprefix(indent)
        if line.startswith(indent)
        else line.lstrip(" \t")  # a comment, or a line that another one continues in
        for number, line in enumerate(lines, 1)
    )


def _within_strings(text: str) -> Iterator[int]:
    """Numbers of the lines that begin within a string."""
    opened: list[int] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = tokenize.tok_name[token.type]
        if kind == "STRING":
            yield from range(token.start[0] + 1, token.end[0] + 1)
        elif kind == "FSTRING_START":
            opened.append(token.start[0])
        elif kind == "FSTRING_END":
            yield from range(opened.pop() + 1, token.end[0] + 1)


def without_annotations(text: str) -> str:
    """A function's text less annotations that name what Python has not: that need not come along.

    The same text where one stands in parentheses.
    """
    whole = text.encode()
    starts = [0, *itertools.accumulate(map(len, whole.splitlines(keepends=True)))]

    def place(node: ast.expr | ast.stmt | ast.arg, *, end: bool = False) -> int:
        line, column = (
            (node.end_lineno, node.end_col_offset) if end else (node.lineno, node.col_offset)
        )
        return starts[(line or 1) - 1] + (column or 0)

    cuts: list[tuple[int, int, bytes]] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and _foreign(node.returns):
            start = whole.rindex(b"->", 0, place(node.returns))
            cuts.append((start, place(node.returns, end=True), b""))
        elif isinstance(node, ast.arg) and _foreign(node.annotation):
            start = whole.index(b":", place(node))
            cuts.append((start, place(node.annotation, end=True), b""))
        elif isinstance(node, ast.AnnAssign) and _foreign(node.annotation):
            start = whole.index(b":", place(node.target, end=True))
            bare = node.value is None
            end = place(node.annotation, end=True)
            cuts.append((place(node) if bare else start, end, b"pass" if bare else b""))
    for start, end, instead in sorted(cuts, reverse=True):
        before = whole[:start] if instead else whole[:start].rstrip(b" ")
        whole = before + instead + whole[end:]
    result = whole.decode()
    try:
        ast.parse(result)
    except SyntaxError:
        return text
    return result


def _foreign(annotation: ast.expr | None) -> TypeGuard[ast.expr]:
    """Return whether an annotation has names that are not Python's own."""
    nodes = [] if annotation is None else ast.walk(annotation)
    return any(isinstance(each, ast.Name) and not hasattr(builtins, each.id) for each in nodes)


def is_of(lines: Sequence[str], function: FunctionType) -> bool:
    """Return whether a file has the code of a function, in the lines where it was.

    Where pytest has rewritten its assertions, nothing is known, and it is taken to.
    """
    code = function.__code__
    text = "".join(lines)
    if "@pytest_ar" in function.__globals__ and "assert" in text:
        return True
    flags = code.co_flags & _FUTURE
    try:
        return code in _codes(text, flags)
    except SyntaxError:  # of a page, in which blocks are Python, the function's own lines
        above = code.co_firstlineno - 1
        block = at_margin(inspect.getblock(lines[above:]))
        return code in _codes("\n" * above + block, flags)


@functools.lru_cache(maxsize=4)
def _codes(text: str, flags: int) -> frozenset[CodeType]:
    """All code of a module; code equals what does the same in the same lines."""
    found = [compile(text, "", "exec", flags, dont_inherit=True)]
    for each in found:
        found += [inner for inner in each.co_consts if isinstance(inner, CodeType)]
    return frozenset(found)
