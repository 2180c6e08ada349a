"""Recordings of other tuners: Kernel Tuner's cache files, T4 results, and replay files.

Replay, scores and priors minimise, so a file whose objective is no time is refused: its optimum
would be its slowest configuration.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autotune.core import checks
from autotune.core.errors import InputError
from autotune.core.printable import shown
from autotune.core.statistics import median
from autotune.research.space import Entry, Recording, configuration

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
