"""Our own recordings: sweeps as JSON and CSV, measurements in the cache, and replay files."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

from autotune.errors import InputError
from autotune.measurement import Outcome
from autotune.recorded import fields
from autotune.recorded.space import Entry, RecordedSpace
from autotune.store import TuningCache

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from autotune.configuration import Candidate
    from autotune.measurement import Measurement
    from autotune.problem import Problem

CSV_COLUMNS = ("family", "configuration", "outcome", "median_s", "low_s", "high_s", "reason")
"""The configuration is one JSON object: families have different parameters."""


def document(candidate: Candidate, measurement: Measurement) -> dict[str, Any]:
    """One measurement of a sweep as JSON."""
    return {
        "family": candidate.family,
        "configuration": dict(candidate.configuration),
        "outcome": str(measurement.outcome),
        "median_s": measurement.median_s,
        "interval_s": None if measurement.interval_s is None else list(measurement.interval_s),
        "repeats": measurement.repeats,
        "reason": measurement.reason,
    }


def write_csv(measured: Iterable[tuple[Candidate, Measurement]]) -> str:
    """The measurements of a sweep as CSV, one a row, times in seconds."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for candidate, measurement in measured:
        low_s, high_s = measurement.interval_s or ("", "")
        median_s = "" if measurement.median_s is None else measurement.median_s
        writer.writerow(
            [
                candidate.family,
                json.dumps(dict(candidate.configuration)),
                measurement.outcome,
                median_s,
                low_s,
                high_s,
                measurement.reason,
            ]
        )
    return out.getvalue()


def is_csv(content: str) -> bool:
    """Whether this is a sweep's CSV."""
    return content.startswith(",".join(CSV_COLUMNS[:4]))


def read_csv(content: str, name: str) -> RecordedSpace:
    """A sweep as `write_csv` writes it.

    Raises:
        InputError: a field is missing or not what it should be.
    """
    rows = []
    for number, row in enumerate(csv.DictReader(io.StringIO(content)), start=2):
        where = f"line {number}"
        try:
            configuration = json.loads(row["configuration"] or "")
            median_s = float(row["median_s"]) if row["median_s"] else None
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{where}: expected a configuration as JSON and a median in seconds ({error})"
            ) from error
        rows.append(_entry({**row, "configuration": configuration, "median_s": median_s}, where))
    return _recorded(rows, name, device="", format="sweep (CSV)")


def is_sweep(document: Mapping[str, Any]) -> bool:
    """Whether this is a sweep's JSON."""
    return "measurements" in document and "results" not in document


def read_sweep(document: Mapping[str, Any], name: str) -> RecordedSpace:
    """A sweep as `autotune sweep` writes it.

    Raises:
        InputError: a key is missing or not what it should be.
    """
    measurements = fields.sequence(document["measurements"], "measurements")
    rows = [
        _entry(fields.mapping(each, f"measurements[{number}]"), f"measurements[{number}]")
        for number, each in enumerate(measurements)
    ]
    return _recorded(rows, name, device=str(document.get("device", "")), format="sweep")


def recorded_from_cache(
    path: Path,
    *,
    study: str | None = None,
    problem: Problem | None = None,
    target: str | None = None,
) -> RecordedSpace:
    """What a cache holds of a study, or of a problem: all that was ever measured there.

    Args:
        path: the cache's SQLite file.
        study: only what this study measured.
        problem: only this problem.
        target: only this target.

    Raises:
        InputError: there are no such measurements, or they are of several problems or devices.
        CacheError: the cache cannot be read.
    """
    found = TuningCache(path).measurements(study=study, problem=problem, target=target)
    wanted = ", ".join(
        f"{what} {value!r}"
        for what, value in (
            ("study", study),
            ("problem", None if problem is None else problem.label),
            ("target", target),
        )
        if value is not None
    )
    if not found:
        raise InputError(f"{path} holds no measurements of {wanted or 'anything'}: sweep it first")
    kinds = {(json.dumps(each.problem), each.target, each.fingerprint) for each in found}
    if len(kinds) > 1:
        raise InputError(
            f"{path} holds measurements of {len(kinds)} problems, targets or devices for "
            f"{wanted or 'everything'}: name a study"
        )
    # The newest measurement of a candidate counts.
    newest = {each.candidate: each.measurement for each in found}
    rows = [
        _entry(document(candidate, measurement), str(candidate))
        for candidate, measurement in newest.items()
    ]
    return _recorded(rows, study or wanted, device=found[0].fingerprint, format="cache")


def is_replay(document: Mapping[str, Any]) -> bool:
    """Whether this is a replay file."""
    return "configurations" in document


def read_replay(document: Mapping[str, Any], name: str) -> RecordedSpace:
    """A replay file: `columns`, a row of values per configuration, and `times`, null if failed.

    Raises:
        InputError: a key is missing or not what it should be.
    """
    missing = [key for key in ("columns", "times") if key not in document]
    if missing:
        raise InputError(f"expected the key `{missing[0]}` beside `configurations`")
    columns = fields.names(document["columns"], "columns")
    configurations = fields.sequence(document["configurations"], "configurations")
    times = fields.sequence(document["times"], "times")
    if len(times) != len(configurations):
        raise InputError(
            f"times: expected one for each of {len(configurations)} configurations, "
            f"got {len(times)}"
        )
    entries = []
    for number, (row, time) in enumerate(zip(configurations, times, strict=True)):
        where = f"configurations[{number}]"
        if len(fields.sequence(row, where)) != len(columns):
            raise InputError(f"{where}: expected {len(columns)} values, got {len(row)}")
        if time is not None and not (fields.is_number(time) and time > 0):
            raise InputError(
                f"times[{number}]: expected a positive number or null, got {fields.describe(time)}"
            )
        values = zip(columns, row, strict=True)
        entries.append(
            Entry({column: fields.scalar(each, f"{where}") for column, each in values}, time)
        )
    objective = str(document.get("objective", ""))
    return RecordedSpace.of(
        entries,
        name=str(document.get("name", name)),
        unit="ms" if "(ms)" in objective else "s" if "(s)" in objective else "",
        device=str(document.get("device", "")),
        format="replay file",
    )


def _entry(stored: Mapping[str, Any], where: str) -> Entry:
    """A measurement; one that was rejected after compiling failed like any other."""
    missing = [key for key in ("configuration", "outcome") if stored.get(key) is None]
    if missing:
        raise InputError(f"{where}: expected the key `{missing[0]}`")
    outcome = stored["outcome"]
    if outcome not in tuple(Outcome):  # it may be anything, and not hashable
        raise InputError(
            f"{where}.outcome: expected one of {', '.join(Outcome)}, "
            f"got {fields.describe(outcome)}"
        )
    configuration = {
        parameter: fields.scalar(value, f"{where}.configuration.{parameter}")
        for parameter, value in fields.mapping(
            stored["configuration"], f"{where}.configuration"
        ).items()
    }
    median_s = stored.get("median_s")
    value = None
    # What was abandoned ran too: its time is of its first runs.
    if outcome in (Outcome.OK, Outcome.ABANDONED):
        if not fields.is_number(median_s) or not median_s > 0:
            raise InputError(
                f"{where}.median_s: expected positive seconds, got {fields.describe(median_s)}"
            )
        value = float(median_s)
    return Entry(configuration, value, fields.text(stored.get("family", ""), f"{where}.family"))


def _recorded(entries: Iterable[Entry], name: str, *, device: str, format: str) -> RecordedSpace:
    return RecordedSpace.of(entries, name=name, unit="s", device=device, format=format)
