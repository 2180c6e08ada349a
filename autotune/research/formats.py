"""Recorded files of any known format, told apart by what is in them, and those of other tuners.

Replay, scores and priors minimise, so a file whose objective is no time is refused: its optimum
would be its slowest configuration.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.core import checks
from autotune.core.errors import InputError
from autotune.core.printable import printable, shown
from autotune.core.reading import open_regular
from autotune.core.statistics import median
from autotune.research import sweeps
from autotune.research.space import Entry, RecordedSpace, Recording, configuration

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
    if is_kernel_tuner(document):
        return replace(read_kernel_tuner(document, name), note=note)
    if is_t4(document):
        return read_t4(document, name)
    if sweeps.is_sweep(document):
        return sweeps.read_sweep(document, name)
    if is_replay(document):
        return read_replay(document, name)
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


KERNEL_TUNER_ERRORS = (
    "InvalidConfig",
    "CompilationFailedConfig",
    "RuntimeFailedConfig",
    "ErrorConfig",
)
"""Kernel Tuner's marks of configurations without a time."""

OUTSIDE = "InvalidConfig"
"""The one among them that says that a restriction was not met: no configuration of the space."""

FAILED_TIME = 1e20
"""The time that the oldest files have for configurations that failed."""

T4_INVALIDITY = ("correct", "compile", "runtime", "timeout", "correctness", "constraints")

TIME = "time"
"""The objective of files that state none."""

_FAILED = "failed"
"""The reason of failures without one."""

_SPELLINGS: Mapping[str, str] = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), "s"),
    # The benchmark hub writes "miliseconds".
    **dict.fromkeys(("ms", "millisecond", "milliseconds", "milisecond", "miliseconds"), "ms"),
    **dict.fromkeys(("us", "\u00b5s", "\u03bcs", "microsecond", "microseconds"), "us"),
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds"), "ns"),
}


def is_kernel_tuner(document: Mapping[str, Any]) -> bool:
    """Recognise a Kernel Tuner cache file."""
    return "cache" in document and ("tune_params_keys" in document or "tune_params" in document)


def read_kernel_tuner(document: Mapping[str, Any], name: str) -> Recording:
    """A Kernel Tuner cache file, with errors in place of the objective (older ones) or beside it.

    Raises:
        InputError: a key is missing or not what it should be, or the objective is no time.
    """
    cache = checks.mapping("cache", document["cache"])
    keys = document.get("tune_params_keys")
    if keys is None:
        keys = list(checks.mapping("tune_params", document.get("tune_params")))
    parameters = checks.names("tune_params_keys", keys)
    objective = _only("objective", document.get("objective"))
    if not _is_time(objective):
        raise _no_time("objective", objective)
    entries = _cached(cache, parameters, objective)
    device = _label(document.get("device_name"))
    return Recording(entries, name=name, unit="ms", device=device, format="Kernel Tuner cache")


def _cached(cache: Mapping[str, Any], parameters: list[str], objective: str) -> Iterator[Entry]:
    for key, stored in cache.items():
        where = f"cache[{key!r}]"
        checks.mapping(where, stored)
        missing = [name for name in parameters if name not in stored]
        if missing:
            raise checks.wrong(where, f"the parameter {shown(missing[0])}", stored)
        values = {name: checks.scalar(f"{where}.{name}", stored[name]) for name in parameters}
        # Older files have errors under the objective's name, which they do not state.
        others = (value for name, value in stored.items() if name not in values)
        older = next((value for value in others if value in KERNEL_TUNER_ERRORS), None)
        error = stored.get("__error__", older)
        if error in KERNEL_TUNER_ERRORS:
            if error != OUTSIDE:
                yield Entry(values, None, reason=error)
            continue
        if "__error__" in stored:
            raise checks.wrong(
                f"{where}.__error__", f"one of {', '.join(KERNEL_TUNER_ERRORS)}", error
            )
        yield _timed(values, f"{where}.{objective}", stored.get(objective))


def is_t4(document: Mapping[str, Any]) -> bool:
    """Recognise T4 results."""
    results = document.get("results")
    return isinstance(results, list) and all(
        isinstance(result, dict) and "configuration" in result for result in results[:1]
    )


def read_t4(document: Mapping[str, Any], name: str) -> Recording:
    """Results in the auto-tuning community's T4 schema, 1.0.

    Raises:
        InputError: a key is missing or not what it should be, or the objective is no time.
    """
    results = checks.sequence("results", document["results"])
    metadata = checks.mapping("metadata", document.get("metadata", {}))
    stated = metadata.get("timeunit", "ms")
    unit = _time_unit(stated)
    if not unit:
        raise checks.wrong("metadata.timeunit", "a unit of time, like milliseconds", stated)
    first = next((measured for _, measured in _results(results, unit) if measured), (TIME, unit))
    entries, device = _alike(results, unit, first), _label(metadata.get("device"))
    return Recording(entries, name=name, unit=first[1], device=device, format="T4 results")


def _alike(results: Sequence[Any], unit: str, first: tuple[str, str]) -> Iterator[Entry]:
    """The entries of results, whose times must be of one name and unit: they are compared."""
    for entry, measured in _results(results, unit):
        for what, own, expected in zip(
            ("objective", "unit"), measured or first, first, strict=True
        ):
            if own != expected:
                raise checks.wrong(what, f"{expected!r} in all results, as in the first", own)
        yield entry


def _results(results: Sequence[Any], unit: str) -> Iterator[tuple[Entry, tuple[str, str] | None]]:
    """The entries of results, each with the name and unit of its time if it has one.

    `unit` is the file's, for times without one.
    """
    for number, result in enumerate(results):
        where = f"results[{number}]"
        checks.mapping(where, result)
        values = configuration(where, result.get("configuration"))
        invalidity = result.get("invalidity", "correct")
        if invalidity not in T4_INVALIDITY:
            raise checks.wrong(
                f"{where}.invalidity", f"one of {', '.join(T4_INVALIDITY)}", invalidity
            )
        if invalidity == "correct":
            key, time, measured = _measured(result, where, unit)
            yield _timed(values, key, time), measured
        elif invalidity != "constraints":
            yield Entry(values, None, reason=invalidity), None


def _measured(
    result: Mapping[str, Any], where: str, unit: str
) -> tuple[str, object, tuple[str, str]]:
    """The key and value of a result's time, and the time's name and unit.

    It is carried by the objective, is a measurement of its name, or the median of the runs.
    """
    objectives = result.get("objectives", [])
    if isinstance(objectives, dict):  # name: value
        objectives = [{"name": name, "value": value} for name, value in objectives.items()]
    objectives = checks.sequence(f"{where}.objectives", objectives)
    names = [one.get("name") if isinstance(one, dict) else one for one in objectives]
    name = _only(f"{where}.objectives", names)
    measurements = checks.sequence(f"{where}.measurements", result.get("measurements", []))
    found = {
        one["name"]: one
        for one in [*measurements, *objectives]
        if isinstance(one, dict) and isinstance(one.get("name"), str)
    }
    own = found.get(name, {}).get("unit") or (unit if _is_time(name) else "")
    measured = (name, _time_unit(own))
    if not measured[1] and _is_time(name):
        raise checks.wrong(f"{where}.measurements[{name!r}].unit", "one of time, like ms", own)
    if not measured[1]:
        raise _no_time(f"{where}.objectives", name)
    if name in found:
        return f"{where}.measurements[{name!r}].value", found[name].get("value"), measured
    times = result.get("times")
    runs = times.get("runtimes") if isinstance(times, dict) else None
    if isinstance(runs, list) and runs and all(map(checks.is_number, runs)):
        return f"{where}.times.runtimes", median(runs), measured
    raise checks.wrong(f"{where}.measurements", f"one named {shown(name)}", list(found))


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
    rows = checks.sequence("configurations", document["configurations"])
    times = checks.sequence("times", document["times"])
    if len(times) != len(rows):
        raise InputError(
            f"times: expected one for each of {len(rows)} configurations, got {len(times)}"
        )
    return Recording(
        _replayed(columns, rows, times),
        name=checks.line("name", document.get("name", name)),
        unit=_replayed_unit(document.get("objective", "")),
        device=checks.line("device", document.get("device", "")),
        format="replay file",
    )


def _replayed(columns: list[str], rows: list[Any], times: list[Any]) -> Iterator[Entry]:
    for number, (row, time) in enumerate(zip(rows, times, strict=True)):
        where = f"configurations[{number}]"
        if len(checks.sequence(where, row)) != len(columns):
            raise checks.wrong(where, f"{len(columns)} values", row)
        if time is not None and not (checks.is_number(time) and time > 0):
            raise checks.wrong(f"times[{number}]", "a positive number or null", time)
        values = zip(columns, row, strict=True)
        yield Entry({column: checks.scalar(where, value) for column, value in values}, time)


def _replayed_unit(stated: object) -> str:
    """The unit in a replay file's objective, like "time (ms), lower is better".

    Raises:
        InputError: more is better, or nothing says that less is.
    """
    words = checks.line("objective", stated).casefold()
    more = re.search("higher|larger|greater|more|max", words)
    if words and (more or not re.search("time|lower|smaller|less|min", words)):
        raise checks.wrong(
            "objective", 'a value of which less is better, like "time (ms)"', stated
        )
    unit = re.search(r"\((.*?)\)", words)
    return _time_unit(unit[1]) if unit else ""


def _only(where: str, stated: object) -> str:
    """The name of the one objective that a file states; it may state none, which is the time."""
    if stated is None or stated == []:
        return TIME
    names = stated if isinstance(stated, list) else [stated]
    if len(names) > 1 or not isinstance(names[0], str):
        raise _no_time(where, stated)
    return names[0]


def _no_time(where: str, stated: object) -> InputError:
    """The error for an objective that is no time, or for several."""
    return checks.wrong(
        where, 'one time (name "time" there to read the times, if the file has them)', stated
    )


def _is_time(name: str) -> bool:
    """Recognise an objective without a unit as a time, by its name as Kernel Tuner does."""
    return name.startswith(TIME)


def _time_unit(stated: object) -> str:
    """A unit of time by its symbol; "" where the word is none."""
    return _SPELLINGS.get(stated.strip().casefold(), "") if isinstance(stated, str) else ""


def _label(value: object) -> str:
    """A device's name, where the file has one."""
    return value if isinstance(value, str) else ""


def _timed(values: Mapping[str, Any], key: str, time: Any) -> Entry:
    """A configuration with its time, which may stand for a failure."""
    if not checks.is_number(time) or time <= 0:
        raise checks.wrong(key, "a positive time", time)
    failed = time >= FAILED_TIME
    return Entry(values, None if failed else float(time), reason=_FAILED if failed else "")
