"""Files of operations that are gemm with an epilogue: they need no family of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core import session
from autotune.core.facts import Stamp, stamps_of
from autotune.core.toml_table import Table
from autotune.families.operation_file import OPERATION_FILE, read_operation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from autotune.operations.operation import Operation

_PRODUCTS: dict[Stamp, Operation | None] = session.keep("operation files", {}, lasting=True)
"""Of files as they were: the operation where it is a product, else None."""


def product_files(folder: Path) -> Mapping[Path, Operation]:
    """The operations of a folder that families of gemm compute, by file.

    They lie in the folder itself, in folders in it, or anywhere below its ``search_spaces``.

    Raises:
        FamilyError: such a file does not fit the format.
    """
    found = {path: _product(path) for path in _operation_files(folder)}
    return {path: operation for path, operation in found.items() if operation is not None}


def _operation_files(folder: Path) -> Iterator[Path]:
    tree = folder / "search_spaces"
    if tree.is_dir():
        yield from sorted(tree.rglob(OPERATION_FILE))
        return
    own = folder / OPERATION_FILE
    if own.is_file():
        yield own
    yield from sorted(folder.glob(f"*/{OPERATION_FILE}"))


def _product(path: Path) -> Operation | None:
    (stamp,) = stamps_of([path])
    if stamp not in _PRODUCTS:
        top = Table.read(path)
        _PRODUCTS[stamp] = read_operation(top) if "product" in top else None
    return _PRODUCTS[stamp]
