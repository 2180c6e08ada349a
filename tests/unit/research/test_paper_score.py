"""The score for papers, isolated configurations and paired tests, against brute force."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune import datasets
from autotune.research import Entry, RecordedSpace, expected_random_best, isolated, paired, replay
from autotune.research.scoring import COVERED, best_so_far, cut_off, paper_score
from autotune.research.space import UNKNOWN_NOISE

spaces = st.lists(
    st.one_of(st.floats(0.1, 100.0), st.just(float("nan"))), min_size=1, max_size=40
).filter(lambda values: not all(value != value for value in values))


@given(spaces)
def test_the_cut_off_is_where_random_search_is_expected_to_be_almost_done(
    values: list[float],
) -> None:
    space = np.array(values)
    optimum, middle = np.nanmin(space), np.nanmedian(space)
    goal = optimum + (1 - COVERED) * (middle - optimum)
    random = expected_random_best(space, len(space))
    found = cut_off(space)
    assert random[found - 1] <= goal * (1 + 1e-9)
    assert found == 1 or random[found - 2] > goal * (1 - 1e-9)


def brute(
    space: np.ndarray, runs: list[np.ndarray], end: int, noise: float
) -> tuple[list[float], float]:
    """Scores and the aggregate, one evaluation after another."""
    random = expected_random_best(space, end)
    optimum, worst = np.nanmin(space), np.nanmax(space)
    bests = [np.minimum(best_so_far(space, rows, end), worst) for rows in runs]
    scores = []
    for best in bests:
        parts = [
            (random[i] - (optimum if best[i] <= (1 + noise) * optimum else best[i]))
            / (random[i] - optimum)
            for i in range(min(10, (end + 1) // 2) - 1, end)
            if random[i] > (1 + noise) * optimum
        ]
        scores.append(sum(parts) / len(parts) if parts else math.nan)
    parts = [
        (random[i] - sum(best[i] for best in bests) / len(bests)) / (random[i] - optimum)
        for i in range(end)
        if random[i] - optimum > 1e-12 * optimum
    ]
    return scores, float(np.mean(parts)) if parts else 1.0


@given(spaces, st.integers(0, 99), st.sampled_from([0.001, 0.005, 0.3]), st.integers(1, 40))
def test_scores_are_those_of_a_loop(
    values: list[float], seed: int, noise: float, budget: int
) -> None:
    space, rng = np.array(values), np.random.default_rng(seed)
    budget = min(budget, len(space))
    runs = [rng.permutation(len(space))[:budget] for _ in range(3)]
    found = paper_score(space, runs, budget, noise)
    scores, aggregate = brute(space, runs, min(found.cut_off, budget), noise)
    np.testing.assert_allclose(found.scores, scores, rtol=1e-9, atol=1e-9)
    assert found.aggregate == pytest.approx(aggregate, rel=1e-9, abs=1e-9)
    assert found.telling == (not math.isnan(scores[0]))
    assert found.aggregate_s is None


def test_random_search_scores_nothing_and_the_optimum_everything() -> None:
    rng = np.random.default_rng(5)
    space = rng.lognormal(size=400)
    space[::7] = np.nan
    runs = [rng.permutation(400) for _ in range(2000)]
    found = paper_score(space, runs, 400, 0.0, np.full(400, 0.5))
    assert abs(found.score) < 5 * np.std(found.scores) / math.sqrt(len(runs))
    assert abs(found.aggregate) < 0.05
    assert found.aggregate_s is not None
    assert abs(found.aggregate_s) < 0.05
    best = paper_score(space, [np.argsort(space)], 400, 0.0, np.full(400, 0.5))
    assert best.scores == (1.0,)
    assert best.aggregate == 1.0


def test_a_regret_below_the_noise_is_none() -> None:
    space = np.array([1.0, 1.004, *np.linspace(2, 9, 200)])
    near = np.arange(1, 60)
    assert paper_score(space, [near], 59, 0.005).score == 1.0
    assert paper_score(space, [near], 59, 0.001).score < 1.0
    flat = paper_score(np.linspace(1.0, 1.004, 50), [np.arange(50)[::-1]], 50, 0.005)
    assert not flat.telling  # random search is within the noise itself


def test_cheap_evaluations_score_by_the_clock() -> None:
    """Two runs of the same bests, one of which tries what takes a tenth of the time."""
    space = np.random.default_rng(2).lognormal(size=300)
    seconds = np.where(np.arange(300) % 2, 1.0, 0.1)
    even, odd = np.arange(0, 300, 2), np.arange(1, 300, 2)
    space[odd] = space[even]
    fast, slow = (paper_score(space, [rows], 100, 0.0, seconds) for rows in (even, odd))
    assert fast.aggregate == slow.aggregate
    assert fast.aggregate_s is not None
    assert slow.aggregate_s is not None
    assert fast.aggregate_s > slow.aggregate_s


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name", ["h100-tiled-2048", "h100-tiled-256x4096x4096", "zen4-blocked-96x1024x96", ""]
)
def test_random_search_scores_nothing_by_the_clock(name: str) -> None:
    """Also where slow configurations take long, and where those that fail take next to nothing."""
    rng = np.random.default_rng(11)
    space = rng.lognormal(size=300)
    seconds: np.ndarray | None = np.where(np.arange(300) % 3, space, 0.001)
    space[::3] = np.nan
    if name:
        space, seconds = datasets.load(name).values, datasets.load(name).seconds
    runs = [rng.permutation(len(space)) for _ in range(2000)]
    found = paper_score(space, runs, len(space), 0.0, seconds).aggregate_s
    assert found == pytest.approx(0, abs=0.08)  # three standard errors of the runs


def test_runs_of_cheap_configurations_go_on_to_the_end_by_the_clock() -> None:
    """A search that begins with what takes a tenth of the time comes to the optimum late."""
    entries = [
        Entry({"x": x}, 1.0 + (x - 70) ** 2, "", "ok", seconds=0.1 if x < 60 else 1.0)
        for x in range(100)
    ]
    space = RecordedSpace.of(entries, name="cheap first")
    assert space.seconds is not None
    [(_, summary)] = replay(space, ["exhaustive"], trials=30, seeds=1, workers=1)
    whole = paper_score(space.values, [np.arange(100)], 30, space.noise, space.seconds)
    short = paper_score(space.values, [np.arange(30)], 30, space.noise, space.seconds)
    assert summary.budget == 30
    assert summary.paper == whole
    assert whole.aggregate_s is not None
    assert short.aggregate_s is not None
    assert whole.aggregate_s > short.aggregate_s + 0.1


def recorded(values: dict[tuple[int, int], float], family: str = "") -> RecordedSpace:
    entries = [Entry({"x": x, "y": y}, value, family, "ok") for (x, y), value in values.items()]
    return RecordedSpace.of(entries, name="name")


@pytest.mark.parametrize("family", ["", "f"])
def test_an_isolated_configuration_is_named(family: str) -> None:
    grid = {(x, y): 10.0 + x + y for x in range(20) for y in range(20)}
    assert isolated(recorded(grid, family)) == []
    [found] = isolated(recorded(grid | {(7, 9): 5.0}, family))
    assert "7" in str(found.point)
    assert found.value == 5.0
    assert found.ahead == pytest.approx(1 - 5 / 17)  # its fastest neighbour is (7, 0)
    assert isolated(recorded(grid | {(7, 9): 5.0, (7, 3): 5.2}, family)) == []


def test_pairs_of_runs_are_compared() -> None:
    rng = np.random.default_rng(0)
    noise = [rng.normal(size=20) for _ in range(8)]
    same = paired(noise, noise)
    assert (same.difference, same.low, same.high, same.p, same.ahead) == (0, 0, 0, 1, 0)
    better = paired([each + 0.1 for each in noise], noise)  # pairs differ by no more than that
    assert better.difference == pytest.approx(0.1)
    assert better.low == pytest.approx(0.1)
    assert better.p == 2**-7
    assert better.ahead == 8
    worse = paired(noise, [each + 0.1 for each in noise])
    assert (worse.p, worse.ahead) == (better.p, 0)


@pytest.mark.parametrize("count", [6, 9])
@pytest.mark.parametrize("by", ["space", "seed"])
def test_p_is_the_share_of_all_signs(count: int, by: str) -> None:
    rng = np.random.default_rng(count)
    differences = np.round(rng.normal(0.4, 1, count), 1)  # some sums are equal
    sums = [abs(np.dot(signs, differences)) for signs in product([1, -1], repeat=count)]
    share = np.mean(np.array(sums) >= abs(differences.sum()) - 1e-9)
    scores = differences[:, None] + [0.25, -0.25] if by == "space" else differences[None]
    assert paired(scores, np.zeros_like(scores)).p == pytest.approx(share)


def test_p_is_never_less_than_so_few_pairs_can_tell() -> None:
    for count in range(1, 9):
        ahead = 1 + np.arange(count) / 10
        for scores in (ahead[None], ahead[:, None]):  # seeds of a space, and spaces
            found = paired(scores, np.zeros_like(scores))
            assert found.p == (None if count < 6 else 2 ** (1 - count))
            assert (found.low is None) == (found.high is None) == (count == 1)
    many = paired([1 + np.arange(50) / 10], [np.zeros(50)])
    assert many.p == pytest.approx(1e-4, rel=0.01)


@pytest.mark.parametrize(("spaces", "seeds"), [(1, 1), (1, 5), (1, 8), (1, 25), (3, 9), (7, 4)])
def test_samplers_that_are_alike_seldom_seem_to_differ(spaces: int, seeds: int) -> None:
    """What they differ by on a space is chance too, where there are several."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(200):
        of_space = rng.normal(0, spaces > 1, (spaces, 1))
        scores = of_space + rng.standard_t(3, (spaces, seeds))
        found.append(paired(scores, np.zeros_like(scores)).p)
    # 5% of 200 are 10, with a standard deviation of 3.
    assert sum(p is not None and p <= 0.05 for p in found) <= 16
    assert all((p is None) == ((spaces if spaces > 1 else seeds) < 6) for p in found)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(60):
        found = paired([rng.normal(0.2, 1.0, 30)], [np.zeros(30)])
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 0.2 <= found.high
    assert covered >= 50  # of 60, where 95% are meant


def test_noise_and_seconds_are_those_of_the_recording() -> None:
    plain = Entry({"x": 1}, 2.0, outcome="ok")
    known = plain._replace(configuration={"x": 2}, interval=(1.9, 2.1))
    sampled = plain._replace(configuration={"x": 3}, samples=(1.8, 2.0, 2.2))
    assert RecordedSpace.of([plain], name="n").noise == UNKNOWN_NOISE
    assert RecordedSpace.of([plain, known], name="n").noise == pytest.approx(0.05)
    assert RecordedSpace.of([sampled], name="n").noise == pytest.approx(0.1)
    timed = [plain._replace(seconds=1.5), known._replace(seconds=2.5)]
    seconds = RecordedSpace.of(timed, name="n").seconds
    assert seconds is not None
    assert seconds.tolist() == [1.5, 2.5]
    assert RecordedSpace.of([*timed, sampled], name="n").seconds is None
