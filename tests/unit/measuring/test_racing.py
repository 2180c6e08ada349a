"""Racing spends less on losers, and would-be winners are next to never among them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.gpu.measure.timing import time_batches
from autotune.measuring.rig import FIRST_RUNS
from autotune.measuring.timing import time_calls
from autotune.measuring.trial import BEHIND_SHARE, Race

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
            expected_s=1e-3,
            budget_s=0.3,
            interval=0.02,
            deadline_s=10.0,
            enough=enough,
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
            launches=1,
            expected_s=1e-3,
            budget_s=0.3,
            interval=0.02,
            enough=race.behind,
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
