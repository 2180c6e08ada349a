"""Kernel Tuner's files: caches of every age, and lists of results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.core import checks
from autotune.core.configuration import Value
from autotune.core.errors import InputError
from autotune.core.measurement import Outcome
from autotune.core.printable import shown
from autotune.research import foreign
from autotune.research.space import OUTSIDE, Entry, Goal, Recording, as_json, rescaled
from autotune.research.swept import FAILED

KERNEL_TUNER_ERRORS: Mapping[str, str] = {
    "InvalidConfig": OUTSIDE,  # a restriction was not met
    "CompilationFailedConfig": Outcome.COMPILE_FAILED,
    "RuntimeFailedConfig": Outcome.LAUNCH_FAILED,
    "ErrorConfig": FAILED,
}
"""Kernel Tuner's marks of configurations without a time, and what they come to."""

_SPENT = ("compile_time", "verification_time", "benchmark_time", "framework_time")
"""Keys of an entry: milliseconds of its evaluation. What the strategy took is none of it."""

_TAKEN = (foreign.TIME, "times", "__error__", foreign.OURS)
"""Keys of an entry that are read by name, and no parameters."""

_OWN = "kernel_tuner"
"""Key of a recording's provenance: the file's own keys."""


def is_kernel_tuner(document: Mapping[str, Any]) -> bool:
    """Recognise a Kernel Tuner cache file."""
    return "cache" in document and ("tune_params_keys" in document or "tune_params" in document)


def is_list(document: Sequence[Any]) -> bool:
    """Recognise a list of Kernel Tuner's results, as its papers have published them."""
    return all(isinstance(each, dict) and foreign.TIME in each for each in document[:2])


def read_kernel_tuner(document: Mapping[str, Any], name: str) -> Recording:
    """A Kernel Tuner cache file.

    Errors stand in place of the objective (older ones) or beside it, or its time is null. The
    oldest files have values in the keys of the entries alone.

    Raises:
        InputError: a key is missing or not what it should be, or nobody knows whether more of the
            objective is better.
    """
    cache = checks.mapping("cache", document["cache"])
    declared, keys = document.get("tune_params"), document.get("tune_params_keys")
    if keys is None:
        keys = list(checks.mapping("tune_params", declared))
    parameters = checks.names("tune_params_keys", keys)
    objective = foreign.only("objective", document.get("objective"))
    timed = foreign.is_time(objective)
    ours = document.get(foreign.OURS)
    kept = foreign.kept_goal(ours)
    goal = None if timed else foreign.goal("objective", objective, kept=kept)
    stated = ours.get("unit", "ms") if isinstance(ours, dict) else "ms"
    if not (unit := foreign.time_unit(stated)):
        raise checks.wrong(f"{foreign.OURS}.unit", "a unit of time", stated)
    given = declared if isinstance(declared, dict) else {}
    reader = _Entries(parameters, given, objective, unit, goal)
    taken = ("cache", "device_name", "objective", "tune_params", "tune_params_keys", foreign.OURS)
    own = {key: value for key, value in document.items() if key not in taken}
    provenance = {"spaces": {"": {"parameters": declared}}} if declared else {}
    recording = Recording(
        (reader.read(key, stored) for key, stored in cache.items()),
        name=name,
        unit=unit,
        device=foreign.label(document.get("device_name")),
        format="Kernel Tuner cache",
        goal=goal,
        provenance={**provenance, _OWN: own} if own else provenance,
    )
    return foreign.known(recording, ours)


class _Entries:
    """Reads the entries of a cache: their parameters, the values declared, and the objective.

    They are in milliseconds, and read in `unit`, which is that of a recording written as a cache.
    """

    def __init__(
        self,
        parameters: Sequence[str],
        declared: Mapping[str, Any],
        objective: str = foreign.TIME,
        unit: str = "ms",
        goal: Goal | None = None,
    ) -> None:
        self.parameters = parameters
        self.unit = unit
        self._objective = objective
        self._goal = goal
        self._declared = {
            name: {str(value): value for value in values}
            for name, values in declared.items()
            if isinstance(values, list)
        }

    def read(self, key: str, stored: Any) -> Entry:
        where = f"cache[{key!r}]"
        checks.mapping(where, stored)
        entry = self._native(self._values(key, stored, where), stored, where)
        return foreign.restored(entry.scaled("ms", self.unit), stored, where)

    def _native(self, values: dict[str, Value], stored: Mapping[str, Any], where: str) -> Entry:
        # Older files have errors under the objective's name, which they do not state.
        others = {name: value for name, value in stored.items() if name not in values}
        older = next((each for each in others.values() if each in _ERRORS), None)
        error = stored.get("__error__", older)
        if error in _ERRORS:
            entry = foreign.failed(values, KERNEL_TUNER_ERRORS[error], error)
        elif "__error__" in stored:
            raise checks.wrong(f"{where}.__error__", f"one of {', '.join(_ERRORS)}", error)
        elif self._objective in stored and stored[self._objective] is None:
            entry = foreign.failed(values, FAILED)
        elif self._goal is not None and foreign.TIME not in stored:
            entry = Entry(values, None, outcome=Outcome.OK)
        else:
            name = self._objective if self._goal is None else foreign.TIME
            entry = foreign.timed(values, f"{where}.{name}", stored.get(name))
        if self._goal is not None and entry.outcome == Outcome.OK:
            value = stored.get(self._objective)
            if not checks.is_number(value):
                raise checks.wrong(f"{where}.{self._objective}", "a number", value)
        spent = [each for name in _SPENT if checks.is_number(each := stored.get(name))]
        taken = _TAKEN if self._goal is not None else (self._objective, *_TAKEN)
        return entry._replace(
            samples=foreign.samples(stored.get("times")),
            seconds=sum(spent) / 1e3 if spent else None,
            details={
                name: value
                for name, value in others.items()
                if name not in taken and value not in _ERRORS
            },
        )

    def _values(self, key: str, stored: Mapping[str, Any], where: str) -> dict[str, Value]:
        """The values of an entry: its own, or where it has none those in its key."""
        missing = [name for name in self.parameters if name not in stored]
        parts = key.split(",")
        if missing and (len(missing) < len(self.parameters) or len(parts) != len(missing)):
            raise checks.wrong(where, f"the parameter {shown(missing[0])}", stored)
        if missing:
            named = zip(self.parameters, parts, strict=True)
            stored = {name: self._value(name, part) for name, part in named}
        return {name: checks.scalar(f"{where}.{name}", stored[name]) for name in self.parameters}

    def _value(self, name: str, text: str) -> Any:
        declared = self._declared.get(name, {})
        if text in declared:
            return declared[text]
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text


_ERRORS = tuple(KERNEL_TUNER_ERRORS)


def read_list(document: Sequence[Any], name: str) -> Recording:
    """A list of Kernel Tuner's results: objects whose parameters stand before their `time`.

    Raises:
        InputError: one is not of the first one's parameters, or has no time.
    """
    first = list(document[0])
    reader = _Entries(checks.names("results[0]", first[: first.index(foreign.TIME)]), {})
    rows = (reader.read(str(number), each) for number, each in enumerate(document))
    return Recording(rows, name, unit="ms", format="Kernel Tuner results")


def write_kernel_tuner(recording: Recording) -> str:
    """A recording as a Kernel Tuner cache.

    Raises:
        InputError: it is of several families, or its times have no unit.
    """
    entries = list(recording.in_unit(recording.unit).entries)
    if len(families := dict.fromkeys(entry.family for entry in entries)) > 1:
        raise InputError(
            f"a Kernel Tuner cache is of one kernel, and this recording of {len(families)} "
            "families: sweep one, or write T4 results (.t4.json)"
        )
    values: dict[str, dict[Value, None]] = {}
    for entry in entries:
        for name, value in entry.configuration.items():
            values.setdefault(name, {})[value] = None
    found = {name: list(own) for name, own in values.items()}
    spaces = foreign.part(recording, "spaces")
    own = checks.mapping("spaces", spaces.get("", {})).get("parameters")
    declared: dict[str, Any] = found
    if isinstance(own, dict) and own.keys() == (found or own).keys():  # a space alone has none
        declared = own
    goal = recording.goal
    objective = foreign.TIME if goal is None else goal.name
    reader = _Entries(list(declared), declared, objective, recording.unit, goal)
    if taken := next((name for name in declared if name in (objective, *_TAKEN)), ""):
        raise InputError(f"a parameter must not be called {taken!r}, as a key is: rename it")
    cache: dict[str, Any] = {}
    for number, entry in enumerate(entries):
        key = ",".join(map(str, entry.configuration.values()))
        key = key if key and key not in cache else f"{key}#{number}"
        cache[key] = _written(reader, entry, goal)
    native = (_OWN, "spaces") if spaces == {"": {"parameters": declared}} else (_OWN,)
    described = {
        "schema_version": "1.1.0",
        "kernel_name": next(iter(families), "") or recording.name,
        "problem_size": json.dumps(recording.subject.get("problem", "")),
    }
    ours = foreign.about(recording, *native)
    if recording.unit != "ms":
        ours.setdefault(foreign.OURS, {})["unit"] = recording.unit
    document = {
        "device_name": recording.device,
        **(foreign.part(recording, _OWN) or described),
        "tune_params_keys": list(declared),
        "tune_params": declared,
        "objective": objective,
        **ours,
        "cache": cache,
    }
    return as_json(document, "cache")


def _written(reader: _Entries, entry: Entry, goal: Goal | None) -> dict[str, Any]:
    """The entry of a cache, with the milliseconds that simulations of searches want."""
    details = {
        name: value
        for name, value in entry.details.items()
        if name not in (*entry.configuration, *_TAKEN)
    }
    spent = {}
    if entry.seconds is not None and not any(name in details for name in _SPENT):
        compiling = 1e3 * foreign.compiling_s(entry)
        rest = max(0.0, 1e3 * entry.seconds - compiling)
        spent = {**dict.fromkeys(_SPENT, 0.0), "compile_time": compiling, "benchmark_time": rest}
        spent["strategy_time"] = 0.0
    stored: dict[str, Any] = {**entry.configuration, **details, **spent}
    failed = (entry.value if goal is None else goal.cost(entry)) is None
    if failed:
        alike = (error for error, own in KERNEL_TUNER_ERRORS.items() if own == entry.outcome)
        stored[foreign.TIME] = stored["__error__"] = next(alike, "RuntimeFailedConfig")
    elif entry.value is not None:
        stored[foreign.TIME] = rescaled(entry.value, reader.unit, "ms")
    if goal is not None and not failed:
        stored[goal.name] = entry.details[goal.key]
    if entry.samples:
        stored["times"] = [rescaled(each, reader.unit, "ms") for each in entry.samples]
    return stored | foreign.beside(entry, reader.read("", stored))
