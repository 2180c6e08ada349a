"""What templates of Python are given, and what they must emit."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from autotune.core.errors import FamilyError

if TYPE_CHECKING:
    from autotune.families.family import KernelFamily

_NUMBA_ENTRY: tuple[tuple[str, str], ...] = (
    ("m", "int64"),
    ("n", "int64"),
    ("k", "int64"),
    ("alpha", "{dtype}"),
    ("a_address", "uintp"),
    ("lda", "int64"),
    ("b_address", "uintp"),
    ("ldb", "int64"),
    ("beta", "{dtype}"),
    ("c_address", "uintp"),
    ("ldc", "int64"),
)
"""Arguments and Numba types of every operation's entry; runtime parameters follow as int64."""


def numba_reserved(operation: str) -> frozenset[str]:
    """Names of the entry's arguments."""
    return frozenset(name for name, _ in _NUMBA_ENTRY)


def numba_names(family: KernelFamily, dtype: str, out_dtype: str) -> dict[str, Any]:
    """The entry's Numba signature and its comma-joined argument names."""
    arguments = _NUMBA_ENTRY + tuple((name, "int64") for name in family.runtime_parameters)
    types = ", ".join(kind.format(dtype=dtype) for _, kind in arguments)
    return {
        "signature": f"void({types})",
        "arguments": ", ".join(name for name, _ in arguments),
    }


def check_module(family: KernelFamily, text: str) -> None:
    """Refuse emitted text that is not a Python module with the entry in it.

    Raises:
        FamilyError: there is no such function; the message names it.
    """
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
