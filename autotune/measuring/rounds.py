"""Finalists measured in rounds, and what disturbs measurements: load, throttled clocks, drift.

Everybody takes a turn, then everybody takes another. What drifts (clocks, temperature, other load)
then strikes all alike, and the times of one contestant are independent as those of consecutive
calls are not. A disturbed measurement is made again, or stored with what disturbed it
(`autotune.tuning.deciding`).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TypeAlias

from autotune.core.deadline import Deadline
from autotune.core.errors import OutOfTimeError
from autotune.core.measurement import Measurement, Outcome, Series
from autotune.core.objective import TIME, Objective
from autotune.core.processors import status_of
from autotune.core.statistics import WIDE, half_width, half_width_text, median_interval
from autotune.measuring.effort import Baseline, Finals, Report, Stage, silent
from autotune.measuring.sustained import LEAST_S, TURN_S, SustainedTurns

DISAGREE = 2.0
"""Search and finals that differ by more than this did not measure the same thing."""

SPARE_CORES = 0.25
"""Processors that others may use, beyond those that are free, before they are in the way: what a
machine does for itself is less."""

_THROTTLED = ("hardware slowdown", "thermal", "hardware thermal", "power brake")
"""Reasons of a GPU's own. A power cap is none: it is how large products run."""


def scatter(name: str, median_s: float, interval_s: tuple[float, float]) -> str:
    """Complaint about the interval of a median; empty when it is narrow enough."""
    spread = half_width(median_s, interval_s)
    if spread <= WIDE:
        return ""
    return f"the median of {name} is uncertain by {half_width_text(spread)}"


def disturbance(medians: Sequence[float], best_s: float) -> str:
    """Complaint about the median of a library's times; empty if it is near the best of them.

    Args:
        medians: of its turns, in seconds.
        best_s: its best time besides.
    """
    typical_s, least_s = median(medians), min(best_s, *medians)
    if typical_s <= DISAGREE * least_s:
        return ""
    return (
        f"the library was disturbed: it took {typical_s * 1e3:.3g} ms in its turns and "
        f"{least_s * 1e3:.3g} ms at its best"
    )


def disagreement(search_s: float | None, finals_s: float) -> str:
    """Complaint about times in the search and the finals; empty when they agree."""
    if search_s is None or max(search_s, finals_s) <= DISAGREE * min(search_s, finals_s):
        return ""
    return f"{search_s * 1e3:.3g} ms in the search and {finals_s * 1e3:.3g} ms in the finals"


def throttling(details: Mapping[str, float | int | str]) -> str:
    """Reasons for which the GPU was slowed down meanwhile; empty when there were none."""
    reasons = [reason.strip() for reason in str(details.get("throttle", "")).split(",")]
    found = [reason for reason in reasons if reason in _THROTTLED]
    return f"the GPU was throttled ({', '.join(found)})" if found else ""


class Competition:
    """Watches, from its making on, what others do with the processors of this machine.

    Linux counts the time of all processors in ``/proc/stat``, that which a virtual machine did not
    get (steal) too; ours is that of this process and all that descend from it.

    Args:
        threads: how many threads the kernels that are measured use.
        processors: of the machine; None asks the system.
        proc: where Linux shows its processes.
    """

    def __init__(
        self, threads: int, *, processors: int | None = None, proc: Path = Path("/proc")
    ) -> None:
        self._threads = threads
        self._processors = processors or os.cpu_count() or 1
        self._proc = proc
        self._started = self._read()

    def seen(self) -> str:
        """Complaint about the load of others since; empty if there was none, or it is unknown."""
        now = self._read()
        if now is None or self._started is None or now.at_s <= self._started.at_s:
            return ""
        elapsed_s = now.at_s - self._started.at_s
        busy_s = now.busy_s - self._started.busy_s
        own_s = now.own_s - self._started.own_s
        others = max(0.0, busy_s - own_s) / elapsed_s
        if others + self._threads <= self._processors + SPARE_CORES:
            return ""
        return (
            f"others kept {others:.1f} of {self._processors} processors busy, and the kernels "
            f"use {self._threads}"
        )

    def _read(self) -> _Usage | None:
        try:
            return _Usage(time.monotonic(), _busy_seconds(self._proc), _own_seconds(self._proc))
        except (OSError, ValueError, IndexError):
            return None


@dataclass(frozen=True, slots=True)
class _Usage:
    """Processor seconds up to a moment: of everybody, and of this process and its descendants."""

    at_s: float
    busy_s: float
    own_s: float


def _busy_seconds(proc: Path) -> float:
    first = (proc / "stat").read_text().split("\n", 1)[0].split()
    user, nice, system, _, _, interrupts, softer, steal = map(int, first[1:9])
    return (user + nice + system + interrupts + softer + steal) / os.sysconf("SC_CLK_TCK")


def _own_seconds(proc: Path) -> float:
    """Time of this process and of all that descend from it, those that have ended too."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for folder in proc.glob("[0-9]*"):
        if not (fields := status_of(folder)):  # it has ended
            continue
        process = int(folder.name)
        parents[process] = int(fields[1])
        # Its own user and system time, and that of children that it has waited for.
        ticks[process] = sum(map(int, fields[11:15]))
    own, total = os.getpid(), 0
    for process, spent in ticks.items():
        while process not in (0, own):
            process = parents.get(process, 0)
        total += spent if process == own else 0
    return total / os.sysconf("SC_CLK_TCK")


ROUNDS = 15
"""Rounds that the time is divided into: enough for a 95% interval that is not merely the smallest
and the largest."""

CONFIRM_SHARE = 0.05
"""Of the time of the rounds, what each finalist gets besides, to be verified again after them."""

MIN_ROUNDS = 3
"""Rounds made however long they take."""


Turns: TypeAlias = list[Series] | Measurement
"""A contestant's calls of every round, or the measurement that says how it failed."""

Visit: TypeAlias = Callable[[float], Series | Measurement]
"""Times a contestant for about the seconds given."""

Confirm: TypeAlias = Callable[[int], Measurement]
"""Verifies the finalist of a position on operands that it has never seen."""

Score: TypeAlias = Callable[[Series, float | None], float | None]
"""Score of calls by the objective, with the verified error; None where there is none."""


def _median_s(series: Series, error: float | None) -> float:
    return series.median_s


def hold_rounds(
    measurements: Sequence[Measurement],
    visits: Mapping[int, Visit],
    baseline: Baseline | None,
    visit_baseline: Visit | None,
    budget_s: float,
    confirm: Confirm,
    *,
    confirming_s: float = 0.0,
    sustained: SustainedTurns | None = None,
    deadline: Deadline | None = None,
    report: Report = silent,
    score: Score = _median_s,
    objective: Objective = TIME,
) -> Finals:
    """Time those finalists that are right in turns with the baseline, then verify them again.

    Args:
        measurements: the finalists' verification, in their order.
        visits: time those that were found right, by their positions.
        baseline: as measured alone; None when there is none.
        visit_baseline: times it; None where it takes no part, as where its calls are too long.
        budget_s: seconds of timed calls, all together.
        confirm: called after these turns, for those that took them all.
        confirming_s: seconds that this may take: as far as the run has twice that, no turn does.
        sustained: holds the best without a pause in the time that is left, and judges every turn;
            those that are too brief it leaves out.
        deadline: of the run.
        report: callback for every round.
        score: scores a turn.
        objective: whose score it is.

    Raises:
        OutOfTimeError: the run was over within the first round.
    """
    if not visits:
        return conclude(measurements, [None] * len(measurements), baseline, None)
    theirs = [] if visit_baseline is None else [visit_baseline]
    run = deadline or Deadline()
    with run.keeping(min(confirming_s, run.remaining_s / 2)):
        turns = take_turns([*visits.values(), *theirs], budget_s, deadline=run, report=report)
    by_position = dict(zip(visits, turns, strict=False))
    medians = {
        position: median(_costs(own, measurements[position].error, score, objective))
        for position, own in by_position.items()
        if isinstance(own, list)
    }
    best_first = sorted(medians, key=medians.__getitem__)
    confirmed = _confirm_fastest(measurements, best_first, confirm)
    right = [position for position in best_first if confirmed[position].ok]
    if sustained is not None and right:
        call_s: dict[int | None, float] = {
            position: median([turn.median_s for turn in own])
            for position, own in by_position.items()
            if isinstance(own, list)
        }
        if baseline is not None:
            call_s[None] = baseline.median_s
        if LEAST_S <= call_s[right[0]] <= TURN_S:
            rounds = max(len(own) for own in turns if isinstance(own, list))
            sustained.hold(right, rounds, call_s)
            by_position |= {at: why for at, why in sustained.failures.items() if at is not None}
    finals = conclude(
        confirmed,
        [by_position.get(position) for position in range(len(measurements))],
        baseline,
        turns[-1] if theirs else None,
        score=score,
        objective=objective,
    )
    if sustained is None:
        return finals
    held = [tuple(sustained.turns.get(position, ())) for position in range(len(measurements))]
    return replace(
        finals, sustained=tuple(held), sustained_baseline=tuple(sustained.turns.get(None, ()))
    )


def _costs(
    turns: Sequence[Series], error: float | None, score: Score, objective: Objective
) -> list[float]:
    """Cost of every turn; infinite where it has no score."""
    scores = [score(turn, error) for turn in turns]
    return [math.inf if found is None else objective.cost(found) for found in scores]


def take_turns(
    visits: Sequence[Visit],
    budget_s: float,
    *,
    deadline: Deadline | None = None,
    report: Report = silent,
) -> list[Turns]:
    """Go round until the time is spent, and at least `MIN_ROUNDS` times if the run allows.

    Args:
        visits: one per contestant. One that fails is out of the rest.
        budget_s: seconds of timed calls, all together.
        deadline: of the run: a round that would take longer than what remains is not begun, and
            one that it cuts off does not count.
        report: callback for every round.

    Raises:
        OutOfTimeError: the run was over within the first round.
    """
    run = deadline or Deadline()
    turns: list[Turns] = [[] for _ in visits]
    budget_s = run.within(budget_s)
    turn_s = budget_s / ROUNDS / max(len(visits), 1)
    spent_s = 0.0
    rounds = 0
    while spent_s < budget_s or rounds < MIN_ROUNDS:
        begun_s = run.elapsed_s
        report(Stage("finals", rounds + 1, max(ROUNDS, rounds + 1)))
        try:
            spent_s += _go_round(visits, turns, turn_s)
        except OutOfTimeError:
            if not rounds:
                raise
            return [own if isinstance(own, Measurement) else own[:rounds] for own in turns]
        rounds += 1
        if run.remaining_s < run.elapsed_s - begun_s:
            break
    return turns


def _go_round(visits: Sequence[Visit], turns: list[Turns], turn_s: float) -> float:
    """One turn for everybody; seconds of timed calls."""
    spent_s = 0.0
    for position, visit in enumerate(visits):
        so_far = turns[position]
        if isinstance(so_far, Measurement):
            spent_s += turn_s  # so that the rounds end even if all fail
            continue
        reply = visit(turn_s)
        if isinstance(reply, Measurement):
            turns[position] = reply
        else:
            so_far.append(reply)
            spent_s += max(turn_s, reply.median_s * reply.calls)
    return spent_s


def conclude(
    measurements: Sequence[Measurement],
    turns: Sequence[Turns | None],
    baseline: Baseline | None,
    baseline_turns: Turns | None,
    *,
    score: Score = _median_s,
    objective: Objective = TIME,
) -> Finals:
    """The finals that rounds amount to.

    Args:
        measurements: the finalists' verification, in their order.
        turns: theirs; None for those who took no part.
        baseline: as measured alone; None when there is none.
        baseline_turns: its turns; None where it took none, and its time alone counts.
        score: scores a turn.
        objective: whose score it is.
    """
    library = math.inf
    if baseline is not None and baseline_turns is None and objective is TIME:
        library = baseline.median_s
    if baseline is not None and isinstance(baseline_turns, list):
        theirs = [turn.median_s for turn in baseline_turns]
        noise = disturbance(theirs, baseline.median_s)
        if not noise:
            library = median(_costs(baseline_turns, None, score, objective))
        baseline = replace(
            baseline, median_s=median(theirs), interval_s=median_interval(theirs), noise=noise
        )
    final: list[Measurement] = []
    rounds: list[tuple[float, ...]] = []
    ratios: list[float | None] = []
    for measurement, own in zip(measurements, turns, strict=True):
        ratio = None
        costs: list[float] = []
        if isinstance(own, Measurement):
            measurement = own
        elif own is not None and measurement.ok:
            times = [turn.median_s for turn in own]
            costs = _costs(own, measurement.error, score, objective)
            cost = median(costs)
            measurement = replace(
                measurement,
                median_s=median(times),
                interval_s=median_interval(times),
                repeats=sum(turn.calls for turn in own),
            ).scored(objective.name, objective.cost(cost) if math.isfinite(cost) else None)
            if math.isfinite(library) and cost > 0:
                ratio = library / cost
        final.append(measurement)
        ratios.append(ratio)
        rounds.append(tuple(costs))
    return Finals(tuple(final), tuple(ratios), baseline, tuple(rounds))


def _confirm_fastest(
    measurements: Sequence[Measurement], best_first: Sequence[int], confirm: Confirm
) -> list[Measurement]:
    """The finalists' verification, and of those that took all their turns the one after them.

    Those that there is no time for are out; the best come first.

    Raises:
        OutOfTimeError: the run was over before one was found right.
    """
    final = list(measurements)
    right = False
    for position in best_first:
        try:
            again = confirm(position)
        except OutOfTimeError:
            if not right:
                raise
            reason = "there was no time to verify it again after its turns"
            again = Measurement(Outcome.ABANDONED, reason=reason)
        right = right or again.ok
        before = final[position]
        final[position] = again
        if again.ok:
            final[position] = replace(
                before,
                error=max(before.error or 0.0, again.error or 0.0),
                details={**before.details, **again.details},
            )
    return final


def faster(baseline: Baseline, turn: Series | Measurement) -> Baseline:
    """A baseline, or the same with the time of one more turn where that was faster."""
    if isinstance(turn, Measurement) or turn.median_s >= baseline.median_s:
        return baseline
    return replace(baseline, median_s=turn.median_s, interval_s=turn.interval_s)
