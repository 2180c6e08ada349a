"""Recorded files of any known format, told apart by what is in them; and replay files."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.core import checks
from autotune.core.errors import InputError
from autotune.core.measurement import Outcome
from autotune.core.printable import printable, shown
from autotune.core.reading import open_regular
from autotune.research import kernel_tuner, ktt, swept, t4, tables
from autotune.research.foreign import failed, time_unit
from autotune.research.foreign import goal as foreign_goal
from autotune.research.space import Entry, Goal, RecordedSpace, Recording
from autotune.space import SearchSpace, SpaceUnion
from autotune.space.document import read_spaces

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


def read_recorded(path: Path | str) -> RecordedSpace:
    """Read a recorded space.

    Known are sweeps (JSON, CSV, Parquet, Arrow), replay files (columns, configurations and times),
    Kernel Tuner's caches, also unfinished ones, and lists of its results, T4 results, and KTT's,
    each also compressed by gzip. Nothing in a file is executed.

    Raises:
        InputError: the file cannot be read or is none of these; the message names file, key, and
            what was expected there.
    """
    with open_recording(path) as recording:
        return recording.space()


def read_space(path: Path | str) -> SearchSpace | SpaceUnion:
    """The space that a file declares: its parameters with all their values, and restrictions.

    A sweep's JSON, Parquet and Arrow file has it, a Kernel Tuner cache the values alone, and a
    file of the T1 schema nothing else.

    Raises:
        InputError: the file cannot be read, or declares no space.
        SpaceError: values or names do not make a space.
    """
    with open_recording(path) as recording:
        if "spaces" not in recording.provenance:
            raise InputError(
                f"{recording.format} declares no space: replay what was measured, or sweep again"
            )
        return read_spaces(recording.provenance["spaces"])


@contextmanager
def open_recording(path: Path | str) -> Iterator[Recording]:
    """The content of a file, entry by entry, for a block that reads it.

    Raises:
        InputError: as `read_recorded`, wherever in the file the block has come to.
    """
    path = Path(path)
    try:
        content = _content(path)
        name = path.name.removesuffix(".gz").rpartition(".")[0] or path.stem
        if content.startswith(tables.ARROW_MARKS):
            yield tables.read_arrow(bytes(content), printable(name))
        else:
            text = content.decode("utf-8-sig")
            _refuse_foreign_csv(text, path)
            yield _read(text, printable(name))
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


def _refuse_foreign_csv(content: str, path: Path) -> None:
    """Refuse a table of another program, by its name or by how it begins.

    Raises:
        InputError: it is one.
    """
    begins = content.lstrip()[:1]
    named = path.name.lower().removesuffix(".gz").endswith(".csv") and begins not in ("{", "[")
    if not tables.is_csv(content) and (named or tables.is_foreign_csv(content)):
        raise InputError(
            f"a CSV file must have the columns of a sweep, {', '.join(tables.CSV_COLUMNS[:4])} "
            f"and so on, got {shown(content.partition(chr(10))[0])}: rename them, or write a "
            "replay file"
        )


def _read(content: str, name: str) -> Recording:
    if tables.is_csv(content):
        return tables.read_csv(content, name)
    values = sum(content.count(mark) for mark in ",[{")
    if values > MOST_VALUES:
        raise InputError(
            f"a recorded file may have {MOST_VALUES:,} values, and this one has about "
            f"{values:,}: split it, or leave out configurations"
        )
    document, note = _parse(content)
    if isinstance(document, list) and document and kernel_tuner.is_list(document):
        return kernel_tuner.read_list(document, name)
    if isinstance(document, list) and len(document) == 1:
        document = document[0]  # what `sweep --json` prints of one problem
    if not isinstance(document, dict):
        kind = f"an array of {len(document)}" if isinstance(document, list) else "no object"
        raise InputError(f"expected a JSON object with {EXPECTED}, got {kind}")
    for is_one, read in _FORMATS:
        if is_one(document):
            found = read(document, name)
            return replace(found, note=note) if note else found
    got = f"one with {shown(list(document))}" if document else "an empty one"
    raise InputError(f"expected a JSON object with {EXPECTED}, got {got}")


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


def is_replay(document: Mapping[str, Any]) -> bool:
    """Recognise a replay file."""
    return "configurations" in document


def read_replay(document: Mapping[str, Any], name: str) -> Recording:
    """A replay file: `columns`, a row of values per configuration, and `times`, null if failed.

    Raises:
        InputError: a key is missing or not what it should be.
    """
    missing = [key for key in ("columns", "times") if key not in document]
    if missing:
        raise InputError(f"expected the key `{missing[0]}` beside `configurations`")
    columns = checks.names("columns", document["columns"])
    unit, goal = _replayed_unit(document.get("objective", ""))
    rows = checks.sequence("configurations", document["configurations"])
    times = checks.sequence("times", document["times"])
    if len(times) != len(rows):
        raise InputError(
            f"times: expected one for each of {len(rows)} configurations, got {len(times)}"
        )
    return Recording(
        _replayed(columns, rows, times, goal),
        name=checks.line("name", document.get("name", name)),
        unit=unit,
        goal=goal,
        device=checks.line("device", document.get("device", "")),
        format="replay file",
    )


def _replayed(
    columns: list[str], rows: list[Any], times: list[Any], goal: Goal | None
) -> Iterator[Entry]:
    for number, (row, time) in enumerate(zip(rows, times, strict=True)):
        where = f"configurations[{number}]"
        if len(checks.sequence(where, row)) != len(columns):
            raise checks.wrong(where, f"{len(columns)} values", row)
        if time is not None and not (checks.is_number(time) and time > 0):
            raise checks.wrong(f"times[{number}]", "a positive number or null", time)
        values = zip(columns, row, strict=True)
        found = {column: checks.scalar(where, value) for column, value in values}
        if time is None:
            yield failed(found, swept.FAILED)
        elif goal is None:
            yield Entry(found, float(time), outcome=Outcome.OK)
        else:
            yield Entry(found, None, outcome=Outcome.OK, details={goal.key: float(time)})


def _replayed_unit(stated: object) -> tuple[str, Goal | None]:
    """The unit in a replay file's objective, like "time (ms), lower is better"; or its goal.

    Raises:
        InputError: nothing says whether more or less is better.
    """
    text = checks.line("objective", stated)
    words = text.casefold()
    unit = re.search(r"\((.*?)\)", text)
    name = re.split(r"[,(]", text)[0].strip() or "value"
    # Without times, their unit is of no matter.
    if re.search("higher|larger|greater|more|max", words):
        return "s", Goal(name, unit[1] if unit else "", True, name)
    if words and not re.search("time|lower|smaller|less|min", words):
        return "s", foreign_goal("objective", name)
    return (time_unit(unit[1]) if unit else ""), None


_FORMATS: tuple[
    tuple[Callable[[Mapping[str, Any]], bool], Callable[[Mapping[str, Any], str], Recording]],
    ...,
] = (
    (kernel_tuner.is_kernel_tuner, kernel_tuner.read_kernel_tuner),
    (t4.is_t4, t4.read_t4),
    (swept.is_sweep, swept.read_sweep),
    (ktt.is_ktt, ktt.read_ktt),
    (ktt.is_t1, ktt.read_t1),
    (is_replay, read_replay),
)
"""Documents of every kind: how one is recognised, and read."""
