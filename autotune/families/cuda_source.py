"""What templates of CUDA C++ are given, and what they must emit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from autotune.core.errors import FamilyError
from autotune.families.c_expression import c_text
from autotune.families.family import KernelFamily
from autotune.operations.entry import Argument, Kind
from autotune.operations.operation import Operation
from autotune.space.restriction import whole_divisions

_C_TYPES: Mapping[str, str] = {
    "float32": "float",
    "float64": "double",
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
}

_WORKSPACE = ("{t}* __restrict__", "workspace")


def names(family: KernelFamily, dtype: str) -> dict[str, Any]:
    """The element type, the kernels' parameter list and the static assertions of a family."""
    arguments = [_parameter(each) for each in family.defined.arguments]
    if family.launch is not None and family.launch.workspace_bytes is not None:
        arguments.append(_WORKSPACE)
    ctype = _C_TYPES[dtype]
    return {
        "ctype": ctype,
        "static_asserts": static_asserts(family),
        "arguments": ", ".join(f"{kind.format(t=ctype)} {name}" for kind, name in arguments),
    }


def _parameter(argument: Argument) -> tuple[str, str]:
    """Type and name of an argument of an entry."""
    match argument.kind:
        case Kind.SCALAR:
            return "{t}", argument.name
        case Kind.ADDRESS:
            return f"{'' if argument.written else 'const '}{{t}}* __restrict__", argument.name
        case Kind.BATCH:
            return "long long", argument.name
    return "int", argument.name


def reserved(operation: Operation) -> frozenset[str]:
    """Names that the source gives a meaning of its own; ``T`` is the element type."""
    arguments = (each.name for each in operation.arguments)
    return frozenset({"ctype", "static_asserts", "t", "T", "workspace", *arguments})


def static_asserts(family: KernelFamily) -> list[tuple[str, str]]:
    """What the source asserts of its own constants: conditions in C++, each with its reason.

    Those are the whole divisions of derived names and then the restrictions, as far as they are
    about whole numbers that are known when the source is emitted. Constants are called what the
    parameters and derived names are called, in upper case. Reasons fit a string literal.
    """
    identifiers = {"itemsize": "ITEMSIZE"}
    for parameter in family.parameters:
        if all(isinstance(value, int) for value in parameter.values):
            identifiers[parameter.name] = parameter.name.upper()
    constants = {}
    for name, expression in family.derived.items():
        if c_text(expression, identifiers) is not None:
            identifiers[name] = name.upper()
            constants[name] = expression
    asserts: dict[str, str] = {}
    for restriction in (*whole_divisions(constants), *family.restrictions):
        condition = c_text(restriction.expression, identifiers)
        if condition is not None:
            asserts.setdefault(condition, _quotable(restriction.reason))
    return list(asserts.items())


def check(family: KernelFamily, text: str) -> None:
    """Refuse emitted text without the main kernel; others may depend on the configuration.

    Raises:
        FamilyError: there is no such kernel; the message names it.
    """
    if "__global__" not in text or not re.search(rf"\b{family.operation}\s*\(", text):
        raise FamilyError(
            f"template {family.template} must emit a __global__ function {family.operation!r}"
        )


def _quotable(reason: str) -> str:
    """A reason as the text of a string literal, in which nothing has a meaning of its own."""
    return re.sub(r"[^\w \t'(),.:;<=>+*/%|&!\[\]-]", "'", reason, flags=re.ASCII)
