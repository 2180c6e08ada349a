"""Our own recordings: sweeps as JSON and CSV, and measurements in the cache."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from autotune.core import checks
from autotune.core.configuration import Candidate, Value
from autotune.core.errors import AutotuneError, InputError
from autotune.core.measurement import Measurement, Outcome
from autotune.core.paths import CacheLocations
from autotune.operations.problem import Problem
from autotune.research.space import Entry, RecordedSpace, Recording, configuration
from autotune.search.reading import read_study
from autotune.store import StoredMeasurement, TuningCache

CSV_COLUMNS = ("family", "outcome", "median_s", "low_s", "high_s", "repeats", "reason")
"""The first columns; those after them are parameters, empty where a family lacks one."""

_OLD_COLUMNS = ("family", "configuration", "outcome", "median_s", "low_s", "high_s", "reason")
"""Those of earlier files, where the configuration is one JSON object."""


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
    """The measurements of a sweep as CSV, one a row, times in seconds, a column a parameter."""
    rows = list(measured)
    parameters = dict.fromkeys(name for candidate, _ in rows for name in candidate.configuration)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*CSV_COLUMNS, *parameters])
    for candidate, measurement in rows:
        values = candidate.configuration
        writer.writerow(
            [
                candidate.family,
                measurement.outcome,
                measurement.median_s,  # nothing is written for None
                *(measurement.interval_s or (None, None)),
                measurement.repeats,
                measurement.reason,
                *(_cell(values[name]) if name in values else None for name in parameters),
            ]
        )
    return out.getvalue()


def _cell(value: Value) -> str:
    """A value as it is read again: text as it is, unless it reads like something else."""
    return value if isinstance(value, str) and _value(value) == value else json.dumps(value)


def _value(cell: str) -> Any:
    """The value of a cell: a number, true, false, or text; None where it is empty."""
    if not cell:
        return None
    try:
        value = json.loads(cell)
    except (ValueError, RecursionError):
        return cell
    return value if isinstance(value, str | int | float) else cell


def is_csv(content: str) -> bool:
    """Recognise a sweep's CSV."""
    return content.startswith((",".join(CSV_COLUMNS[:4]), ",".join(_OLD_COLUMNS[:4])))


def read_csv(content: str, name: str) -> Recording:
    """A sweep as `write_csv` writes it, or as it once did.

    Raises:
        InputError: a field is missing or not what it should be.
    """
    return Recording(_csv_rows(content), name, unit="s", format="sweep (CSV)")


def _csv_rows(content: str) -> Iterator[Entry]:
    rows = enumerate(csv.reader(io.StringIO(content)), start=1)
    number, columns = 0, list[str]()
    try:
        for number, row in rows:
            if not columns:
                columns = row
            elif row:  # a line may be empty
                yield _csv_entry(columns, row, f"line {number}")
    except csv.Error as error:
        raise InputError(f"line {number + 1}: not usable CSV: {error}") from error


def _csv_entry(columns: list[str], row: list[str], where: str) -> Entry:
    count = len(CSV_COLUMNS)
    cells = dict(zip(columns[:count], row, strict=False))
    is_old = "configuration" in columns[:count]
    try:
        if is_old:
            found = json.loads(cells.get("configuration", ""))
        else:
            values = zip(columns[count:], map(_value, row[count:]), strict=False)
            found = {name: value for name, value in values if value is not None}
        median_s, low_s, high_s = (
            float(text) if (text := cells.get(column)) else None
            for column in ("median_s", "low_s", "high_s")
        )
        repeats = int(cells.get("repeats") or 0)
    except (ValueError, RecursionError) as error:
        wanted = "a configuration as JSON, " if is_old else ""
        raise InputError(
            f"{where}: expected {wanted}times in seconds and a whole number of repeats ({error})"
        ) from error
    interval = [low_s, high_s] if high_s else None
    numbers = {"median_s": median_s, "interval_s": interval, "repeats": repeats}
    return _entry({**cells, "configuration": found, **numbers}, where)


def is_sweep(document: Mapping[str, Any]) -> bool:
    """Recognise a sweep's JSON."""
    return "measurements" in document and "results" not in document


def read_sweep(document: Mapping[str, Any], name: str) -> Recording:
    """A sweep as `autotune sweep` writes it.

    Raises:
        InputError: a key is missing or not what it should be.
    """
    measurements = checks.sequence("measurements", document["measurements"])
    rows = (
        _entry(checks.mapping(f"measurements[{number}]", stored), f"measurements[{number}]")
        for number, stored in enumerate(measurements)
    )
    device = checks.line("device", document.get("device", ""))
    known = ("operation", "problem", "target", "study")
    subject = {key: document[key] for key in known if key in document}
    return Recording(rows, name, unit="s", device=device, format="sweep", subject=subject)


def recorded_from_cache(
    path: Path,
    *,
    study: str | None = None,
    problem: Problem | None = None,
    target: str | None = None,
) -> RecordedSpace:
    """The measurements in a cache's SQLite file, of one study, problem or target only if given.

    Raises:
        InputError: there are no such measurements, or they are of several problems or devices.
        CacheError: the cache cannot be read.
    """
    found = TuningCache(path).measurements(study=study, problem=problem, target=target)
    label = None if problem is None else problem.label
    given = {"study": study, "problem": label, "target": target}
    wanted = ", ".join(f"{what} {value!r}" for what, value in given.items() if value is not None)
    if not found:
        raise InputError(f"{path} holds no measurements of {wanted or 'anything'}: sweep it first")
    kinds = {(json.dumps(one.problem), one.target, one.fingerprint) for one in found}
    if len(kinds) > 1:
        raise InputError(
            f"{path} holds measurements of {len(kinds)} problems, targets or devices for "
            f"{wanted or 'everything'}: name a study"
        )
    # The newest measurement of a candidate counts.
    newest = {one.candidate: one.measurement for one in found}
    rows = [
        _entry(document(candidate, measurement), str(candidate))
        for candidate, measurement in newest.items()
    ]
    device = _device_name(path, found[0])
    return RecordedSpace.of(rows, name=study or wanted, unit="s", device=device, format="cache")


def _device_name(path: Path, measured: StoredMeasurement) -> str:
    """The name of a device by a record of it, or the study's journal; else its digest."""
    for record in TuningCache(path).records(fingerprint_digest=measured.fingerprint):
        return record.fingerprint.name
    with suppress(AutotuneError):
        study = read_study(measured.study, None, CacheLocations(path.parent, path).studies)
        if study is not None and study.subject.get("device"):
            return checks.line("device", study.subject["device"])
    return measured.fingerprint


def _entry(stored: Mapping[str, Any], where: str) -> Entry:
    """A measurement; one that was rejected after compiling failed like any other."""
    missing = [key for key in ("configuration", "outcome") if stored.get(key) is None]
    if missing:
        raise InputError(f"{where}: expected the key `{missing[0]}`")
    outcome = stored["outcome"]
    if outcome not in tuple(Outcome):  # it may be anything, and not hashable
        raise checks.wrong(f"{where}.outcome", f"one of {', '.join(Outcome)}", outcome)
    values = configuration(where, stored["configuration"])
    median_s, interval = stored.get("median_s"), stored.get("interval_s")
    value = None
    # What was abandoned ran too: its time is of its first runs.
    if outcome in (Outcome.OK, Outcome.ABANDONED):
        if not checks.is_number(median_s) or not median_s > 0:
            raise checks.wrong(f"{where}.median_s", "positive seconds", median_s)
        value = float(median_s)
    return Entry(
        values,
        value,
        checks.line(f"{where}.family", stored.get("family", "")),
        outcome,
        str(stored.get("reason") or ""),
        None if interval is None else checks.interval(f"{where}.interval_s", interval),
        repeats if type(repeats := stored.get("repeats")) is int else 0,
    )
