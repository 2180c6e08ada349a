"""The trials of one run: propose, prepare, measure, tell, and keep time for the finals."""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.core.errors import OutOfTimeError
from autotune.measuring.effort import Stage
from autotune.tuning.progress import Progress
from autotune.tuning.results import TrialResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from autotune.core.configuration import Candidate
    from autotune.core.measurement import Measurement
    from autotune.measuring.effort import Baseline, Finals
    from autotune.measuring.evaluator import Evaluator
    from autotune.search import Proposal, TuningStudy
    from autotune.tuning.budget import Budget
    from autotune.tuning.context import TuningContext
    from autotune.tuning.settings import Run

FINALISTS = 5
"""Candidates at most that are measured again, interleaved."""


class TrialRun:
    """The trials of one run, and its finals.

    Attributes:
        context: what can be tried, and where.
        run: settings.
        results: every trial of this run, in order.
        best: the trial with the best measurement; None before the first success.
        baseline: the vendor library, as measured alone; None when there is none, or not yet.
    """

    def __init__(
        self,
        context: TuningContext,
        study: TuningStudy[Candidate],
        evaluator: Evaluator,
        run: Run,
        budget: Budget,
    ) -> None:
        self.context = context
        self.evaluator = evaluator
        self.run = run
        self.budget = budget
        self.results: list[TrialResult] = []
        self.best: TrialResult | None = None
        self.baseline: Baseline | None = None
        self._best_cost = math.inf
        self._study = study
        self._waiting: deque[Proposal[Candidate]] = deque()
        evaluator.deadline = budget.deadline
        evaluator.report = self.report

    def search(
        self, source: Iterator[Candidate] | None = None, besides: Iterable[Candidate] = ()
    ) -> None:
        """Make trials until the budget is spent, nothing is left to try, or somebody stops it.

        A trial or a compile for which there is no time is not begun; one that is cut off by the
        end was never made.

        Args:
            source: what to try, in this order, in place of what the sampler proposes; what the
                study has visited is passed over.
            besides: what is tried besides, half of every batch: no family goes untried, but
                compiling them all at once takes longer than a short search should wait.
        """
        besides, budget = iter(besides), self.budget
        budget.started_s = budget.deadline.elapsed_s
        self._keep_reserve()
        try:
            # First: the baseline waits for operands, which are made while compilers work.
            self._prepare(self._propose(source, besides))
            with budget.spending("library"):
                self.baseline = self.evaluator.baseline()
            while self._waiting and not self._spent:
                self.report(Stage("trials", 0, 0))
                proposal = self._first_ready()
                self._tell(proposal, self._measure(proposal))
                self._prepare(self._propose(source, besides))
        except OutOfTimeError:
            pass  # what has been measured stands
        for unused in self._waiting:
            self._study.release(unused)
        budget.search_s = budget.deadline.elapsed_s
        self._study.note_run(budget.facts)

    def _propose(
        self, source: Iterator[Candidate] | None, besides: Iterator[Candidate]
    ) -> list[Proposal[Candidate]] | None:
        """A batch to compile ahead of what is measured next; None while there is no need."""
        waiting, ahead = len(self._waiting), self.evaluator.compiles_ahead
        if self._spent or (waiting and not ahead):
            return None
        batch = self.evaluator.batch
        count = max(0, min(batch, self.run.trials - len(self.results)) - waiting)
        if not ahead:
            count = self.budget.batch(count, self.best is not None)
        if source is not None:
            taken = min(count, self._study.enqueued)  # what lost workers held comes first
            while taken < count and (candidate := next(source, None)) is not None:
                taken += self._study.enqueue([candidate])
            count = taken
        if count:
            some = max(1, batch // 2) - self._study.enqueued
            self._study.enqueue(itertools.islice(besides, max(0, some)))
        with self.budget.spending("proposing"):
            return self._study.ask_batch(count)

    def _prepare(self, batch: Sequence[Proposal[Candidate]] | None) -> None:
        """Have a batch compiled, or compiling while others are measured."""
        if batch is None:
            return
        self._waiting.extend(batch)
        begun_s = self.budget.deadline.elapsed_s
        with self.budget.compiling(first=not self.results):
            self.evaluator.prepare([proposal.candidate for proposal in batch])
        if not self.evaluator.compiles_ahead:
            seconds = self.budget.deadline.elapsed_s - begun_s
            self.budget.pace.note_compile(seconds, len(batch))

    def _measure(self, proposal: Proposal[Candidate]) -> Measurement:
        best_s = self.best.measurement.median_s if self.best and self.run.racing else None
        begun_s = self.budget.deadline.elapsed_s
        try:
            with self.budget.spending("trials"):
                measurement = self.evaluator.evaluate(proposal.candidate, best_s)
        except BaseException:
            self._study.release(proposal)
            raise
        trial_s = round(self.budget.deadline.elapsed_s - begun_s, 6)
        return replace(measurement, details={**measurement.details, "trial_s": trial_s})

    def _tell(self, proposal: Proposal[Candidate], measurement: Measurement) -> None:
        """Tell the study, then the cache, then whoever watches."""
        first = self.best is None
        self._study.tell(proposal, measurement)
        self.keep(proposal.candidate, measurement)
        result = TrialResult(proposal.candidate, measurement)
        self.results.append(result)
        cost = self.run.objective.cost_of(measurement) if measurement.ok else None
        if cost is not None and measurement.median_s is not None:
            timed_s = measurement.median_s * measurement.repeats
            self.budget.pace.note_trial(float(measurement.details["trial_s"]), timed_s)
            if cost < self._best_cost:
                self.best, self._best_cost = result, cost
                self._check_baseline()
        self._keep_reserve()
        if first and self.best is not None:
            ready = sum(self.evaluator.is_ready(proposal.candidate) for proposal in self._waiting)
            # The first trial may have taken longer than others will: once more the time, at most.
            deadline = self.budget.deadline
            deadline.settle(min(ready * self.budget.pace.trial_s, deadline.goal_s))
        self.report(Stage("trials", 0, 0))

    def finals(self, candidates: Sequence[Candidate]) -> Finals | None:
        """Measure candidates again, in turns with the baseline: as many as there is time for."""
        try:
            with self.budget.finals(len(candidates)) as count:
                self.report(Stage("finals", 0, 0))
                return self.evaluator.finals(candidates[:count]) if count else None
        except OutOfTimeError:
            return None
        finally:
            self._study.note_run(self.budget.facts)

    def keep(self, candidate: Candidate, measurement: Measurement) -> None:
        """Store a measurement in the cache."""
        self.context.keep(self._study.name, self.context.problem, [(candidate, measurement)])

    def report(self, stage: Stage) -> None:
        """Tell whoever watches where the run stands."""
        if self.run.progress is None:
            return
        best, done, budget = self.best, len(self.results), self.budget
        finals_s = self.evaluator.finals_s if self.run.finals else 0.0
        progress = replace(
            Progress.at_start(self.context.problem.flops, self.run.trials, budget.deadline),
            trial=done,
            best_s=None if best is None else best.measurement.median_s,
            baseline=self.baseline,
            counts=dict(Counter(result.measurement.outcome for result in self.results)),
            phase=stage.name,
            step=stage.step,
            steps=stage.steps,
            left_s=budget.left_s(stage, done, self.run.trials, finals_s),
            best=None if best is None else best.candidate,
        )
        self.run.progress(progress)

    @property
    def _spent(self) -> bool:
        if len(self.results) >= self.run.trials or self.budget.spent(self.best is not None):
            return True
        return self.run.until is not None and self._study.chance < self.run.until

    def _first_ready(self) -> Proposal[Candidate]:
        """Take the oldest proposal that has been compiled, or the oldest if none has."""
        is_ready = self.evaluator.is_ready
        ready = (waiting for waiting in self._waiting if is_ready(waiting.candidate))
        proposal = next(ready, self._waiting[0])
        self._waiting.remove(proposal)
        return proposal

    def _keep_reserve(self) -> None:
        """Leave time for the finals, of which more is known with every trial."""
        ok = sum(result.measurement.ok for result in self.results)
        most = FINALISTS + 1 if self.run.finals else 0  # and the incumbent
        finalists = min(most, max(1, ok))
        holds = getattr(self.evaluator, "holds", False)  # evaluators of other packages do not
        self.budget.reserve(self.evaluator.finals_s, finalists, holds=holds)

    def _check_baseline(self) -> None:
        """Compare a new best with a library that had as good a moment, where that costs little."""
        if self.baseline is not None and self.budget.may_check_baseline:
            with self.budget.spending("library"):
                self.baseline = self.evaluator.check_baseline()
