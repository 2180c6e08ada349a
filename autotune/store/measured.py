"""Measurements as rows of the cache."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.core import checks
from autotune.core.configuration import Candidate, Configuration
from autotune.core.measurement import Measurement, Outcome
from autotune.store import strict_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from autotune.core.device import DeviceFingerprint
    from autotune.operations.problem import Problem


@dataclass(frozen=True, slots=True)
class StoredMeasurement:
    """One trial of one study, as kept in the cache.

    Attributes:
        study: the study's name.
        fingerprint: digest of the device's fingerprint.
        operation: the operation's name.
        problem: every field of the problem.
        target: "cpu", "cuda", ...
        candidate: what was tried.
        measurement: what came of it.
        created: when it was stored, in UTC.
    """

    study: str
    fingerprint: str
    operation: str
    problem: Mapping[str, Any]
    target: str
    candidate: Candidate
    measurement: Measurement
    created: str


@dataclass(frozen=True, slots=True)
class MeasuredProblem:
    """A problem on a device of which measurements are kept.

    Attributes:
        fingerprint: digest of the device's fingerprint.
        problem: every field of the problem.
        successes: how many configurations worked.
    """

    fingerprint: str
    problem: Mapping[str, Any]
    successes: int


COLUMNS = (
    "study, fingerprint, operation, problem, target, family, configuration, outcome, median_s, "
    "interval_low_s, interval_high_s, repeats, error, reason, details, created"
)

_NAMES = COLUMNS.split(", ")

ADD = f"""
    INSERT INTO measurements ({COLUMNS})
    SELECT {", ".join(f":{name}" for name in _NAMES)}
    WHERE NOT EXISTS (
        SELECT 1 FROM measurements INDEXED BY measurements_by_candidate
        WHERE (study, family, configuration, fingerprint, operation, problem, target, outcome)
            = (:study, :family, :configuration, :fingerprint, :operation, :problem, :target,
               :outcome) AND median_s IS :median_s
    )
"""


def rows(
    study: str,
    fingerprint: DeviceFingerprint,
    problem: Problem,
    target: str,
    results: Iterable[tuple[Candidate, Measurement]],
) -> Iterator[dict[str, Any]]:
    """The rows of what came of trials, by the names in `COLUMNS`."""
    problem_key = strict_json.canonical(problem.key())
    key = (study, fingerprint.digest, problem.operation, problem_key, target)
    created = checks.utc_now()
    for candidate, measurement in results:
        row = (
            *key,
            candidate.family,
            candidate.configuration.json,
            measurement.outcome.value,
            measurement.median_s,
            *(measurement.interval_s or (None, None)),
            measurement.repeats,
            measurement.error,
            measurement.reason,
            json.dumps(measurement.details),
            created,
        )
        yield dict(zip(_NAMES, row, strict=True))


def stored(row: tuple[Any, ...]) -> StoredMeasurement:
    """The measurement of a row, in the order of `COLUMNS`."""
    study, fingerprint, operation, problem, target, family, configuration, *result = row
    outcome, median_s, low_s, high_s, repeats, error, reason, details, created = result
    return StoredMeasurement(
        study,
        fingerprint,
        operation,
        checks.mapping("problem", json.loads(problem)),
        target,
        Candidate(
            family,
            Configuration(
                checks.checked(json.loads(configuration), checks.Scalars, "configuration")
            ),
        ),
        Measurement(
            Outcome(outcome),
            None if median_s is None else checks.checked(median_s, checks.Positive, "median_s"),
            None if low_s is None else checks.interval("interval_s", (low_s, high_s)),
            repeats,
            error,
            reason,
            dict(checks.mapping("details", json.loads(details))),
        ),
        created,
    )
