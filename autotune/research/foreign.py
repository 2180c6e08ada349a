"""Recordings of other tuners: Kernel Tuner's cache files, and T4 results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.core import checks
from autotune.core.printable import shown
from autotune.core.statistics import median
from autotune.research.objective import TIME, is_time, no_time, time_unit
from autotune.research.space import Entry, Recording

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

KERNEL_TUNER_ERRORS = (
    "InvalidConfig",
    "CompilationFailedConfig",
    "RuntimeFailedConfig",
    "ErrorConfig",
)
"""What Kernel Tuner stores for configurations without a time."""

OUTSIDE = "InvalidConfig"
"""The one among them that says that a restriction was not met: no configuration of the space."""

FAILED_TIME = 1e20
"""The time that the oldest files have for configurations that failed."""

_FAILED = "failed"
"""The reason for those, which have none."""

T4_INVALIDITY = ("correct", "compile", "runtime", "timeout", "correctness", "constraints")


def is_kernel_tuner(document: Mapping[str, Any]) -> bool:
    """Whether this is a Kernel Tuner cache file."""
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
    objective = _only(document.get("objective"), "objective")
    if not is_time(objective):
        raise no_time("objective", objective)
    return Recording(
        _cached(cache, parameters, objective),
        name=name,
        unit="ms",
        device=_label(document.get("device_name")),
        format="Kernel Tuner cache",
    )


def _only(stated: object, where: str) -> str:
    """The name of the one objective that a file states; it may state none, which is the time."""
    if stated is None or stated == []:
        return TIME
    names = stated if isinstance(stated, list) else [stated]
    if len(names) > 1 or not isinstance(names[0], str):
        raise no_time(where, stated)
    return names[0]


def _cached(cache: Mapping[str, Any], parameters: list[str], objective: str) -> Iterator[Entry]:
    for key, stored in cache.items():
        where = f"cache[{key!r}]"
        checks.mapping(where, stored)
        missing = [name for name in parameters if name not in stored]
        if missing:
            raise checks.wrong(where, f"the parameter {shown(missing[0])}", stored)
        configuration = {
            name: checks.scalar(f"{where}.{name}", stored[name]) for name in parameters
        }
        error = stored.get("__error__", _error(stored, configuration))
        if error in KERNEL_TUNER_ERRORS:
            if error != OUTSIDE:
                yield Entry(configuration, None, reason=error)
            continue
        if "__error__" in stored:
            raise checks.wrong(
                f"{where}.__error__", f"one of {', '.join(KERNEL_TUNER_ERRORS)}", error
            )
        value = _time(stored.get(objective), f"{where}.{objective}")
        yield Entry(configuration, value, reason="" if value else _FAILED)


def _error(stored: Mapping[str, Any], configuration: Mapping[str, Any]) -> str | None:
    """The error that older files have under the objective's name, which they do not state."""
    values = (value for name, value in stored.items() if name not in configuration)
    return next((value for value in values if value in KERNEL_TUNER_ERRORS), None)


def is_t4(document: Mapping[str, Any]) -> bool:
    """Whether these are T4 results."""
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
    unit = time_unit(stated) if isinstance(stated, str) else ""
    if not unit:
        raise checks.wrong("metadata.timeunit", "a unit of time, like milliseconds", stated)
    first = next((measured for _, measured in _results(results, unit) if measured), (TIME, unit))
    return Recording(
        _alike(results, unit, first),
        name=name,
        unit=first[1],
        device=_label(metadata.get("device")),
        format="T4 results",
    )


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
    """The entries of results, and the name and unit of each one's time if it has one.

    Args:
        results: those of the file.
        unit: the file's, for times without one.
    """
    for number, result in enumerate(results):
        where = f"results[{number}]"
        checks.mapping(where, result)
        configuration = {
            parameter: checks.scalar(f"{where}.configuration.{parameter}", value)
            for parameter, value in checks.mapping(
                f"{where}.configuration", result.get("configuration")
            ).items()
        }
        invalidity = result.get("invalidity", "correct")
        if invalidity not in T4_INVALIDITY:
            raise checks.wrong(
                f"{where}.invalidity", f"one of {', '.join(T4_INVALIDITY)}", invalidity
            )
        if invalidity == "constraints":
            continue
        if invalidity != "correct":
            yield Entry(configuration, None, reason=invalidity), None
            continue
        value, measured = _measured(result, where, unit)
        yield Entry(configuration, value, reason="" if value else _FAILED), measured


def _label(value: object) -> str:
    """A device's name, where the file has one."""
    return value if isinstance(value, str) else ""


def _measured(
    result: Mapping[str, Any], where: str, unit: str
) -> tuple[float | None, tuple[str, str]]:
    """The time of one result, its name and unit: as objective, as measurement, or of its runs."""
    objectives = result.get("objectives", [])
    if isinstance(objectives, dict):  # name: value
        objectives = [{"name": name, "value": value} for name, value in objectives.items()]
    objectives = checks.sequence(f"{where}.objectives", objectives)
    carried = [each for each in objectives if isinstance(each, dict)]
    names = [each.get("name") if isinstance(each, dict) else each for each in objectives]
    name = _only(names, f"{where}.objectives")
    measurements = checks.sequence(f"{where}.measurements", result.get("measurements", []))
    found = {
        each["name"]: each
        for each in [*measurements, *carried]
        if isinstance(each, dict) and isinstance(each.get("name"), str)
    }
    own = found.get(name, {}).get("unit") or (unit if is_time(name) else "")
    known = time_unit(own) if isinstance(own, str) else ""
    if not known and is_time(name):
        raise checks.wrong(f"{where}.measurements[{name!r}].unit", "one of time, like ms", own)
    if not known:
        raise no_time(f"{where}.objectives", name)
    if name in found:
        key = f"{where}.measurements[{name!r}].value"
        return _time(found[name].get("value"), key), (name, known)
    times = result.get("times")
    runs = times.get("runtimes") if isinstance(times, dict) else None
    if isinstance(runs, list) and runs and all(map(checks.is_number, runs)):
        return _time(median(runs), f"{where}.times.runtimes"), (name, known)
    raise checks.wrong(f"{where}.measurements", f"one named {shown(name)}", list(found))


def _time(value: Any, key: str) -> float | None:
    """A recorded time; None where it stands for a failure."""
    if not checks.is_number(value) or value <= 0:
        raise checks.wrong(key, "a positive time", value)
    return None if value >= FAILED_TIME else float(value)
