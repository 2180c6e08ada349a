"""Files of sweeps as JSON: measurements, and all that it takes to understand and repeat them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from autotune.core import checks
from autotune.core.configuration import Candidate
from autotune.core.errors import InputError
from autotune.core.measurement import Measurement, Outcome
from autotune.core.objective import OBJECTIVES, TIME
from autotune.core.printable import shown
from autotune.research.space import OUTSIDE, Entry, Goal, Recording, as_json, configuration

FAILED = "failed"
"""Outcome of a configuration of which a recording says no more."""

OUTCOMES = (*map(str, Outcome), FAILED, OUTSIDE)

SUBJECT = (
    *("operation", "problem", "target", "study"),
    *("seed", "size", "wanted", "complete", "counts", "seconds"),
)
"""Keys of a file that say what was measured, and how much of it."""


def entry_of(candidate: Candidate, measurement: Measurement) -> Entry:
    """The entry of a measurement, in seconds."""
    details = measurement.details
    spent = [details[name] for name in ("compile_s", "trial_s") if name in details]
    return Entry(
        dict(candidate.configuration),
        measurement.median_s,
        candidate.family,
        str(measurement.outcome),
        measurement.reason,
        measurement.interval_s,
        measurement.repeats,
        measurement.samples,
        sum(map(float, spent)) if spent else None,
        details,
    )


def measured(entry: Entry) -> dict[str, Any]:
    """One measurement, with times in seconds, as JSON has it.

    A number by another objective than time is in the details, as `objective` and `score`.
    """
    if entry.value is None and entry.outcome in (Outcome.OK, Outcome.ABANDONED):
        raise InputError(
            f"a sweep has times, and {shown(dict(entry.configuration))} has none: write T4 "
            "results (.t4.json) or a Kernel Tuner cache (.kt.json)"
        )
    more = {"samples_s": list(entry.samples), "seconds": entry.seconds, **_details(entry)}
    return {
        "family": entry.family,
        "configuration": dict(entry.configuration),
        "outcome": entry.outcome or (FAILED if entry.value is None else str(Outcome.OK)),
        "median_s": entry.value,
        "interval_s": None if entry.interval is None else list(entry.interval),
        "repeats": entry.repeats,
        "reason": entry.reason,
        **{name: part for name, part in more.items() if part not in (None, [])},
    }


def _details(entry: Entry) -> dict[str, Any]:
    return {"details": dict(entry.details)} if entry.details else {}


def write_sweep(recording: Recording) -> str:
    """A recording as the JSON of a sweep.

    Raises:
        InputError: its times have no unit.
    """
    document = {
        **{name: recording.subject[name] for name in SUBJECT if name in recording.subject},
        "name": recording.name,
        "device": recording.device,
        "objective": written_goal(recording.goal),
        "provenance": dict(recording.provenance),
        "measurements": list(map(measured, recording.in_unit("s").entries)),
    }
    return as_json(document, "measurements")


def is_sweep(document: Mapping[str, Any]) -> bool:
    """Recognise a sweep's JSON."""
    return "measurements" in document and "results" not in document


def read_sweep(document: Mapping[str, Any], name: str) -> Recording:
    """A sweep as `autotune sweep` writes it.

    Raises:
        InputError: a key is missing or not what it should be.
    """
    rows: Iterable[Entry] = (
        read_measured(checks.mapping(f"measurements[{number}]", stored), f"measurements[{number}]")
        for number, stored in enumerate(checks.sequence("measurements", document["measurements"]))
    )
    return Recording(
        rows,
        checks.line("name", document.get("name", name)),
        unit="s",
        device=checks.line("device", document.get("device", "")),
        format="sweep",
        subject={key: document[key] for key in SUBJECT if key in document},
        provenance=checks.mapping("provenance", document.get("provenance", {})),
        goal=read_goal(document.get("objective", TIME.name)),
    )


GOALS = {
    name: Goal(name, each.unit, each.better == "higher", "score")
    for name, each in OBJECTIVES.items()
    if each is not TIME
}
"""Objectives of ours, whose value is the details' `score`."""


def written_goal(goal: Goal | None) -> str | dict[str, Any]:
    """An objective in a sweep's file: its name, or all of it where it is none of ours."""
    if goal is None:
        return TIME.name
    return goal.name if GOALS.get(goal.name) == goal else asdict(goal)


def read_goal(stored: object) -> Goal | None:
    """The objective that `written_goal` wrote; None is the time.

    Raises:
        InputError: it is none.
    """
    if isinstance(stored, dict):
        found: Goal = checks.checked(stored, Goal, "objective")
        return found
    if stored == TIME.name:
        return None
    if not isinstance(stored, str) or stored not in GOALS:
        rule = f'one of {", ".join(OBJECTIVES)} ("time" to read the times, which are there too)'
        raise checks.wrong("objective", rule, stored)
    return GOALS[stored]


def read_measured(stored: Mapping[str, Any], where: str) -> Entry:
    """A measurement; one that was rejected after compiling failed like any other.

    Raises:
        InputError: a key is missing or not what it should be.
    """
    missing = [key for key in ("configuration", "outcome") if stored.get(key) is None]
    if missing:
        raise InputError(f"{where}: expected the key `{missing[0]}`")
    outcome = stored["outcome"]
    if outcome not in OUTCOMES:  # it may be anything, and not hashable
        raise checks.wrong(f"{where}.outcome", f"one of {', '.join(OUTCOMES)}", outcome)
    median_s, interval = stored.get("median_s"), stored.get("interval_s")
    value = None
    # What was abandoned ran too: its time is of its first runs.
    if outcome in (Outcome.OK, Outcome.ABANDONED):
        if not checks.is_number(median_s) or not median_s > 0:
            raise checks.wrong(f"{where}.median_s", "positive seconds", median_s)
        value = float(median_s)
    samples: tuple[float, ...] = checks.checked(
        stored.get("samples_s") or (), tuple[checks.Positive, ...], f"{where}.samples_s"
    )
    seconds: float | None = checks.checked(
        stored.get("seconds"), checks.NotNegative | None, f"{where}.seconds"
    )
    return Entry(
        configuration(where, stored["configuration"]),
        value,
        checks.line(f"{where}.family", stored.get("family", "")),
        outcome,
        str(stored.get("reason") or ""),
        None if interval is None else checks.interval(f"{where}.interval_s", interval),
        repeats if type(repeats := stored.get("repeats")) is int else 0,
        samples,
        seconds,
        checks.mapping(f"{where}.details", stored.get("details") or {}),
    )
