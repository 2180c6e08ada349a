"""A run ends in time: with a clock of our own, and an evaluator whose work moves it."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from autotune import Gemm
from autotune.core.deadline import Deadline
from autotune.core.errors import OutOfTimeError, TuningFailedError
from autotune.core.interrupt import GRACE_S, STOP_S, Interrupt
from autotune.core.measurement import Measurement, Outcome
from autotune.core.pace import CLOSING_S, FEW_TRIALS, LEAST_SHARE, VERIFICATIONS, Pace
from autotune.cpu.identity import read_cpu
from autotune.cpu.target import CpuTarget
from autotune.measuring.effort import Baseline, Effort, Finals, silent
from autotune.measuring.messages import Series
from autotune.measuring.rounds import hold_rounds, take_turns
from autotune.search.storage import open_storage
from autotune.store import TuningCache
from autotune.tuning.budget import Budget
from autotune.tuning.context import TuningContext
from autotune.tuning.results import TuneResult
from autotune.tuning.run import tune_in
from autotune.tuning.settings import Run

if TYPE_CHECKING:
    from autotune.core.configuration import Candidate
    from autotune.measuring.effort import Report
    from autotune.tuning.progress import Progress


class Clock:
    """Time passes when somebody works."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


class TestDeadline:
    def test_the_reserve_is_nobodys_to_wait_for(self, clock: Clock) -> None:
        deadline = Deadline(10.0, clock)
        assert (deadline.remaining_s, deadline.left_s) == (10, 10)
        deadline.reserve_s = 3.0
        clock.now += 5
        assert (deadline.elapsed_s, deadline.remaining_s, deadline.left_s) == (5, 2, 5)
        assert (deadline.within(1.0), deadline.within(20.0)) == (1, 2)
        with deadline.keeping(1.5):
            assert deadline.remaining_s == 0.5
        clock.now += 2
        assert deadline.over
        deadline.reserve_s = 0.0
        assert not deadline.over
        clock.now += 100
        assert (deadline.remaining_s, deadline.left_s) == (0, 0)

    def test_without_a_limit_it_never_ends(self, clock: Clock) -> None:
        deadline = Deadline(clock=clock)
        clock.now += 1e9
        assert deadline.remaining_s == math.inf
        assert not deadline.over

    def test_haste_leaves_grace_and_something_for_the_end(self, clock: Clock) -> None:
        deadline = Deadline(clock=clock)
        deadline.reserve_s = 30.0
        deadline.hasten(5.0, grace_s=1.0)
        assert (deadline.remaining_s, deadline.left_s) == (1, 5)
        deadline.hasten(9.0, grace_s=1.0)  # never later
        assert deadline.left_s == 5

    def test_haste_within_a_block_is_not_undone_by_its_end(self, clock: Clock) -> None:
        deadline = Deadline(100.0, clock)
        with deadline.keeping(20.0):
            deadline.hasten(5.0, grace_s=1.0)
        assert (deadline.reserve_s, deadline.left_s) == (0, 5)

    def test_a_goal_is_kept_once_there_is_something_to_show(self, clock: Clock) -> None:
        deadline = Deadline(100.0, clock, goal_s=10.0)
        deadline.reserve_s = 2.0
        assert (deadline.planned_s, deadline.remaining_s) == (8, 98)
        clock.now += 15
        assert (deadline.planned_s, deadline.remaining_s) == (0, 83)
        assert (deadline.expected_s, deadline.left_s) == (0, 85)
        deadline.settle(3.0)  # what is worth it and what comes last still have their time
        assert (deadline.planned_s, deadline.remaining_s, deadline.left_s) == (3, 3, 5)
        early = Deadline(100.0, clock, goal_s=10.0)
        early.settle(1.0)
        assert early.left_s == early.expected_s == 10


RIGHT = Measurement(Outcome.OK, 1.0, (1.0, 1.0), 1)


class TestRounds:
    @staticmethod
    def visit(clock: Clock, seconds: float):
        def timed(budget_s: float) -> Series:
            clock.now += seconds
            return Series(seconds, (seconds, seconds), 1)

        return timed

    def test_a_round_that_does_not_fit_is_not_begun(self, clock: Clock) -> None:
        heard = []
        visits = [self.visit(clock, 1.0), self.visit(clock, 2.0)]
        turns = take_turns(visits, 100.0, deadline=Deadline(10.0, clock), report=heard.append)
        assert [len(each) for each in turns] == [3, 3]
        assert clock.now == 1009
        assert [stage.step for stage in heard] == [1, 2, 3]
        assert all(stage.name == "finals" and stage.steps >= 3 for stage in heard)

    def test_one_round_is_made_whatever_it_takes(self, clock: Clock) -> None:
        turns = take_turns([self.visit(clock, 9.0)], 3.0, deadline=Deadline(10.0, clock))
        assert [len(each) for each in turns] == [1]

    def test_a_round_that_is_cut_off_does_not_count(self, clock: Clock) -> None:
        deadline = Deadline(10.0, clock)
        calls = iter([1.0] * 5)

        def cut(budget_s: float) -> Series:
            if next(calls, None) is None:
                raise OutOfTimeError("over")
            return Series(1.0, (1.0, 1.0), 1)

        finals = hold_rounds(
            [Measurement(Outcome.OK, 1.0, (1.0, 1.0), 1)] * 2,
            {0: cut, 1: self.visit(clock, 0.1)},
            Baseline("library", 1.0, (1.0, 1.0), 1, {}),
            cut,
            50.0,
            lambda position: RIGHT,
            deadline=deadline,
        )
        assert [each.repeats for each in finals.measurements] == [2, 2]
        assert finals.ratios == (1.0, 10.0)

    @pytest.mark.parametrize("verified", [0, 1])
    def test_the_fastest_is_verified_first_and_who_is_not_is_out(
        self, clock: Clock, verified: int
    ) -> None:
        asked = []

        def confirm(position: int) -> Measurement:
            if len(asked) == verified:
                raise OutOfTimeError("over")
            asked.append(position)
            return RIGHT

        visits = {0: self.visit(clock, 2.0), 1: self.visit(clock, 1.0)}
        with contextlib.ExitStack() as stack:
            if not verified:
                stack.enter_context(pytest.raises(OutOfTimeError))
            finals = hold_rounds([RIGHT] * 2, visits, None, None, 1.0, confirm)
            assert asked == [1]
            assert [each.outcome for each in finals.measurements] == [
                Outcome.ABANDONED,
                Outcome.OK,
            ]

    def test_the_end_within_the_first_round_is_said(self, clock: Clock) -> None:
        def cut(budget_s: float) -> Series:
            raise OutOfTimeError("over")

        with pytest.raises(OutOfTimeError):
            take_turns([self.visit(clock, 1.0), cut], 3.0, deadline=Deadline(10.0, clock))


class SlowWork:
    """An evaluator whose work takes the seconds given, and is cut off at the deadline."""

    compiles_ahead = False
    batch = 4

    def __init__(self, clock: Clock, *, compile_s: float, trial_s: float, finals_s: float) -> None:
        self.device = read_cpu()
        self.deadline = Deadline(clock=clock)
        self.report: Report = silent
        self.finals_s = finals_s
        self.compile_s = compile_s
        self.trial_s = trial_s
        self.done: list[str] = []
        self.cut: list[str] = []
        self._clock = clock
        self._ready: set[Candidate] = set()

    def work(self, name: str, seconds: float) -> None:
        remaining_s = self.deadline.remaining_s
        if seconds > remaining_s:
            self._clock.now += remaining_s
            self.cut.append(name)
            raise OutOfTimeError("over")
        self._clock.now += seconds
        self.done.append(name)

    def prepare(self, candidates: Sequence[Candidate]) -> None:
        for candidate in candidates:
            if candidate not in self._ready:
                self.work("compile", self.compile_s)
                self._ready.add(candidate)

    def is_ready(self, candidate: Candidate) -> bool:
        return candidate in self._ready

    def evaluate(self, candidate: Candidate, best_s: float | None) -> Measurement:
        self.prepare([candidate])
        self.work("trial", self.trial_s)
        return Measurement(Outcome.OK, 0.5, (0.5, 0.5), 1, 0.1)

    def finals(self, candidates: Sequence[Candidate]) -> Finals:
        self.work("finals", self.finals_s)
        again = Measurement(Outcome.OK, 0.25, (0.25, 0.25), 9, 0.1)
        return Finals((again,) * len(candidates), (2.0,) * len(candidates), self.baseline())

    def check_baseline(self) -> Baseline | None:
        return self.baseline()

    def baseline(self) -> Baseline | None:
        if "baseline" not in self.done:
            self.work("baseline", 1.0)
        return Baseline("library 1", 1.0, (1.0, 1.0), 1, {})

    def binary(self, candidate: Candidate) -> None:
        return None

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        pass


@pytest.fixture
def tuned(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch):
    """Tunes with slow work for so long, by our clock."""

    def tune(
        work: SlowWork, seconds: float, trials: int = 1000, progress=None, goal_s=None
    ) -> TuneResult:
        monkeypatch.setattr(CpuTarget, "evaluator", lambda *args, **more: work)
        place = TuningContext.of(
            Gemm(64, 64, 64, threads=1),
            target=CpuTarget(),
            device=None,
            families=["blocked"],
            extra_families=(),
            cache=tmp_path,
            options={},
        )
        deadline = Deadline(seconds, clock, goal_s)
        run = Run(
            trials=trials, sampler="random", study="study", effort=Effort(), progress=progress
        )
        with Interrupt(deadline) as interrupt:
            return tune_in(place, run, Budget(deadline, interrupt))

    return tune


def begun(clock: Clock) -> float:
    return clock.now - 1000.0


class TestRuns:
    def test_everything_is_within_the_limit(self, clock: Clock, tuned) -> None:
        work = SlowWork(clock, compile_s=1.0, trial_s=0.5, finals_s=3.0)
        result = tuned(work, 30.0)
        assert begun(clock) <= 30
        assert work.done[-1] == "finals"
        assert work.cut == []  # what does not fit is not even begun
        assert len(result.trials) >= 10
        assert result.best.median_s == 0.25

    def test_one_call_that_takes_seconds_leaves_what_was_verified(
        self, clock: Clock, tuned, tmp_path: Path
    ) -> None:
        work = SlowWork(clock, compile_s=1.0, trial_s=9.0, finals_s=60.0)
        result = tuned(work, 30.0)
        assert begun(clock) <= 30
        assert result.best.median_s == 0.5
        assert result.best.baseline is not None
        assert result.best.baseline.ratio == 2
        assert TuningCache(tmp_path / "tuning.sqlite").records() == [result.best]

    def test_what_the_first_trial_does_once_is_not_expected_of_others(
        self, clock: Clock, tuned
    ) -> None:
        work = SlowWork(clock, compile_s=0.1, trial_s=4.0, finals_s=1.0)

        def sooner(state: Progress) -> None:
            if state.trial == 1:
                work.trial_s = 0.5

        result = tuned(work, 10.0, progress=sooner)
        assert len(result.trials) >= 4
        assert work.done[-1] == "finals"
        assert begun(clock) <= 10

    def test_a_few_slow_trials_come_before_long_finals(self, clock: Clock, tuned) -> None:
        work = SlowWork(clock, compile_s=0.1, trial_s=1.0, finals_s=8.0)
        work.holds = True  # type: ignore[attr-defined]
        result = tuned(work, 12.0)
        assert len(result.trials) >= 6
        assert begun(clock) <= 12

    def test_a_trial_that_is_cut_off_was_never_made(
        self, clock: Clock, tuned, tmp_path: Path
    ) -> None:
        work = SlowWork(clock, compile_s=0.1, trial_s=1.0, finals_s=1.0)

        def slower(state: Progress) -> None:
            if state.trial == 2:
                work.trial_s = 1000.0

        result = tuned(work, 20.0, progress=slower)
        assert work.cut == ["trial"]
        assert len(result.trials) == 2
        assert begun(clock) <= 20
        storage = open_storage(None, "study", tmp_path / "studies")
        states = [trial.state.name for trial in storage.get_all_trials(0)]
        assert states.count("COMPLETE") == 2
        assert "RUNNING" not in states

    @pytest.mark.cold
    def test_compiling_leaves_time_for_what_was_compiled(self, clock: Clock, tuned) -> None:
        work = SlowWork(clock, compile_s=4.0, trial_s=0.5, finals_s=1.0)
        result = tuned(work, 12.0)
        assert len(result.trials) >= 1
        assert begun(clock) <= 12

    def test_nothing_valid_in_time_is_an_error(self, clock: Clock, tuned) -> None:
        work = SlowWork(clock, compile_s=100.0, trial_s=1.0, finals_s=1.0)
        with pytest.raises(TuningFailedError) as caught:
            tuned(work, 10.0)
        told = str(caught.value)
        assert "was tried within 10 s (" in told
        assert re.search(r"\(compiling took \d\.\d s[,)]", told)
        assert told.endswith("allow more time, a timeout of 30 s or so")
        assert begun(clock) <= 10

    def test_a_slow_baseline_does_not_hold_a_run_up(self, clock: Clock, tuned) -> None:
        work = SlowWork(clock, compile_s=0.1, trial_s=1.0, finals_s=1.0)
        work.baseline = lambda: work.work("baseline", 1000.0)  # type: ignore[method-assign]
        with pytest.raises(TuningFailedError, match=r"the library took .*a timeout of 30 s or so"):
            tuned(work, 10.0)
        assert begun(clock) <= 10

    def test_a_request_to_stop_leaves_seconds_not_the_rest(self, clock: Clock, tuned) -> None:
        work = SlowWork(clock, compile_s=0.1, trial_s=1.0, finals_s=2.0)
        asked: list[float] = []

        def stop(state: Progress) -> None:
            if state.trial == 3 and not asked:
                asked.append(clock.now)
                signal.raise_signal(signal.SIGINT)
                work.trial_s = 100.0

        result = tuned(work, 1000.0, progress=stop)
        assert result.interrupted
        assert len(result.trials) == 3
        assert clock.now - asked[0] <= STOP_S
        assert GRACE_S < STOP_S
        assert result.best.median_s == 0.25

    def test_progress_has_phases_and_is_never_late(self, clock: Clock, tuned) -> None:
        seen: list[Progress] = []
        work = SlowWork(clock, compile_s=1.0, trial_s=0.5, finals_s=3.0)
        tuned(work, 30.0, progress=seen.append)
        phases = [state.phase for state in seen]
        assert phases[0] == "starting"
        assert phases[-1] == "finals"
        assert "trials" in phases
        assert all(0 <= state.left_s <= state.timeout_s == 30 for state in seen)
        assert all(a.elapsed_s <= b.elapsed_s for a, b in itertools.pairwise(seen))
        assert seen[-1].best is not None
        assert seen[-1].best.family == "blocked"

    def test_one_of_many_goes_beyond_its_goal_until_something_is_valid(
        self, clock: Clock, tuned
    ) -> None:
        work = SlowWork(clock, compile_s=9.0, trial_s=0.5, finals_s=1.0)
        result = tuned(work, 100.0, goal_s=6.0)
        assert len(result.trials) == work.done.count("compile") >= 2  # none for nothing
        assert begun(clock) < 60
        assert work.done[-1] == "finals"


class TestPace:
    def test_the_end_has_its_share_at_most(self) -> None:
        pace = Pace()
        assert pace.reserve_s(math.inf, 3.0, 5) == 0
        assert pace.reserve_s(60.0, 3.0, 0) == 0
        for _ in range(FEW_TRIALS):
            pace.note_trial(2.0, 0.5)
        assert 3 + 5 * 1.5 < pace.reserve_s(600.0, 3.0, 5) < 3 + 4 * 5 * 1.5
        assert pace.reserve_s(10.0, 3.0, 5) < 10 / 2

    def test_a_few_trials_come_first_and_then_a_finalist(self) -> None:
        pace = Pace()
        pace.note_trial(6.5, 0.5)
        assert (pace.trial_s, pace.verify_s) == (3.5, 3.0)
        assert pace.reserve_s(12.0, 3.0, 1, left_s=4.0) == CLOSING_S  # there is no choice yet
        pace.note_trial(1.0, 0.5)
        assert (pace.trial_s, pace.verify_s) == (1.0, 0.5)
        assert pace.reserve_s(12.0, 3.0, 2, left_s=3.0) == pytest.approx(3.6)
        least_s = CLOSING_S + VERIFICATIONS * 0.5 + LEAST_SHARE * 12
        assert pace.reserve_s(12.0, 6.0, 2, holds=True, left_s=3.0) == pytest.approx(least_s)
        assert pace.reserve_s(12.0, 6.0, 2, holds=True, left_s=99.0) == pytest.approx(0.45 * 12)
        pace.note_trial(2.0, 0.5)
        assert (pace.trial_s, pace.verify_s) == (1.5, 1.0)

    def test_batches_shrink_to_what_fits(self) -> None:
        pace = Pace()
        assert pace.batch(100.0, 4) == 4  # nothing is known yet
        assert pace.batch(10.0, 4) == 2
        pace.note_compile(8.0, 4)
        assert pace.batch(100.0, 4) == 4
        assert pace.batch(5.0, 4) == 2
        assert pace.batch(1.0, 4) == 0
        pace.note_compile(0.0, 4)  # found on disk
        assert pace.compile_s == 1
