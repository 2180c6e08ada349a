"""Records as files: JSON Lines, a header and then one record, or one portfolio, a line.

Files come from strangers. They are data only, bounded in size, and taken as a whole or not at
all. Compiled kernels do not travel: what a record says of its binary is left out.
A file has at most `FILE_LIMIT` bytes and `LINES_LIMIT` lines, a line `LINE_LIMIT` bytes.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from autotune.core import checks
from autotune.core.errors import CacheError, InputError
from autotune.core.reading import open_regular
from autotune.core.writing import deliver
from autotune.model.portfolio import Portfolio
from autotune.store import strict_json
from autotune.store.portfolio import portfolio_document, read_portfolio
from autotune.store.portfolio import without_binaries as with_no_binaries
from autotune.store.record import TuningRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

Stored: TypeAlias = TuningRecord | Portfolio
"""The content of a line."""

AnyStored = TypeVar("AnyStored", bound=TuningRecord | Portfolio)

FORMAT = "autotune-records"
VERSION = 1
LINE_LIMIT = 1 << 20
"""Bytes that a line may have."""
FILE_LIMIT = 256 << 20
"""Bytes that a file may have."""
LINES_LIMIT = 1 << 20
"""Lines that a file may have."""


def export_lines(stored: Iterable[Stored]) -> Iterator[str]:
    """The lines of an export, without line ends."""
    yield strict_json.line({"format": FORMAT, "version": VERSION})
    for each in stored:
        yield strict_json.line(document_of(each))


def document_of(stored: Stored) -> dict[str, Any]:
    """A record or a portfolio as a JSON-able document; `parse_line` reads it."""
    return portfolio_document(stored) if isinstance(stored, Portfolio) else stored.to_json()


def export_records(stored: Iterable[Stored], file: Path) -> None:
    """Write records and portfolios to a file, which is replaced as a whole or not at all.

    Raises:
        CacheError: the file cannot be written.
    """
    text = "".join(f"{line}\n" for line in export_lines(stored))
    deliver(file, text.encode(), CacheError)


def import_records(file: Path) -> list[Stored]:
    """Read all that an export holds, after checking every line.

    Raises:
        InputError: the file cannot be read, or a line is neither a valid record nor a valid
            portfolio; the message names file and line.
    """
    stored = []
    for number, line in read_lines(file):
        try:
            read = parse_line(line)
        except InputError as error:
            raise InputError(f"{file}:{number}: {error}") from error
        stored.append(
            without_binaries(read) if isinstance(read, TuningRecord) else with_no_binaries(read)
        )
    return stored


def parse_line(line: str) -> Stored:
    """The record or the portfolio on one line.

    Raises:
        InputError: the line is neither.
    """
    document = strict_json.parse(line)
    if isinstance(document, dict) and "entries" in document:
        return read_portfolio(document)
    return TuningRecord.from_json(document)


def without_binaries(record: TuningRecord) -> TuningRecord:
    """A record as a stranger's is taken: how a binary is launched is as good as code."""
    return replace(record, binary=None)


def read_lines(file: Path) -> Iterator[tuple[int, str]]:
    """Number and text of every line below the header; blank lines are passed over.

    Raises:
        InputError: the file cannot be read, is no regular file, is too large, is not UTF-8, or
            has another header.
    """
    return ((number, line) for number, _, line in placed_lines(file))


def placed_lines(file: Path) -> Iterator[tuple[int, int, str]]:
    """Like `read_lines`, with the byte that each line begins at between number and text."""
    try:
        with open_regular(file) as stream:
            if os.fstat(stream.fileno()).st_size > FILE_LIMIT:
                raise InputError(f"{file}: a file of records may have {FILE_LIMIT} bytes")
            begin = 0
            number = 0
            while raw := stream.readline(LINE_LIMIT + 1):
                number += 1
                if len(raw) > LINE_LIMIT:
                    raise InputError(f"{file}:{number}: a line may have {LINE_LIMIT} bytes")
                if begin + len(raw) > FILE_LIMIT:
                    raise InputError(f"{file}: a file of records may have {FILE_LIMIT} bytes")
                if number > LINES_LIMIT:
                    raise InputError(f"{file}: a file of records may have {LINES_LIMIT} lines")
                line = _decode(file, number, raw)
                if number == 1:
                    _check_header(file, line)
                elif line:
                    yield number, begin, line
                begin += len(raw)
            if number == 0:
                raise InputError(f"{file} is empty, not an export of records")
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}") from error


def _decode(file: Path, number: int, raw: bytes) -> str:
    try:
        return raw.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise InputError(f"{file}:{number}: not UTF-8 text: {error.reason}") from error


def _check_header(file: Path, line: str) -> None:
    expected = strict_json.line({"format": FORMAT, "version": VERSION})
    try:
        header = checks.mapping("the header", strict_json.parse(line))
    except InputError as error:
        raise InputError(f"{file}:1: expected the header {expected}: {error}") from error
    version = header.get("version")
    if header.get("format") != FORMAT or type(version) is not int:
        raise InputError(f"{file}:1: expected the header {expected}, got {line:.80}")
    if version != VERSION:
        raise InputError(
            f"{file}:1: written by a newer autotune (version {version}, this one knows "
            f"{VERSION}): upgrade autotune"
        )
