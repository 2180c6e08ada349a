"""Recorded files of any known format, told apart by what is in them."""

import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.core.errors import InputError
from autotune.core.printable import printable, shown
from autotune.core.reading import open_regular
from autotune.research import foreign, sweeps
from autotune.research.space import RecordedSpace, Recording

LARGEST_FILE = 1 << 28
"""Bytes that are read, decompressed."""

MOST_VALUES = 20_000_000
"""Values that are read: parsed, each takes up to a hundred bytes, however short it is written."""

_CHUNK = 1 << 20

_GZIP = b"\x1f\x8b"

_MOST_TEARS = 4
"""Closing brackets before which a torn file is tried to end: an entry has objects of its own."""

EXPECTED = (
    "`cache` (a Kernel Tuner cache file), `results` (T4 results), `measurements` (a sweep) or "
    "`configurations` (a replay file)"
)


def read_recorded(path: Path) -> RecordedSpace:
    """Read a recorded space.

    Known are the JSON and CSV files of `autotune sweep`, replay files (columns, configurations
    and times), Kernel Tuner's cache files, also unfinished ones, and T4 results, each also
    compressed by gzip. Nothing in a file is executed.

    Raises:
        InputError: the file cannot be read or is none of these; the message names file, key, and
            what was expected there.
    """
    with open_recording(path) as recording:
        return recording.space()


@contextmanager
def open_recording(path: Path) -> Iterator[Recording]:
    """The content of a file, entry by entry, for a block that reads it.

    Raises:
        InputError: as `read_recorded`, wherever in the file the block has come to.
    """
    try:
        content = _content(path)
        name = path.name.removesuffix(".gz").rpartition(".")[0] or path.stem
        yield _read(content.decode("utf-8-sig"), printable(name))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text file in UTF-8 ({error.reason})") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except ValueError as error:  # a path with a null byte
        raise InputError(f"cannot read {path}: {error}") from error


def _content(path: Path) -> bytearray:
    """The bytes of a file, decompressed; no more of them than `LARGEST_FILE` and a chunk."""
    content = bytearray()  # `read` would make room for all that may come
    with open_regular(path) as file:
        packed = file.peek(len(_GZIP)).startswith(_GZIP)
        source = gzip.GzipFile(fileobj=file) if packed else file
        try:
            while len(content) <= LARGEST_FILE and (more := source.read(_CHUNK)):
                content += more
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(
                f"its compressed content is cut off or damaged ({error}): fetch it again"
            ) from error
    if len(content) > LARGEST_FILE:
        raise InputError(
            f"a recorded file may have {LARGEST_FILE >> 20} MiB, and this one has more: "
            "split it, or leave out configurations"
        )
    return content


def _read(content: str, name: str) -> Recording:
    if sweeps.is_csv(content):
        return sweeps.read_csv(content, name)
    values = sum(content.count(mark) for mark in ",[{")
    if values > MOST_VALUES:
        raise InputError(
            f"a recorded file may have {MOST_VALUES:,} values, and this one has about "
            f"{values:,}: split it, or leave out configurations"
        )
    document, note = _parse(content)
    if isinstance(document, list) and len(document) == 1:
        document = document[0]  # what `sweep --json` prints of one problem
    if not isinstance(document, dict):
        kind = f"an array of {len(document)}" if isinstance(document, list) else "no object"
        raise InputError(f"expected a JSON object with {EXPECTED}, got {kind}")
    if foreign.is_kernel_tuner(document):
        return replace(foreign.read_kernel_tuner(document, name), note=note)
    if foreign.is_t4(document):
        return foreign.read_t4(document, name)
    if sweeps.is_sweep(document):
        return sweeps.read_sweep(document, name)
    if foreign.is_replay(document):
        return foreign.read_replay(document, name)
    keys = shown(list(document)) if document else "an empty one"
    raise InputError(f"expected a JSON object with {EXPECTED}, got one with {keys}")


def _parse(content: str) -> tuple[Any, str]:
    """The JSON document, and what is missing of one that ends too early.

    Kernel Tuner appends entries to its caches, and closes the brackets only at the end of a run.
    """
    try:
        return json.loads(content), ""
    except json.JSONDecodeError as error:
        torn = error
    except RecursionError as error:
        raise InputError("not usable JSON: nested too deep") from error
    except ValueError as error:  # a number of more digits than Python converts
        raise InputError(f"not usable JSON: {str(error).partition(';')[0]}") from error
    left = content.rstrip()
    if '"cache"' in left[:1_000_000]:
        end = len(left.removesuffix(","))
        for note in ("", *["torn in an entry, and read up to it"] * _MOST_TEARS):
            with suppress(ValueError, RecursionError):
                return json.loads(left[:end] + "}}"), note
            # The next try is one entry, or an object within one, less.
            end = left.rfind("}", 0, end - 1) + 1
    raise InputError(
        f"not valid JSON: {torn.msg} (line {torn.lineno}, column {torn.colno})"
    ) from torn
