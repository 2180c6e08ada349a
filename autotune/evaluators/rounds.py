"""Finalists measured in rounds: everybody takes a turn, then everybody takes another.

What drifts (clocks, temperature, other load) then strikes all alike, and the times of one
contestant are independent as those of consecutive calls are not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from autotune.evaluators.base import Baseline, Finals
from autotune.evaluators.processes import Failure, FailureKind
from autotune.measurement import Measurement, Outcome
from autotune.statistics import median, median_interval

ROUNDS = 15
"""Rounds that the time is divided into: enough for a 95% interval that is not merely the smallest
and the largest."""

CONFIRM_SHARE = 0.05
"""Of the time of the rounds, what each finalist gets besides, to be verified again after them."""

MIN_ROUNDS = 3
"""Rounds made however long they take."""


@dataclass(frozen=True, slots=True)
class Series:
    """Timed calls of one kernel, one after the other.

    Attributes:
        median_s: median time of one call, in seconds.
        interval_s: its 95% confidence interval.
        calls: how many there were.
    """

    median_s: float
    interval_s: tuple[float, float]
    calls: int


@dataclass(frozen=True, slots=True)
class Redraw:
    """Have a worker draw the problem's operands afresh, unless it has this seed's already.

    A request of its own, since references of a large problem take longer than a trial may.
    """

    seed: int


Turns: TypeAlias = list[Series] | Failure
"""What a contestant did in every round, or how it failed."""


Visit: TypeAlias = Callable[[float], Series | Failure]
"""Times a contestant for about the seconds given."""


Confirm: TypeAlias = Callable[[int], Measurement]
"""Verifies the finalist of a position on operands that it has never seen."""


def hold_rounds(
    measurements: Sequence[Measurement],
    visits: Mapping[int, Visit],
    baseline: Baseline | None,
    visit_baseline: Visit | None,
    budget_s: float,
    confirm: Confirm,
) -> Finals:
    """Time those finalists that are right in turns with the baseline, then verify them again.

    Args:
        measurements: the finalists' verification, in their order.
        visits: what times those that were found right, by their positions.
        baseline: as measured alone; None when there is none.
        visit_baseline: what times it; None where it takes no part.
        budget_s: seconds of timed calls, all together.
        confirm: called after the last timed call, for those that took all their turns.
    """
    if not visits:
        return conclude(measurements, [None] * len(measurements), baseline, None)
    theirs = [] if visit_baseline is None else [visit_baseline]
    turns = take_turns([*visits.values(), *theirs], budget_s)
    by_position = dict(zip(visits, turns, strict=False))
    confirmed = [
        _confirmed(measurement, confirm(position))
        if isinstance(by_position.get(position), list)
        else measurement
        for position, measurement in enumerate(measurements)
    ]
    return conclude(
        confirmed,
        [by_position.get(position) for position in range(len(measurements))],
        baseline,
        turns[-1] if theirs else None,
    )


def take_turns(visits: Sequence[Visit], budget_s: float) -> list[Turns]:
    """Go round until the time is spent, and at least `MIN_ROUNDS` times.

    Args:
        visits: one per contestant. One that fails is out of the rest.
        budget_s: seconds of timed calls, all together.
    """
    turns: list[Turns] = [[] for _ in visits]
    turn_s = budget_s / ROUNDS / max(len(visits), 1)
    spent_s = 0.0
    rounds = 0
    while spent_s < budget_s or rounds < MIN_ROUNDS:
        rounds += 1
        for position, visit in enumerate(visits):
            so_far = turns[position]
            if isinstance(so_far, Failure):
                spent_s += turn_s  # so that the rounds end even if all fail
                continue
            reply = visit(turn_s)
            if isinstance(reply, Failure):
                turns[position] = reply
            else:
                so_far.append(reply)
                spent_s += max(turn_s, reply.median_s * reply.calls)
    return turns


def conclude(
    measurements: Sequence[Measurement],
    turns: Sequence[Turns | None],
    baseline: Baseline | None,
    baseline_turns: Turns | None,
) -> Finals:
    """What the rounds say of everybody.

    Args:
        measurements: the finalists' verification, in their order.
        turns: theirs; None for those who took no part.
        baseline: as measured alone; None when there is none.
        baseline_turns: its turns.
    """
    final: list[Measurement] = []
    rounds: list[tuple[float, ...]] = []
    ratios: list[float | None] = []
    for measurement, own in zip(measurements, turns, strict=True):
        ratio = None
        medians: list[float] = []
        if isinstance(own, Failure):
            measurement = judge_failure(own)
        elif own is not None and measurement.ok:
            medians = [turn.median_s for turn in own]
            measurement = replace(
                measurement,
                median_s=median(medians),
                interval_s=median_interval(medians),
                repeats=sum(turn.calls for turn in own),
            )
            if isinstance(baseline_turns, list):
                ratio = median([turn.median_s for turn in baseline_turns]) / median(medians)
        final.append(measurement)
        ratios.append(ratio)
        rounds.append(tuple(medians))
    if baseline is not None and isinstance(baseline_turns, list):
        medians = [turn.median_s for turn in baseline_turns]
        baseline = replace(baseline, median_s=median(medians), interval_s=median_interval(medians))
    return Finals(tuple(final), tuple(ratios), baseline, tuple(rounds))


def _confirmed(measurement: Measurement, again: Measurement) -> Measurement:
    """A finalist's verification before the rounds, and the one after them."""
    if not again.ok:
        return again
    return replace(
        measurement,
        error=max(measurement.error or 0.0, again.error or 0.0),
        details={**measurement.details, **again.details},
    )


def judge_failure(reply: Failure) -> Measurement:
    """What a request without a reply says of the candidate it was about."""
    outcomes = {FailureKind.TIMED_OUT: Outcome.TIMEOUT, FailureKind.WRONG: Outcome.WRONG_RESULT}
    return Measurement(outcomes.get(reply.kind, Outcome.LAUNCH_FAILED), reason=reply.reason)
