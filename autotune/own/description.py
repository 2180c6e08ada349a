"""The description of a kernel of one's own, checked and made a definition."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from autotune.core import arguments
from autotune.core.arguments import is_number, is_whole, mapping, must
from autotune.core.dtypes import DTYPES, USUAL_DTYPES, dtype_name
from autotune.core.errors import ExpressionError, InputError
from autotune.core.printable import shown
from autotune.core.suggestions import must_be
from autotune.core.toml_table import NAME
from autotune.operations.formula import Formula
from autotune.operations.operation import Operation
from autotune.operations.parts import Operand, parsed
from autotune.operations.problem import OPERATIONS
from autotune.operations.python_reference import PythonReference
from autotune.own.definition import Definition, Entry, Grid
from autotune.own.function_text import function_text
from autotune.own.taking import REFERENCE_MODULES, read_now
from autotune.space import Expression
from autotune.targets.registry import LANGUAGES

Shape: TypeAlias = "str | Sequence[str]"
"""Of an operand: ``"MxN"``, or its dimensions, ``("M", "N + 1")``."""

Values: TypeAlias = "Sequence[Any] | Mapping[str, Any]"
"""Of a parameter: a list, or a table with ``values`` and ``default``, ``summary``, ``runtime``."""

_BETWEEN = re.compile(r"\s+x\s+|(?<=[A-Z0-9)])x(?=[A-Z0-9(])")
_SMALL = re.compile(r"[a-z](x[a-z])*")
_PARAMETER_KEYS = ("values", "default", "summary", "runtime")
_ASKED = "as the kernel's restrictions ask"


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The arguments of `autotune.kernel`, whatever the source; see there."""

    operands: Mapping[str, Shape]
    out: Mapping[str, Shape]
    reference: str | Callable[..., Any]
    parameters: Mapping[str, Values]
    scalars: Mapping[str, float]
    restrictions: Sequence[str] | Mapping[str, str]
    derived: Mapping[str, str]
    grid: Sequence[str] | None
    block: Sequence[str] | None
    shared_bytes: str
    name: str | None
    target: str | None
    dtypes: Sequence[Any]
    flops: str | None
    cases: Sequence[Shape | Sequence[int]]
    finite: bool
    summary: str

    def define(
        self, name: str, target: str, what: str, *, dtypes: Sequence[str] = (), summary: str = ""
    ) -> Definition:
        """The definition of a kernel.

        Args:
            name: what it is called.
            target: where it runs.
            what: what kind of source it has, for messages.
            dtypes: element types that its source leaves open, where none were named.
            summary: what its source says of it, where nothing else was.

        Raises:
            InputError: something does not fit; the message begins with the kernel's name.
        """
        if not isinstance(name, str) or name in OPERATIONS or not NAME.fullmatch(name):
            raise InputError(
                f"a kernel's name must be letters, digits and underscores, and none of "
                f"{', '.join(OPERATIONS)}, got {shown(name)}"
            )
        try:
            if self.target not in (None, target):
                raise InputError(f"target must be {target} for {what}, got {shown(self.target)}")
            self._check(target)
            definition = self._defined(name, target, dtypes, summary)
            definition.check(self.derived)
            return definition
        except InputError as error:
            raise InputError(f"kernel {name}: {error}") from error

    def _check(self, target: str) -> None:
        """Refuse what is of another type than it must be."""
        for key, shapes in (("operands", self.operands), ("out", self.out)):
            mapping(key, shapes, '{"A": "MxN"}')
        mapping("parameters", self.parameters, '{"rows": [1, 2, 4]}')
        for name, scalar in mapping("scalars", self.scalars, '{"alpha": 1.0}').items():
            must(f"scalars.{name}", "a number", scalar, is_number(scalar))
        for name, expression in mapping("derived", self.derived, '{"area": "M * N"}').items():
            arguments.text(f"derived.{name}", expression)
        if self.flops is not None:
            arguments.text("flops", self.flops)
        must("summary", "one line of text", self.summary, isinstance(self.summary, str))
        must("finite", "True or False", self.finite, isinstance(self.finite, bool))
        for key in ("cases", "dtypes"):
            given = getattr(self, key)
            several = isinstance(given, Iterable) and not isinstance(given, bytes)
            must(key, "a list", given, several)
        if not LANGUAGES[target].launched and (self.grid, self.block, self.shared_bytes) != (
            None,
            None,
            "0",
        ):
            raise InputError(
                f"grid, block and shared_bytes must be left out on {target}: kernels of a GPU are "
                "launched so"
            )

    def _defined(self, name: str, target: str, dtypes: Sequence[str], summary: str) -> Definition:
        defined = self._operation(name, summary)
        tuned = {each: dict(_parameter(each, values)) for each, values in self.parameters.items()}
        if not tuned:
            raise InputError("parameters must name at least one parameter to tune")
        asked = dict(_restrictions(self.restrictions))
        language = LANGUAGES[target]
        if language.threaded and "threads" in tuned:
            asked.setdefault("threads <= max_threads", "the process may use no more threads")
        names = dict(self.derived)
        launch = None
        if language.launched:
            launch = _grid(self.grid, self.block, self.shared_bytes)
            names |= _needs(launch, tuned, names)
        return Definition(
            operation=defined,
            target=target,
            parameters=tuned,
            restrictions=asked,
            derived=names,
            dtypes=tuple(_dtypes(self.dtypes or dtypes, target)) or USUAL_DTYPES,
            launch=launch,
            reference=self.reference if callable(self.reference) else None,
        )

    def _operation(self, name: str, summary: str) -> Operation:
        if len(self.out) != 1:
            raise InputError(f"out must name one operand, with its shape, got {len(self.out)}")
        parts = tuple(
            Operand(each, _shape(each, shape), written)
            for given, written in ((self.operands, False), (self.out, True))
            for each, shape in given.items()
        )
        sizes = dict.fromkeys(
            size for each in parts for text in each.shape for size in parsed(text).ordered_names
        )
        result = _result(self.reference)
        what = result.text if isinstance(result, Formula) else result.head
        elements = " * ".join(f"({each})" if " " in each else each for each in parts[-1].shape)
        defined = Operation(
            name=name,
            sizes=tuple(sizes),
            operands=parts,
            result=result,
            flops=self.flops or elements,
            scalars=tuple((each, float(value)) for each, value in self.scalars.items()),
            summary=self.summary or summary or f"{parts[-1].name} = {what}",
            finite=self.finite,
        )
        if defined.reads_output({}):
            raise InputError(
                f"the reference reads {defined.output.name} unless a scalar is zero, and kernels "
                "are timed with the scalars' defaults, one call after the other: give the scalar "
                "that multiplies it the default 0, or make what is read an operand of its own"
            )
        if not self.cases:
            return defined
        texts = [
            "x".join(_parts("a case", each, '"8x8" or (8, 8)')) for each in _listed(self.cases)
        ]
        return replace(defined, cases=tuple(map(defined.parse_shape, texts)))


def _result(reference: str | Callable[..., Any]) -> Formula | PythonReference:
    """The formula of the output; of a function without what it uses."""
    if callable(reference):
        text = function_text(reference)
        read_now(text, REFERENCE_MODULES)
        return PythonReference(text.name, text.text)
    if isinstance(reference, str):
        return Formula(reference)
    raise InputError(
        f"reference must be a formula like 'A @ x' or a function, got {reference!r:.40}"
    )


def _shape(name: str, shape: Shape) -> tuple[str, ...]:
    """The dimensions of an operand."""
    example = '"MxN" or ("M", "N + 1")'
    found = _parts(f"the shape of {name}", shape, example)
    if isinstance(shape, str):
        line = shape.strip()
        found = tuple(line.split("x") if _SMALL.fullmatch(line) else _BETWEEN.split(line))
    if not any(each.strip() for each in found):
        raise InputError(
            f'{name} must have 1 to 3 dimensions, got {shown(shape)}: one number is ("1",)'
        )
    for each in found:
        try:
            parsed(each)
        except ExpressionError as error:
            raise InputError(
                f"{name} must have a shape like {example}, got {shown(shape)}: {error}"
            ) from error
    return found


def _parts(name: str, given: Any, example: str) -> tuple[str, ...]:
    """Texts and whole numbers as texts; one alone is taken as a list of one."""
    parts = (given,) if isinstance(given, str) or is_whole(given) else given
    listed = isinstance(parts, Iterable) and not isinstance(parts, (bytes, Mapping))
    must(name, f"like {example}", given, listed)
    found = tuple(parts)
    for each in found:
        known = isinstance(each, str) or is_whole(each)
        must(name, f"like {example}", given, known)
    return tuple(map(str, found))


def _listed(given: Any) -> Iterable[Any]:
    """Several things, or a text alone as the only one."""
    return (given,) if isinstance(given, str) else given


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
    listed = isinstance(given, Iterable) and not isinstance(given, (str, bytes))
    must("restrictions", "a list of expressions", given, listed)
    pairs: Sequence[tuple[Any, Any]] = (
        list(given.items()) if isinstance(given, Mapping) else [(each, _ASKED) for each in given]
    )
    for asked, reason in pairs:
        known = isinstance(asked, str)
        must("restrictions", 'expressions like "rows <= M"', asked, known)
        try:
            Expression.parse(asked)
        except ExpressionError as error:
            raise InputError(f"restriction {shown(asked)}: {error}") from error
        yield asked, arguments.text(f"the reason of restriction {shown(asked)}", reason)


def element_types(target: str) -> tuple[str, ...]:
    """Types that elements may have: Numba has none of 16 bits for processors."""
    return tuple(DTYPES) if LANGUAGES[target].launched else USUAL_DTYPES


def _dtypes(given: Sequence[Any], target: str) -> Iterator[str]:
    for each in _listed(given):
        name = dtype_name(str(each if isinstance(each, str) else getattr(each, "__name__", each)))
        if name not in element_types(target):
            raise InputError(must_be(f"dtypes on {target}", str(each), element_types(target)))
        yield name


def _grid(grid: Sequence[str] | None, block: Sequence[str] | None, shared_bytes: str) -> Grid:
    if grid is None or block is None:
        raise InputError(
            'grid and block must say how it is launched, like grid=["ceildiv(M, ROWS)"], '
            'block=["THREADS"]'
        )
    shared = _parts("shared_bytes", shared_bytes, '"4 * THREADS"')
    if len(shared) != 1:
        raise InputError(f"shared_bytes must be one expression, got {shown(shared_bytes)}")
    return Grid(_extents("grid", grid), _extents("block", block), shared[0])


def _extents(key: str, given: Sequence[str]) -> tuple[str, str, str]:
    """Three expressions, of which the last may be left out."""
    example = '["ceildiv(M, ROWS)"]'
    parts = _parts(key, given, example)
    if not 1 <= len(parts) <= 3:
        raise InputError(
            f"{key} must be one to three expressions, like {example}, got {shown(given)}"
        )
    for each in parts:
        try:
            Expression.parse(each, exact_division=True)
        except ExpressionError as error:
            raise InputError(f"{key}: {error}") from error
    x, y, z = (*parts, "1", "1")[:3]
    return x, y, z


def _needs(
    grid: Grid, parameters: Mapping[str, object], derived: Mapping[str, str]
) -> dict[str, str]:
    """The needs of a block, which the device's limits are checked for.

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
