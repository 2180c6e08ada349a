from __future__ import annotations

import statistics as standard

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from autotune.core.statistics import median, median_interval

samples = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=60)


@given(samples)
def test_the_median_is_the_standard_librarys(values: list[float]) -> None:
    assert median(values) == standard.median(values)


@given(samples)
def test_the_interval_holds_the_sample_median_and_consists_of_samples(
    values: list[float],
) -> None:
    low, high = median_interval(values)
    assert low <= median(values) <= high
    assert {low, high} <= set(values)


@pytest.mark.parametrize("count", [*range(1, 80), 1000, 20_000])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_the_ranks_are_the_binomials(count: int, confidence: float) -> None:
    """The widest interval that leaves no more than the tails, by SciPy's binomial."""
    low, high = median_interval(range(1, count + 1), confidence)
    assert low + high == count + 1
    tail = (1 - confidence) / 2
    if low > 1:
        assert stats.binom.cdf(low - 1, count, 0.5) <= tail * (1 + 1e-9)
    assert stats.binom.cdf(low, count, 0.5) > tail * (1 - 1e-9) or low == count // 2


def test_the_interval_covers_the_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    draws = rng.lognormal(size=(4000, 25))  # skewed, as timings are; its median is 1
    hits = sum(low <= 1 <= high for low, high in map(median_interval, draws.tolist()))
    assert hits / len(draws) > 0.94


def test_six_samples_are_the_fewest_that_reach_95_percent() -> None:
    assert median_interval([3, 1, 2]) == (1, 3)
    assert median_interval(range(6)) == (0, 5)
    assert median_interval(range(9)) == (1, 7)


@pytest.mark.parametrize("function", [median, median_interval])
def test_no_samples_is_an_error(function) -> None:
    with pytest.raises(ValueError, match="at least one"):
        function([])


@pytest.mark.parametrize("confidence", [0, 1, 95])
def test_confidence_is_a_probability(confidence: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        median_interval([1.0], confidence)
