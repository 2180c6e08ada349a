"""Reading an operation from its TOML file: what it computes, of which operands."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autotune.core import session
from autotune.core.errors import ExpressionError, FamilyError, InputError
from autotune.core.facts import Stamp, stamps_of
from autotune.core.printable import shown
from autotune.core.reading import read_regular
from autotune.core.toml_table import LARGEST_FILE, Table
from autotune.operations.epilogue import epilogue_of
from autotune.operations.formula import Formula
from autotune.operations.operation import Operation
from autotune.operations.parts import Operand
from autotune.operations.python_reference import PythonFunction, PythonReference

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

OPERATION_FILE = "operation.toml"
"""Name of the file."""

_ROLES = ("in", "out", "inout")
_MOST_CASES = 64
_MOST_ARGUMENTS = 40
_REFERENCE = re.compile(r"([A-Za-z_]\w*\.py):([A-Za-z_]\w*)", re.ASCII)

_PRODUCTS: dict[Stamp, Operation | None] = session.keep("operation files", {}, lasting=True)
"""Of files as they were: the operation where it is a product, else None."""


def read_operation(top: Table) -> Operation:
    """The operation that a file defines.

    Raises:
        FamilyError: the file does not fit the format, or its parts do not fit together; the
            message names the file, the key, and what was expected.
    """
    scalars, baselines = top.table("scalars", {}), top.table("baseline", {})
    within = top.table("tolerance", {})
    try:
        operation = Operation(
            name=top.name("operation"),
            sizes=_texts(top, "sizes"),
            operands=tuple(_operands(top.table("operands"))),
            result=_result(top),
            flops=top.text("flops"),
            scalars=tuple((name, _number(scalars, name)[0]) for name in scalars),
            summary=top.text("summary"),
            baselines=tuple((target, baselines.text(target)) for target in baselines),
            entry=_texts(top, "entry") if "entry" in top else (),
            takes=_texts(top, "arguments", _MOST_ARGUMENTS) if "arguments" in top else (),
            product=top.text("product") if "product" in top else "",
            finite=top.flag("finite"),
            layouts=top.flag("layouts"),
            integers=tuple(
                (name, dtype) for name in scalars if (dtype := _number(scalars, name)[1])
            ),
            content=_function(top, "inputs"),
            tolerances=tuple((name, _number(within, name)[0]) for name in within),
            accept=_function(top, "accept"),
        )
        epilogue_of(operation)
        if "cases" in top:
            shapes = _texts(top, "cases", _MOST_CASES)
            operation = replace(operation, cases=tuple(map(operation.parse_shape, shapes)))
    except FamilyError:
        raise
    except InputError as error:
        raise FamilyError(f"{top.path}: {error}") from error
    for table in (scalars, baselines, within, top):
        table.close()
    return operation


def product_files(folder: Path) -> Mapping[Path, Operation]:
    """The operations of a folder that families of gemm compute with an epilogue, by file.

    They lie in the folder itself, in folders in it, or anywhere below its ``search_spaces``.

    Raises:
        FamilyError: such a file does not fit the format.
    """
    tree = folder / "search_spaces"
    if tree.is_dir():
        files = sorted(tree.rglob(OPERATION_FILE))
    else:
        own = folder / OPERATION_FILE
        files = [own] if own.is_file() else []
        files += sorted(folder.glob(f"*/{OPERATION_FILE}"))
    found = {}
    for path in files:
        (stamp,) = stamps_of([path])
        if stamp not in _PRODUCTS:
            top = Table.read(path)
            _PRODUCTS[stamp] = read_operation(top) if "product" in top else None
        if (operation := _PRODUCTS[stamp]) is not None:
            found[path] = operation
    return found


def _result(top: Table) -> Formula | PythonReference:
    """The value of the output: a formula, or a function in a file beside this one."""
    if "reference" not in top:
        try:
            return Formula(top.text("result"))
        except ExpressionError as error:
            top.fail("result", f"must say what the output becomes: {error}")
    if "result" in top:
        top.fail("reference", "must be left out where result is there: either says it all")
    function = _function(top, "reference")
    assert function is not None
    return PythonReference(function.function, function.source)


def _function(top: Table, key: str) -> PythonFunction | None:
    """A function in a file beside this one; None where the key is left out.

    It is found by reading; nothing is executed before a kernel is verified.
    """
    if key not in top:
        return None
    match = _REFERENCE.fullmatch(top.text(key))
    if match is None:
        top.fail(key, 'must be like "reference.py:function", a file beside this one')
    path = top.path.parent / match[1]
    try:
        return PythonFunction(match[2], read_regular(path, LARGEST_FILE).decode("utf-8"))
    except (OSError, UnicodeDecodeError, ExpressionError) as error:
        top.fail(key, f"must be a function in {path}: {error}")


def _operands(table: Table) -> Iterator[Operand]:
    for name in table:
        entry = table.table(name)
        role = entry.choice("role", _ROLES) if "role" in entry else _ROLES[0]
        yield Operand(
            name,
            _texts(entry, "shape") if "shape" in entry else (),
            written=role != "in",
            dtype=entry.text("dtype") if "dtype" in entry else "",
            most=entry.text("most") if "most" in entry else "",
            ascending=entry.flag("ascending"),
            read=role == "inout",
        )
        entry.close()


def _texts(table: Table, key: str, most: int = 16) -> tuple[str, ...]:
    values = table.items(key)
    if len(values) > most or not all(isinstance(value, str) for value in values):
        table.fail(key, f"must be a list of {most} texts at most, got {shown(values)}")
    return tuple(values)


def _number(table: Table, key: str) -> tuple[float, str]:
    """A number, or a table with that and its type, of integers: ``{ default, dtype }``."""
    value: Any = table.value(key)
    if isinstance(value, dict):
        entry = table.table(key)
        dtype = entry.choice("dtype", ("int32", "int64"))
        default = entry.whole("default", -(2**48))
        entry.close()
        return default, dtype
    if type(value) not in (int, float):
        table.fail(key, f"must be a number, got {shown(value)}")
    return float(value), ""
