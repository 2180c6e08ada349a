"""The definition of a kernel of one's own: its TOML files, its template, and their folder.

The folder is that of an ordinary family, written once and never changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from autotune.core.errors import CacheError, InputError
from autotune.core.paths import NO_SPACE, CacheLocations, check_trusted, no_space, private_folder
from autotune.core.toml_table import Table
from autotune.families.operation_file import OPERATION_FILE
from autotune.families.reading import read_tuned
from autotune.operations.operation import Operation
from autotune.operations.parts import Operand
from autotune.operations.python_reference import PythonReference
from autotune.own.taking import functions_module
from autotune.own.words import Words, word_of
from autotune.targets.registry import LANGUAGES

Plain: TypeAlias = "bool | int | float | str"
Entry: TypeAlias = "Plain | Sequence[Entry] | Mapping[str, Entry]"

_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def toml_value(value: Entry) -> str:
    """A value on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return f'"{"".join(map(_escaped, value))}"'
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(name)} = {toml_value(each)}" for name, each in value.items())
        return f"{{ {inner} }}"
    return f"[{', '.join(map(toml_value, value))}]"


def toml_lines(entries: Mapping[str, Entry]) -> list[str]:
    """A line for each key of a table."""
    return [f"{_key(name)} = {toml_value(value)}" for name, value in entries.items()]


def toml_table(name: str, entries: Mapping[str, Entry]) -> list[str]:
    """A table below a line with its name; nothing where it is empty."""
    return ["", f"[{name}]", *toml_lines(entries)] if entries else []


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else toml_value(name)


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    number = ord(character)
    return f"\\u{number:04x}" if number < 32 or number == 127 else character


_MARKS = ("{{", "{%", "{#")
_ENDS_RAW = re.compile(r"\{%[-+]?\s*endraw")


def raw(text: str) -> list[str]:
    """Lines of a template that come out as the text.

    Raises:
        InputError: it holds the one tag that ends such text.
    """
    if _ENDS_RAW.search(text):
        raise InputError("a kernel's source must not hold Jinja's tag endraw: write it otherwise")
    if not any(mark in text for mark in _MARKS):
        return [text.rstrip("\n")]
    return ["{% raw %}" + text.rstrip("\n"), "{% endraw %}"]


_DIGITS = 16


def write_folder(name: str, files: Mapping[str, str], cache: str | Path | None) -> Path:
    """The folder with these files, below the cache: ``own/<name>-<digest>``.

    It appears at once and whole, whichever of several processes makes it.

    Args:
        name: the kernel's.
        files: texts by file name.
        cache: the user's cache; None takes the default place.

    Raises:
        CacheError: it cannot be written, others may write it, or it is not as it was written.
    """
    content = {each: text.encode() for each, text in files.items()}
    digest = hashlib.sha256()
    for each in sorted(content):
        digest.update(f"{each}\0{len(content[each])}\0".encode() + content[each])
    root = CacheLocations.at(cache).root / "own"
    folder = root / f"{name}-{digest.hexdigest()[:_DIGITS]}"
    if not folder.is_dir():
        _write(private_folder(root), folder, content)
    _check(folder, content)
    with contextlib.suppress(OSError):  # others may only read it
        os.utime(folder)  # of several with one name, commands take the one used last
    return folder


def _write(root: Path, folder: Path, content: Mapping[str, bytes]) -> None:
    try:
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=root))
        try:
            for each, body in content.items():
                (made / each).write_bytes(body)
            try:
                made.rename(folder)
            except OSError:
                if not folder.is_dir():  # another process was not faster
                    raise
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except OSError as error:
        reason = no_space(folder) if error.errno in NO_SPACE else f"{error.strerror or error}"
        raise CacheError(f"cannot write the kernel's folder {folder}: {reason}") from error


def _check(folder: Path, content: Mapping[str, bytes]) -> None:
    """Programs are made of what is in there: it must be what was written."""
    remedy = f"remove {folder}, and it is written anew"
    try:
        check_trusted(folder)
        found = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    except OSError as error:
        raise CacheError(f"{folder} cannot be read ({error.strerror}): {remedy}") from error
    for name in sorted({*found, *content}):
        if found.get(name) != content.get(name):
            raise CacheError(f"{name} in {folder} was changed after it was written: {remedy}")


REFERENCE_FILE = "reference.py"

FUNCTIONS = ("reference", "inputs", "accept")
"""Parts that may be functions of the user's, in that file."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The launch of a GPU kernel.

    Attributes:
        grid: thread blocks along x, y and z, expressions.
        block: threads of a block along x, y and z.
        shared_bytes: dynamic shared memory of a block.
        more: further entries of the table, as `autotune.families.parts.Launch` has them.
    """

    grid: tuple[str, str, str]
    block: tuple[str, str, str]
    shared_bytes: str
    more: Mapping[str, Entry]

    @property
    def cluster(self) -> tuple[str, ...]:
        """Thread blocks of a cluster along x, y and z."""
        sides: Any = self.more.get("cluster", ("1", "1", "1"))
        return tuple(sides)

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels that run before and after the main one."""
        listed: Any = (*self.more.get("before", ()), *self.more.get("after", ()))  # type: ignore[misc]
        return tuple(each["kernel"] for each in listed)


@dataclass(frozen=True, slots=True)
class Definition:
    """A kernel of one's own, but for its source; its target's language says what that may have.

    Attributes:
        operation: what it computes; a reference in Python is there without what it uses.
        target: where it runs.
        parameters: what is tuned: of every name the table of a family file.
        restrictions: what must hold, each with its reason.
        derived: names for expressions.
        dtypes: element types that it is for.
        launch: of a GPU kernel.
        functions: those of the user's that there are, by `FUNCTIONS`.
        words: values by word, of parameters that have words for them.
    """

    operation: Operation
    target: str
    parameters: Mapping[str, Mapping[str, Entry]]
    restrictions: Mapping[str, str]
    derived: Mapping[str, str]
    dtypes: tuple[str, ...]
    launch: Grid | None
    functions: Mapping[str, Callable[..., Any]]
    words: Words

    @property
    def name(self) -> str:
        """Of the operation, of its family, and of the entry of its kernels."""
        return self.operation.name

    @property
    def compiled(self) -> tuple[str, ...]:
        """Parameters that are compiled in."""
        return tuple(name for name, entry in self.parameters.items() if not entry.get("runtime"))

    @property
    def values(self) -> dict[str, list[Any]]:
        """The values of every parameter that is compiled in, as the user gave them."""
        listed: Any = {name: self.parameters[name]["values"] for name in self.compiled}
        return {name: [*self.words.get(name, {}).values()] or [*listed[name]] for name in listed}

    def spelled(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Values of parameters as its files have them."""
        words = self.words
        return {name: word_of(name, v) if name in words else v for name, v in values.items()}

    @property
    def becomes(self) -> str:
        """The formula of the outputs, in one line."""
        result = self.operation.result
        what = result.head if isinstance(result, PythonReference) else result.text
        return f"{', '.join(each.name for each in self.operation.outputs)} = {what}"

    @property
    def threads(self) -> bool:
        """True if a parameter says how many threads of a processor work."""
        return "threads" in self.parameters and LANGUAGES[self.target].threaded

    def taking(self, arguments: Sequence[str]) -> Definition:
        """The same with kernels that take these arguments.

        Raises:
            InputError: they are not arguments of the operation's kernels.
        """
        with_arguments = replace(self.operation, takes=tuple(arguments), entry=())
        return replace(self, operation=with_arguments)

    def check(self, derived: Mapping[str, str]) -> None:
        """Refuse parameters, restrictions and expressions that its family file could not have.

        Args:
            derived: what of its derived names the user gave; the others are of the launch.

        Raises:
            InputError: one does not fit; the message begins with its key.
        """
        text = self._family("template")
        told = Table(Path(), text, "", tomllib.loads(text), InputError)
        try:
            read_tuned((told,), self.operation, self.target, LANGUAGES[self.target])
        except InputError as error:
            message = str(error).removeprefix(f"{Path()}: ").removeprefix("launch.")
            for key, given in (("threads", "block"), ("shared_bytes", "shared_bytes")):
                if key not in derived:
                    message = message.replace(f"derived.{key} ", f"{given} ")
            raise InputError(message) from error

    def files(self, template: str) -> dict[str, str]:
        """The files of the family, by name.

        Args:
            template: the text of its template.

        Raises:
            InputError: the reference uses what cannot be taken along.
        """
        name = f"{self.name}{LANGUAGES[self.target].suffix}.j2"
        files = {f"{self.name}.toml": self._family(name), name: template}
        said = {"result": self.operation.result.text}
        if self.functions:
            files[REFERENCE_FILE], names = functions_module(self.functions)
            functions = {key: f"{REFERENCE_FILE}:{name}" for key, name in names.items()}
            said = functions if "reference" in functions else said | functions
        return {OPERATION_FILE: self._operation(said), **files}

    def _operation(self, said: Mapping[str, Entry]) -> str:
        defined = self.operation
        top: dict[str, Entry] = {
            "operation": defined.name,
            "summary": defined.summary,
            "sizes": defined.sizes,
            **said,
            "flops": defined.flops,
        }
        if defined.cases:
            top["cases"] = ["x".join(map(str, shape)) for shape in defined.cases]
        if defined.finite:
            top["finite"] = True
        if defined.takes:
            top["arguments"] = defined.takes
        lines = [
            *toml_lines(top),
            *toml_table("operands", {each.name: _operand(each) for each in defined.operands}),
        ]
        whole = dict(defined.integers)
        scalars: dict[str, Entry] = {
            name: {"default": default, "dtype": whole[name]} if name in whole else default
            for name, default in defined.scalars
        }
        lines += [*toml_table("scalars", scalars)]
        lines += toml_table("tolerance", dict(defined.tolerances))
        return "\n".join(lines) + "\n"

    def _family(self, template: str) -> str:
        lines = toml_lines(
            {
                "family": self.name,
                "operation": self.name,
                "target": self.target,
                "template": template,
                "accuracy": "ieee",
                "summary": self.operation.summary,
                "dtypes": self.dtypes,
            }
        )
        lines += toml_table("parameters", self.parameters)
        lines += toml_table("derived", self.derived)
        for text, reason in self.restrictions.items():
            lines += ["", "[[restrictions]]", *toml_lines({"expr": text, "reason": reason})]
        if self.launch is not None:
            launch: dict[str, Entry] = {
                "grid": self.launch.grid,
                "block": self.launch.block,
                "shared_bytes": self.launch.shared_bytes,
                **self.launch.more,
            }
            lines += toml_table("launch", launch)
        return "\n".join(lines) + "\n"


def _operand(operand: Operand) -> dict[str, Entry]:
    """The table of an operand: what is not the usual."""
    table: dict[str, Entry] = {"shape": operand.shape} if operand.shape else {}
    if operand.written:
        table["role"] = "inout" if operand.read else "out"
    for key in ("dtype", "most", "ascending"):
        if value := getattr(operand, key):
            table[key] = value
    return table
