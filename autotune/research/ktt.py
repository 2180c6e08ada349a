"""Files of the Kernel Tuning Toolkit: results (KTT's JSON), and spaces of the T1 schema.

The layout of results is that of KTT 2.0 to 2.2, https://github.com/HiPerCoRe/KTT.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from autotune.core import checks
from autotune.core.errors import InputError
from autotune.core.measurement import Outcome
from autotune.research import foreign
from autotune.research.space import Entry, Recording, as_json, rescaled
from autotune.space.document import read_spaces
from autotune.space.expression import Expression

STATUS: Mapping[str, str] = {
    "Ok": Outcome.OK,
    "CompilationFailed": Outcome.COMPILE_FAILED,
    "ComputationFailed": Outcome.LAUNCH_FAILED,
    "ValidationFailed": Outcome.WRONG_RESULT,
    "DeviceLimitsExceeded": Outcome.REJECTED,
}
"""KTT's words for the end of a configuration."""

_OWN = "ktt"
"""Key of a recording's provenance: the file's own metadata."""

_TAKEN = (
    "KernelName",
    "Status",
    "TotalDuration",
    "Configuration",
    "ComputationResults",
    foreign.OURS,
)


def is_ktt(document: Mapping[str, Any]) -> bool:
    """Recognise KTT's results."""
    return "Results" in document and "Metadata" in document


def read_ktt(document: Mapping[str, Any], name: str) -> Recording:
    """KTT's results.

    Raises:
        InputError: a key is missing or not what it should be.
    """
    metadata = checks.mapping("Metadata", document["Metadata"])
    unit = foreign.time_unit(metadata.get("TimeUnit"))
    if not unit:
        expected = "a unit of time, like Microseconds"
        raise checks.wrong("Metadata.TimeUnit", expected, metadata.get("TimeUnit"))
    results = checks.sequence("Results", document["Results"])
    taken = ("Device", "TimeUnit", foreign.OURS)
    own = {key: part for key, part in metadata.items() if key not in taken}
    recording = Recording(
        (_read(result, f"Results[{number}]", unit) for number, result in enumerate(results)),
        name=name,
        unit=unit,
        device=foreign.label(metadata.get("Device")),
        format="KTT results",
        provenance={_OWN: own} if own else {},
    )
    return foreign.known(recording, metadata.get(foreign.OURS))


def _read(result: Any, where: str, unit: str) -> Entry:
    checks.mapping(where, result)
    return foreign.restored(_native(result, where, unit), result, where)


def _native(result: Mapping[str, Any], where: str, unit: str) -> Entry:
    pairs = checks.sequence(f"{where}.Configuration", result.get("Configuration"))
    values = {}
    for number, pair in enumerate(pairs):
        at = f"{where}.Configuration[{number}]"
        parameter = checks.line(f"{at}.Name", checks.mapping(at, pair).get("Name"))
        values[parameter] = checks.scalar(f"{at}.Value", pair.get("Value"))
    status = result.get("Status")
    if status not in tuple(STATUS):
        raise checks.wrong(f"{where}.Status", f"one of {', '.join(STATUS)}", status)
    if status == "Ok":
        entry = foreign.timed(values, f"{where}.TotalDuration", result.get("TotalDuration"))
    else:
        entry = foreign.failed(values, STATUS[status], status)
    numbers = {name: each for name, each in result.items() if name not in _TAKEN}
    overhead = numbers.get("TotalOverhead")
    spent = None
    if checks.is_number(overhead) and overhead >= 0:
        spent = rescaled(overhead + (entry.value or 0.0), unit, "s")
    return entry._replace(seconds=spent, details=numbers | dict(_counters(result)))


def _counters(result: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Resources and profiling counters of the first kernel function."""
    functions = result.get("ComputationResults")
    if not isinstance(functions, list) or not functions or not isinstance(functions[0], dict):
        return
    data, profiled = functions[0].get("CompilationData"), functions[0].get("ProfilingData")
    yield from (data if isinstance(data, dict) else {}).items()
    counters = profiled.get("Counters") if isinstance(profiled, dict) else None
    for each in counters if isinstance(counters, list) else []:
        if isinstance(each, dict) and isinstance(name := each.get("Name"), str):
            yield name, each.get("Value")


def write_ktt(recording: Recording) -> str:
    """A recording as KTT's results, in its own unit.

    Raises:
        InputError: its times have no unit.
    """
    unit = recording.unit
    rescaled(1.0, unit, "s")
    document = {
        "Metadata": {
            **foreign.part(recording, _OWN),
            "Device": recording.device,
            "TimeUnit": foreign.WORDS[unit].capitalize(),
            **foreign.about(recording, _OWN),
        },
        "Results": [_written(entry, unit) for entry in recording.entries],
    }
    return as_json(document, "Results")


_TYPES = {bool: "Bool", int: "Int", float: "Double", str: "String"}


def _written(entry: Entry, unit: str) -> dict[str, Any]:
    if entry.value is None and entry.outcome == Outcome.OK:
        raise InputError("KTT's results have times, and this recording has none: write .t4.json")
    alike = (word for word, outcome in STATUS.items() if outcome == entry.outcome)
    details = {name: each for name, each in entry.details.items() if name not in _TAKEN}
    result: dict[str, Any] = {
        "KernelName": entry.family,
        "Status": "Ok" if entry.value is not None else next(alike, "ComputationFailed"),
        "TotalDuration": entry.value or 0.0,
        "TotalOverhead": 0.0
        if entry.seconds is None
        else max(0.0, rescaled(entry.seconds, "s", unit) - (entry.value or 0.0)),
        **details,
        "Configuration": [
            {"Name": name, "Value": value, "ValueType": _TYPES[type(value)]}
            for name, value in entry.configuration.items()
        ],
        "ComputationResults": [],
    }
    return result | foreign.beside(entry, _native(result, "Results", unit))


def is_t1(document: Mapping[str, Any]) -> bool:
    """Recognise a space of the T1 schema."""
    return "ConfigurationSpace" in document


def read_t1(document: Mapping[str, Any], name: str) -> Recording:
    """A space in the T1 schema: a recording of nothing, whose provenance has the space.

    Raises:
        InputError: a key is missing or not what it should be.
    """
    space = checks.mapping("ConfigurationSpace", document["ConfigurationSpace"])
    parameters = {}
    key = "ConfigurationSpace.TuningParameters"
    for number, each in enumerate(checks.sequence(key, space.get("TuningParameters"))):
        where = f"{key}[{number}]"
        one = checks.mapping(where, each)
        parameter = checks.line(f"{where}.Name", one.get("Name"), empty=False)
        parameters[parameter] = _literals(f"{where}.Values", one.get("Values"))
    key = "ConfigurationSpace.Conditions"
    rules = []
    for number, each in enumerate(checks.sequence(key, space.get("Conditions") or [])):
        one = checks.mapping(f"{key}[{number}]", each)
        expression = one.get("Expression")
        rule = {"expr": checks.line(f"{key}[{number}].Expression", expression)}
        rules.append(rule | ({"reason": reason} if (reason := one.get(foreign.OURS)) else {}))
    kernel = document.get("KernelSpecification")
    own = {"t1": {"KernelSpecification": kernel}} if kernel else {}
    spaces = {"": {"parameters": parameters} | ({"restrictions": rules} if rules else {})}
    # Of no times, the unit is of no matter.
    recording = Recording(
        (), name, unit="s", format="T1 space", provenance={"spaces": spaces, **own}
    )
    return foreign.known(recording, document.get(foreign.OURS))


_T1_TYPES = {bool: "bool", int: "int", float: "float", str: "string"}
"""T1's words for types of values, each wider than those before it."""


def write_t1(recording: Recording) -> str:
    """The space of a recording in the T1 schema, which has no place for measurements.

    Raises:
        InputError: it declares no space, several, or one that takes more than parameters and
            restrictions.
    """
    spaces = foreign.part(recording, "spaces")
    if len(spaces) != 1:
        kind = f"one of {len(spaces)} families" if spaces else f"a {recording.format} without"
        raise InputError(f"a T1 file is of one declared space, got {kind}: sweep one family")
    ((family, space),) = spaces.items()
    parts = checks.mapping(f"spaces.{family}", space)
    rules = parts.get("restrictions", [])
    if more := [name for name in ("definitions", "constants") if parts.get(name)]:
        raise InputError(
            f"a T1 file has parameters and restrictions, and this space has {more[0]} too: write "
            "a sweep (.json)"
        )
    read_spaces(spaces)
    parameters = [
        {
            "Name": name,
            "Type": _T1_TYPES[max(map(type, values), key=list(_T1_TYPES).index)],
            "Values": repr(list(values)),
        }
        for name, values in parts["parameters"].items()
    ]
    document = {
        **foreign.part(recording, "t1"),
        **foreign.about(recording, "t1", "spaces"),
        "ConfigurationSpace": {
            "TuningParameters": parameters,
            "Conditions": [_condition(rule) for rule in rules],
        },
    }
    return json.dumps(document, indent=1) + "\n"


def _condition(rule: Mapping[str, Any]) -> dict[str, Any]:
    names = list(Expression.parse(rule["expr"]).ordered_names)
    reason = {foreign.OURS: rule["reason"]} if rule.get("reason") else {}
    return {"Parameters": names, "Expression": rule["expr"], **reason}


def _literals(where: str, text: object) -> list[Any]:
    """Values as T1 has them: a list as text, like "[1, 2, 4]"."""
    values: Any = text
    for read in (ast.literal_eval, json.loads):  # as Python has them, or as JSON
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            values = read(text) if isinstance(text, str) else text
            break
    if not isinstance(values, list | tuple) or not values:
        raise checks.wrong(where, 'a list of values as text, like "[1, 2, 4]"', text)
    return [checks.scalar(where, value) for value in values]
