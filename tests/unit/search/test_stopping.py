"""Ends of searches: when little is left to hope for."""

from __future__ import annotations

import math

import pytest

from autotune.core.errors import InputError
from autotune.search import Searcher, chance
from autotune.space import SearchSpace

TILES = SearchSpace(
    {
        "sm": [8, 16, 32, 48, 64, 96, 128],
        "sk": [8, 16, 32, 48, 64, 96, 128],
        "threads": [32, 64, 128, 256],
        "stages": [1, 2, 3],
    },
    ["sm * sk <= 96 * threads"],
)


def time_of(point):
    tile = abs(math.log2(point["sm"] / 64)) + abs(math.log2(point["sk"] / 32))
    threads = abs(math.log2(point["threads"] / 128))
    return (1 + tile) * (1 + 0.3 * threads) * (1 + 0.1 * abs(point["stages"] - 2))


class TestUntil:
    def test_a_search_ends_when_little_is_to_be_had(self):
        """Before everything is measured, and at the best: where it is plain to a model."""
        best = min(map(time_of, TILES))
        ends, misses = [], 0
        for seed in range(4):
            searcher = Searcher(TILES, "auto", seed)
            assert searcher.chance == 1.0
            count = 0
            while searcher.chance >= 0.05:
                point = searcher.ask()
                searcher.tell(point, time_of(point))
                count += 1
            assert searcher.chance < 0.05
            ends.append(count)
            misses += searcher.best[1] > 1.01 * best
        assert max(ends) < TILES.size / 3
        assert misses == 0

    @pytest.mark.parametrize("sampler", ["auto", "random"])
    def test_an_end_needs_no_sampler_of_ours(self, sampler):
        searcher = Searcher(TILES, sampler, 0)
        chances = []
        for _ in range(60):
            point = searcher.ask()
            searcher.tell(point, 1.0 + (point["stages"] != 2))
            chances.append(searcher.chance)
        assert chances[:9] == [1.0] * 9
        assert chances[-1] < 0.05

    def test_nothing_is_to_be_had_of_a_space_that_was_measured(self):
        space = SearchSpace({"x": range(12)})
        searcher = Searcher(space, "exhaustive")
        while (point := searcher.ask()) is not None:
            searcher.tell(point, 12.0 - point["x"])
        assert searcher.chance == 0.0

    def test_what_fails_is_no_hope(self):
        """All that the model expects to be fast fails."""
        searcher = Searcher(TILES, "auto", 0)
        for _ in range(80):
            point = searcher.ask()
            searcher.tell(point, None if point["sm"] > 32 else time_of(point))
            left = searcher.chance
        assert left < 0.2

    @pytest.mark.parametrize("until", [0, 1, -0.1, "often", float("nan"), True])
    def test_what_is_no_probability_is_refused(self, until):
        with pytest.raises(InputError, match="until must be a probability between 0 and 1"):
            chance("until", until)

    def test_of_several_objectives_nothing_is_foretold(self):
        searcher = Searcher(TILES, objectives=["time", "energy"])
        for _ in range(30):
            point = searcher.ask()
            searcher.tell(point, {"time": time_of(point), "energy": 1.0})
        assert searcher.chance == 1.0
