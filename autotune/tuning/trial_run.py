"""The trials of one problem, as tuning and sweeping share them: ask, compile, evaluate, tell."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.core.deadline import Deadline
from autotune.core.errors import OutOfTimeError
from autotune.core.interrupt import Interrupt
from autotune.core.measurement import Measurement, Outcome
from autotune.core.pace import CLOSING_S, FIRST_SHARE, Pace
from autotune.measuring.evaluator import Baseline, Evaluator, Finals, Stage, relative_speed
from autotune.tuning.progress import Progress, Watcher, unwatched
from autotune.tuning.trials import TrialResult, Workplace

if TYPE_CHECKING:
    from autotune.core.configuration import Candidate
    from autotune.search import Proposal, TuningStudy


BASELINE_SHARE = 0.05
"""Of the time so far, what measuring the vendor library may have taken for it to be measured again
when there is a new best."""

RECONSIDERED = 10
"""Abandoned candidates at most that are measured again when a finalist falls."""


class TrialRun:
    """One run of trials: asks, has compiled, evaluates, tells and stores.

    Args:
        workplace: what can be tried, and where.
        study: where candidates come from and where results go.
        evaluator: turns candidates into measurements.
        trials: the most trials to make.
        deadline: until when the run may take; None takes no end but that of the trials.
        interrupt: whoever asks for an end; entered by the caller.
        finalists: how many candidates `finals` will be asked to measure at most, for which time is
            kept; 0 where there are no finals.
        racing: whether a candidate is abandoned once it is far behind the best so far; if not,
            every candidate is timed to the end.
        pace: what steps of runs like this one have taken; None where there was none.
        progress: called whenever something has moved.

    Attributes:
        results: every trial of this run, in order.
        baseline: the vendor library, as measured alone; None when there is none, or not yet.
        started_s: from the beginning of the run to that of the search.
        seconds: from the beginning of the run to the end of the search.
        spent_s: wall time by what it went into, in seconds.
    """

    def __init__(
        self,
        workplace: Workplace,
        study: TuningStudy[Candidate],
        evaluator: Evaluator,
        *,
        trials: int,
        deadline: Deadline | None = None,
        interrupt: Interrupt | None = None,
        finalists: int = 0,
        racing: bool = True,
        pace: Pace | None = None,
        progress: Watcher | None = None,
    ) -> None:
        self.results: list[TrialResult] = []
        self.baseline: Baseline | None = None
        self.started_s = 0.0
        self.seconds = 0.0
        self.spent_s: defaultdict[str, float] = defaultdict(float)
        self._finals_s = 0.0
        self._baseline_s = 0.0
        self._workplace = workplace
        self._study = study
        self._evaluator = evaluator
        self._trials = trials
        self._deadline = deadline or Deadline()
        self._interrupt = interrupt or Interrupt()
        self._finalists = finalists
        self._racing = racing
        self._pace = pace or Pace()
        self._watch = progress or unwatched
        self._best: TrialResult | None = None
        self._waiting: deque[Proposal[Candidate]] = deque()
        self._begun_s = self.started_s = self._deadline.elapsed_s
        evaluator.deadline = self._deadline
        evaluator.report = self._report

    def search(
        self, source: Iterator[Candidate] | None = None, rungs: Iterable[Candidate] = ()
    ) -> None:
        """Run trials until the budget is spent, there is nothing left to try, or Ctrl-C.

        A trial or a compile for which there is no time is not begun; one that is cut off by the
        end was never made.

        Args:
            source: what to try, in this order, in place of what the sampler proposes; what the
                study has visited is passed over.
            rungs: what is tried besides, half of every batch: no family goes untried, but
                compiling them all at once takes longer than a short search should wait.
        """
        rungs = iter(rungs)
        waiting = self._waiting
        self._keep_reserve()
        try:
            # First: the baseline waits for operands, which are made while compilers work.
            self._refill(source, rungs)
            with self._spending("library"):
                self.baseline = self._evaluator.baseline()
            self._baseline_s = self.spent_s["library"]
            while waiting and not self._spent:
                self._report(Stage("trials", 0, 0))
                self._trial(_first_ready(waiting, self._evaluator))
                self._refill(source, rungs)
        except OutOfTimeError:
            pass  # what has been measured stands
        for unused in waiting:
            self._study.release(unused)
        self.seconds = self._deadline.elapsed_s
        self._note_spent()

    def finals(self, candidates: Sequence[Candidate]) -> Finals:
        """Measure candidates again, in turns with the baseline, as far as there is time.

        Those that there is no time for are as the search found them, and take no turns, if none
        could be measured again, and out of the race otherwise.

        Args:
            candidates: fastest first.
        """
        self._deadline.reserve_s = min(CLOSING_S, 0.05 * self._deadline.limit_s)
        self._report(Stage("finals", 0, 0))
        count = self._pace.finalists(self._deadline.remaining_s, len(candidates))
        begun_s = self._deadline.elapsed_s
        late = Measurement(Outcome.ABANDONED, reason="there was no time for it in the finals")
        try:
            if count:
                with self._spending("finals"):
                    finals = self._evaluator.finals(candidates[:count])
                missing = len(candidates) - count
                return replace(
                    finals,
                    measurements=(*finals.measurements, *[late] * missing),
                    ratios=(*finals.ratios, *[None] * missing),
                    rounds=(*finals.rounds, *[()] * missing),
                )
        except OutOfTimeError:
            pass
        finally:
            self._finals_s = self._deadline.elapsed_s - begun_s
            self._note_spent()
        found = dict(self._study.measured())
        measurements = tuple(found.get(each, late) for each in candidates)
        ratios = tuple(relative_speed(each, self.baseline) for each in measurements)
        return Finals(measurements, ratios, self.baseline)

    def reconsider(
        self, searched: Mapping[Candidate, Measurement], fallen: Mapping[Candidate, Measurement]
    ) -> dict[Candidate, Measurement]:
        """What a search found, less what it found of finalists that have fallen since.

        What was abandoned against their times is measured again, the most promising first, as
        long as there is time to hold the finals once more.

        Args:
            searched: every candidate's measurement.
            fallen: those that the finals have found wrong or lost, with what they say of them.
        """
        found = {**searched, **fallen}
        times = [each.median_s for each in found.values() if each.ok and each.median_s is not None]
        best_s = min(times, default=None)
        abandoned = sorted(
            (each.median_s, position, candidate)
            for position, (candidate, each) in enumerate(found.items())
            if each.outcome is Outcome.ABANDONED and each.median_s is not None
        )
        with contextlib.suppress(OutOfTimeError), self._spending("trials"):
            for expected_s, _, candidate in abandoned[:RECONSIDERED]:
                if not self.can_repeat_finals or (best_s is not None and expected_s > best_s):
                    break
                self._report(Stage("trials", 0, 0))
                measurement = self._evaluator.evaluate(candidate, best_s)
                found[candidate] = measurement
                self._workplace.keep(self._study.name, [(candidate, measurement)])
                if measurement.ok and measurement.median_s is not None:
                    best_s = min(best_s or math.inf, measurement.median_s)
        return found

    @property
    def interrupted(self) -> bool:
        """Whether somebody asked for an end."""
        return self._interrupt.requested

    @property
    def limit_s(self) -> float:
        """Seconds that the run may take."""
        return self._deadline.limit_s

    @property
    def out_of_time(self) -> bool:
        """Whether nothing may be begun any more."""
        return self._deadline.over

    @property
    def can_repeat_finals(self) -> bool:
        """Whether there is time to hold the finals once more."""
        return not self._interrupt.requested and self._deadline.remaining_s > self._finals_s

    @property
    def counts(self) -> dict[Outcome, int]:
        """Trials of this run by outcome."""
        return dict(Counter(result.measurement.outcome for result in self.results))

    @property
    def _spent(self) -> bool:
        return (
            self._interrupt.requested
            or len(self.results) >= self._trials
            or self._deadline.over
            or (self._best is not None and self._deadline.planned_s < self._pace.trial_s)
        )

    def _keep_reserve(self) -> None:
        """Leave time for the finals, of which more is known with every trial."""
        if not self._interrupt.requested:  # which has set what there is
            ok = sum(result.measurement.ok for result in self.results)
            self._deadline.reserve_s = self._pace.reserve_s(
                self._deadline.goal_s, self._evaluator.finals_s, min(self._finalists, max(1, ok))
            )

    def _refill(self, source: Iterator[Candidate] | None, rungs: Iterator[Candidate]) -> None:
        """Have a batch of candidates compiled or compiling ahead of the one to be measured."""
        waiting = self._waiting
        if self._spent or (waiting and not self._evaluator.compiles_ahead):
            return
        room = self._evaluator.batch - len(waiting)
        left = self._trials - len(self.results) - len(waiting)
        count = max(0, min(room, left))
        if not self._evaluator.compiles_ahead:
            fitting = self._pace.batch(self._deadline.planned_s, count)
            count = fitting if self._best else min(count, max(1, fitting))
        if source is not None:
            taken = 0
            while taken < count and (candidate := next(source, None)) is not None:
                taken += self._study.enqueue([candidate])
            count = taken
        if count:
            some = max(1, self._evaluator.batch // 2) - self._study.enqueued
            self._study.enqueue(itertools.islice(rungs, max(0, some)))
        with self._spending("proposing"):
            batch = self._study.ask_batch(count)
        waiting.extend(batch)
        self._prepare([proposal.candidate for proposal in batch])

    def _prepare(self, candidates: Sequence[Candidate]) -> None:
        """Compile; what has not been when only its share of the time is left, waits."""
        run, begun_s = self._deadline, self._deadline.elapsed_s
        kept_s = self._pace.trial_s if self.results else FIRST_SHARE * run.remaining_s
        try:
            with (
                self._spending("compiling"),
                run.keeping(kept_s if math.isfinite(kept_s) else 0.0),
            ):
                self._evaluator.prepare(candidates)
        except OutOfTimeError:
            if run.over:
                raise
        if not self._evaluator.compiles_ahead:
            self._pace.note_compile(run.elapsed_s - begun_s, len(candidates))

    def _trial(self, proposal: Proposal[Candidate]) -> None:
        first = self._best is None
        best_s = self._best.measurement.median_s if self._best and self._racing else None
        begun_s = self._deadline.elapsed_s
        try:
            with self._spending("trials"):
                measurement = self._evaluator.evaluate(proposal.candidate, best_s)
        except BaseException:
            self._study.release(proposal)
            raise
        trial_s = round(self._deadline.elapsed_s - begun_s, 6)
        measurement = replace(measurement, details={**measurement.details, "trial_s": trial_s})
        self._study.tell(proposal, measurement)
        self._workplace.keep(self._study.name, [(proposal.candidate, measurement)])
        result = TrialResult(proposal.candidate, measurement)
        self.results.append(result)
        if measurement.ok and measurement.median_s is not None:
            timed_s = measurement.median_s * measurement.repeats
            self._pace.note_trial(self._deadline.elapsed_s - begun_s, timed_s)
            best_s = math.inf if self._best is None else self._best.measurement.median_s or 0.0
            if measurement.median_s < best_s:
                self._best = result
                self._check_baseline()
        self._keep_reserve()
        if first and self._best is not None:
            ready = sum(self._evaluator.is_ready(each.candidate) for each in self._waiting)
            self._deadline.settle(ready * self._pace.trial_s)
        self._report(Stage("trials", 0, 0))

    def _check_baseline(self) -> None:
        """Compare a new best with a library that had as good a moment, where that costs little."""
        elapsed_s = self._deadline.elapsed_s
        if self.baseline is None or self._baseline_s > BASELINE_SHARE * elapsed_s:
            return
        with self._spending("library"):
            self.baseline = self._evaluator.check_baseline()
        self._baseline_s = self.spent_s["library"]

    @contextmanager
    def _spending(self, what: str) -> Iterator[None]:
        """Count the wall time of a block."""
        begun_s = self._deadline.elapsed_s
        try:
            yield
        finally:
            self.spent_s[what] += self._deadline.elapsed_s - begun_s

    def _note_spent(self) -> None:
        """Keep with the study what the run has spent so far."""
        spent_s = {what: round(seconds, 3) for what, seconds in self.spent_s.items()}
        seconds = round(self._deadline.elapsed_s - self._begun_s, 3)
        self._study.note_run({"seconds": seconds, "spent_s": spent_s})

    def _report(self, stage: Stage) -> None:
        best = self._best
        self._watch(
            Progress(
                trial=len(self.results),
                trials=self._trials,
                elapsed_s=self._deadline.elapsed_s,
                timeout_s=self._deadline.limit_s,
                best_s=None if best is None else best.measurement.median_s,
                baseline=self.baseline,
                flops=self._workplace.problem.flops,
                counts=self.counts,
                phase=stage.name,
                step=stage.step,
                steps=stage.steps,
                left_s=self._left_s(stage),
                best=None if best is None else best.candidate,
            )
        )

    def _left_s(self, stage: Stage) -> float:
        """Seconds that the run will take, as far as is known, and at most those that it may."""
        may_s = self._deadline.expected_s
        finals_s = self._evaluator.finals_s if self._finalists else 0.0
        if stage.name == "finals":
            return min(may_s, finals_s * (stage.steps - stage.step + 1) / max(1, stage.steps))
        done = len(self.results)
        if not done:
            return may_s
        return min(may_s, (self._trials - done) * self._deadline.elapsed_s / done + finals_s)


def _first_ready(waiting: deque[Proposal[Candidate]], evaluator: Evaluator) -> Proposal[Candidate]:
    """Take the oldest proposal that has been compiled, or the oldest if none has."""
    for proposal in waiting:
        if evaluator.is_ready(proposal.candidate):
            break
    else:
        proposal = waiting[0]
    waiting.remove(proposal)
    return proposal
