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
"""Trial attribute: the measurement's numbers beside the median, which is the trial's value."""

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
    """The user attributes a measurement leaves on its trial.

    Raises:
        InputError: a median is missing, or not a positive finite number of seconds.
    """
    median = measurement.median_s
    if measurement.outcome in TIMED and (median is None or not 0 < median < float("inf")):
        raise InputError(
            f"outcome {measurement.outcome} needs a positive, finite median in seconds, "
            f"got {median}"
        )
    numbers: dict[str, Any] = {}
    if measurement.interval_s is not None:
        numbers["interval_s"] = list(measurement.interval_s)
    if measurement.repeats:
        numbers["repeats"] = measurement.repeats
    if measurement.error is not None and isfinite(measurement.error):
        numbers["error"] = measurement.error
    if measurement.details:
        numbers["details"] = dict(measurement.details)
    found: dict[str, Any] = {OUTCOME: measurement.outcome.value}
    if measurement.reason:
        found[REASON] = measurement.reason
    if numbers:
        found[MEASUREMENT] = numbers
    return found


def trial_record(trial: FrozenTrial, candidate: PointT | None) -> TrialRecord[PointT]:
    """Read a trial back."""
    return TrialRecord(
        number=trial.number,
        state=trial.state.name,
        candidate=candidate,
        measurement=_measurement(trial),
        reason=str(trial.user_attrs.get(REASON, "")),
        moved="proposed" in claim_of(trial),
        started=trial.datetime_start,
        ended=trial.datetime_complete,
    )


def _measurement(trial: FrozenTrial) -> Measurement | None:
    """What an ended trial has; None where its attributes are not as `attributes` writes them."""
    outcome = trial.user_attrs.get(OUTCOME)
    if not isinstance(outcome, str) or outcome not in set(Outcome):
        return None
    if not trial.state.is_finished() or (outcome in TIMED and trial.value is None):
        return None
    numbers = trial.user_attrs.get(MEASUREMENT, {})
    if not isinstance(numbers, dict):
        return None
    interval = numbers.get("interval_s")
    repeats = numbers.get("repeats", 0)
    error = numbers.get("error")
    details = numbers.get("details", {})
    if (
        not (interval is None or _are_numbers(interval, 2))
        or not is_whole(repeats)
        or not (error is None or is_number(error))
        or not isinstance(details, dict)
    ):
        return None
    return Measurement(
        outcome=Outcome(outcome),
        median_s=trial.value,
        interval_s=None if interval is None else (interval[0], interval[1]),
        repeats=int(repeats),
        error=error,
        reason=str(trial.user_attrs.get(REASON, "")),
        details={k: v for k, v in details.items() if isinstance(v, str) or is_number(v)},
    )


def _are_numbers(found: object, count: int) -> bool:
    return isinstance(found, list) and len(found) == count and all(map(is_number, found))
