"""Measurements as trial attributes, and trials as records for reports."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Generic

from autotune.core.arguments import is_number, is_whole
from autotune.core.errors import InputError
from autotune.core.measurement import Measurement, Outcome
from autotune.search.claims import OUTCOME, REASON, claim_of
from autotune.search.study_space import PointT

if TYPE_CHECKING:
    from datetime import datetime

    from optuna.trial import FrozenTrial


MEASUREMENT = "measurement"
"""Trial attribute: the measurement's numbers. What it costs by the objective, which is the median
where that is time, is the trial's value."""

TIMED = (Outcome.OK, Outcome.ABANDONED)
"""Outcomes that come with a median."""


@dataclass(frozen=True, slots=True)
class TrialRecord(Generic[PointT]):
    """One trial of a study, as reports want it.

    Attributes:
        number: its number in the study.
        state: Optuna's state: RUNNING, COMPLETE, PRUNED, FAIL.
        candidate: what it runs or ran; None when it never got that far.
        measurement: what came of it; None while it runs, or when its worker was lost.
        reason: why it failed; "orphaned" or "interrupted" when it was never measured.
        moved: whether the sampler had proposed another point.
        started: local time.
        ended: local time; None while it runs.
    """

    number: int
    state: str
    candidate: PointT | None
    measurement: Measurement | None
    reason: str
    moved: bool
    started: datetime | None
    ended: datetime | None


def attributes(measurement: Measurement) -> dict[str, Any]:
    """The user attributes of a measurement. `OUTCOME` comes last: then all are there.

    Raises:
        InputError: a median is missing, or not a positive finite number of seconds.
    """
    median = measurement.median_s
    if measurement.outcome in TIMED and (median is None or not 0 < median < float("inf")):
        raise InputError(
            f"outcome {measurement.outcome} needs a positive, finite median in seconds, "
            f"got {median}"
        )
    interval, error = measurement.interval_s, measurement.error
    numbers: dict[str, Any] = {
        "median_s": median,
        "interval_s": None if interval is None else list(interval),
        "repeats": measurement.repeats or None,
        "error": error if error is not None and isfinite(error) else None,
        "details": dict(measurement.details) or None,
    }
    numbers = {name: value for name, value in numbers.items() if value is not None}
    found = {MEASUREMENT: numbers, REASON: measurement.reason}
    return {**{k: v for k, v in found.items() if v}, OUTCOME: measurement.outcome.value}


def trial_record(trial: FrozenTrial, candidate: PointT | None) -> TrialRecord[PointT]:
    """Read a trial back."""
    return TrialRecord(
        number=trial.number,
        state=trial.state.name,
        candidate=candidate,
        measurement=measurement_of(trial) if trial.state.is_finished() else None,
        reason=str(trial.user_attrs.get(REASON, "")),
        moved="proposed" in claim_of(trial),
        started=trial.datetime_start,
        ended=trial.datetime_complete,
    )


def measurement_of(trial: FrozenTrial) -> Measurement | None:
    """A trial's measurement; None where its attributes are not as `attributes` writes them."""
    outcome = trial.user_attrs.get(OUTCOME)
    numbers = trial.user_attrs.get(MEASUREMENT, {})
    if (
        not isinstance(outcome, str)
        or outcome not in set(Outcome)
        or not isinstance(numbers, dict)
    ):
        return None
    median = numbers.get("median_s", trial.value)
    interval = numbers.get("interval_s")
    repeats = numbers.get("repeats", 0)
    error = numbers.get("error")
    details = numbers.get("details", {})
    if (
        not (is_number(median) or (median is None and outcome not in TIMED))
        or not (interval is None or _are_numbers(interval, 2))
        or not is_whole(repeats)
        or not (error is None or is_number(error))
        or not isinstance(details, dict)
    ):
        return None
    return Measurement(
        outcome=Outcome(outcome),
        median_s=median,
        interval_s=None if interval is None else (interval[0], interval[1]),
        repeats=int(repeats),
        error=error,
        reason=str(trial.user_attrs.get(REASON, "")),
        details={k: v for k, v in details.items() if isinstance(v, str) or is_number(v)},
    )


def _are_numbers(found: object, count: int) -> bool:
    return isinstance(found, list) and len(found) == count and all(map(is_number, found))
