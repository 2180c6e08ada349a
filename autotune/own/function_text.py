"""The text of a function as its file has it, taken apart into head and body."""

from __future__ import annotations

import ast
import inspect
import io
import symtable
import textwrap
import tokenize
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from autotune.core.errors import InputError


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
    try:
        text = textwrap.dedent(inspect.getsource(plain))
        node = ast.parse(text).body[0]
    except (OSError, TypeError, SyntaxError, IndexError) as error:
        raise InputError(
            f"the source of {name} cannot be read ({error}): define the function in a file"
        ) from error
    if not isinstance(node, ast.FunctionDef):
        raise InputError(f"{name} must be a function made with def")
    taken = node.args
    if taken.vararg or taken.kwarg or taken.posonlyargs or taken.defaults or taken.kwonlyargs:
        raise InputError(f"{name} must take plain arguments, without * and without defaults")
    lines = text.splitlines(keepends=True)[node.lineno - 1 : node.end_lineno]
    whole = "".join(lines).rstrip() + "\n"
    arguments = tuple(each.arg for each in taken.args)
    return FunctionText(plain, name, arguments, whole, _body(whole), jit)


def looked_up(text: FunctionText, name: str) -> Any:
    """What a name of a function's outside stands for.

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


def _body(text: str) -> str:
    """What follows the colon that ends a function's head."""
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
