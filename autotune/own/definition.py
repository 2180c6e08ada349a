"""The definition of a kernel of one's own, as two TOML files say it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.core.errors import InputError
from autotune.core.toml_table import Table
from autotune.families.operation_file import OPERATION_FILE
from autotune.families.reading import read_tuned
from autotune.operations.operation import Operation
from autotune.operations.python_reference import PythonReference
from autotune.own.taking import reference_module
from autotune.own.toml_text import Entry, toml_lines, toml_table
from autotune.targets.registry import LANGUAGES

REFERENCE_FILE = "reference.py"


@dataclass(frozen=True, slots=True)
class Grid:
    """The launch of a GPU kernel.

    Attributes:
        grid: thread blocks along x, y and z, expressions.
        block: threads of a block along x, y and z.
        shared_bytes: dynamic shared memory of a block.
    """

    grid: tuple[str, str, str]
    block: tuple[str, str, str]
    shared_bytes: str


@dataclass(frozen=True, slots=True)
class Definition:
    """A kernel of one's own, but for its source.

    Attributes:
        operation: what it computes; a reference in Python is there without what it uses.
        target: where it runs.
        parameters: what is tuned: of every name the table of a family file.
        restrictions: what must hold, each with its reason.
        derived: names for expressions.
        dtypes: element types that it is for.
        launch: of a GPU kernel.
        reference: the function that is the reference, where it is one.
    """

    operation: Operation
    target: str
    parameters: Mapping[str, Mapping[str, Entry]]
    restrictions: Mapping[str, str]
    derived: Mapping[str, str]
    dtypes: tuple[str, ...]
    launch: Grid | None
    reference: Callable[..., Any] | None

    @property
    def name(self) -> str:
        """Of the operation, of its family, and of the entry of its kernels."""
        return self.operation.name

    @property
    def compiled(self) -> tuple[str, ...]:
        """Parameters that are compiled in."""
        return tuple(name for name, entry in self.parameters.items() if not entry.get("runtime"))

    @property
    def becomes(self) -> str:
        """The formula of the output, in one line."""
        result = self.operation.result
        what = result.head if isinstance(result, PythonReference) else result.text
        return f"{self.operation.output.name} = {what}"

    @property
    def threads(self) -> bool:
        """True if a parameter says how many threads of a processor work."""
        return "threads" in self.parameters and self.target == "cpu"

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

    def files(self, template: str, suffix: str) -> dict[str, str]:
        """The files of the family, by name.

        Args:
            template: the text of its template.
            suffix: of the template's name.

        Raises:
            InputError: the reference uses what cannot be taken along.
        """
        name = f"{self.name}{suffix}"
        files = {f"{self.name}.toml": self._family(name), name: template}
        said = {"result": self.operation.result.text}
        if self.reference is not None:
            files[REFERENCE_FILE], text = reference_module(self.reference)
            said = {"reference": f"{REFERENCE_FILE}:{text.name}"}
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
        operands: dict[str, Entry] = {
            each.name: {"shape": each.shape, **({"role": "out"} if each.written else {})}
            for each in defined.operands
        }
        lines = [*toml_lines(top), *toml_table("operands", operands)]
        return "\n".join([*lines, *toml_table("scalars", dict(defined.scalars))]) + "\n"

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
            launch = {
                "grid": self.launch.grid,
                "block": self.launch.block,
                "shared_bytes": self.launch.shared_bytes,
            }
            lines += toml_table("launch", launch)
        return "\n".join(lines) + "\n"
