"""What a kernel of one's own computes and what of it is tuned, as two TOML files say it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from autotune.core.dtypes import DTYPES, USUAL_DTYPES, dtype_name
from autotune.core.errors import ExpressionError, InputError
from autotune.core.suggestions import must_be
from autotune.core.toml_table import NAME
from autotune.families.operation_file import OPERATION_FILE
from autotune.operations.formula import Formula
from autotune.operations.operation import Operation
from autotune.operations.parts import Operand, parsed
from autotune.operations.problem import OPERATIONS
from autotune.operations.python_reference import PythonReference
from autotune.own.function_text import function_text
from autotune.own.taking import reference_module
from autotune.own.toml_text import Entry, toml_lines, toml_table
from autotune.space import Expression

Shape: TypeAlias = "str | Sequence[str]"
"""Of an operand: ``"MxN"``, or its dimensions, ``("M", "N + 1")``."""

Values: TypeAlias = "Sequence[Any] | Mapping[str, Any]"
"""Of a parameter: a list, or a table with ``values`` and ``default``, ``summary``, ``runtime``."""

REFERENCE_FILE = "reference.py"

_BETWEEN = re.compile(r"\s+x\s+|(?<=[A-Z0-9)])x(?=[A-Z0-9(])")
_SMALL = re.compile(r"[a-z](x[a-z])*")
_PARAMETER_KEYS = ("values", "default", "summary", "runtime")
_ASKED = "as the kernel's restrictions ask"


@dataclass(frozen=True, slots=True)
class Grid:
    """How a GPU kernel is launched.

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
    def threads(self) -> bool:
        """Whether a parameter says how many threads of a processor work."""
        return "threads" in self.parameters and self.target == "cpu"

    def taking(self, arguments: Sequence[str]) -> Definition:
        """The same with kernels that take these arguments.

        Raises:
            InputError: they are not arguments of the operation's kernels.
        """
        with_arguments = replace(self.operation, takes=tuple(arguments), entry=())
        return replace(self, operation=with_arguments)

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


def define(
    name: str,
    target: str,
    *,
    operands: Mapping[str, Shape],
    out: Mapping[str, Shape],
    reference: str | Callable[..., Any],
    parameters: Mapping[str, Values],
    scalars: Mapping[str, float],
    restrictions: Sequence[str] | Mapping[str, str],
    derived: Mapping[str, str],
    flops: str | None,
    dtypes: Sequence[Any],
    cases: Sequence[Shape | Sequence[int]],
    summary: str,
    launch: tuple[Sequence[str], Sequence[str], str] | None,
) -> Definition:
    """A definition from what a user says of a kernel; arguments are those of `kernel`.

    Raises:
        InputError: something does not fit; the message begins with the kernel's name.
    """
    if name in OPERATIONS or not NAME.fullmatch(name):
        raise InputError(
            f"a kernel's name must be letters, digits and underscores, and none of "
            f"{', '.join(OPERATIONS)}, got {name!r}"
        )
    try:
        defined = _operation(
            name, operands, out, reference, scalars, flops, summary or f"{name}, of one's own"
        )
        if cases:
            texts = [each if isinstance(each, str) else "x".join(map(str, each)) for each in cases]
            defined = replace(defined, cases=tuple(map(defined.parse_shape, texts)))
        tuned = {each: dict(_parameter(each, values)) for each, values in parameters.items()}
        if not tuned:
            raise InputError("parameters must name at least one parameter to tune")
        asked = dict(_restrictions(restrictions))
        if target == "cpu" and "threads" in tuned:
            asked.setdefault("threads <= max_threads", "the process may use no more threads")
        names = dict(derived)
        grid = None
        if launch is not None:
            grid = _grid(*launch)
            names |= _needs(grid, tuned, names)
        return Definition(
            operation=defined,
            target=target,
            parameters=tuned,
            restrictions=asked,
            derived=names,
            dtypes=tuple(_dtypes(dtypes)) or USUAL_DTYPES,
            launch=grid,
            reference=reference if callable(reference) else None,
        )
    except InputError as error:
        raise InputError(f"kernel {name}: {error}") from error


def _operation(
    name: str,
    operands: Mapping[str, Shape],
    out: Mapping[str, Shape],
    reference: str | Callable[..., Any],
    scalars: Mapping[str, float],
    flops: str | None,
    summary: str,
) -> Operation:
    if len(out) != 1:
        raise InputError(f"out must name one operand, with its shape, got {len(out)}")
    inputs = [Operand(each, _shape(each, shape)) for each, shape in operands.items()]
    written = [Operand(each, _shape(each, shape), written=True) for each, shape in out.items()]
    parts = (*inputs, *written)
    sizes = dict.fromkeys(
        size for each in parts for text in each.shape for size in parsed(text).ordered_names
    )
    result: Formula | PythonReference
    if callable(reference):
        text = function_text(reference)
        result = PythonReference(text.name, text.text)
    elif isinstance(reference, str):
        result = Formula(reference)
    else:
        raise InputError(
            f"reference must be a formula like 'A @ x' or a function, got {reference!r:.40}"
        )
    elements = " * ".join(f"({each})" if " " in each else each for each in parts[-1].shape)
    return Operation(
        name=name,
        sizes=tuple(sizes),
        operands=parts,
        result=result,
        flops=flops or elements,
        scalars=tuple((each, float(value)) for each, value in scalars.items()),
        summary=summary,
    )


def _shape(name: str, shape: Shape) -> tuple[str, ...]:
    """The dimensions of an operand."""
    if isinstance(shape, str):
        text = shape.strip()
        found = tuple(text.split("x") if _SMALL.fullmatch(text) else _BETWEEN.split(text))
    else:
        found = tuple(map(str, shape))
    for text in found:
        try:
            parsed(text)
        except ExpressionError as error:
            raise InputError(
                f'{name} must have a shape like "MxN" or ("M", "N + 1"), got {shape!r}: {error}'
            ) from error
    return found


def _parameter(name: str, values: Values) -> Iterator[tuple[str, Entry]]:
    """The table of a parameter."""
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise InputError(f"parameters.{name} must be a list of values, got {values!r:.40}")
    table = values if isinstance(values, Mapping) else {"values": values}
    for key in table:
        if key not in _PARAMETER_KEYS:
            raise InputError(must_be(f"a key of parameters.{name}", str(key), _PARAMETER_KEYS))
    listed = [_plain(each) for each in table.get("values", ())]
    if not listed:
        raise InputError(f"parameters.{name} must have at least one value")
    yield "values", listed
    for key in _PARAMETER_KEYS[1:]:
        if key in table:
            yield key, _plain(table[key])


def _plain(value: Any) -> bool | int | float | str:
    """A number of Python for one of NumPy."""
    item = getattr(value, "item", None)
    plain = item() if callable(item) else value
    if not isinstance(plain, (bool, int, float, str)):
        raise InputError(f"values must be integers, floats, booleans or words, got {value!r:.40}")
    return plain


def _restrictions(given: Sequence[str] | Mapping[str, str]) -> Iterator[tuple[str, str]]:
    pairs: Sequence[tuple[Any, str]] = (
        list(given.items()) if isinstance(given, Mapping) else [(each, _ASKED) for each in given]
    )
    if isinstance(given, str):
        raise InputError(f"restrictions must be a list of expressions, got {given!r}")
    for text, reason in pairs:
        if not isinstance(text, str):
            raise InputError(
                f'restrictions must be expressions like "rows <= M", got {text!r:.60}'
            )
        try:
            Expression.parse(text)
        except ExpressionError as error:
            raise InputError(f"restriction {text!r}: {error}") from error
        yield text, reason


def _dtypes(given: Sequence[Any]) -> Iterator[str]:
    for each in (given,) if isinstance(given, str) else given:
        name = dtype_name(str(each if isinstance(each, str) else getattr(each, "__name__", each)))
        if name not in DTYPES:
            raise InputError(must_be("dtypes", str(each), DTYPES))
        yield name


def _grid(grid: Sequence[str], block: Sequence[str], shared_bytes: str) -> Grid:
    return Grid(_extents("grid", grid), _extents("block", block), str(shared_bytes))


def _extents(key: str, given: Sequence[str]) -> tuple[str, str, str]:
    """Three expressions, of which the last may be left out."""
    texts = [given] if isinstance(given, (str, int)) else list(given)
    if not 1 <= len(texts) <= 3:
        raise InputError(
            f'{key} must be one to three expressions, like ["ceildiv(M, ROWS)"], got {texts}'
        )
    for text in texts:
        try:
            Expression.parse(str(text), exact_division=True)
        except ExpressionError as error:
            raise InputError(f"{key}: {error}") from error
    x, y, z = (*map(str, texts), "1", "1")[:3]
    return x, y, z


def _needs(
    grid: Grid, parameters: Mapping[str, object], derived: Mapping[str, str]
) -> dict[str, str]:
    """What a block needs, against which limits of the device are checked.

    Registers are known once a kernel is compiled, and are checked then: a warp has 8 of each
    thread at least.
    """
    sides = [text for text in grid.block if text != "1"] or ["1"]
    needed = {
        "threads": sides[0] if len(sides) == 1 else " * ".join(f"({each})" for each in sides),
        "registers": "8",
        "shared_bytes": grid.shared_bytes,
    }
    for name, text in needed.items():
        if name in parameters and text != name:
            raise InputError(
                f"parameters must not be called {name}, which is what a block needs ({text}): "
                f"call it {name.upper()}"
            )
    known = {*parameters, *derived}
    return {name: text for name, text in needed.items() if name not in known}
