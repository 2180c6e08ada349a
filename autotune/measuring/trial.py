"""Trials, in the process that measures: correct first, then fast, then still correct.

A candidate races against the best one so far. Its median after some runs is known by a confidence
interval, and only that interval's lower end counts against it; no distribution of the timings is
assumed. The idea is that of Maron and Moore, "Hoeffding races" (NIPS 1993), with order statistics
in place of Hoeffding's bound, which needs a bounded range.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from autotune.core.measurement import ERROR_NORM, Measurement, Outcome, Series
from autotune.core.statistics import thinned
from autotune.measuring.messages import (
    Confirm,
    DescribeBaseline,
    Evaluate,
    Evaluated,
    Redraw,
    Reply,
    Request,
    Vendor,
    Visit,
)
from autotune.measuring.timing import Stop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.measuring.effort import Effort
    from autotune.measuring.harness import Bench, Harness, Loaded, Observer
    from autotune.operations.verification import Verdict

BRIEF_S = 0.05
"""Calls longer than this are not warmed up: what the call before left behind is gone in less."""

PATIENCE = 0.5
"""Of the time after which a trial is killed, what it may take before it ends by itself."""

BEHIND_SHARE = 0.2
"""Of how much slower a candidate is when it is abandoned, what suffices to time it no further."""

PROBE_RATIO = 8.0
"""A candidate that is this much slower than the best on a smaller problem, for the same work, is
not run on the problem: small operands fit the caches better, so large ones would be no faster."""

UNSTEADY_S = 0.3
"""So much of a sustained turn does not count: whose turn was before still sets the clocks."""

_REPEATED = "after repeated calls"  # a race between threads shows now and then, not in every call
_CHANGED = "once operands had changed"  # a remembered result is right while operands are the same
_IN_TURN = "in the finals"
_AT_THE_END = "after the finals"


@dataclass(frozen=True, slots=True)
class Race:
    """A candidate against the best so far.

    Attributes:
        best_s: the best median so far, in seconds; None while there is none, and nobody loses.
        ratio: a candidate is abandoned when its first runs are all this much slower.
    """

    best_s: float | None
    ratio: float

    @property
    def limit_s(self) -> float:
        """Seconds that all of the first runs must exceed for a candidate to be abandoned."""
        return math.inf if self.best_s is None else self.ratio * self.best_s

    def lost(self, first_s: Sequence[float]) -> bool:
        """True if the first runs show that a candidate need not be timed.

        The smallest of k independent runs is a lower bound of the median with confidence
        1 - 2**-k whatever their distribution. Two runs are few, so the bound must be far away:
        a candidate that is as fast as the best is abandoned only if `FIRST_RUNS` runs in a row
        take `ratio` times its own median.
        """
        return min(first_s) > self.limit_s

    def behind(self, low_s: float) -> bool:
        """True if a candidate that is being timed need not be known more exactly.

        It is once the 95% confidence interval of its median, which begins at `low_s`, lies above
        the best by more than measurements differ from day to day. The candidate was verified and
        timed: its measurement stands, with the wider interval.
        """
        if self.best_s is None:
            return False
        return low_s > (1 + BEHIND_SHARE * (self.ratio - 1)) * self.best_s

    def reason(self, first_s: Sequence[float]) -> str:
        """One line that says why a candidate was abandoned."""
        ratio = min(first_s) / (self.best_s or math.inf)
        return f"{ratio:.2f} times the best in its first runs (limit {self.ratio:g})"


@dataclass(slots=True)
class _Standing:
    """Largest error of a program's results so far, and the norm of the last one's errors."""

    accuracy: str
    worst: float = 0.0
    norm: float | None = None

    def fault(self, verdict: Verdict, when: str = "") -> Evaluated | None:
        """The reply, if a verdict is against the program; `when` says what had gone before.

        Damage may be another's, which this process ran before.
        """
        if verdict.right:
            self.worst = max(self.worst, verdict.error)
            self.norm = verdict.norm
            return None
        error = verdict.error if math.isfinite(verdict.error) else None
        reason = f"{verdict.reason}, {when}" if when else verdict.reason
        return Evaluated(
            Measurement(Outcome.WRONG_RESULT, error=error, reason=reason),
            lost=verdict.damaged,
            blameless=verdict.damaged and Trials._begun > 1,
        )


class Trials:
    """Answers requests about programs for one problem.

    Args:
        harness: loads them, calls them and judges what they leave.
        effort: how long and how exactly to measure.
        observers: read beside timed calls.
        watchers: read beside calls without a pause.
    """

    _begun: ClassVar[int] = 0
    """In this process, for whatever problem: any of them may have damaged memory."""

    def __init__(
        self,
        harness: Harness,
        effort: Effort,
        observers: Sequence[Observer] = (),
        watchers: Sequence[Observer] = (),
    ) -> None:
        self._harness = harness
        self._effort = effort
        self._observers = observers
        self._vendors: dict[str, float | None] = {}
        self._watchers = watchers

    def __call__(self, request: Request) -> Reply:
        """Do what is asked.

        Raises:
            Exception: whatever the harness does not hold against the program.
        """
        try:
            match request:
                case Evaluate():
                    return self._evaluate(request)
                case Visit():
                    return self._visit(request)
                case Confirm():
                    return self._confirm(request)
                case Redraw():
                    self._harness.redraw(request.seed)
                    return None
                case DescribeBaseline():
                    return self._harness.vendors()
        except Exception as error:  # whose fault it is, the harness knows
            failed = self._harness.failure(error)
            if failed is None:
                raise
            return failed

    def _evaluate(self, request: Evaluate) -> Evaluated:
        Trials._begun += 1
        deadline = self._harness.now() + PATIENCE * self._effort.timeout_s
        race = Race(request.best_s, self._effort.abandon_ratio)
        standing = _Standing(request.accuracy)
        with self._harness.load(request.program, keep=False) as loaded:
            if settled := self._verify(loaded, standing) or self._probe(loaded, race, standing):
                return settled
            with loaded.problem() as bench:
                return self._time(bench, request, race, standing, deadline)

    def _verify(self, loaded: Loaded, standing: _Standing, when: str = "") -> Evaluated | None:
        """The verdict against it at the first case where it is wrong."""
        for case in loaded.cases:
            with loaded.place(case) as placed:
                placed.once()
                wrong = standing.fault(placed.judge(standing.accuracy), when)
            if wrong:
                return wrong
        return None

    def _probe(self, loaded: Loaded, race: Race, standing: _Standing) -> Evaluated | None:
        """The verdict against a program that is wrong, or hopeless, on a smaller problem."""
        probe = loaded.probe(race.best_s)
        if probe is None or race.best_s is None:
            return None
        probe.bench.once()
        if wrong := standing.fault(probe.bench.judge(standing.accuracy)):
            return wrong
        estimates: list[float] = []
        # A run that something else interrupts is as slow as a hopeless one.
        for _ in range(self._harness.first_runs.runs):
            estimates.append(probe.bench.again() * probe.scale)
            if estimates[-1] <= PROBE_RATIO * race.best_s:
                return None
        ratio = min(estimates) / race.best_s
        reason = (
            f"about {ratio:.0f} times the best, judged by {probe.told} (limit {PROBE_RATIO:g})"
        )
        return _abandoned(estimates, standing, reason)

    def _time(
        self, bench: Bench, request: Evaluate, race: Race, standing: _Standing, deadline: float
    ) -> Evaluated:
        """Time it on the problem, unless it is far behind; it must be right before and after."""
        first_s = bench.once()
        if wrong := standing.fault(bench.judge(standing.accuracy)):
            return wrong
        times = self._first_runs(bench, first_s, race)
        if race.lost(times):
            return _abandoned(times, standing, race.reason(times))
        expected_s = bench.again() if first_s < BRIEF_S else first_s
        left_s = max(0.0, deadline - self._harness.now() - first_s)
        stop = Stop(request.budget_s, self._effort.interval, left_s, race.behind)
        if left_s or self._observers:
            series = _observed(bench, expected_s, stop, self._observers)
        else:  # a call of seconds, which two more follow for what they leave
            series = Series(first_s, (first_s, first_s), 1)
        details = {**bench.observe(series, stop), **series.observed}
        if wrong := standing.fault(bench.judge_last(standing.accuracy), _REPEATED):
            return wrong
        # First as in the finals: whoever prepares the output gives the change away.
        bench.turn()
        bench.settle()
        if wrong := standing.fault(bench.judge_last(standing.accuracy), _CHANGED):
            return wrong
        bench.once()
        if wrong := standing.fault(bench.judge(standing.accuracy), _CHANGED):
            return wrong
        if standing.norm is not None:
            details[ERROR_NORM] = standing.norm
        if too_fast := self._too_fast(series, standing.accuracy):
            return too_fast
        return Evaluated(
            Measurement(
                Outcome.OK,
                series.median_s,
                series.interval_s,
                series.calls,
                standing.worst,
                details=details,
                samples=thinned(series.samples, request.samples),
            )
        )

    def _first_runs(self, bench: Bench, first_s: float, race: Race) -> list[float]:
        """As many runs as it takes to see whether it is far behind.

        The first run met cold caches, sleeping threads and low clocks; that explains no long run.
        It may also have had to wait for memory to be allocated and code to be loaded: that takes
        a hundred times as long as a kernel of some microseconds.
        """
        enough, times = self._harness.first_runs, [first_s]
        if first_s > max(enough.hopeless * race.limit_s, BRIEF_S):
            return times
        long = first_s * (enough.runs - 1) >= self._effort.budget_s
        while race.lost(times) and len(times) < (enough.long_runs if long else enough.runs):
            times.append(bench.again())
        return times

    def _visit(self, request: Visit) -> Series | Evaluated:
        """Take one turn, on other operands than the turn before; its last call is checked."""
        program = request.program
        with contextlib.ExitStack() as opened:
            if isinstance(program, Vendor):
                bench = opened.enter_context(self._harness.vendor(program))
            else:
                loaded = opened.enter_context(self._harness.load(program, keep=True))
                bench = opened.enter_context(loaded.problem())
            bench.turn()
            first_s = bench.settle()
            if request.sustained:
                series = self._sustained(bench, first_s, request.budget_s)
            elif first_s >= max(BRIEF_S, request.budget_s) and not self._observers:
                series = Series(first_s, (first_s, first_s), 1)
            else:
                stop = Stop(request.budget_s, self._effort.interval, request.budget_s)
                series = _observed(bench, first_s, stop, self._observers)
            if not isinstance(program, Vendor):
                standing = _Standing(request.accuracy)
                if wrong := standing.fault(bench.judge_last(request.accuracy), _IN_TURN):
                    return wrong
            elif program.digest not in self._vendors:
                norm = bench.judge_last(request.accuracy).norm
                self._vendors[program.digest] = norm
                if norm is not None:
                    series = replace(series, observed={**series.observed, ERROR_NORM: norm})
            series = replace(series, samples=())
            return self._too_fast(series, request.accuracy) or series

    def _sustained(self, bench: Bench, expected_s: float, budget_s: float) -> Series:
        """Time calls without a pause; then elements change, to which a last call must answer."""
        bench.series(expected_s, Stop.after(UNSTEADY_S))
        series = _observed(bench, expected_s, Stop.after(budget_s), self._watchers)
        bench.series(expected_s, Stop(0.0, self._effort.interval, 0.0))
        return series

    def _too_fast(self, series: Series, accuracy: str) -> Evaluated | None:
        """The verdict against a time that no kernel takes; None where it may be one's.

        Whoever was here before may have changed the clock.
        """
        ceiling = self._harness.ceiling
        least_s = ceiling.least_s(self._harness.problem, accuracy)
        if not series.median_s < least_s:  # NaN where another rank has the time
            return None
        reason = ceiling.told(series.median_s, least_s, accuracy)
        return Evaluated(
            Measurement(Outcome.IMPLAUSIBLE, repeats=series.calls, reason=reason),
            lost=True,
            blameless=Trials._begun > 1,
        )

    def _confirm(self, request: Confirm) -> Evaluated:
        """Verify again, every case and then as many calls as there is time for."""
        standing, calls = _Standing(request.accuracy), 0
        with self._harness.load(request.program, keep=True) as loaded:
            if wrong := self._verify(loaded, standing, _AT_THE_END):
                return wrong
            with loaded.problem() as bench:
                for part in range(1, bench.contents + 1):
                    bench.turn()
                    until = self._harness.now() + request.budget_s / bench.contents
                    while calls < part or self._harness.now() < until:
                        bench.once()
                        calls += 1
                        last = bench.judge_last(standing.accuracy)
                        if wrong := standing.fault(last, _AT_THE_END):
                            return wrong
        details: dict[str, float | int | str] = {"checked_calls": calls}
        return Evaluated(Measurement(Outcome.OK, error=standing.worst, details=details))


def _observed(
    bench: Bench, expected_s: float, stop: Stop, observers: Sequence[Observer]
) -> Series:
    """Time calls with observers watching."""
    for observer in observers:
        observer.start()
    try:
        series = bench.series(expected_s, stop)
    finally:
        for observer in observers:
            observer.stop()
    observed: dict[str, float] = {}
    for observer in observers:
        observed.update(observer.read(series))
    return replace(series, observed=observed) if observed else series


def _abandoned(times: Sequence[float], standing: _Standing, reason: str) -> Evaluated:
    """The reply for a candidate whose first runs show that it does not win."""
    return Evaluated(
        Measurement(
            Outcome.ABANDONED,
            min(times),
            repeats=len(times),
            error=standing.worst,
            reason=reason,
        )
    )
