"""Names for templates of CUDA C++, and checks of the emitted source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from autotune.core.configuration import Value
from autotune.core.dtypes import ELEMENTS, Dtype
from autotune.core.errors import FamilyError
from autotune.families.epilogue_text import CUDA_NAME, EpilogueText, cuda_epilogue, emitted_names
from autotune.families.family import KernelFamily
from autotune.families.gpu.c_expression import c_text, functions_of
from autotune.families.headers import blanked
from autotune.families.templating import template_path
from autotune.operations.epilogue import Epilogue
from autotune.operations.operation import Operation
from autotune.operations.parts import Argument, Kind
from autotune.space.parameter import whole_divisions

_ESTIMATE = "registers"
_WORKSPACE = ("{t}* __restrict__", "workspace")
_MAP = "const __grid_constant__ TensorMap"
_ATTRIBUTE = re.compile(r"__(?!global__)\w+__\s*\((?:[^()]|\([^()]*\))*\)|\[\[.*?\]\]", re.DOTALL)
_KERNEL = re.compile(r"__global__([^;{}()]*?)\b(\w+)\s*\(")
_GIVEN = (
    "ctype",
    "acc_ctype",
    "out_ctype",
    "operand",
    "result",
    "includes",
    "static_asserts",
    "assert_functions",
)
"""Names that templates are given beside those of `rendering`."""


def names(
    family: KernelFamily, constants: Mapping[str, Value], dtype: str, out_dtype: str
) -> dict[str, Any]:
    """The element types, the kernels' parameter list and the static assertions of a family.

    The kernels take the operation's arguments, the workspace where there is one, the parameters
    that are passed at the call, as int, and then tensor maps.

    ``operand`` and ``result`` are what the source calls the types of what is read and written,
    where ``T`` is the type that it computes in: ``T`` too, unless they are others.
    """
    row, result = ELEMENTS[dtype], ELEMENTS[out_dtype]
    sums = row.accumulated
    asserts = static_asserts(family, dtype)
    scope: dict[str, Any] = {
        "ctype": row.c_type,
        "acc_ctype": sums.c_type,
        "out_ctype": result.c_type,
        "operand": _operand(dtype),
        "result": "T" if result is sums else "Result",
        "includes": includes(
            row, result, *(ELEMENTS[each.dtype] for each in family.defined.operands if each.dtype)
        ),
        "static_asserts": asserts,
        "assert_functions": functions_of([condition for condition, _ in asserts]),
    }
    called = emitted_names(family.defined, CUDA_NAME)
    integers = dict(family.defined.integers)
    arguments = [
        (_type(each, integers.get(each.name, "")), called[each.name])
        for each in family.defined.arguments
    ]
    if family.launch is not None and family.launch.workspace_bytes is not None:
        arguments.append(_WORKSPACE)
    arguments += [("int", name) for name in family.runtime_parameters]
    if family.launch is not None:
        arguments += [(_MAP, each.argument) for each in family.launch.maps(constants)]
    c_types = {"t": row.c_type, "acc": sums.c_type, "out": result.c_type}
    typed = (f"{kind.format(**c_types)} {name}" for kind, name in arguments)
    scope["arguments"] = ", ".join(typed)
    return scope


def epilogue(following: Epilogue, dtype: str) -> EpilogueText | None:
    """The names of an epilogue for templates, for operands of a dtype."""
    return cuda_epilogue(following, _operand(dtype))


def _operand(dtype: str) -> str:
    return "T" if ELEMENTS[dtype].accumulation == dtype else "Operand"


def _type(argument: Argument, integer: str) -> str:
    """Type of an argument of an entry; `integer` is that of a scalar of integers.

    ``t`` is the operands' element type, ``acc`` the one that products are summed in, ``out`` that
    of the result.
    """
    match argument.kind:
        case Kind.SCALAR:
            return ELEMENTS[integer].c_type if integer else "{acc}"
        case Kind.ADDRESS:
            own = ELEMENTS[argument.dtype].c_type if argument.dtype else ""
            kind = f"{own or '{out}'}*" if argument.written else f"const {own or '{t}'}*"
            return f"{kind} __restrict__"
        case Kind.BATCH:
            return "long long"
    return "int"


def includes(*rows: Dtype) -> str:
    """The lines that include what declares the types, each once; empty for the language's own."""
    headers = dict.fromkeys(row.c_header for row in rows if row.c_header)
    return "".join(f"#include <{header}>\n" for header in headers)


def reserved(operation: Operation) -> frozenset[str]:
    """Names that the source gives a meaning of its own; ``T`` is what is computed in."""
    arguments = emitted_names(operation, CUDA_NAME).values()
    return frozenset({*_GIVEN, "t", "T", _WORKSPACE[1], *arguments})


def static_asserts(family: KernelFamily, dtype: str) -> list[tuple[str, str]]:
    """Static assertions of a source's constants: conditions in C++, each with its reason.

    Those are the whole divisions of derived names and then the restrictions, as far as they are
    about whole numbers that are known when the source is emitted. Constants are called what the
    parameters and derived names are called, in upper case; ITEMSIZE is the size of the type that
    is computed in. Reasons fit a string literal.

    What a reader of the source learns nothing from is left out: what is about ITEMSIZE alone, and
    divisions of names that only the estimate of registers uses.
    """
    identifiers = {"acc_itemsize": "ITEMSIZE"}
    if ELEMENTS[dtype].accumulation == dtype:
        identifiers["itemsize"] = "ITEMSIZE"
    for parameter in family.parameters:
        constant = not parameter.runtime
        if constant and all(isinstance(value, int) for value in parameter.values):
            identifiers[parameter.name] = parameter.name.upper()
    constants = {}
    for name, expression in family.derived.items():
        if c_text(expression, identifiers) is not None:
            identifiers[name] = name.upper()
            constants[name] = expression
    asserts: dict[str, str] = {}
    estimating = _estimating(family)
    told = {name: each for name, each in constants.items() if name not in estimating}
    for restriction in (*whole_divisions(told), *family.restrictions):
        condition = c_text(restriction.expression, identifiers)
        about = {identifiers.get(name) for name in restriction.expression.names}
        if condition is not None and about != {"ITEMSIZE"}:
            asserts.setdefault(condition, _quotable(restriction.reason))
    return list(asserts.items())


def _estimating(family: KernelFamily) -> frozenset[str]:
    """Derived names that serve the estimate of registers and nothing else in the file."""
    launch, work = family.launch, family.work
    used = [each.expression for each in family.restrictions]
    used += [] if work is None else work.expressions
    used += [] if launch is None else launch.expressions
    needs = {name for each in used for name in each.names} - {_ESTIMATE}
    return family.derived_for([_ESTIMATE]) - family.derived_for(needs)


def check(family: KernelFamily, text: str) -> None:
    """Refuse emitted text without the main kernel; others may depend on the configuration.

    Raises:
        FamilyError: there is no such kernel; the message names it.
    """
    if "__global__" not in text or not re.search(rf"\b{family.operation}\s*\(", text):
        where = template_path(family.template, family.template_folders)
        raise FamilyError(
            f"{where}: the template must emit a __global__ function {family.operation!r}"
        )


def _quotable(reason: str) -> str:
    """A reason as the text of a string literal, in which nothing has a meaning of its own."""
    return re.sub(r"[^\w \t'(),.:;<=>+*/%|&!\[\]-]", "'", reason, flags=re.ASCII)


def kernels_of(text: str) -> tuple[str, ...]:
    """Names of the ``__global__`` functions of a source, in their order."""
    plain = _ATTRIBUTE.sub(" ", blanked(text))
    return tuple(dict.fromkeys(name for _, name in _KERNEL.findall(plain)))
