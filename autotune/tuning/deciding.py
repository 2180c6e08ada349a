"""From a search's measurements to the record that serves: the finals, and who wins them.

The best candidates of the search are verified and timed again, in turns with each other, with the
vendor library and with the **incumbent**: the record that served until now. Whoever is fastest in
turns is kept. A record is never replaced by one that is newer and slower, and what something
disturbed is measured again before it is believed.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from autotune.core.errors import OutOfTimeError, TuningFailedError
from autotune.core.measurement import Measurement, Outcome, Sustained
from autotune.core.objective import TIME, Objective
from autotune.core.statistics import median_interval
from autotune.core.version import __version__
from autotune.measuring.effort import Finals, Stage, relative_speed
from autotune.measuring.rounds import Competition, disagreement, scatter, throttling
from autotune.store import (
    BaselineRecord,
    BinaryRecord,
    MatchQuality,
    SustainedRecord,
    TuningRecord,
    preference,
)
from autotune.tuning.results import Decision
from autotune.tuning.trials import FINALISTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from autotune.core.configuration import Candidate
    from autotune.store import EffortRecord, Match
    from autotune.tuning.trials import TrialRun

CONTENDER_RATIO = 1.10
"""A finalist is at most this much slower than the best, or its interval overlaps."""

ATTEMPTS = 2
"""Times at most that finals are held while something disturbs them."""

RECONSIDERED = 10
"""Abandoned candidates at most that are measured again when a finalist falls."""

ENOUGH_S, MORE = 20.0, 3
"""Seconds in which a first trial is made where nothing is compiled yet; and where those were not
enough, how many times as much may be."""

_STEPS = {
    "starting": "starting",
    "proposing": "choosing",
    "compiling": "compiling",
    "library": "making operands and timing the library",
    "trials": "waiting for a first kernel",
}
"""Names, for people, of what a run spends its time with before its first trial."""


def decide(
    run: TrialRun,
    measured: Iterable[tuple[Candidate, Measurement]],
    effort: EffortRecord,
    incumbent: Match | None,
) -> Decision:
    """Hold the finals and store their winner.

    Args:
        run: whose search has ended.
        measured: everything that the study has measured.
        effort: what the search cost.
        incumbent: the record that served until now, EXACT or STALE; None where there is none.

    Raises:
        TuningFailedError: no candidate of the searched families is right.
    """
    old = None if incumbent is None else incumbent.record
    contest = _hold_contest(run, dict(measured), old)
    families = [candidate.family for candidate in contest.chosen]
    searched = [at for at in contest.ranked if families[at] in run.context.union.spaces]
    if not searched:
        reasons = "; ".join(m.reason for m in contest.finals.measurements if m.reason)
        raise TuningFailedError(f"no finalist passed its second verification: {reasons}")
    first = searched[0]
    if incumbent is None or old is None:
        best = contest.store(first, effort)
        return Decision(best, best, False, contest.finals)
    place = contest.chosen.index(old.candidate)
    beaten = contest.has_beaten(first, place, doubtful=old.noisy)
    if beaten is None:
        best = contest.store(first, effort)
        serving = min(best, old, key=preference((best, old)))
        return Decision(best, serving, False, contest.finals)
    if beaten:
        best = contest.store(first, effort, beat=(old.id,))
        return Decision(best, best, False, contest.finals)
    # The incumbent stays. If it fitted less than exactly, or was noisy, its record is made anew.
    kept = incumbent.quality is MatchQuality.EXACT and not old.noisy
    serving = old if kept else contest.store(place, effort, beat=(old.id,))
    if place in searched:
        return Decision(serving, serving, kept, contest.finals)
    best = contest.store(first, effort, lost_to=(serving.id,))
    return Decision(best, serving, False, contest.finals)


def finalists(
    measured: Iterable[tuple[Candidate, Measurement]], objective: Objective = TIME
) -> list[Candidate]:
    """The best candidates, the best first: those that could still be the winner."""
    found = dict(measured)
    names, measurements = list(found), list(found.values())
    ranked = _ranked(measurements, objective)[:FINALISTS]
    if not ranked:
        return []
    costs = {at: objective.cost_of(measurements[at]) or 0.0 for at in ranked}
    best_cost, (_, best_high) = costs[ranked[0]], _times(measurements[ranked[0]])[1]
    contenders = []
    for at in ranked:
        overlaps = objective.follows_time and _times(measurements[at])[1][0] <= best_high
        if costs[at] <= CONTENDER_RATIO * best_cost or overlaps:
            contenders.append(names[at])
    return contenders


@dataclass(frozen=True, slots=True)
class _Contest:
    """Finals that were held.

    Attributes:
        run: that held them.
        chosen: the finalists.
        finals: their times.
        noise: what disturbed them, in one line; empty if nothing did.
    """

    run: TrialRun
    chosen: Sequence[Candidate]
    finals: Finals
    noise: str

    @property
    def ranked(self) -> list[int]:
        """Positions of the finalists that are right, the best first.

        Where times without a pause decide, those that have them come first.
        """
        ranked = _ranked(self.finals.measurements, self.run.run.objective)
        if not self.run.run.ranks_sustained:
            return ranked
        held = {at: Sustained.of(turns) for at, turns in enumerate(self.finals.sustained)}
        times = {at: found.median_s for at, found in held.items() if found is not None}
        return sorted(ranked, key=lambda at: times.get(at, math.inf))

    def has_beaten(self, challenger: int, incumbent: int, *, doubtful: bool) -> bool | None:
        """Compare a finalist with the incumbent, round by round: true where it was better.

        It must be so with 95% confidence: between equals the incumbent stays. Where its own
        record is doubtful the better median is enough.

        Returns:
            None where there was no time for them to take turns.
        """
        if challenger == incumbent:
            return False
        if incumbent not in self.ranked:
            late = self.finals.measurements[incumbent].outcome is Outcome.ABANDONED
            return None if late else True
        if not self.finals.rounds:
            return None
        if self.ranked.index(challenger) > self.ranked.index(incumbent):
            return False
        ours, theirs = self._turns(challenger, incumbent)
        least = sys.float_info.min  # an error may be none at all
        pairs = [max(b, least) / max(a, least) for a, b in zip(ours, theirs, strict=True)]
        return doubtful or median_interval(pairs)[0] > 1

    def _turns(self, *positions: int) -> list[Sequence[float]]:
        """Costs of the turns that decide between finalists, one by one."""
        if self.run.run.ranks_sustained and self.finals.sustained:
            held = [self.finals.sustained[at] for at in positions]
            if all(held):
                return [[turn.median_s for turn in own] for own in held]
        return [self.finals.rounds[at] for at in positions]

    def store(
        self,
        position: int,
        effort: EffortRecord,
        *,
        beat: tuple[str, ...] = (),
        lost_to: tuple[str, ...] = (),
    ) -> TuningRecord:
        """Store the record of a finalist, and what it was compiled to."""
        context, finals, candidate = self.run.context, self.finals, self.chosen[position]
        objective, measurement = self.run.run.objective, finals.measurements[position]
        median_s, interval = _times(measurement)
        ratio, baseline = finals.ratios[position], None
        if finals.baseline is not None and ratio is not None:
            baseline = BaselineRecord(finals.baseline.name, finals.baseline.median_s, ratio)
        kernel = Sustained.of(finals.sustained[position]) if finals.sustained else None
        library = Sustained.of(finals.sustained_baseline) if baseline is not None else None
        binary = self.run.evaluator.binary(candidate)
        others = [m for at, m in enumerate(finals.measurements) if at != position and m.ok]
        record = TuningRecord(
            fingerprint=context.device.fingerprint,
            operation=context.problem.operation,
            problem=context.problem.key(),
            target=context.target.name,
            candidate=candidate,
            family_digest=context.families[candidate.family].digest,
            space_digest=context.union.digest,
            median_s=median_s,
            interval_s=interval,
            gflops=context.problem.flops / median_s / 1e9,
            ties=sum(m.interval_s is not None and m.interval_s[0] <= interval[1] for m in others),
            baseline=baseline,
            effort=effort,
            toolchain=dict(context.device.toolchain),
            state=dict(context.device.state),
            created=datetime.now(UTC).isoformat(),
            version=__version__,
            binary=None if binary is None else BinaryRecord.of(binary),
            noise=self.noise,
            beat=beat,
            lost_to=lost_to,
            objective=objective.name,
            score=None if objective is TIME else measurement.score,
            sustained=None if kernel is None else SustainedRecord(kernel, library),
        )
        contents = [] if binary is None else [binary.content, binary.support]
        context.store.add(record, binaries=filter(None, contents))
        return record


def _hold_contest(
    run: TrialRun, searched: Mapping[Candidate, Measurement], old: TuningRecord | None
) -> _Contest:
    """Finals; others, where one who fell in them had kept others out by a time that was false.

    Raises:
        TuningFailedError: there is nobody to hold them among.
    """
    contest: _Contest | None = None
    while True:
        chosen = finalists(searched.items(), run.run.objective)
        if contest is not None and set(chosen) <= {contest.chosen[at] for at in contest.ranked}:
            return contest
        if not chosen:
            raise TuningFailedError(_nothing_valid(run))
        if old is not None and old.candidate not in chosen:
            chosen.insert(1, old.candidate)  # before those that there may be no time for
        contest = _hold_finals(run, chosen, searched)
        fallen = {
            candidate: found
            for candidate, found in zip(chosen, contest.finals.measurements, strict=True)
            if candidate in searched and found.outcome not in (Outcome.OK, Outcome.ABANDONED)
        }
        if not fallen or (contest.ranked and not run.budget.can_repeat_finals):
            return contest
        searched = _reconsider(run, {**searched, **fallen})


def _hold_finals(
    run: TrialRun, chosen: Sequence[Candidate], searched: Mapping[Candidate, Measurement]
) -> _Contest:
    """Hold finals until nothing disturbs them, `ATTEMPTS` times at most, while there is time.

    Finalists that there is no time for are as the search found them, and take no turns, if none
    could be measured again, and out of the race otherwise.
    """
    usable = run.context.device.limits.names().get("max_threads", 1)
    threads = min(run.context.problem.threads or usable, usable)
    late = Measurement(Outcome.ABANDONED, reason="there was no time for it in the finals")
    known = tuple(searched.get(candidate, late) for candidate in chosen)
    library = run.baseline if run.run.objective.follows_time else None
    ratios = tuple(relative_speed(measurement, library) for measurement in known)
    for _ in range(ATTEMPTS):
        competition = Competition(threads)
        finals = run.finals(chosen) or Finals(known, ratios, run.baseline)
        if missing := len(chosen) - len(finals.measurements):
            finals = replace(
                finals,
                measurements=(*finals.measurements, *[late] * missing),
                ratios=(*finals.ratios, *[None] * missing),
                rounds=(*finals.rounds, *[()] * missing),
                sustained=(*finals.sustained, *[()] * missing),
            )
        contest = _Contest(run, chosen, finals, "")
        noise = _noise(contest, searched, competition.seen())
        if not noise or not run.budget.can_repeat_finals:
            break
    return replace(contest, noise=noise)


def _reconsider(
    run: TrialRun, searched: Mapping[Candidate, Measurement]
) -> dict[Candidate, Measurement]:
    """Measure again what was abandoned against the times of finalists that have fallen since.

    The most promising first, as long as there is time to hold the finals once more.

    Returns:
        Every candidate's measurement, as it is now.
    """
    found = dict(searched)
    best_s = min((m.median_s for m in found.values() if m.ok and m.median_s), default=None)
    abandoned = sorted(
        (measurement.median_s, position, candidate)
        for position, (candidate, measurement) in enumerate(found.items())
        if measurement.outcome is Outcome.ABANDONED and measurement.median_s is not None
    )
    with contextlib.suppress(OutOfTimeError), run.budget.spending("trials"):
        for expected_s, _, candidate in abandoned[:RECONSIDERED]:
            worse = best_s is not None and expected_s > best_s
            if worse or not run.budget.can_repeat_finals:
                break
            run.report(Stage("trials", 0, 0))
            measurement = found[candidate] = run.evaluator.evaluate(candidate, best_s)
            run.keep(candidate, measurement)
            if measurement.ok and measurement.median_s is not None:
                best_s = min(best_s or math.inf, measurement.median_s)
    return found


def _noise(contest: _Contest, searched: Mapping[Candidate, Measurement], competition: str) -> str:
    """Disturbances of the winner's times or the baseline's; empty if nothing did."""
    if not (ranked := contest.ranked):
        return ""
    winner = contest.finals.measurements[ranked[0]]
    median_s, _ = _times(winner)
    before = searched.get(contest.chosen[ranked[0]])
    reasons = [
        competition,
        throttling(winner.details),
        disagreement(None if before is None else before.median_s, median_s),
    ]
    if winner.interval_s is not None:
        reasons.append(scatter("the winner", median_s, winner.interval_s))
    if (library := contest.finals.baseline) is not None:
        wide = scatter("the library", library.median_s, library.interval_s)
        reasons.append(library.noise or wide)
    return "; ".join(filter(None, reasons))


def _ranked(measurements: Sequence[Measurement], objective: Objective) -> list[int]:
    """Positions of those that are right and have a score, the best first."""
    costs = [(objective.cost_of(found), at) for at, found in enumerate(measurements) if found.ok]
    return [at for _, at in sorted((cost, at) for cost, at in costs if cost is not None)]


def _times(measurement: Measurement) -> tuple[float, tuple[float, float]]:
    """Median and interval of a measurement that is right."""
    median_s = measurement.median_s
    assert median_s is not None
    return median_s, measurement.interval_s or (median_s, median_s)


def _nothing_valid(run: TrialRun) -> str:
    label, budget = run.context.problem.label, run.budget
    found = [result.measurement for result in run.results]
    if found:
        counts = Counter(measurement.outcome for measurement in found)
        reasons = Counter(measurement.reason for measurement in found if measurement.reason)
        told = ", ".join(f"{n} {outcome}" for outcome, n in counts.items())
        often = ""
        if reasons:
            ((reason, _),) = reasons.most_common(1)
            first = next(each for each in run.results if each.measurement.reason == reason)
            often = f"; most often: {reason}, of {first.candidate}"
        return f"no candidate of {label} was valid after {len(found)} trials ({told}){often}"
    text = f"no candidate of {label} was tried"
    if budget.interrupted:
        return f"{text}: it was stopped"
    if not budget.deadline.over:
        return f"{text}: the study has visited all there are, name another one"
    spent_s, limit_s = {"starting": budget.started_s, **budget.spent_s}, budget.deadline.limit_s
    took = [f"{_STEPS[what]} took {s:.1f} s" for what, s in spent_s.items() if s >= 0.05]
    if took:
        text += f" within {limit_s:g} s ({', '.join(took)})"
    enough_s = max(ENOUGH_S, MORE * limit_s)
    return f"{text}: allow more time, a timeout of {enough_s:.0f} s or so"
