"""Names that a function uses from outside: imports, constants and further functions."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

from autotune.core.errors import InputError
from autotune.own.function_text import FunctionText, function_text, looked_up

KERNEL_MODULES = ("math", "cmath", "operator", "numpy", "numba")
"""Modules that a kernel may use: what Numba compiles is in these."""

REFERENCE_MODULES = (*KERNEL_MODULES, "itertools", "functools", "statistics", "scipy")
"""Modules that a reference may use. Their text is no part of a digest: these have versions."""

_PLAIN = (bool, int, float, complex, str)


@dataclass(slots=True)
class Surroundings:
    """The surroundings of a function in a module of its own.

    Attributes:
        imports: statements, by the name that each binds.
        constants: values as Python, by name.
        functions: further functions in an order in which each is defined before it is used.
    """

    imports: dict[str, str] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)
    functions: dict[str, FunctionText] = field(default_factory=dict)

    @property
    def names(self) -> Iterator[str]:
        """All names that it binds."""
        yield from self.imports
        yield from self.constants
        yield from self.functions

    @property
    def parallel(self) -> bool:
        """True if it has Numba's `prange`."""
        return any(text.endswith("import prange") for text in self.imports.values())


def surroundings(text: FunctionText, modules: tuple[str, ...]) -> Surroundings:
    """Collect the names that a function uses from outside, as they are now.

    Args:
        text: the function.
        modules: those that it may use.

    Raises:
        InputError: something is used that cannot be written into a module; the message names it.
    """
    found = Surroundings()
    objects: dict[str, Any] = {text.name: text.function}
    _take(text, modules, found, objects)
    return found


def read_now(text: FunctionText, modules: tuple[str, ...]) -> None:
    """Read the texts of the functions that one uses, as far as they are defined by now.

    They are taken along at the first use, when their files may be other ones.
    """
    waiting: list[FunctionText] = [text]
    seen: list[Any] = [text.function]
    while waiting:
        user = waiting.pop()
        for name in user.outside:
            try:
                value = looked_up(user, name)
            except InputError:  # Python's own, or defined further below
                continue
            plain = _plain(value)
            try:
                if _imported(name, value, modules) or not isinstance(plain, FunctionType):
                    continue
                if plain not in seen:
                    seen.append(plain)
                    waiting.append(function_text(value))
            except InputError:  # the first use tells it, and needs no more texts
                return


def _take(
    text: FunctionText,
    modules: tuple[str, ...],
    found: Surroundings,
    objects: dict[str, Any],
) -> None:
    for name in text.outside:
        inner = text.function.__globals__.keys() | {*text.function.__code__.co_freevars}
        if name not in inner and hasattr(builtins, name):
            continue
        value = looked_up(text, name)
        if name in objects:
            if objects[name] is not value and objects[name] is not _plain(value):
                raise InputError(
                    f"{text.name} and what it calls mean different things by {name}: rename one"
                )
            continue
        objects[name] = _plain(value)
        statement = _imported(name, value, modules)
        if statement is not None:
            found.imports[name] = statement
        elif (constant := _constant(value)) is not None:
            found.constants[name] = constant
        elif isinstance(_plain(value), FunctionType):
            helper = function_text(value)
            if helper.name != name:
                raise InputError(
                    f"{text.name} calls {helper.name} by the name {name}: call it {helper.name}"
                )
            _take(helper, modules, found, objects)
            found.functions[name] = helper
        else:
            raise InputError(
                f"{text.name} uses {name}, a {type(value).__name__}, which cannot be taken along: "
                f"numbers, texts, tuples of them, functions and the modules {', '.join(modules)} "
                "can; pass anything else as a scalar or an operand"
            )


def _plain(value: Any) -> Any:
    """A function that Numba has decorated as it was before."""
    return getattr(value, "py_func", value)


def _imported(name: str, value: Any, modules: tuple[str, ...]) -> str | None:
    """The statement that binds a name to a module or to something in one."""
    if isinstance(value, ModuleType):
        path = value.__name__
        if path.partition(".")[0] not in modules:
            raise InputError(
                f"{name} is the module {path}, which cannot be taken along: import the function "
                f"itself (from {path} import ...), or use {', '.join(modules)}"
            )
        return f"import {path}" if path == name else f"import {path} as {name}"
    called = getattr(value, "__name__", None)
    if called is None or isinstance(value, _PLAIN):
        return None
    for path in modules:
        if getattr(sys.modules.get(path), called, None) is value:
            return f"from {path} import {called}" + ("" if called == name else f" as {name}")
    return None


def _constant(value: Any) -> str | None:
    """A value as Python; None where it is no plain one."""
    if type(value) is float and (value != value or abs(value) == float("inf")):
        return f'float("{value}")'
    if type(value) in _PLAIN:
        return repr(value)
    if type(value) is tuple:
        parts = [_constant(each) for each in value]
        texts = [part for part in parts if part is not None]
        if len(texts) == len(parts):
            return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"
    return None


def in_order(imports: Iterable[str]) -> list[str]:
    """Import statements as they stand in a module: whole modules first."""
    return sorted(set(imports), key=lambda text: (text.startswith("from"), text))


def functions_module(
    functions: Mapping[str, Callable[..., Any]],
) -> tuple[str, dict[str, str]]:
    """A module with functions of the user's and all that they use, and what they are called.

    Args:
        functions: by what they are for, which a lambda is called then.

    Raises:
        InputError: as `surroundings`.
    """
    texts = {key: function_text(function, key) for key, function in functions.items()}
    around = Surroundings()
    objects = {text.name: text.function for text in texts.values()}
    for text in texts.values():
        _take(text, REFERENCE_MODULES, around, objects)
    what = " and ".join(f"`{text.name}`" for text in texts.values())
    parts = [f'"""What tells whether the kernel is right: {what}, as written."""']
    if around.imports:
        parts.append("\n".join(in_order(around.imports.values())))
    if around.constants:
        parts.append("\n".join(f"{name} = {each}" for name, each in around.constants.items()))
    blocks = ["\n\n".join(parts)]
    own = [text for text in texts.values() if text.name not in around.functions]
    blocks += [each.text.rstrip() for each in (*around.functions.values(), *own)]
    return "\n\n\n".join(blocks) + "\n", {key: text.name for key, text in texts.items()}
