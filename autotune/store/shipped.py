"""Records and binaries that come with the package: read-only, looked up after the user's own."""

from __future__ import annotations

import hashlib
import logging
import lzma
from typing import TYPE_CHECKING

from autotune.core.errors import InputError
from autotune.core.paths import data_dir
from autotune.core.reading import read_regular
from autotune.model.portfolio import Portfolio
from autotune.store.interchange import parse_line, read_lines
from autotune.store.record import TuningRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from autotune.store.interchange import Stored

COMPRESSED = ".cubin.xz"
"""What the names of compressed binaries end with: they take a sixth of the room."""

BINARY_LIMIT = 16 << 20
"""Bytes that a binary may have, as it lies there and once it is decompressed."""

_MEMORY = 256 << 20

_log = logging.getLogger(__name__)


def shipped_records(
    operation: str, target: str | None = None, folder: Path | None = None
) -> Iterator[TuningRecord]:
    """The shipped records of an operation, for every device, read as they are asked for.

    A line that cannot be read is logged and left out.

    Args:
        operation: the operation's name: the file is ``<device>/<operation>.jsonl``.
        target: "cpu", "cuda", ...; None takes all.
        folder: where the devices' folders are; None takes the package's own.
    """
    root = data_dir("cache") if folder is None else folder
    for file in sorted(root.glob(f"*/{operation}.jsonl")):
        for record in read_records(file):
            if target in (None, record.target):
                yield record


def read_records(file: Path) -> Iterator[TuningRecord]:
    """The records of a file, read as they are asked for.

    A line that cannot be read is logged and left out.
    """
    return (each for each in _read(file) if isinstance(each, TuningRecord))


def read_portfolios(file: Path) -> Iterator[Portfolio]:
    """The portfolios of a file, read as they are asked for.

    A line that cannot be read is logged and left out.
    """
    return (each for each in _read(file) if isinstance(each, Portfolio))


def _read(file: Path) -> Iterator[Stored]:
    try:
        for number, line in read_lines(file):
            try:
                yield parse_line(line)
            except InputError as error:
                _log.warning("%s:%d: left out: %s", file, number, error)
    except InputError as error:
        _log.warning("the rest is left out: %s", error)


def shipped_binary(
    digest: str, folder: Path | None = None, trusted: Callable[[Path], bool] | None = None
) -> bytes | None:
    """The shipped binary with this SHA-256, or None; a damaged one is logged and left out.

    Args:
        digest: in hex, as a `BinaryRecord` has it: the file is ``<device>/<digest>.cubin``, or
            the same compressed (``.cubin.xz``), or lies in the folder itself.
        folder: where the devices' folders are; None takes the package's own.
        trusted: whether a file may be read; None reads any.
    """
    root = data_dir("cache") if folder is None else folder
    names = (f"{digest}.cubin", f"{digest}{COMPRESSED}")
    found = [file for name in names for file in (*sorted(root.glob(f"*/{name}")), root / name)]
    for file in found:
        if not file.exists() or not (trusted is None or trusted(file)):
            continue
        try:
            content = _content(file)
        except (OSError, lzma.LZMAError) as error:
            _log.warning("%s: left out: %s", file, getattr(error, "strerror", None) or error)
            continue
        if hashlib.sha256(content).hexdigest() == digest:
            return content
        _log.warning("%s: left out: its content is not what its name says", file)
    return None


def _content(file: Path) -> bytes:
    """What a file of a binary holds; no more than a binary may have.

    Raises:
        OSError: it cannot be read.
        LZMAError: it is not what its name says.
    """
    content = read_regular(file, BINARY_LIMIT)
    if not file.name.endswith(COMPRESSED):
        return content
    return lzma.LZMADecompressor(memlimit=_MEMORY).decompress(content, max_length=BINARY_LIMIT)
