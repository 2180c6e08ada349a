"""Names for templates of Python, and checks of the emitted source."""

from __future__ import annotations

import symtable
from typing import TYPE_CHECKING, Any

from autotune.core.dtypes import ELEMENTS
from autotune.core.errors import FamilyError
from autotune.core.printable import shown
from autotune.families.epilogue_text import NUMBA_NAME, EpilogueText, emitted_names
from autotune.families.epilogue_text import numba_epilogue as epilogue_in_numba
from autotune.families.templating import template_path
from autotune.operations.parts import Argument, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.core.configuration import Value
    from autotune.families.family import KernelFamily
    from autotune.operations.epilogue import Epilogue
    from autotune.operations.operation import Operation


def numba_arguments(operation: Operation) -> list[tuple[str, str]]:
    """Name and Numba type of each argument of an entry."""
    names, whole = emitted_names(operation, NUMBA_NAME), dict(operation.integers)

    def argument(each: Argument) -> tuple[str, str]:
        match each.kind:
            case Kind.ADDRESS:
                return f"{names[each.name]}_address", "uintp"
            case Kind.SCALAR:
                return names[each.name], whole.get(each.name, "{dtype}")
        return names[each.name], "int64"

    return [argument(each) for each in operation.arguments]


def numba_reserved(operation: Operation) -> frozenset[str]:
    """Names of the entry's arguments."""
    return frozenset(name for name, _ in numba_arguments(operation))


def numba_names(
    family: KernelFamily, constants: Mapping[str, Value], dtype: str, out_dtype: str
) -> dict[str, Any]:
    """The entry's Numba signature and its comma-joined argument names.

    Parameters that are passed at the call follow the operation's arguments as int64.
    """
    arguments = numba_arguments(family.defined)
    arguments += [(name, "int64") for name in family.runtime_parameters]
    scalar = ELEMENTS[dtype].accumulation
    types = ", ".join(kind.format(dtype=scalar) for _, kind in arguments)
    return {
        "signature": f"void({types})",
        "arguments": ", ".join(name for name, _ in arguments),
    }


def numba_epilogue(following: Epilogue, dtype: str) -> EpilogueText | None:
    """The names of an epilogue for templates, the same for all element types."""
    return epilogue_in_numba(following)


def check_module(family: KernelFamily, text: str) -> None:
    """Refuse emitted text that is not a Python module with the entry in it.

    Raises:
        FamilyError: there is no such function; the message names it.
    """
    where = template_path(family.template, family.template_folders)
    try:
        # Scopes are found in a fifth of the time that a tree takes.
        module = symtable.symtable(text, family.template, "exec")
    except SyntaxError as error:
        line = (error.text or "").strip()
        raise FamilyError(
            f"{where}: the template emits invalid Python: {error.msg}, in line {error.lineno} of "
            f"what it emits: {shown(line)}"
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise FamilyError(f"{where}: the template emits invalid Python: {error}") from error
    functions = [
        each.get_name() for each in module.get_children() if each.get_type() == "function"
    ]
    if family.operation not in functions:
        raise FamilyError(
            f"{where}: the template must emit a function {family.operation!r}, "
            f"and emits {', '.join(sorted(functions)) or 'none'}"
        )
    if functions.count(family.operation) > 1:
        raise FamilyError(
            f"{where}: the template emits a function {family.operation!r} of its own: call the "
            "operation something else"
        )
