"""The score and what it is made of, against brute force."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.research import expected_random_best, run_score, summarise
from autotune.research.scoring import best_so_far

spaces = st.lists(
    st.one_of(st.floats(0.1, 100.0), st.just(float("nan"))), min_size=1, max_size=6
).filter(lambda values: not all(value != value for value in values))


def failures_as_worst(values: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(values), np.nanmax(values), values)


@given(spaces)
def test_the_expected_random_best_is_the_mean_over_all_orders(values: list[float]) -> None:
    space = np.array(values)
    orders = np.array(list(permutations(failures_as_worst(space))))
    expected = np.minimum.accumulate(orders, axis=1).mean(axis=0)
    np.testing.assert_allclose(expected_random_best(space, len(space)), expected, rtol=1e-9)


def test_the_expected_random_best_agrees_with_simulation() -> None:
    rng = np.random.default_rng(3)
    space = rng.lognormal(size=400)
    space[rng.random(400) < 0.2] = np.nan
    expected = expected_random_best(space, 100)
    filled = failures_as_worst(space)
    bests = np.array([np.minimum.accumulate(rng.permutation(filled)[:100]) for _ in range(4000)])
    error = bests.std(axis=0) / np.sqrt(len(bests))
    assert (np.abs(bests.mean(axis=0) - expected) < 5 * error + 1e-9).all()


def test_a_large_space_is_no_problem_for_the_expectation() -> None:
    space = np.arange(1.0, 100_001.0)
    expected = expected_random_best(space, 200)
    # The smallest of i draws from 1..N is (N + 1) / (i + 1) in expectation.
    np.testing.assert_allclose(expected, 100_001 / (np.arange(1, 201) + 1), rtol=1e-9)


def test_random_search_scores_zero_on_average() -> None:
    rng = np.random.default_rng(7)
    space = rng.lognormal(size=300)
    space[::9] = np.nan
    scores = [run_score(space, rng.permutation(300)[:60], 60) for _ in range(3000)]
    assert abs(np.mean(scores)) < 5 * np.std(scores) / np.sqrt(len(scores))


def test_the_optimum_first_scores_one() -> None:
    space = np.random.default_rng(1).lognormal(size=50)
    assert run_score(space, np.argsort(space), 50) == 1.0
    assert run_score(space, np.argsort(space)[:1], 50) == 1.0  # one that stopped there, too


def test_failures_are_charged_and_count_as_the_worst() -> None:
    space = np.array([1.0, 2.0, 4.0, *[np.nan] * 17])
    failing = np.arange(3, 15)
    assert run_score(space, failing, 12) == run_score(space, np.array([2, *failing]), 12)
    best = best_so_far(space, np.array([5, 1, 6, 0]), 5)
    np.testing.assert_array_equal(best, [np.inf, 2, 2, 1, 1])


def test_one_run_by_hand() -> None:
    """Twelve values 1..12, scored at evaluations 10 and 11; the 12th is sure for everybody."""
    space = np.arange(1.0, 13.0)
    rows = np.arange(1, 12)  # 2 is found at once, 1 never
    random = [13 / 11, 13 / 12]
    expected = np.mean([(each - 2) / (each - 1) for each in random])
    assert run_score(space, rows, 12) == pytest.approx(expected)


@pytest.mark.parametrize("size", [1, 3, 9, 10])
def test_spaces_smaller_than_the_first_scored_evaluation(size: int) -> None:
    space = np.arange(1.0, size + 1)
    assert run_score(space, np.arange(size)[::-1], size) == 1.0


def test_a_summary_has_medians_bands_and_milestones() -> None:
    space = np.array([1.0, 1.005, 1.04, 2.0, 4.0, np.nan])
    runs = [np.array(rows) for rows in ([5, 4, 3, 2, 1, 0], [4, 2, 0], [3, 1], [4, 3])]
    summary = summarise(space, runs, 6, [0.003] * 4)
    # Best fractions of the optimum by evaluation: 0 before the first success, kept at the end.
    curves = np.array(
        [
            [0, 0.25, 0.5, 1 / 1.04, 1 / 1.005, 1],
            [0.25, 1 / 1.04, 1, 1, 1, 1],
            [0.5, 1 / 1.005, 1 / 1.005, 1 / 1.005, 1 / 1.005, 1 / 1.005],
            [0.25, 0.5, 0.5, 0.5, 0.5, 0.5],
        ]
    )
    np.testing.assert_allclose(summary.median, np.median(curves, axis=0))
    np.testing.assert_allclose(summary.low, np.percentile(curves, 10, axis=0))
    np.testing.assert_allclose(summary.high, np.percentile(curves, 90, axis=0))
    assert summary.reach95 == summary.reach99 == 0.75
    assert summary.n95 == 3  # reached after 4, 2, 2 and never
    assert summary.n99 == 4  # after 5, 3, 2 and never
    assert summary.fraction(4) == np.median(curves[:, 3])
    assert summary.fraction(99) == np.median(curves[:, 5])
    assert summary.cpu_ms == pytest.approx(1e3 * 0.012 / 13)
    assert summary.score == pytest.approx(np.mean([run_score(space, rows, 6) for rows in runs]))


def test_a_median_run_that_does_not_get_there_has_no_count() -> None:
    space = np.array([1.0, 2.0, 3.0])
    summary = summarise(space, [np.array([0]), np.array([1]), np.array([2])], 3)
    assert (summary.n95, summary.n99) == (None, None)
    two = summarise(space, [np.array([0]), np.array([1])], 3)
    assert (two.n95, two.reach95) == (None, 0.5)
