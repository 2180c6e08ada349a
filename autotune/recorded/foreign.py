"""Recordings of other tuners: Kernel Tuner's cache files, and T4 results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.core.printable import shown
from autotune.core.statistics import median
from autotune.recorded.space import Entry, Recording
from autotune.store import checks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

OBJECTIVE = "time"
"""What the benchmark hub's recordings minimise."""

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
    """A Kernel Tuner cache file, with errors in place of the time (older ones) or beside it.

    Raises:
        InputError: a key is missing or not what it should be.
    """
    cache = checks.mapping("cache", document["cache"])
    keys = document.get("tune_params_keys")
    if keys is None:
        keys = list(checks.mapping("tune_params", document.get("tune_params")))
    parameters = checks.names("tune_params_keys", keys)
    return Recording(
        _cached(cache, parameters),
        name=name,
        unit="ms",
        device=_label(document.get("device_name")),
        format="Kernel Tuner cache",
    )


def _cached(cache: Mapping[str, Any], parameters: list[str]) -> Iterator[Entry]:
    for key, stored in cache.items():
        where = f"cache[{key!r}]"
        checks.mapping(where, stored)
        missing = [name for name in parameters if name not in stored]
        if missing:
            raise checks.wrong(where, f"the parameter {shown(missing[0])}", stored)
        configuration = {
            name: checks.scalar(f"{where}.{name}", stored[name]) for name in parameters
        }
        # Older files have the error in place of the time, newer ones beside it.
        error = stored.get("__error__", stored.get(OBJECTIVE))
        if error in KERNEL_TUNER_ERRORS:
            if error != OUTSIDE:
                yield Entry(configuration, None, reason=error)
            continue
        if "__error__" in stored:
            raise checks.wrong(
                f"{where}.__error__", f"one of {', '.join(KERNEL_TUNER_ERRORS)}", error
            )
        value = _time(stored.get(OBJECTIVE), f"{where}.{OBJECTIVE}")
        yield Entry(configuration, value, reason="" if value else _FAILED)


def is_t4(document: Mapping[str, Any]) -> bool:
    """Whether these are T4 results."""
    results = document.get("results")
    return isinstance(results, list) and all(
        isinstance(result, dict) and "configuration" in result for result in results[:1]
    )


def read_t4(document: Mapping[str, Any], name: str) -> Recording:
    """Results in the auto-tuning community's T4 schema, 1.0.

    Raises:
        InputError: a key is missing or not what it should be.
    """
    results = checks.sequence("results", document["results"])
    unit = checks.line("unit", next((unit for _, unit in _results(results) if unit), "ms"))
    return Recording(
        _alike(results, unit),
        name=name,
        unit=unit,
        device=_label(checks.mapping("metadata", document.get("metadata", {})).get("device")),
        format="T4 results",
    )


def _alike(results: Sequence[Any], unit: str) -> Iterator[Entry]:
    """The entries of results, whose times must have one unit: they are compared as numbers."""
    for entry, own in _results(results):
        if own not in (unit, ""):
            raise checks.wrong("unit", f"{unit!r} in all results, as in the first", own)
        yield entry


def _results(results: Sequence[Any]) -> Iterator[tuple[Entry, str]]:
    """The entries of results, and the unit of each one's time if it has one."""
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
            yield Entry(configuration, None, reason=invalidity), ""
            continue
        value, unit = _measured(result, where)
        yield Entry(configuration, value, reason="" if value else _FAILED), unit


def _label(value: object) -> str:
    """A device's name, where the file has one."""
    return value if isinstance(value, str) else ""


def _measured(result: Mapping[str, Any], where: str) -> tuple[float | None, str]:
    """The time of one result and its unit: as objective, as measurement, or of its runs."""
    objectives = result.get("objectives", [])
    if isinstance(objectives, dict):  # name: value
        objectives = [{"name": name, "value": value} for name, value in objectives.items()]
    objectives = checks.sequence(f"{where}.objectives", objectives)
    carried = [each for each in objectives if isinstance(each, dict)]
    wanted = [each for each in objectives if isinstance(each, str)] or [OBJECTIVE]
    measurements = checks.sequence(f"{where}.measurements", result.get("measurements", []))
    found = {
        each["name"]: each
        for each in [*measurements, *carried]
        if isinstance(each, dict) and isinstance(each.get("name"), str)
    }
    names = [*wanted, OBJECTIVE, *(str(each.get("name")) for each in carried)]
    for name in names:
        if name in found:
            key = f"{where}.measurements[{name!r}].value"
            return _time(found[name].get("value"), key), str(found[name].get("unit") or "ms")
    times = result.get("times")
    runs = times.get("runtimes") if isinstance(times, dict) else None
    if isinstance(runs, list) and runs and all(map(checks.is_number, runs)):
        return _time(median(runs), f"{where}.times.runtimes"), "ms"
    wanted_names = " or ".join(map(shown, dict.fromkeys(names[:2])))
    raise checks.wrong(f"{where}.measurements", f"one named {wanted_names}", list(found))


def _time(value: Any, key: str) -> float | None:
    """A recorded time; None where it stands for a failure."""
    if not checks.is_number(value) or value <= 0:
        raise checks.wrong(key, "a positive time", value)
    return None if value >= FAILED_TIME else float(value)
