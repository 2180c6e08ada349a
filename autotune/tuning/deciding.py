"""From what a search has measured to the record that serves: the finals, and who wins them.

The best candidates of the search are verified and timed again, in turns with each other, with the
vendor library and with the **incumbent**: the record that served until now. Whoever is fastest in
turns is kept. A record is never replaced by one that is newer and slower, and what something
disturbed is measured again before it is believed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from autotune.core.errors import TuningFailedError
from autotune.core.measurement import Outcome
from autotune.core.statistics import median_interval
from autotune.core.version import __version__
from autotune.measuring.noise import Competition, disagreement, scatter, throttling
from autotune.store import BaselineRecord, BinaryRecord, MatchQuality, TuningRecord, preference

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from autotune.core.configuration import Candidate
    from autotune.core.measurement import Measurement
    from autotune.measuring.evaluator import Evaluator, Finals
    from autotune.operations.problem import Problem
    from autotune.store import EffortRecord, Match
    from autotune.tuning.trial_run import TrialRun
    from autotune.tuning.trials import Workplace

FINALISTS = 5
"""How many of the best candidates are measured again, interleaved."""

CONTENDER_RATIO = 1.10
"""A finalist is at most this much slower than the best, or its interval overlaps."""

ATTEMPTS = 2
"""How often the finals are held while something disturbs them."""

_ENOUGH_S, _MORE = 20.0, 3
"""Seconds in which a first trial is made where nothing is compiled yet; and where those were not
enough, how many times as much may be."""

_STEPS = {
    "starting": "starting",
    "proposing": "choosing",
    "compiling": "compiling",
    "library": "the library",
    "trials": "waiting for a first kernel",
}
"""What a run spends its time with before its first trial is made."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What the finals came to.

    Attributes:
        best: the record of the fastest candidate of the searched families.
        serving: the record that a lookup gives from now on: `best`, unless the incumbent is of a
            family that was not searched, and faster.
        kept: whether `best` is the incumbent as it was: nothing else was faster.
        finals: everybody's times.
    """

    best: TuningRecord
    serving: TuningRecord
    kept: bool
    finals: Finals


def decide(
    work: Workplace,
    measured: Iterable[tuple[Candidate, Measurement]],
    evaluator: Evaluator,
    run: TrialRun,
    effort: EffortRecord,
    incumbent: Match | None,
) -> Decision:
    """Hold the finals and store what they are won by.

    Args:
        work: what was searched, and where.
        measured: everything that the study has measured.
        evaluator: of the run; knows what candidates were compiled to.
        run: holds the finals, as long as there is time.
        effort: what the search cost.
        incumbent: the record that served until now, EXACT or STALE; None where there is none.

    Raises:
        TuningFailedError: no candidate of the searched families is right.
    """
    old = None if incumbent is None else incumbent.record
    held = _contest(work, evaluator, run, dict(measured), old)
    chosen = held.chosen
    searched = [each for each in held.ranked if chosen[each].family in work.union.spaces]
    if not searched:
        reasons = "; ".join(m.reason for m in held.finals.measurements if m.reason)
        raise TuningFailedError(f"no finalist passed its second verification: {reasons}")
    first = searched[0]
    if incumbent is None or old is None:
        best = held.store(first, effort)
        return Decision(best, best, False, held.finals)
    place = chosen.index(old.candidate)
    beaten = held.has_beaten(first, place, doubtful=old.noisy)
    if beaten is None:
        best = held.store(first, effort)
        return Decision(best, min(best, old, key=preference((best, old))), False, held.finals)
    if beaten:
        best = held.store(first, effort, beat=(old.id,))
        return Decision(best, best, False, held.finals)
    # The incumbent stays. If it fitted less than exactly, or was noisy, its record is made anew.
    kept = incumbent.quality is MatchQuality.EXACT and not old.noisy
    serving = old if kept else held.store(place, effort, beat=(old.id,))
    if place in searched:
        return Decision(serving, serving, kept, held.finals)
    best = held.store(first, effort, lost_to=(serving.id,))
    return Decision(best, serving, False, held.finals)


def finalists(measured: Iterable[tuple[Candidate, Measurement]]) -> list[Candidate]:
    """The best candidates, fastest first: those that could still be the winner."""
    ranked = sorted(
        (
            (measurement.median_s, position, candidate, measurement)
            for position, (candidate, measurement) in enumerate(measured)
            if measurement.ok and measurement.median_s is not None
        ),
    )
    if not ranked:
        return []
    best_s = ranked[0][0]
    best_high = (ranked[0][3].interval_s or (best_s, best_s))[1]
    contenders = []
    for median, _, candidate, measurement in ranked[:FINALISTS]:
        low = (measurement.interval_s or (median, median))[0]
        if median <= CONTENDER_RATIO * best_s or low <= best_high:
            contenders.append(candidate)
    return contenders


@dataclass(frozen=True, slots=True)
class _Held:
    """Finals that were held.

    Attributes:
        work: what was searched, and where.
        evaluator: that held them.
        chosen: the finalists.
        finals: their times.
        noise: what disturbed them, in one line; empty if nothing did.
    """

    work: Workplace
    evaluator: Evaluator
    chosen: Sequence[Candidate]
    finals: Finals
    noise: str

    @property
    def ranked(self) -> list[int]:
        """Positions of the finalists that are right, the fastest first."""
        return _ranked(self.finals)

    def has_beaten(self, challenger: int, incumbent: int, *, doubtful: bool) -> bool | None:
        """Whether a finalist was faster than the incumbent, round by round.

        It must be so with 95% confidence: between equals the incumbent stays. Where its own
        record is doubtful the smaller median is enough.

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
        ours, theirs = self.finals.rounds[challenger], self.finals.rounds[incumbent]
        pairs = [other / own for own, other in zip(ours, theirs, strict=True)]
        return doubtful or median_interval(pairs)[0] > 1

    def store(
        self,
        position: int,
        effort: EffortRecord,
        *,
        beat: tuple[str, ...] = (),
        lost_to: tuple[str, ...] = (),
    ) -> TuningRecord:
        """Store the record of a finalist, and what it was compiled to."""
        work, finals, candidate = self.work, self.finals, self.chosen[position]
        measurement, ratio = finals.measurements[position], finals.ratios[position]
        assert measurement.median_s is not None  # it was right, or it would not be here
        interval = measurement.interval_s or (measurement.median_s, measurement.median_s)
        baseline = None
        if finals.baseline is not None and ratio is not None:
            baseline = BaselineRecord(finals.baseline.name, finals.baseline.median_s, ratio)
        binary = self.evaluator.binary(candidate)
        record = TuningRecord(
            fingerprint=work.device.fingerprint,
            operation=work.problem.operation,
            problem=work.problem.key(),
            target=work.target.name,
            candidate=candidate,
            family_digest=work.families[candidate.family].digest,
            space_digest=work.union.digest,
            median_s=measurement.median_s,
            interval_s=interval,
            gflops=work.problem.flops / measurement.median_s / 1e9,
            ties=_ties(position, interval, finals.measurements),
            baseline=baseline,
            effort=effort,
            toolchain=dict(work.device.toolchain),
            state=dict(work.device.state),
            created=datetime.now(UTC).isoformat(),
            version=__version__,
            binary=None if binary is None else BinaryRecord.of(binary),
            noise=self.noise,
            beat=beat,
            lost_to=lost_to,
        )
        contents = [] if binary is None else [binary.content, binary.support]
        work.store.add(record, binaries=filter(None, contents))
        return record


def _contest(
    work: Workplace,
    evaluator: Evaluator,
    run: TrialRun,
    searched: Mapping[Candidate, Measurement],
    old: TuningRecord | None,
) -> _Held:
    """Finals; others, where one who fell in them had kept others out by a time that was false.

    Raises:
        TuningFailedError: there is nobody to hold them among.
    """
    held: _Held | None = None
    while True:
        chosen = finalists(searched.items())
        if held is not None and set(chosen) <= {held.chosen[place] for place in held.ranked}:
            return held
        if not chosen:
            raise TuningFailedError(_nothing_valid(work.problem, run))
        if old is not None and old.candidate not in chosen:
            chosen.insert(1, old.candidate)  # before those that there may be no time for
        held = _hold(work, evaluator, run, chosen, searched)
        told = dict(zip(chosen, held.finals.measurements, strict=True))
        fallen = {
            candidate: found
            for candidate, found in told.items()
            if candidate in searched and found.outcome not in (Outcome.OK, Outcome.ABANDONED)
        }
        if not fallen or (held.ranked and not run.can_repeat_finals):
            return held
        searched = run.reconsider(searched, fallen)


def _hold(
    work: Workplace,
    evaluator: Evaluator,
    run: TrialRun,
    chosen: Sequence[Candidate],
    searched: Mapping[Candidate, Measurement],
) -> _Held:
    """Hold finals until nothing disturbs them, `ATTEMPTS` times at most, while there is time."""
    usable = work.device.limits.names().get("max_threads", 1)
    threads = min(work.problem.threads or usable, usable)
    for _ in range(ATTEMPTS):
        competition = Competition(threads)
        finals = run.finals(chosen)
        noise = _noise(finals, chosen, searched, competition.seen())
        if not noise or not run.can_repeat_finals:
            break
    return _Held(work, evaluator, chosen, finals, noise)


def _noise(
    finals: Finals,
    chosen: Sequence[Candidate],
    searched: Mapping[Candidate, Measurement],
    competition: str,
) -> str:
    """What disturbed the fastest one's times or the baseline's; empty if nothing did."""
    ranked = _ranked(finals)
    if not ranked:
        return ""
    winner = finals.measurements[ranked[0]]
    assert winner.median_s is not None
    before = searched.get(chosen[ranked[0]])
    reasons = [
        competition,
        throttling(winner.details),
        disagreement(None if before is None else before.median_s, winner.median_s),
    ]
    if winner.interval_s is not None:
        reasons.append(scatter("the winner", winner.median_s, winner.interval_s))
    if finals.baseline is not None:
        library = finals.baseline
        reasons.append(
            library.noise or scatter("the library", library.median_s, library.interval_s)
        )
    return "; ".join(filter(None, reasons))


def _ranked(finals: Finals) -> list[int]:
    times = [
        (measurement.median_s, position)
        for position, measurement in enumerate(finals.measurements)
        if measurement.ok and measurement.median_s is not None
    ]
    return [position for _, position in sorted(times)]


def _ties(winner: int, interval: tuple[float, float], measurements: Sequence[Measurement]) -> int:
    """Finalists other than the winner whose intervals overlap its own."""
    return sum(
        measurement.ok
        and measurement.interval_s is not None
        and measurement.interval_s[0] <= interval[1]
        for position, measurement in enumerate(measurements)
        if position != winner
    )


def _nothing_valid(problem: Problem, run: TrialRun) -> str:
    results = run.results
    if not results:
        return _nothing_tried(problem, run)
    counts = Counter(result.measurement.outcome for result in results)
    reasons = Counter(result.measurement.reason for result in results if result.measurement.reason)
    text = f"no candidate of {problem.label} was valid after {len(results)} trials"
    if counts:
        text += " (" + ", ".join(f"{n} {outcome}" for outcome, n in counts.items()) + ")"
    if reasons:
        text += f"; most often: {reasons.most_common(1)[0][0]}"
    return text


def _nothing_tried(problem: Problem, run: TrialRun) -> str:
    """What a run did that ended before its first trial did, and how much time to give it."""
    text = f"no candidate of {problem.label} was tried"
    if run.interrupted:
        return f"{text}: it was stopped"
    if not run.out_of_time:
        return f"{text}: the study has visited all there are, name another one"
    spent_s = {"starting": run.started_s, **run.spent_s}
    took = [f"{_STEPS[what]} took {each:.1f} s" for what, each in spent_s.items() if each >= 0.05]
    if took:
        text += f" within {run.limit_s:g} s ({', '.join(took)})"
    enough_s = max(_ENOUGH_S, _MORE * run.limit_s)
    return f"{text}: allow more time, --timeout {enough_s:.0f} or so"
