"""Results in the auto-tuning community's T4 schema, 1.0: https://github.com/odgaard/TuningSchema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from statistics import median
from typing import Any

from autotune.core import checks
from autotune.core.errors import InputError
from autotune.core.measurement import Outcome
from autotune.core.printable import shown
from autotune.research import foreign
from autotune.research.space import (
    OUTSIDE,
    Entry,
    Goal,
    Recording,
    as_json,
    configuration,
    rescaled,
)

T4_INVALIDITY: Mapping[str, str] = {
    "correct": Outcome.OK,
    "compile": Outcome.COMPILE_FAILED,
    "runtime": Outcome.LAUNCH_FAILED,
    "timeout": Outcome.TIMEOUT,
    "correctness": Outcome.WRONG_RESULT,
    "constraints": OUTSIDE,
}

_SPENT = ("compilation_time", "framework", "validation")
"""Of `times`, those of an evaluation beside its runs. What the search took is none of it."""

_OWN = "t4"
"""Key of a recording's provenance: the file's own metadata."""


def is_t4(document: Mapping[str, Any]) -> bool:
    """Recognise T4 results."""
    results = document.get("results")
    return isinstance(results, list) and all(
        isinstance(result, dict) and "configuration" in result for result in results[:1]
    )


def read_t4(document: Mapping[str, Any], name: str) -> Recording:
    """Results in the T4 schema.

    Raises:
        InputError: a key is missing or not what it should be, or nobody knows whether more of the
            objective is better.
    """
    results = checks.sequence("results", document["results"])
    metadata = checks.mapping("metadata", document.get("metadata", {}))
    stated = metadata.get("timeunit", "ms")
    unit = foreign.time_unit(stated)
    if not unit:
        raise checks.wrong("metadata.timeunit", "a unit of time, like milliseconds", stated)
    kept = foreign.kept_goal(metadata.get(foreign.OURS))
    first = next(
        (measured for _, measured in _results(results, unit, kept) if measured),
        (foreign.TIME, unit),
    )
    own = {
        key: part
        for key, part in metadata.items()
        if key not in ("timeunit", "device", foreign.OURS)
    }
    is_time = foreign.time_unit(first[1])
    recording = Recording(
        _alike(results, unit, kept, first),
        name=name,
        unit=first[1] if is_time else unit,
        goal=None if is_time else foreign.goal("objectives", *first, kept),
        device=foreign.label(metadata.get("device")),
        format="T4 results",
        provenance={_OWN: own} if own else {},
    )
    return foreign.known(recording, metadata.get(foreign.OURS))


def _alike(
    results: Sequence[Any], unit: str, kept: Goal | None, first: tuple[str, str]
) -> Iterator[Entry]:
    """The entries of results, whose objectives must be of one name and unit: they are compared."""
    for entry, measured in _results(results, unit, kept):
        for what, own, expected in zip(
            ("objective", "unit"), measured or first, first, strict=True
        ):
            if own != expected:
                raise checks.wrong(what, f"{expected!r} in all results, as in the first", own)
        yield entry


def _results(
    results: Sequence[Any], unit: str, kept: Goal | None
) -> Iterator[tuple[Entry, tuple[str, str] | None]]:
    """The entries of results, each with the name and unit of its objective if it has one.

    `unit` is the file's, for times without one, and `kept` its goal, where we wrote it.
    """
    for number, result in enumerate(results):
        where = f"results[{number}]"
        checks.mapping(where, result)
        entry, measured = _native(result, where, unit, kept)
        yield foreign.restored(entry, result, where), measured


def _native(
    result: Mapping[str, Any], where: str, unit: str, kept: Goal | None
) -> tuple[Entry, tuple[str, str] | None]:
    """A result by the schema's own fields."""
    values = configuration(where, result.get("configuration"))
    invalidity = result.get("invalidity", "correct")
    if invalidity not in tuple(T4_INVALIDITY):  # it may be anything, and not hashable
        raise checks.wrong(f"{where}.invalidity", f"one of {', '.join(T4_INVALIDITY)}", invalidity)
    measured, goal = None, dict[str, Any]()
    if invalidity == "correct":
        key, value, measured = _measured(result, where, unit, kept)
        if foreign.time_unit(measured[1]):
            entry = foreign.timed(values, key, value)
        else:
            goal = {foreign.goal(key, *measured, kept).key: value}
            entry = Entry(values, _beside(result, unit), outcome=Outcome.OK)
    else:
        entry = foreign.failed(values, T4_INVALIDITY[invalidity], invalidity)
    times = result.get("times")
    times = times if isinstance(times, dict) else {}
    runs = foreign.samples(times.get("runtimes"))
    numbers = {name: each for name, each in times.items() if checks.is_number(each)}
    spent = [numbers[name] for name in _SPENT if name in numbers]
    total = rescaled(sum((*spent, *runs)), unit, "s") if spent else None
    own = measured[1] if measured and not goal else unit
    entry = entry._replace(
        samples=tuple(rescaled(each, unit, own) for each in runs),
        seconds=total,
        details={**numbers, **dict(_others(result, measured, bool(goal))), **goal},
    )
    return entry, measured


def _beside(result: Mapping[str, Any], unit: str) -> float | None:
    """The time of a result whose objective is another, where it has one."""
    with suppress(InputError):
        key, time, measured = _measured({**result, "objectives": [foreign.TIME]}, "", unit)
        value = foreign.timed({}, key, time).value
        return None if value is None else rescaled(value, measured[1], unit)
    return None


def _others(
    result: Mapping[str, Any], measured: tuple[str, str] | None, timed: bool
) -> Iterator[tuple[str, Any]]:
    """The measurements beside the objective, and the time where that is another."""
    for one in result.get("measurements") or []:
        if isinstance(one, dict) and isinstance(name := one.get("name"), str):
            unit = one.get("unit")
            if (measured is None or name != measured[0]) and not (timed and name == foreign.TIME):
                yield (f"{name} ({unit})" if unit else name), one.get("value")


def _measured(
    result: Mapping[str, Any], where: str, unit: str, kept: Goal | None = None
) -> tuple[str, object, tuple[str, str]]:
    """The key and value of a result's objective, and the objective's name and unit.

    It is carried by the objective, is a measurement of its name, or the median of the runs.
    """
    objectives = result.get("objectives", [])
    if isinstance(objectives, dict):  # name: value
        objectives = [{"name": name, "value": value} for name, value in objectives.items()]
    objectives = checks.sequence(f"{where}.objectives", objectives)
    names = [one.get("name") if isinstance(one, dict) else one for one in objectives]
    name = foreign.only(f"{where}.objectives", names)
    measurements = checks.sequence(f"{where}.measurements", result.get("measurements", []))
    found = {
        one["name"]: one
        for one in [*measurements, *objectives]
        if isinstance(one, dict) and isinstance(one.get("name"), str)
    }
    own = found.get(name, {}).get("unit") or (unit if foreign.is_time(name) else "")
    measured = (name, foreign.time_unit(own))
    if not measured[1] and foreign.is_time(name):
        raise checks.wrong(f"{where}.measurements[{name!r}].unit", "one of time, like ms", own)
    if not measured[1]:
        goal = foreign.goal(f"{where}.objectives", name, foreign.label(own), kept)
        measured = (goal.name, goal.unit)
        value = found.get(name, {}).get("value")
        if not checks.is_number(value):
            raise checks.wrong(f"{where}.measurements[{shown(name)}].value", "a number", value)
    if name in found:
        return f"{where}.measurements[{name!r}].value", found[name].get("value"), measured
    times = result.get("times")
    runs = times.get("runtimes") if isinstance(times, dict) else None
    if isinstance(runs, list) and runs and all(map(checks.is_number, runs)):
        return f"{where}.times.runtimes", median(runs), measured
    raise checks.wrong(f"{where}.measurements", f"one named {shown(name)}", list(found))


def write_t4(recording: Recording) -> str:
    """A recording as T4 results, in its own unit.

    Raises:
        InputError: its times have no unit.
    """
    unit, goal = recording.unit, recording.goal
    rescaled(1.0, unit, "s")
    document = {
        "schema_version": "1.0.0",
        "metadata": {
            **foreign.part(recording, _OWN),
            "timeunit": foreign.WORDS[unit],
            "device": recording.device,
            **foreign.about(recording, _OWN),
        },
        "results": [_written(entry, unit, goal) for entry in recording.entries],
    }
    return as_json(document, "results")


def _written(entry: Entry, unit: str, goal: Goal | None) -> dict[str, Any]:
    """A result; other numbers of its details than times are measurements without a unit."""
    given = entry.details
    alike = (word for word, outcome in T4_INVALIDITY.items() if outcome == entry.outcome)
    cost = entry.value if goal is None else goal.cost(entry)
    invalidity = "correct" if cost is not None else next(alike, "runtime")
    invalidity = "runtime" if cost is None and invalidity == "correct" else invalidity
    times = {name: each for name, each in given.items() if name in (*_SPENT, "search_algorithm")}
    if not times and entry.seconds is not None:
        compiling = foreign.compiling_s(entry)
        ran = sum(rescaled(each, unit, "s") for each in entry.samples)
        rest = max(0.0, entry.seconds - compiling - ran)
        times = {"compilation_time": rescaled(compiling, "s", unit)}
        times["framework"] = rescaled(rest, "s", unit)
    measurements = [
        {"name": name, "value": each, "unit": ""}
        for name, each in given.items()
        if name not in times and name != foreign.TIME and isinstance(each, str | int | float)
        if goal is None or name not in (goal.name, goal.key)
    ]
    if entry.value is not None:
        measurements.insert(0, {"name": foreign.TIME, "value": entry.value, "unit": unit})
    if goal is not None and cost is not None:
        value = given[goal.key]
        measurements.insert(0, {"name": goal.name, "value": value, "unit": goal.unit})
    result: dict[str, Any] = {
        "configuration": dict(entry.configuration),
        "objectives": [foreign.TIME if goal is None else goal.name],
        "times": {**times, "runtimes": list(entry.samples)},
        "invalidity": invalidity,
        "correctness": int(cost is not None),
        "measurements": measurements,
    }
    native, _ = _native(result, "result", unit, goal)
    return result | foreign.beside(entry, native)
