"""What templates of Python are given, and what they must emit."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from autotune.core.errors import FamilyError
from autotune.families.epilogue_text import EpilogueText
from autotune.families.epilogue_text import numba_epilogue as epilogue_in_numba
from autotune.operations.entry import Argument, Kind

if TYPE_CHECKING:
    from autotune.families.family import KernelFamily
    from autotune.operations.epilogue import Epilogue
    from autotune.operations.operation import Operation


def numba_argument(argument: Argument) -> tuple[str, str]:
    """Name and Numba type of an argument of an entry."""
    match argument.kind:
        case Kind.ADDRESS:
            return f"{argument.name}_address", "uintp"
        case Kind.SCALAR:
            return argument.name, "{dtype}"
    return argument.name, "int64"


def numba_reserved(operation: Operation) -> frozenset[str]:
    """Names of the entry's arguments."""
    return frozenset(numba_argument(each)[0] for each in operation.arguments)


def numba_names(family: KernelFamily, dtype: str, out_dtype: str) -> dict[str, Any]:
    """The entry's Numba signature and its comma-joined argument names.

    Parameters that are passed at the call follow the operation's arguments as int64.
    """
    arguments = [numba_argument(each) for each in family.defined.arguments]
    arguments += [(name, "int64") for name in family.runtime_parameters]
    types = ", ".join(kind.format(dtype=dtype) for _, kind in arguments)
    return {
        "signature": f"void({types})",
        "arguments": ", ".join(name for name, _ in arguments),
    }


def numba_epilogue(following: Epilogue, dtype: str) -> EpilogueText | None:
    """What templates are given of an epilogue; it is the same for all element types."""
    return epilogue_in_numba(following)


def check_module(family: KernelFamily, text: str) -> None:
    """Refuse emitted text that is not a Python module with the entry in it.

    Raises:
        FamilyError: there is no such function; the message names it.
    """
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise FamilyError(f"template {family.template} emits invalid Python: {error}") from error
    functions = [node.name for node in module.body if isinstance(node, ast.FunctionDef)]
    if family.operation not in functions:
        raise FamilyError(
            f"template {family.template} must emit a function {family.operation!r}, "
            f"and emits {', '.join(sorted(functions)) or 'none'}"
        )
    if functions.count(family.operation) > 1:
        raise FamilyError(
            f"template {family.template} emits a function {family.operation!r} of its own: call "
            "the operation something else"
        )
