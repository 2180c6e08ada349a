"""Objectives, the trial protocol and racing."""

from __future__ import annotations

import contextlib
import math
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from suspect_family import suspect, write_suspects

from autotune.core.errors import InputError
from autotune.core.file_lock import Turns
from autotune.core.measurement import Measurement, Outcome, Series
from autotune.core.objective import ENERGY, OBJECTIVES, TIME, Objective, objective_named
from autotune.cpu.energy import PackageEnergy, energy_observer
from autotune.cpu.identity import read_cpu
from autotune.gpu.measure.timing import time_batches
from autotune.measuring.effort import Effort
from autotune.measuring.evaluator import Evaluator
from autotune.measuring.harness import FIRST_RUNS, EnergyObserver, FirstRuns, Harness
from autotune.measuring.messages import (
    Confirm,
    DescribeBaseline,
    Evaluate,
    Evaluated,
    Program,
    Vendor,
    Visit,
)
from autotune.measuring.rounds import conclude
from autotune.measuring.timing import UNKNOWN, Stop, time_calls
from autotune.measuring.trial import BEHIND_SHARE, BRIEF_S, Race, Trials
from autotune.operations.problem import Gemm
from autotune.operations.verification import Verdict


def _calls_per_joule(series: Series, observed: Mapping[str, float]) -> float:
    return 1 / observed["joules"]


THRIFT = Objective("thrift", "1/J", _calls_per_joule, "higher", needs="joules")


class Meter:
    """A backend whose fast kernel takes the most energy."""

    batch = 1
    compiles_ahead = False
    start_s = 0.0
    observes = frozenset({"joules"})
    holds = False
    turns = Turns()
    times = ((1e-3, 8.0), (2e-3, 2.0))

    def __init__(self) -> None:
        self.baselines: dict[Any, Any] = {}
        self.raced: list[float | None] = []

    def is_ready(self, candidate: Any) -> bool:
        return False

    def prepare(self, *given: Any) -> None: ...

    def begin_finals(self, run: Any) -> None: ...

    def close(self) -> None: ...

    def prepared(self, candidate: Any, *given: Any) -> Any:
        from autotune.measuring.backend import Prepared

        return Prepared(Vendor(str(candidate.configuration["step"]), 1, {}))

    def ask(self, request: Any, *given: Any) -> Any:
        match request:
            case DescribeBaseline():
                return (Vendor("library", 1, {}),)
            case Confirm():
                return Evaluated(Measurement(Outcome.OK, error=0.2))
            case Evaluate() | Visit():
                where = {"1": 0, "2": 1}.get(request.program.digest, 1)
                median_s, joules = self.times[where]
                if isinstance(request, Visit):
                    return Series(median_s, (median_s, median_s), 3, {"joules": joules})
                self.raced.append(request.best_s)
                return Evaluated(
                    Measurement(
                        Outcome.OK,
                        median_s,
                        (median_s, median_s),
                        3,
                        0.1,
                        details={"joules": joules},
                    )
                )
        return None


def evaluator(folder: Path, objective: Objective, backend: Meter) -> Evaluator:
    family = write_suspects(folder)
    effort = Effort(budget_s=0.01, finals_s=0.01, objective=objective)
    return Evaluator(
        Gemm(8, 8, 8), {family.name: family}, read_cpu(), cast("Any", backend), effort, 0
    )


def test_an_objective_from_outside_scores_trials_and_finals(tmp_path: Path) -> None:
    backend = Meter()
    found = evaluator(tmp_path, THRIFT, backend)
    measurement = found.evaluate(suspect(), best_s=1e-6)
    assert (measurement.objective, measurement.score) == ("thrift", 1 / 8)
    assert backend.raced == [None]  # a slower one may score better
    finals = found.finals([suspect(), suspect(step=2)])
    assert [each.score for each in finals.measurements] == [1 / 8, 1 / 2]
    assert [each.median_s for each in finals.measurements] == [1e-3, 2e-3]
    assert finals.ratios == (0.25, 1.0)
    assert [turn[0] for turn in finals.rounds] == [8.0, 2.0]


def test_time_is_the_objective_unless_another_is_chosen(tmp_path: Path) -> None:
    backend = Meter()
    found = evaluator(tmp_path, TIME, backend)
    measurement = found.evaluate(suspect(), best_s=1e-6)
    assert (measurement.objective, measurement.score) == ("time", 1e-3)
    assert "score" not in measurement.details
    assert backend.raced == [1e-6]
    assert found.finals([suspect(), suspect(step=2)]).ratios == (2.0, 1.0)


def test_the_verified_error_and_throughput_are_scores(tmp_path: Path) -> None:
    by_error = evaluator(tmp_path, OBJECTIVES["error"], Meter()).finals([suspect()])
    assert by_error.measurements[0].score == 0.2
    assert by_error.ratios == (None,)  # nobody verifies the library
    by_speed = evaluator(tmp_path, OBJECTIVES["throughput"], Meter()).evaluate(suspect(), None)
    assert by_speed.score == pytest.approx(2 * 8**3 / 1e-3 / 1e9)


def test_what_a_target_does_not_observe_is_refused(tmp_path: Path) -> None:
    backend = Meter()
    backend.observes = frozenset()  # type: ignore[assignment]
    with pytest.raises(InputError, match="objective 'energy' needs 'joules' observed"):
        evaluator(tmp_path, ENERGY, backend)


def test_costs_are_less_where_scores_are_better() -> None:
    assert TIME.cost(0.5) == 0.5
    assert THRIFT.cost(4.0) == 0.25
    assert THRIFT.cost(0.0) == float("inf")


def test_objectives_have_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert objective_named("energy") is ENERGY
    with pytest.raises(InputError, match="energy, energy-delay, error, throughput, time"):
        objective_named("beauty")
    point = SimpleNamespace(load=lambda: THRIFT)

    class Points(dict[str, Any]):
        names = frozenset({"thrift"})

    monkeypatch.setattr(
        "autotune.core.objective.metadata.entry_points", lambda group: Points(thrift=point)
    )
    assert objective_named("thrift") is THRIFT


def test_an_effort_with_an_objective_is_pickled() -> None:
    effort = Effort(objective=OBJECTIVES["throughput"])
    assert pickle.loads(pickle.dumps(effort)) == effort


def test_a_finalist_without_a_score_costs_infinitely_much() -> None:
    right = Measurement(Outcome.OK, error=0.1)
    turns = [Series(1e-3, (1e-3, 1e-3), 1)] * 3
    finals = conclude(
        [right], [turns], None, None, score=lambda series, error: None, objective=ENERGY
    )
    assert finals.rounds == ((float("inf"),) * 3,)
    assert finals.measurements[0].score == 1e-3


def test_energy_is_power_over_the_median_call() -> None:
    counters = iter([10.0, 25.0])
    clock = iter([0.0, 5.0])
    observer = EnergyObserver(lambda: next(counters), lambda: next(clock))
    observer.start()
    observer.stop()
    assert observer.read(Series(0.1, (0.1, 0.1), 40)) == {
        "watts": 3.0,
        "joules": pytest.approx(0.3),
    }


def test_counters_of_packages_are_added_and_wrap_around(tmp_path: Path) -> None:
    for name, microjoules in (("intel-rapl:0", 900), ("intel-rapl:1", 5), ("intel-rapl:0:0", 7)):
        zone = tmp_path / name
        zone.mkdir()
        (zone / "energy_uj").write_text(str(microjoules))
        (zone / "max_energy_range_uj").write_text("1000")
    assert energy_observer(tmp_path) is not None
    energy = PackageEnergy(tmp_path)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("100")
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("6")
    assert energy() == pytest.approx(201e-6)
    assert energy_observer(tmp_path / "nowhere") is None


PROGRAM = cast(Program, None)  # the harness below looks at none


class Steady:
    """A harness, a loaded program and its operands in one: its first call takes longest.

    Args:
        first_s: seconds of the first call.
        usual_s: of every other.
    """

    first_runs = FirstRuns(runs=3, long_runs=2, hopeless=8.0)
    problem, ceiling = Gemm(1, 1, 1), UNKNOWN
    contents = 1

    def __init__(self, first_s: float, usual_s: float) -> None:
        self._first_s, self._usual_s = first_s, usual_s
        self.calls = 0

    def now(self) -> float:
        return 0.0

    @contextlib.contextmanager
    def load(self, program: Any, *, keep: bool) -> Iterator[Any]:
        yield SimpleNamespace(cases=(), probe=self.probe, problem=self.placed)

    @contextlib.contextmanager
    def placed(self) -> Iterator[Steady]:
        yield self

    def probe(self, best_s: float | None) -> None:
        return None

    def turn(self) -> None:
        pass

    def once(self) -> float:
        self.calls += 1
        return self._first_s if self.calls == 1 else self._usual_s

    def again(self) -> float:
        return self.once()

    settle = again

    def series(self, expected_s: float, stop: Stop) -> Series:
        return Series(self._usual_s, (self._usual_s, self._usual_s), 100)

    def judge(self, accuracy: str) -> Verdict:
        return Verdict(error=0.0)

    judge_last = judge

    def observe(self, series: Series, stop: Stop) -> dict[str, float | int | str]:
        return {}


def evaluated(harness: Steady, best_s: float | None) -> Evaluated:
    reply = Trials(cast(Harness, harness), Effort())(Evaluate(PROGRAM, "ieee", best_s, 0.3))
    assert isinstance(reply, Evaluated)
    return reply


@pytest.mark.parametrize("first_s", [6e-6, 3e-4, 0.9 * BRIEF_S])
def test_a_brief_first_call_alone_abandons_nobody(first_s: float) -> None:
    """Memory is allocated and code is loaded in it, which says nothing of the kernel."""
    told = evaluated(Steady(first_s, 6e-6), best_s=6e-6).measurement
    assert told.outcome is Outcome.OK
    assert told.median_s == 6e-6


def test_a_slow_program_is_abandoned_by_what_follows_its_first_call() -> None:
    told = evaluated(Steady(3e-4, 2e-5), best_s=6e-6).measurement
    assert told.outcome is Outcome.ABANDONED
    assert (told.median_s, told.repeats) == (2e-5, Steady.first_runs.runs)


def test_a_long_first_call_settles_a_hopeless_program() -> None:
    harness = Steady(2 * BRIEF_S, 2 * BRIEF_S)
    told = evaluated(harness, best_s=BRIEF_S / 100).measurement
    assert (told.outcome, told.repeats, harness.calls) == (Outcome.ABANDONED, 1, 1)


def test_without_a_best_nobody_is_abandoned() -> None:
    assert evaluated(Steady(1.0, 1.0), best_s=None).measurement.outcome is Outcome.OK
    assert evaluated(Steady(1.0, 1.0), best_s=math.inf).measurement.outcome is Outcome.OK


RATIO = 1.5

times = st.floats(1e-6, 10.0)


def noisy(rng: np.random.Generator, spread: float, spikes: float, count: int) -> np.ndarray:
    """Timings with median 1: log-normal, and now and then something else ran as well."""
    body = np.exp(spread * rng.standard_normal(count))
    hit = rng.random(count) < spikes
    return np.where(hit, body * (1 + rng.exponential(2.0, count)), body)


class Contest:
    """A clock and a call that takes what is drawn, 1 ms in the median times a factor."""

    def __init__(self, seed: int, factor: float, spread: float, spikes: float) -> None:
        self._rng = np.random.default_rng(seed)
        self._arguments = (spread, spikes)
        self._factor = factor
        self.now_ns = 0
        self.stopped = False

    def call(self) -> None:
        [time] = noisy(self._rng, *self._arguments, 1)
        self.now_ns += int(1e6 * self._factor * time)

    def run(self, race: Race) -> float:
        """Time the call, racing, and return how long that took."""

        def enough(low_s: float) -> bool:
            self.stopped = race.behind(low_s)
            return self.stopped

        time_calls(
            self.call,
            1e-3,
            Stop(0.3, 0.02, 10.0, enough),
            clock=lambda: self.now_ns,
        )
        return self.now_ns / 1e9


@given(st.lists(times, min_size=1, max_size=8))
def test_nobody_loses_before_there_is_a_best(first_s: list[float]) -> None:
    race = Race(None, RATIO)
    assert not race.lost(first_s)
    assert not race.behind(min(first_s))
    assert race.limit_s == math.inf


@given(times, st.lists(times, min_size=1, max_size=8), st.floats(1.0, 10.0))
def test_one_run_within_the_limit_is_enough_to_stay(
    best_s: float, others_s: list[float], ratio: float
) -> None:
    race = Race(best_s, ratio)
    assert not race.lost([*others_s, best_s * ratio])
    assert race.lost([best_s * ratio * 1.01 + time_s for time_s in others_s])


@given(times, st.floats(1.0, 10.0))
def test_who_is_no_slower_than_the_best_is_never_behind(best_s: float, ratio: float) -> None:
    race = Race(best_s, ratio)
    assert not race.behind(best_s)
    assert race.behind(best_s * ratio * 1.01)


@given(times, times)
def test_an_infinite_ratio_ends_racing(best_s: float, time_s: float) -> None:
    race = Race(best_s, math.inf)
    assert not race.lost([time_s, time_s])
    assert not race.behind(time_s)


def test_the_reason_has_the_numbers() -> None:
    assert Race(1.0, 1.5).reason([3.0, 2.5]) == "2.50 times the best in its first runs (limit 1.5)"


@pytest.mark.parametrize(("spread", "spikes"), [(0.02, 0.0), (0.1, 0.0), (0.1, 0.05), (0.2, 0.05)])
def test_an_equal_of_the_best_is_next_to_never_abandoned(spread: float, spikes: float) -> None:
    """The bound that needs no distribution is 1/4; ordinary noise keeps far away from it."""
    rng = np.random.default_rng(5)
    first = noisy(rng, spread, spikes, 20_000 * FIRST_RUNS).reshape(-1, FIRST_RUNS)
    race = Race(1.0, RATIO)
    abandoned = sum(race.lost(list(runs)) for runs in first) / len(first)
    assert abandoned < 0.005
    assert np.mean((first > 1.0).all(axis=1)) == pytest.approx(2.0**-FIRST_RUNS, abs=0.05)


@pytest.mark.parametrize(("spread", "spikes"), [(0.02, 0.0), (0.1, 0.0), (0.1, 0.05), (0.2, 0.05)])
def test_an_equal_of_the_best_is_next_to_never_cut_short(spread: float, spikes: float) -> None:
    contests = [Contest(seed, 1.0, spread, spikes) for seed in range(150)]
    for contest in contests:
        contest.run(Race(1e-3, RATIO))
    assert sum(contest.stopped for contest in contests) <= 1


@pytest.mark.parametrize("factor", [1.2, 1.4])
def test_who_is_clearly_behind_is_timed_no_further(factor: float) -> None:
    assert factor > 1 + BEHIND_SHARE * (RATIO - 1)
    for seed in range(20):
        raced = Contest(seed, factor, 0.1, 0.02)
        whole = Contest(seed, factor, 0.1, 0.02)
        raced_s = raced.run(Race(1e-3, RATIO))
        whole_s = whole.run(Race(None, RATIO))
        assert raced.stopped
        assert raced_s < whole_s


@pytest.mark.parametrize("factor", [1.0, 1.3])
def test_batches_on_a_device_race_alike(factor: float) -> None:
    spent = {}
    for best_s in (1e-3, None):
        rng = np.random.default_rng(2)
        race = Race(best_s, RATIO)
        series = time_batches(
            lambda count, rng=rng: (1e-3 * factor * noisy(rng, 0.1, 0.02, count)).tolist(),
            1,
            1e-3,
            Stop(0.3, 0.02, enough=race.behind),
        )
        spent[best_s] = series.calls
    if factor > 1:
        assert spent[1e-3] < spent[None] / 5
    else:
        assert spent[1e-3] == spent[None]


def test_racing_finds_the_same_winner_in_a_fraction_of_the_time() -> None:
    """Sixty configurations, as spread out as real ones, each timed with noise."""
    rng = np.random.default_rng(11)
    factors = 1 + rng.exponential(1.0, 60)
    spent = {}
    for racing in (True, False):
        best_s, winner, spent[racing] = None, -1, 0.0
        for number, factor in enumerate(factors):
            contest = Contest(number, factor, 0.05, 0.02)
            race = Race(best_s if racing else None, RATIO)
            first = []
            for _ in range(FIRST_RUNS):
                before = contest.now_ns
                contest.call()
                first.append((contest.now_ns - before) / 1e9)
            if not race.lost(first):
                contest.run(race)
                if best_s is None or 1e-3 * factor < best_s:
                    best_s, winner = 1e-3 * factor, number
            spent[racing] += contest.now_ns / 1e9
        assert winner == int(factors.argmin())
    assert spent[True] < 0.5 * spent[False]
