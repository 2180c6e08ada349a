"""The text of a function as its file has it, taken apart into head and body."""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import symtable
import tokenize
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from autotune.core import session
from autotune.core.errors import InputError
from autotune.own.same_code import at_margin, is_of, without_annotations


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
            if each.is_assigned() and not each.is_global()
        )


def function_text(function: Callable[..., Any]) -> FunctionText:
    """Read a function's source.

    Args:
        function: a plain function, or one that Numba has decorated.

    Raises:
        InputError: it is none, or its source is not there to be read.
    """
    plain = getattr(function, "py_func", function)
    jit = getattr(function, "targetoptions", {}) if plain is not function else None
    if not isinstance(plain, FunctionType) or plain.__name__ == "<lambda>":
        raise InputError(
            f"a kernel or a reference must be a function made with def, got {function!r:.80}"
        )
    name = plain.__name__
    whole = _READ.get(plain)
    if whole is None:
        whole = _READ[plain] = _whole(plain)
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
    raise InputError(
        f"the source of {name} cannot be read: {where} is not what it was when this process "
        "imported it: start the program again"
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
            if symbol.is_global() and symbol.is_referenced():
                yield symbol.get_name()
        yield from _free(child)
