"""Importance of parameters: what decides comes first, and how sure that is."""

from __future__ import annotations

import random
from typing import Any

import pytest

from autotune.search.importance import FEWEST_POINTS, importances


def points(count: int, seed: int = 0) -> tuple[list[dict[str, Any]], list[float]]:
    """`strong` decides, `weak` helps, `none` does nothing."""
    rng = random.Random(seed)
    found = [
        {
            "strong": rng.choice([1, 2, 4, 8]),
            "weak": rng.choice(["a", "b"]),
            "none": rng.choice([0, 1, 2]),
        }
        for _ in range(count)
    ]
    times = [
        8 / each["strong"] + 0.3 * (each["weak"] == "b") + rng.uniform(0, 0.1) for each in found
    ]
    return found, times


def test_shares_rank_the_parameters_and_lie_in_their_intervals() -> None:
    found = importances(*points(400))
    assert [each.name for each in found] == ["strong", "weak", "none"]
    assert sum(each.share for each in found) == pytest.approx(1.0)
    for each in found:
        assert 0 <= each.low <= each.share <= each.high <= 1
    # What decides is told apart from what does nothing.
    assert found[0].low > found[-1].high


def test_what_the_slower_nine_tenths_took_does_not_matter() -> None:
    found, times = points(200)
    order = sorted(range(200), key=times.__getitem__)
    slower = order[20:]
    random.Random(1).shuffle(slower)
    ranks = {row: float(rank) for rank, row in enumerate([*order[:20], *slower])}
    shuffled = importances(found, [ranks[row] for row in range(200)])
    assert {each.name: each.share for each in shuffled} == {
        each.name: pytest.approx(each.share) for each in importances(found, times)
    }


def test_more_points_say_it_more_surely() -> None:
    few, many = (
        {each.name: each.high - each.low for each in importances(*points(count))}
        for count in (40, 800)
    )
    assert many["strong"] < few["strong"]


def test_equal_seeds_say_the_same() -> None:
    assert importances(*points(60), seed=3) == importances(*points(60), seed=3)


def test_parameters_need_not_be_in_all_points() -> None:
    found, times = points(200)
    conditional = [
        {"family": "f", **{f"f.{name}": value for name, value in point.items()}}
        if number % 2
        else {"family": "g", "g.x": number % 5}
        for number, point in enumerate(found)
    ]
    # All of g is slow.
    slow = [time if number % 2 else time + 100 for number, time in enumerate(times)]
    shares = {each.name: each.share for each in importances(conditional, slow)}
    assert shares.keys() == {"family", "f.strong", "f.weak", "f.none", "g.x"}
    assert shares["g.x"] == 0
    assert shares["f.strong"] > shares["f.none"]


def test_values_of_several_types_are_told_apart() -> None:
    given = [{"x": value} for value in (True, 1.5, "1", 2)] * 10
    [only] = importances(given, [1.0, 2.0, 3.0, 4.0] * 10)
    assert only.share == 1.0


def test_values_that_are_rare_are_no_warning() -> None:
    found, times = points(60)
    rare = [{**point, "more": 1} if number in (3, 9, 12) else point
            for number, point in enumerate(found)]  # fmt: skip
    assert {each.name for each in importances(rare, times)} >= {"strong", "weak", "none"}


def test_too_few_points_say_nothing() -> None:
    assert importances(*points(FEWEST_POINTS - 1)) == []
    assert importances(*points(FEWEST_POINTS)) != []
