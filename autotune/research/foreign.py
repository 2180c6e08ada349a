"""Objectives and units as files of other tuners state them, and what those have no place for.

Few formats say whether more is better. An objective of which that is not known is refused: its
optimum might be its worst configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from autotune.core import checks
from autotune.core.errors import InputError
from autotune.core.measurement import Outcome
from autotune.research.space import Entry, Goal, Recording
from autotune.research.swept import FAILED, OUTCOMES

FAILED_TIME = 1e20
"""The time that the oldest files have for configurations that failed."""

TIME = "time"
"""The objective of files that state none."""

OURS = "autotune"
"""Key, in files of other formats, of what those have no place for."""

_SPELLINGS: Mapping[str, str] = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), "s"),
    # The benchmark hub writes "miliseconds".
    **dict.fromkeys(("ms", "millisecond", "milliseconds", "milisecond", "miliseconds"), "ms"),
    **dict.fromkeys(("us", "\u00b5s", "\u03bcs", "microsecond", "microseconds"), "us"),
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds"), "ns"),
}

HIGHER = (
    *("GFLOP/s", "TFLOP/s", "GB/s", "TB/s", "GFLOPS/W", "TFLOPS/W", "GFLOP/J", "TFLOP/J"),
    *("throughput", "fitness"),
)
LOWER = ("energy", "energy-delay", "error", "cost", "loss")
"""Objectives of which more or less is better: Kernel Tuner's, and our own."""

WORDS: Mapping[str, str] = {
    "s": "seconds",
    "ms": "milliseconds",
    "us": "microseconds",
    "ns": "nanoseconds",
}
"""Units as files of other tuners name them."""


def only(where: str, stated: object) -> str:
    """The name of the one objective that a file states; it may state none, which is the time."""
    if stated is None or stated == []:
        return TIME
    names = stated if isinstance(stated, list) else [stated]
    if len(names) > 1 or not isinstance(names[0], str):
        raise no_time(where, stated)
    return names[0]


def no_time(where: str, stated: object) -> InputError:
    """The error for an objective whose direction nobody knows, or for several."""
    rule = f'one time, or one of {", ".join((*HIGHER, *LOWER))} (name "time" there to read times)'
    return checks.wrong(where, rule, stated)


def goal(where: str, name: str, unit: str = "", kept: Goal | None = None) -> Goal:
    """The goal of an objective that is no time.

    Args:
        where: the key that has it.
        name: of the objective.
        unit: as the file has it.
        kept: the goal that `about` kept, which knows what its name alone may not tell.

    Raises:
        InputError: nobody knows whether more of it is better.
    """
    if kept is not None and kept.name == name:
        return kept
    known = {each.casefold(): each in HIGHER for each in (*HIGHER, *LOWER)}
    if name.casefold() not in known:
        raise no_time(where, name)
    return Goal(name, unit, known[name.casefold()], f"{name} ({unit})" if unit else name)


def is_time(name: str) -> bool:
    """Recognise an objective without a unit as a time, by its name as Kernel Tuner does."""
    return name.startswith(TIME)


def time_unit(stated: object) -> str:
    """A unit of time by its symbol; "" where the word is none."""
    return _SPELLINGS.get(stated.strip().casefold(), "") if isinstance(stated, str) else ""


def label(value: object) -> str:
    """A device's name, where the file has one."""
    return value if isinstance(value, str) else ""


def timed(values: Mapping[str, Any], key: str, time: Any) -> Entry:
    """A configuration with its time, which may stand for a failure."""
    if not checks.is_number(time) or time <= 0:
        raise checks.wrong(key, "a positive time", time)
    if time >= FAILED_TIME:
        return failed(values, FAILED)
    return Entry(values, float(time), outcome=Outcome.OK)


def failed(values: Mapping[str, Any], outcome: str, reason: str = "") -> Entry:
    """A configuration that failed; the reason is its outcome where the file has no other."""
    return Entry(values, None, outcome=outcome, reason=reason or outcome)


def samples(values: object) -> tuple[float, ...]:
    """Raw samples, where a file has them as numbers above zero."""
    if isinstance(values, list) and all(
        type(each) in (int, float) and 0 < each < FAILED_TIME for each in values
    ):
        return tuple(map(float, values))
    return ()


@dataclass(frozen=True, slots=True)
class _Kept:
    """Fields of an entry, as `beside` keeps them."""

    value: checks.Positive | None = None
    family: checks.AnyLine = ""
    outcome: Literal[OUTCOMES] = FAILED  # type: ignore[valid-type]
    reason: str = ""
    interval: tuple[checks.Positive, checks.Positive] | None = None
    repeats: checks.Whole = 0
    samples: tuple[checks.Positive, ...] = ()
    seconds: checks.NotNegative | None = None
    details: dict[str, Any] = field(default_factory=dict)


_FIELDS = tuple(each.name for each in fields(_Kept))


def beside(entry: Entry, native: Entry) -> dict[str, Any]:
    """Parts of an entry that a format has no place for, under `OURS`.

    Args:
        entry: what is written.
        native: what is read of the format's own fields.
    """
    kept = {name: getattr(entry, name) for name in _FIELDS}
    kept["details"] = dict(entry.details)
    kept = {name: value for name, value in kept.items() if value != getattr(native, name)}
    return {OURS: kept} if kept else {}


def restored(entry: Entry, stored: Mapping[str, Any], where: str) -> Entry:
    """The entry as it was written, with what `beside` kept of it.

    Raises:
        InputError: something there is not what it should be.
    """
    if OURS not in stored:
        return entry
    kept: _Kept = checks.checked(stored[OURS], _Kept, f"{where}.{OURS}")
    return entry._replace(
        **{name: getattr(kept, name) for name in _FIELDS if name in stored[OURS]}
    )


def part(recording: Recording, key: str) -> dict[str, Any]:
    """Part of a recording's provenance under a key, which may be anybody's.

    Raises:
        InputError: it is no object.
    """
    found = recording.provenance.get(key, {})
    if not isinstance(found, dict):
        raise checks.wrong(f"provenance.{key}", "an object", found)
    return found


def compiling_s(entry: Entry) -> float:
    """Seconds of compiling, where the details have them; else 0."""
    found = entry.details.get("compile_s")
    return float(found) if checks.is_number(found) and found >= 0 else 0.0


def about(recording: Recording, *native: str) -> dict[str, Any]:
    """Facts about a recording beside its entries, under `OURS`.

    Args:
        recording: what is written.
        native: keys of its provenance that the format has a place for.
    """
    parts = recording.provenance.items()
    known = {
        "name": recording.name,
        "subject": dict(recording.subject),
        "provenance": {key: part for key, part in parts if key not in native},
        "native": [key for key in native if key in recording.provenance],
        "goal": recording.goal and asdict(recording.goal),
    }
    return {OURS: {name: part for name, part in known.items() if part}}


def kept_goal(stored: object) -> Goal | None:
    """The goal that `about` kept; None where there is none.

    Raises:
        InputError: it is something else.
    """
    kept = {} if stored is None else checks.mapping(OURS, stored)
    found: Goal | None = checks.checked(kept.get("goal"), Goal | None, f"{OURS}.goal")
    return found


def known(recording: Recording, stored: object) -> Recording:
    """The recording with what `about` kept of it.

    Raises:
        InputError: something there is not what it should be.
    """
    if stored is None:
        return recording
    kept = checks.mapping(OURS, stored)
    native = checks.sequence(f"{OURS}.native", kept.get("native", []))
    provenance = {key: part for key, part in recording.provenance.items() if key in native}
    provenance |= checks.mapping(f"{OURS}.provenance", kept.get("provenance", {}))
    return replace(
        recording,
        goal=kept_goal(stored) or recording.goal,
        name=checks.line(f"{OURS}.name", kept.get("name", recording.name)),
        subject=checks.mapping(f"{OURS}.subject", kept.get("subject", {})),
        provenance=provenance,
    )
