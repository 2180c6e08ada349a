"""The text of a function as its file has it, taken apart into head and body."""

from __future__ import annotations
import __future__

import ast
import builtins
import contextlib
import functools
import inspect
import io
import itertools
import symtable
import tokenize
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, TypeGuard

from autotune.core import session
from autotune.core.errors import InputError

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


@dataclass(frozen=True, slots=True)
class FunctionText:
    """A function as it was written, less its decorators.

    Attributes:
        function: the function itself.
        name: what it is called.
        arguments: names of what it takes, in order.
        text: head and body.
        body: what follows the colon of the head, from there to its end.
        jit: the options of a function that Numba has compiled; None for a plain one.
    """

    function: FunctionType
    name: str
    arguments: tuple[str, ...]
    text: str
    body: str
    jit: Mapping[str, Any] | None

    @property
    def summary(self) -> str:
        """The first line of its docstring; empty where it has none."""
        lines = inspect.cleandoc(self.function.__doc__ or "").splitlines()
        return lines[0].strip() if lines and lines[0].isprintable() else ""

    @property
    def outside(self) -> tuple[str, ...]:
        """Names that the body uses and that are bound outside of the function."""
        return tuple(dict.fromkeys(_free(symtable.symtable(self.text, self.name, "exec"))))

    @property
    def bound(self) -> frozenset[str]:
        """Names that the body binds."""
        table = symtable.symtable(self.text, self.name, "exec").get_children()[0]
        return frozenset(
            each.get_name()
            for each in table.get_symbols()
            if each.is_assigned() and each.is_local()
        )


def function_text(function: Callable[..., Any], called: str = "") -> FunctionText:
    """Read a function's source.

    Args:
        function: a plain function, or one that Numba has decorated.
        called: what a lambda is called; empty where it must be none.

    Raises:
        InputError: it is none, or its source is not there to be read.
    """
    plain = getattr(function, "py_func", function)
    jit = getattr(function, "targetoptions", {}) if plain is not function else None
    nameless = isinstance(plain, FunctionType) and plain.__name__ == "<lambda>"
    if not isinstance(plain, FunctionType) or (nameless and not called):
        raise InputError(
            f"{called or 'a kernel'} must be a function made with def, got {function!r:.80}"
        )
    name = called if nameless else plain.__name__
    whole = _READ.get(plain)
    if whole is None:
        whole = _READ[plain] = _of_lambda(plain, name) if nameless else _whole(plain)
    taken = _tree(whole).args
    if taken.vararg or taken.kwarg or taken.posonlyargs or taken.defaults or taken.kwonlyargs:
        raise InputError(f"{name} must take plain arguments, without * and without defaults")
    arguments = tuple(each.arg for each in taken.args)
    return FunctionText(plain, name, arguments, whole, _body(whole), jit)


_READ: weakref.WeakKeyDictionary[FunctionType, str] = session.keep(
    "texts of functions", weakref.WeakKeyDictionary(), lasting=True
)
"""Texts as they were when they were read first: a file may be edited while it is in use."""


def _whole(function: FunctionType) -> str:
    """The text of a function, at the margin, less its decorators and annotations.

    Raises:
        InputError: it cannot be read, or is not that of the function.
    """
    name = function.__name__
    try:
        file, first = inspect.findsource(function)
    except (OSError, TypeError, SyntaxError) as error:
        raise InputError(
            f"the source of {name} cannot be read ({error}): define the function in a file"
        ) from error
    with contextlib.suppress(SyntaxError, ValueError, tokenize.TokenError, IndexError):
        if is_of(file, function):
            text = at_margin(inspect.getblock(file[first:]))
            tree = _tree(text)
            if not isinstance(tree, ast.FunctionDef):
                raise InputError(f"{name} must be a function made with def")
            lines = text.splitlines(keepends=True)[tree.lineno - 1 : tree.end_lineno]
            return without_annotations("".join(lines).rstrip() + "\n")
    where = function.__code__.co_filename
    if where.startswith("<"):  # what else ran under that name may be known by it
        raise InputError(
            f"the source of {name} cannot be read ({where} is no file): define the function in a "
            "file"
        )
    raise InputError(
        f"the source of {name} cannot be read: {where} is not what it was when this process "
        "imported it: start the program again"
    )


def _of_lambda(function: FunctionType, name: str) -> str:
    """The text of a function that does what a lambda does.

    Raises:
        InputError: it cannot be read, or is not the only one in its place.
    """
    code = function.__code__
    try:
        file, _ = inspect.findsource(function)
        if is_of(file, function):
            tree = ast.parse("".join(file))
            found = [
                each
                for each in ast.walk(tree)
                if isinstance(each, ast.Lambda) and _is_at(each, code)
            ]
            if len(found) == 1:
                taken, body = ast.unparse(found[0].args), ast.unparse(found[0].body)
                return f"def {name}({taken}):\n    return {body}\n"
    except (OSError, TypeError, SyntaxError, ValueError):
        pass
    where = f"{code.co_filename}, line {code.co_firstlineno}"
    raise InputError(f"the lambda for {name} cannot be read ({where}): write it with def")


def _is_at(found: ast.Lambda, code: CodeType) -> bool:
    """Return whether the body of a lambda reaches exactly as far as the instructions of a code."""
    body = found.body
    places = [each for each in code.co_positions() if None not in each and each[2] != each[3]]
    if not places:  # Python 3.12 keeps none of what gives a constant
        if found.lineno != code.co_firstlineno:
            return False
        constants = compile(ast.Expression(found), "", "eval").co_consts
        [same] = (each for each in constants if isinstance(each, CodeType))
        return (same.co_varnames, repr(same.co_consts)) == (code.co_varnames, repr(code.co_consts))
    first = min((line, column) for line, _, column, _ in places)
    last = max((line, column) for _, line, _, column in places)
    return (body.lineno, body.col_offset) <= first and last == (
        body.end_lineno,
        body.end_col_offset,
    )


def looked_up(text: FunctionText, name: str) -> Any:
    """The value of a name from a function's outside.

    Raises:
        InputError: nothing has that name, in the function's closure or module.
    """
    function = text.function
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for found, cell in cells:
        if found == name:
            try:
                return cell.cell_contents
            except ValueError:
                break
    if name in function.__globals__:
        return function.__globals__[name]
    raise InputError(f"{text.name} uses {name}, which is defined neither in it nor in its module")


def _tree(text: str) -> ast.FunctionDef:
    """The function that a text begins with; something else where it is none."""
    (tree,) = ast.parse(text).body[:1]
    return tree  # type: ignore[return-value]


def _body(text: str) -> str:
    """The text after the colon that ends a function's head."""
    depth = 0
    lines = text.splitlines(keepends=True)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.OP:
            continue
        depth += (token.string in "([{") - (token.string in ")]}")
        if token.string == ":" and depth == 0:
            row, column = token.end
            return lines[row - 1][column:] + "".join(lines[row:])
    raise AssertionError("a function has a head")


def _free(table: symtable.SymbolTable) -> Iterator[str]:
    """Names that scopes below a module's use and that are none of their own."""
    for child in table.get_children():
        for symbol in child.get_symbols():
            # In a function called "top" all is global: `symtable` has that name for modules.
            if symbol.is_global() and not symbol.is_local() and symbol.is_referenced():
                yield symbol.get_name()
        yield from _free(child)
