"""The description of a kernel of one's own, checked and made a definition."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeAlias

from autotune.core import arguments
from autotune.core.arguments import is_number, mapping, must
from autotune.core.dtypes import DEFAULT_DTYPE, DTYPES, ELEMENTS, USUAL_DTYPES, dtype_name
from autotune.core.errors import ExpressionError, InputError
from autotune.core.printable import shown
from autotune.core.suggestions import must_be
from autotune.core.toml_table import NAME
from autotune.operations.fields import element_sizes
from autotune.operations.formula import Formula
from autotune.operations.operation import Operation
from autotune.operations.parts import Operand, parsed
from autotune.operations.problem import OPERATIONS
from autotune.operations.python_reference import PythonFunction, PythonReference
from autotune.own.definition import FUNCTIONS, Definition, Entry
from autotune.own.function_text import function_text
from autotune.own.launching import grid_of, needs, parts
from autotune.own.taking import REFERENCE_MODULES, read_now
from autotune.own.tracing import expressions, restriction_text
from autotune.own.words import Words, in_words, word_of, words_of
from autotune.space import Expression
from autotune.targets.registry import LANGUAGES

Shape: TypeAlias = "str | Sequence[str] | Mapping[str, Any]"
"""Of an operand: ``"MxN"``, its dimensions, ``("M", "N + 1")``, with a type of its own
``"int32[MxN]"``, or a table with `shape`, `dtype`, `most` and `ascending`, as in `Operand`."""

Values: TypeAlias = "Sequence[Any] | Mapping[str, Any]"
"""Of a parameter: a list, or a table with ``values`` and ``default``, ``summary``, ``runtime``."""

Launched: TypeAlias = "str | Sequence[Any] | Callable[..., Any]"
"""Numbers of a launch: expressions, or functions of parameters and sizes."""

_BETWEEN = re.compile(r"\s+x\s+|(?<=[A-Z0-9)])x(?=[A-Z0-9(])")
_TYPED = re.compile(r"\s*((?:[a-z]+\d*)?)\s*\[(.*)\]\s*")
_SMALL = re.compile(r"[a-z](x[a-z])*")
_OPERAND_KEYS = ("shape", "dtype", "most", "ascending")
MOST_VALUES = 10_000
"""Of a parameter: they stand in the family's file, which is read often."""

_PARAMETER_KEYS = ("values", "default", "summary", "runtime")
_ASKED = "as the kernel's restrictions ask"


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The arguments of `autotune.kernel`, whatever the source; see there."""

    operands: Mapping[str, Shape]
    out: Mapping[str, Shape]
    reference: Any
    parameters: Mapping[str, Values]
    scalars: Mapping[str, float]
    inputs: Any
    tolerance: float | Mapping[str, float]
    accept: Callable[..., Any] | None
    restrictions: Any
    derived: Mapping[str, str]
    grid: Launched | None
    block: Launched | None
    shared_bytes: Launched
    launch: Mapping[str, Any]
    name: str | None
    target: str | None
    dtypes: Sequence[Any]
    flops: str | None
    cases: Sequence[Shape | Sequence[int] | Mapping[str, int]]
    finite: bool
    summary: str

    def define(
        self,
        name: str,
        target: str,
        what: str,
        *,
        dtypes: Sequence[str] = (),
        types: Mapping[str, str] = MappingProxyType({}),
        summary: str = "",
    ) -> Definition:
        """The definition of a kernel.

        Args:
            name: what it is called.
            target: where it runs.
            what: what kind of source it has, for messages.
            dtypes: element types that its source leaves open, where none were named.
            types: of operands that its source declares to have one of their own, and of scalars
                that are integers there, by name in small letters.
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
            defined = self.operation(name, summary, types)
            definition = self._defined(defined, target, dtypes)
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
        mapping("launch", self.launch, '{"workspace_bytes": "4 * M"}')
        launched = (self.grid, self.block, self.shared_bytes, dict(self.launch))
        if not LANGUAGES[target].launched and launched != (None, None, "0", {}):
            raise InputError(
                f"grid, block, shared_bytes and launch must be left out on {target}: kernels of "
                "a GPU are launched so"
            )

    def _defined(self, defined: Operation, target: str, dtypes: Sequence[str]) -> Definition:
        tuned = {each: dict(_parameter(each, values)) for each, values in self.parameters.items()}
        if not tuned:
            raise InputError("parameters must name at least one parameter to tune")
        values: dict[str, Any] = {each: table["values"] for each, table in tuned.items()}
        words = {each: found for each in tuned if (found := words_of(each, values[each]))}
        spelled = {each: [*found] for each, found in words.items()}
        for each, listed in spelled.items():
            tuned[each]["values"] = listed
            if "default" in tuned[each]:
                tuned[each]["default"] = word_of(each, tuned[each]["default"])
        asked = dict(_restrictions(self.restrictions, values, defined.sizes, words))
        language = LANGUAGES[target]
        if language.threaded and "threads" in tuned:
            asked.setdefault("threads <= max_threads", "the process may use no more threads")
        names: dict[str, str] = in_words(self.derived, words)
        launch = None
        if language.launched:
            known = [*values, *defined.sizes, *element_sizes(DEFAULT_DTYPE)]
            given = (self.grid, self.block, self.shared_bytes, *self.launch.values())
            grid, block, shared, *more = (
                in_words(expressions(each, known, values, spelled), words) for each in given
            )
            launch = grid_of(grid, block, shared, dict(zip(self.launch, more, strict=True)))
            names |= needs(launch, tuned, names)
        return Definition(
            operation=defined,
            target=target,
            parameters=tuned,
            restrictions=asked,
            derived=names,
            dtypes=tuple(_dtypes(self.dtypes or dtypes or _only(defined), target)),
            launch=launch,
            words=words,
            functions={
                key: function for key in FUNCTIONS if callable(function := getattr(self, key))
            },
        )

    def operation(
        self, name: str, summary: str = "", types: Mapping[str, str] = MappingProxyType({})
    ) -> Operation:
        """The operation that it describes.

        Raises:
            InputError: its parts do not fit.
        """
        operands = tuple(self._operands(types))
        outputs = [each for each in operands if each.written]
        if not outputs:
            raise InputError('out must name what is written, with its shape, like {"y": "M"}')
        sizes = dict.fromkeys(
            size for each in operands for text in each.shape for size in parsed(text).ordered_names
        )
        result = _result(self.reference)
        what = result.text if isinstance(result, Formula) else result.head
        last = outputs[0].shape or ("1",)
        elements = " * ".join(f"({each})" if " " in each else each for each in last)
        whole = {
            each: types.get(each.lower(), _integer(value)) for each, value in self.scalars.items()
        }
        within = self.tolerance
        if not isinstance(within, Mapping):
            within = {each.name: within for each in outputs} if within else {}
        for each, most in within.items():
            must(f"tolerance.{each}", "a number", most, is_number(most))
        defined = Operation(
            name=name,
            sizes=tuple(sizes),
            operands=operands,
            result=result,
            flops=self.flops or elements,
            scalars=tuple(
                (each, int(value) if whole[each] else float(value))
                for each, value in self.scalars.items()
            ),
            summary=self.summary or summary or f"{', '.join(o.name for o in outputs)} = {what}",
            finite=self.finite,
            integers=tuple((each, dtype) for each, dtype in whole.items() if dtype),
            content=_function("inputs", self.inputs),
            tolerances=tuple((each, float(most)) for each, most in within.items()),
            accept=_function("accept", self.accept),
        )
        if defined.reads_output({}):
            raise InputError(
                f"the reference reads {defined.output.name} unless a scalar is zero: name it "
                "among the operands too, and it is changed in place, or give the scalar that "
                "multiplies it the default 0"
            )
        if not self.cases:
            return defined
        texts = [_case(each, defined.sizes) for each in _listed(self.cases)]
        return replace(defined, cases=tuple(map(defined.parse_shape, texts)))

    def _operands(self, types: Mapping[str, str]) -> Iterator[Operand]:
        """The operands, in the order of a call; those in both tables are changed in place."""
        for name, given in self.operands.items():
            operand = _operand(name, given, types)
            if name in self.out:
                other = _operand(name, self.out[name], types)
                if other.shape != operand.shape:
                    raise InputError(f"{name} must have the same shape in operands and in out")
                operand = replace(operand, written=True, read=True)
            yield operand
        for name, given in self.out.items():
            if name not in self.operands:
                yield replace(_operand(name, given, types, least=0), written=True)


def _case(given: Any, sizes: Sequence[str]) -> str:
    """The text of a case: sizes by name, or in the order in which operands mention them."""
    if isinstance(given, Mapping):
        if given.keys() != {*sizes}:
            raise InputError(f"a case must have the sizes {', '.join(sizes)}, got {shown(given)}")
        given = [given[name] for name in sizes]
    return "x".join(parts("a case", given, '"8x8" or (8, 8)'))


def _only(defined: Operation) -> tuple[str, ...]:
    """The types that operands without one of their own may be of.

    Where there are none it is the first operand's, as a problem is of some type.
    """
    own = [each.dtype for each in defined.operands]
    return USUAL_DTYPES if "" in own else (own[0],)


def _operand(name: str, given: Shape, types: Mapping[str, str], least: int = 1) -> Operand:
    """An operand as it is described, with the type that its source declares."""
    table = dict(given) if isinstance(given, Mapping) else {"shape": given}
    for key in table:
        if key not in _OPERAND_KEYS:
            raise InputError(must_be(f"a key of {name}", str(key), _OPERAND_KEYS))
    shape = table.pop("shape", None)
    typed = _TYPED.fullmatch(shape) if isinstance(shape, str) else None
    if typed is not None:
        table.setdefault("dtype", typed[1])
        shape = typed[2] or ()
    declared = types.get(name.lower(), "")
    dtype = dtype_name(str(table.pop("dtype", "") or declared))
    if declared not in ("", dtype):
        raise InputError(f"{name} must be of type {declared}, as its source says, got {dtype}")
    return Operand(name, _shape(name, shape, least), dtype=dtype, **table)


def _integer(value: Any) -> str:
    """The type of a scalar that is one of NumPy's integers; empty for other numbers."""
    dtype = getattr(value, "dtype", None)
    return str(dtype) if getattr(dtype, "kind", "") == "i" else ""


def _function(key: str, given: Callable[..., Any] | None) -> PythonFunction | None:
    """A function of the user's, without what it uses."""
    if given is None:
        return None
    text = function_text(given, key)
    read_now(text, REFERENCE_MODULES)
    return PythonFunction(text.name, text.text)


def _result(reference: str | Callable[..., Any]) -> Formula | PythonReference:
    """The formula of the output; of a function without what it uses."""
    if callable(reference):
        text = function_text(reference, "reference")
        read_now(text, REFERENCE_MODULES)
        return PythonReference(text.name, text.text)
    if isinstance(reference, str):
        return Formula(reference)
    raise InputError(
        f"reference must be a formula like 'A @ x' or a function, got {reference!r:.40}"
    )


def _shape(name: str, shape: Any, least: int) -> tuple[str, ...]:
    """The dimensions of an operand, so many at least."""
    example = '"MxN" or ("M", "N + 1")'
    found = parts(f"the shape of {name}", shape, example)
    if isinstance(shape, str):
        line = shape.strip()
        found = tuple(line.split("x") if _SMALL.fullmatch(line) else _BETWEEN.split(line))
    if len(found) < least or not all(each.strip() for each in found):
        raise InputError(
            f'{name} must have {least} to 5 dimensions, got {shown(shape)}: one number is ("1",)'
        )
    for each in found:
        try:
            parsed(each)
        except ExpressionError as error:
            raise InputError(
                f"{name} must have a shape like {example}, got {shown(shape)}: {error}"
            ) from error
    return found


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
    listed = [_plain(each) for each in itertools.islice(table.get("values", ()), MOST_VALUES + 1)]
    if not 1 <= len(listed) <= MOST_VALUES:
        most = f"{MOST_VALUES} values at most" if listed else "at least one value"
        raise InputError(f"parameters.{name} must have {most}")
    yield "values", listed
    for key in _PARAMETER_KEYS[1:]:
        if key in table:
            yield key, _plain(table[key])


def _plain(value: Any) -> Any:
    """A number of Python for one of NumPy."""
    item = getattr(value, "item", None)
    plain = item() if callable(item) else value
    if isinstance(plain, tuple):
        return tuple(map(_plain, plain))
    if plain is not None and not isinstance(plain, (bool, int, float, str)):
        raise InputError(
            "values must be integers, floats, booleans, words, None or tuples of these, got "
            f"{value!r:.40}"
        )
    return plain


def _restrictions(
    given: Any, values: Mapping[str, Any], sizes: Sequence[str], words: Words
) -> Iterator[tuple[str, str]]:
    """Expressions with their reasons; functions as expressions."""
    given = [given] if callable(given) or isinstance(given, str) else given
    listed = isinstance(given, Iterable) and not isinstance(given, (str, bytes))
    must("restrictions", "a list of expressions", given, listed)
    pairs: Sequence[tuple[Any, Any]] = (
        list(given.items()) if isinstance(given, Mapping) else [(each, _ASKED) for each in given]
    )
    for asked, reason in pairs:
        if callable(asked):
            spelled = {name: [*found] for name, found in words.items()}
            asked = restriction_text(asked, values, sizes, spelled)
        asked = in_words(asked, words)
        known = isinstance(asked, str)
        must("restrictions", 'expressions like "rows <= M", or functions', asked, known)
        try:
            Expression.parse(asked)
        except ExpressionError as error:
            raise InputError(f"restriction {shown(asked)}: {error}") from error
        yield asked, arguments.text(f"the reason of restriction {shown(asked)}", reason)


def element_types(target: str) -> tuple[str, ...]:
    """Types that elements may have: Numba has none of 16 bits for processors."""
    short = () if LANGUAGES[target].launched else ("float16", "bfloat16", "bool")
    found = [name for name in ELEMENTS if name not in short]
    return tuple(sorted(found, key=lambda name: name not in DTYPES))


def _dtypes(given: Sequence[Any], target: str) -> Iterator[str]:
    for each in _listed(given):
        name = dtype_name(str(each if isinstance(each, str) else getattr(each, "__name__", each)))
        if name not in element_types(target):
            raise InputError(must_be(f"dtypes on {target}", str(each), element_types(target)))
        yield name
