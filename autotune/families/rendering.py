"""Rendering: a family, a configuration, a dtype and a layout become source text."""

from __future__ import annotations

import ast
import hashlib
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.core.configuration import Configuration, Value
from autotune.core.errors import FamilyError, ProblemError, SpaceError
from autotune.core.printable import shown
from autotune.families import cuda_source
from autotune.families.templating import expand
from autotune.operations.entry import Argument, Kind
from autotune.operations.problem import ITEM_SIZES
from autotune.space.expression import UndefinedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autotune.families.family import KernelFamily
    from autotune.operations.operation import Operation

WORD = re.compile(r"(?=.{1,64}$)[A-Za-z]\w*(-\w+)*", re.ASCII)
"""What a parameter's text must be: a word, or words with single hyphens between them."""

_RESERVED = ("dtype", "layout", "banner", "program", "signature", "arguments")


@dataclass(frozen=True, slots=True)
class Source:
    """Emitted source: what a compiler is given.

    Attributes:
        text: the source.
        entry: name of the function to call.
        runtime_parameters: parameters passed at the call, after the operands, in this order.
        target: what it is source for.
    """

    text: str
    entry: str
    runtime_parameters: tuple[str, ...]
    target: str

    @property
    def digest(self) -> str:
        """SHA-256 of the text in hex; equal digests are the same program."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def render(
    family: KernelFamily,
    configuration: Mapping[str, Value],
    *,
    dtype: str = "float32",
    layout: str = "nn",
) -> Source:
    """Render a family's template.

    The source depends on nothing else: not on sizes, device, time or versions. Configurations
    that differ in runtime parameters only give the same source.

    Args:
        family: what to render.
        configuration: a value for each of the family's parameters.
        dtype: one of the family's dtypes.
        layout: one of the family's layouts.

    Raises:
        ProblemError: the family does not declare that dtype or layout.
        SpaceError: the configuration is not one of the family's.
        FamilyError: the template is at fault, the message names its file and line; or a value is
            not one that may be part of source text.
    """
    _declared("dtype", dtype, family.dtypes, family)
    _declared("layout", layout, family.layouts, family)
    runtime = family.runtime_parameters
    compiled = Configuration(
        {name: v for name, v in family.conform(configuration).items() if name not in runtime}
    )
    target = _TARGETS[family.target]
    banner = _banner(family, compiled, dtype, layout)
    names: dict[str, object] = {
        **_checked(family, _constants(family, compiled, dtype)),
        **target.names(family, dtype),
        "dtype": dtype,
        "layout": layout,
        "banner": banner,
        # For names that must differ between programs: what the banner says is all they depend on.
        "program": hashlib.sha256(banner.encode()).hexdigest()[:16],
    }
    text = expand(family.template, family.template_folders, names)
    target.check(family, text)
    return Source(text, family.operation, runtime, family.target)


def reserved_names(operation: Operation, target: str) -> frozenset[str]:
    """Names that emitted source or its template gives a meaning: no parameter may have them."""
    return frozenset({*_RESERVED, operation.name}) | _TARGETS[target].reserved(operation)


def _declared(field: str, value: str, declared: tuple[str, ...], family: KernelFamily) -> None:
    if value not in declared:
        raise ProblemError(
            f"{field} of family {family.name!r} must be one of {', '.join(declared)}, "
            f"got {value!r}"
        )


def _constants(family: KernelFamily, compiled: Configuration, dtype: str) -> dict[str, Value]:
    """What is known when source is emitted: parameters, itemsize, and what follows from them."""
    known: dict[str, Value] = {**compiled, "itemsize": ITEM_SIZES[dtype]}
    for name, expression in family.derived.items():
        if expression.names <= known.keys():
            try:
                known[name] = expression.evaluate(known)
            except UndefinedError as error:
                raise SpaceError(
                    f"family {family.name!r} has no {name} for {compiled}: {error}"
                ) from error
    return known


def _checked(family: KernelFamily, known: dict[str, Value]) -> dict[str, Value]:
    """The same, if all of it may be part of source text: spaces are data of strangers.

    A number is; a text is when a parameter declares it and it is a `WORD`. Free text is not.
    """
    declared = {parameter.name for parameter in family.parameters}
    for name, value in known.items():
        if isinstance(value, str):
            insertable = name in declared and WORD.fullmatch(value) is not None
        else:
            insertable = abs(value) < 2**63 if isinstance(value, int) else math.isfinite(value)
        if not insertable:
            raise FamilyError(
                f"family {family.name!r}: {name} must be a finite number, or a word that a "
                f"parameter declares, to be put into source text, got {shown(value)}"
            )
    return known


def _banner(family: KernelFamily, compiled: Configuration, dtype: str, layout: str) -> str:
    """The opening lines of emitted source; nothing in it varies between runs."""
    return (
        f"{family.operation} for {family.target}: family {family.name}, {dtype}, "
        f"layout {layout}.\n\n"
        f"template: {family.template}, digest {family.template_digest}\n"
        f"configuration: {compiled.json}"
    )


# --- targets: the names each adds for its templates, and what its emitted source must be ---


@dataclass(frozen=True, slots=True)
class _Target:
    names: Callable[[KernelFamily, str], dict[str, Any]]
    check: Callable[[KernelFamily, str], None]
    reserved: Callable[[Operation], frozenset[str]]


def _numba_argument(argument: Argument) -> tuple[str, str]:
    """Name and Numba type of an argument of an entry."""
    match argument.kind:
        case Kind.ADDRESS:
            return f"{argument.name}_address", "uintp"
        case Kind.SCALAR:
            return argument.name, "{dtype}"
    return argument.name, "int64"


def _numba_reserved(operation: Operation) -> frozenset[str]:
    return frozenset(_numba_argument(each)[0] for each in operation.arguments)


def _numba_names(family: KernelFamily, dtype: str) -> dict[str, Any]:
    """The entry's Numba signature and its comma-joined argument names.

    Parameters that are passed at the call follow the operation's arguments as int64.
    """
    arguments = [_numba_argument(each) for each in family.defined.arguments]
    arguments += [(name, "int64") for name in family.runtime_parameters]
    types = ", ".join(kind.format(dtype=dtype) for _, kind in arguments)
    return {
        "signature": f"void({types})",
        "arguments": ", ".join(name for name, _ in arguments),
    }


def _check_python(family: KernelFamily, text: str) -> None:
    """Refuse emitted text that is not a Python module with the entry in it."""
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise FamilyError(f"template {family.template} emits invalid Python: {error}") from error
    functions = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
    if family.operation not in functions:
        raise FamilyError(
            f"template {family.template} must emit a function {family.operation!r}, "
            f"and emits {', '.join(sorted(functions)) or 'none'}"
        )


_TARGETS: Mapping[str, _Target] = {
    "cpu": _Target(_numba_names, _check_python, _numba_reserved),
    "cuda": _Target(cuda_source.names, cuda_source.check, cuda_source.reserved),
    # These templates share a signature of their own, and write out their arguments.
    "numba-cuda": _Target(lambda family, dtype: {}, _check_python, lambda operation: frozenset()),
    "mpi": _Target(lambda family, dtype: {}, _check_python, lambda operation: frozenset()),
    "hybrid": _Target(lambda family, dtype: {}, _check_python, lambda operation: frozenset()),
}
