"""How a trial goes, in the process that measures: correct first, then fast, then still correct."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from autotune.core.measurement import Measurement, Outcome
from autotune.measuring.messages import (
    Confirm,
    DescribeBaseline,
    Evaluate,
    Evaluated,
    Redraw,
    Reply,
    Request,
    Series,
    Vendor,
    Visit,
)
from autotune.measuring.racing import PROBE_RATIO, Race, never
from autotune.measuring.verdicts import AT_THE_END, CHANGED, IN_TURN, REPEATED, wrong_result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.measuring.evaluator import Effort
    from autotune.measuring.rig import Bench, Loaded, Rig
    from autotune.operations.verification import Verdict

BRIEF_S = 0.05
"""Calls longer than this are not warmed up: what the call before left behind is gone in less."""

PATIENCE = 0.5
"""Of the time after which a trial is killed, what it may take before it ends by itself."""


@dataclass(slots=True)
class _Standing:
    """How a program stands: its largest error so far, or the verdict against it."""

    accuracy: str
    worst: float = 0.0
    against: Verdict | None = None
    when: str = ""

    def accepts(self, verdict: Verdict, when: str = "") -> bool:
        """Whether it is right; if not, that is what is said of it."""
        if verdict.right:
            self.worst = max(self.worst, verdict.error)
        else:
            self.against, self.when = verdict, when
        return verdict.right


class Trials:
    """Answers requests about programs for one problem.

    Args:
        rig: loads them, calls them and judges what they leave.
        effort: how long and how exactly to measure.
    """

    _begun: ClassVar[int] = 0
    """In this process, for whatever problem: any of them may have damaged memory."""

    def __init__(self, rig: Rig, effort: Effort) -> None:
        self._rig = rig
        self._effort = effort

    def __call__(self, request: Request) -> Reply:
        """Do what is asked.

        Raises:
            Exception: whatever the rig does not hold against the program.
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
                    self._rig.redraw(request.seed)
                    return None
                case DescribeBaseline():
                    return self._rig.vendors()
        except Exception as error:  # whose fault it is, the rig knows
            told = self._rig.failure(error)
            if told is None:
                raise
            return told

    def _evaluate(self, request: Evaluate) -> Evaluated:
        Trials._begun += 1
        deadline = self._rig.now() + PATIENCE * self._effort.timeout_s
        race = Race(request.best_s, self._effort.abandon_ratio)
        standing = _Standing(request.accuracy)
        with self._rig.load(request.program, keep=False) as loaded:
            if not self._verify(loaded, standing):
                return _wrong(standing)
            if (settled := self._probe(loaded, race, standing)) is not None:
                return settled
            with loaded.problem() as bench:
                return self._time(bench, request.budget_s, race, standing, deadline)

    def _verify(self, loaded: Loaded, standing: _Standing, when: str = "") -> bool:
        """Whether it is right at every case."""
        for case in loaded.cases:
            with loaded.place(case) as placed:
                placed.once()
                right = standing.accepts(placed.judge(standing.accuracy), when)
            if not right:
                return False
        return True

    def _probe(self, loaded: Loaded, race: Race, standing: _Standing) -> Evaluated | None:
        """What a smaller problem settles: the program is wrong there, or hopelessly slow."""
        probe = loaded.probe(race.best_s)
        if probe is None or race.best_s is None:
            return None
        probe.bench.once()
        if not standing.accepts(probe.bench.judge(standing.accuracy)):
            return _wrong(standing)
        estimates: list[float] = []
        # A run that something else interrupts is as slow as a hopeless one.
        for _ in range(self._rig.pace.runs):
            estimates.append(probe.bench.again() * probe.scale)
            if estimates[-1] <= PROBE_RATIO * race.best_s:
                return None
        ratio = min(estimates) / race.best_s
        reason = (
            f"about {ratio:.0f} times the best, judged by {probe.told} (limit {PROBE_RATIO:g})"
        )
        return _abandoned(estimates, standing, reason)

    def _time(
        self, bench: Bench, budget_s: float, race: Race, standing: _Standing, deadline: float
    ) -> Evaluated:
        """Time it on the problem, unless it is far behind; it must be right before and after."""
        first_s = bench.once()
        if not standing.accepts(bench.judge(standing.accuracy)):
            return _wrong(standing)
        times = self._first_runs(bench, first_s, race)
        if race.lost(times):
            return _abandoned(times, standing, race.reason(times))
        series = bench.series(
            bench.again() if first_s < BRIEF_S else first_s,
            budget_s,
            deadline_s=max(0.0, deadline - self._rig.now() - first_s),
            enough=race.behind,
        )
        details = bench.observe(series, budget_s)
        # A race between threads shows now and then, not in every call.
        if not standing.accepts(bench.judge_last(standing.accuracy), REPEATED):
            return _wrong(standing)
        # First as in the finals: whoever prepares the output gives the change away.
        bench.turn()
        bench.settle()
        if not standing.accepts(bench.judge_last(standing.accuracy), CHANGED):
            return _wrong(standing)
        bench.once()
        if not standing.accepts(bench.judge(standing.accuracy), CHANGED):
            return _wrong(standing)
        if (too_fast := self._too_fast(series, standing.accuracy)) is not None:
            return too_fast
        return Evaluated(
            Measurement(
                Outcome.OK,
                series.median_s,
                series.interval_s,
                series.calls,
                standing.worst,
                details=details,
            )
        )

    def _first_runs(self, bench: Bench, first_s: float, race: Race) -> list[float]:
        """As many runs as it takes to see whether it is far behind.

        The first run met cold caches, sleeping threads and low clocks; that explains no long run.
        It may also have had to wait for memory to be allocated and code to be loaded: that takes
        a hundred times as long as a kernel of some microseconds.
        """
        pace, times = self._rig.pace, [first_s]
        if first_s > max(pace.hopeless * race.limit_s, BRIEF_S):
            return times
        long = first_s * (pace.runs - 1) >= self._effort.budget_s
        while race.lost(times) and len(times) < (pace.long_runs if long else pace.runs):
            times.append(bench.again())
        return times

    def _visit(self, request: Visit) -> Series | Evaluated:
        """Take one turn, on other operands than the turn before; its last call is checked."""
        program = request.program
        with contextlib.ExitStack() as opened:
            if isinstance(program, Vendor):
                bench = opened.enter_context(self._rig.vendor(program))
            else:
                loaded = opened.enter_context(self._rig.load(program, keep=True))
                bench = opened.enter_context(loaded.problem())
            bench.turn()
            first_s = bench.settle()
            if first_s >= max(BRIEF_S, request.budget_s):
                series = Series(first_s, (first_s, first_s), 1)
            else:
                series = bench.series(
                    first_s, request.budget_s, deadline_s=request.budget_s, enough=never
                )
            if not isinstance(program, Vendor):
                standing = _Standing(request.accuracy)
                if not standing.accepts(bench.judge_last(standing.accuracy), IN_TURN):
                    return _wrong(standing)
            return self._too_fast(series, request.accuracy) or series

    def _too_fast(self, series: Series, accuracy: str) -> Evaluated | None:
        """The verdict against a time that no kernel takes; None where it may be one's.

        Whoever was here before may have changed the clock.
        """
        ceiling = self._rig.ceiling
        least_s = ceiling.least_s(self._rig.problem, accuracy)
        if not series.median_s < least_s:  # NaN where another rank has the time
            return None
        reason = ceiling.told(series.median_s, least_s)
        return Evaluated(
            Measurement(Outcome.IMPLAUSIBLE, repeats=series.calls, reason=reason),
            lost=True,
            blameless=Trials._begun > 1,
        )

    def _confirm(self, request: Confirm) -> Evaluated:
        """Verify again, every case and then as many calls as there is time for."""
        standing, calls = _Standing(request.accuracy), 0
        with self._rig.load(request.program, keep=True) as loaded:
            if not self._verify(loaded, standing, AT_THE_END):
                return _wrong(standing)
            with loaded.problem() as bench:
                for part in range(1, bench.contents + 1):
                    bench.turn()
                    until = self._rig.now() + request.budget_s / bench.contents
                    while calls < part or self._rig.now() < until:
                        bench.once()
                        calls += 1
                        if not standing.accepts(bench.judge_last(standing.accuracy), AT_THE_END):
                            return _wrong(standing)
        details: dict[str, float | int | str] = {"checked_calls": calls}
        return Evaluated(Measurement(Outcome.OK, error=standing.worst, details=details))


def _wrong(standing: _Standing) -> Evaluated:
    """The verdict against a program. Damage may be another's, which this process ran before."""
    verdict = standing.against
    assert verdict is not None
    return Evaluated(
        wrong_result(verdict, standing.when),
        lost=verdict.damaged,
        blameless=verdict.damaged and Trials._begun > 1,
    )


def _abandoned(times: Sequence[float], standing: _Standing, reason: str) -> Evaluated:
    """The first runs settled the matter."""
    return Evaluated(
        Measurement(
            Outcome.ABANDONED,
            min(times),
            repeats=len(times),
            error=standing.worst,
            reason=reason,
        )
    )
