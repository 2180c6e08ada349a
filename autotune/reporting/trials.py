"""One trial as reports have it, from whatever a study, the cache or a recorded file says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.core.measurement import Outcome
from autotune.reporting.study import FAILED, UNFINISHED, Trial
from autotune.search.claims import INTERRUPTED

if TYPE_CHECKING:
    from datetime import datetime

    from autotune.core.configuration import Candidate
    from autotune.core.measurement import Measurement
    from autotune.research import Entry
    from autotune.search import TrialRecord


def was_begun(told: TrialRecord[Candidate]) -> bool:
    """Whether a trial was more than a proposal, which a run gives up when its time is over."""
    given_up = told.measurement is None and told.reason == INTERRUPTED
    return told.candidate is not None and not given_up


def trial_of_study(number: int, told: TrialRecord[Candidate], begun: datetime | None) -> Trial:
    """A trial of a study."""
    assert told.candidate is not None  # or it was not begun
    ended_s = None
    if told.ended is not None and begun is not None:
        ended_s = (told.ended - begun).total_seconds()
    if told.measurement is None:
        reason = told.reason or "still running, or its process was lost"
        return Trial(
            number,
            told.candidate.family,
            told.candidate.configuration,
            UNFINISHED,
            None,
            reason=reason,
            ended_s=ended_s,
        )
    return trial_of_measurement(number, told.candidate, told.measurement, ended_s)


def trial_of_measurement(
    number: int, candidate: Candidate, measurement: Measurement, ended_s: float | None
) -> Trial:
    """A trial by what was measured of a candidate."""
    return Trial(
        number=number,
        family=candidate.family,
        configuration=candidate.configuration,
        outcome=str(measurement.outcome),
        value=measurement.median_s,
        interval=measurement.interval_s,
        repeats=measurement.repeats,
        reason=measurement.reason,
        details=measurement.details,
        ended_s=ended_s,
    )


def trial_of_recording(number: int, entry: Entry, factor: float | None) -> Trial:
    """A recorded configuration, its times in seconds where the unit is known."""
    scale = factor or 1.0
    # Rounded, since most units are no power of two.
    value = None if entry.value is None else float(f"{entry.value * scale:.12g}")
    low, high = entry.interval or (0.0, 0.0)
    outcome = entry.outcome or (Outcome.OK if value is not None else FAILED)
    return Trial(
        number=number,
        family=entry.family,
        configuration=dict(entry.configuration),
        outcome=str(outcome),
        value=value,
        interval=None if entry.interval is None else (low * scale, high * scale),
        repeats=entry.repeats,
        reason=entry.reason,
    )
