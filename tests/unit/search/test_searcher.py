from __future__ import annotations

import math

import optuna
import pytest

from autotune.core.configuration import Candidate, Configuration
from autotune.core.errors import InputError, SpaceError, UnknownNameError
from autotune.search import Searcher
from autotune.space import SearchSpace, SpaceUnion

SPACE = SearchSpace({"x": [1, 2, 4], "y": [1, 2]}, ["x * y <= 4"])
UNION = SpaceUnion({"a": SearchSpace({"x": [1, 2]}), "b": SearchSpace({"y": [1, 2]})})


def test_ask_and_tell_until_nothing_is_left():
    searcher = Searcher(SPACE, seed=0)
    seen = []
    while (configuration := searcher.ask()) is not None:
        seen.append(configuration)
        searcher.tell(configuration, 1.0 / configuration["x"])
    assert sorted(map(str, seen)) == sorted(map(str, SPACE))
    configuration, value = searcher.best
    assert (configuration["x"], value) == (4, 0.25)
    assert searcher.ask() is None


def test_the_best_of_equals_is_the_first_told():
    searcher = Searcher(SPACE, "exhaustive")
    first, second = searcher.ask(), searcher.ask()
    searcher.tell(second, 1.0)
    searcher.tell(first, 1.0)
    assert searcher.best == (second, 1.0)


def test_a_failed_point_is_visited_and_never_best():
    searcher = Searcher(SPACE, "exhaustive")
    searcher.tell(searcher.ask(), None)
    assert searcher.best is None
    assert searcher.ask() == SPACE[1]


def test_many_may_be_asked_before_any_is_told():
    searcher = Searcher(SPACE, "tpe")
    asked = [searcher.ask() for _ in range(len(SPACE))]
    assert set(asked) == set(SPACE)
    assert searcher.ask() is None
    for point in reversed(asked):
        searcher.tell(point, 1.0)
    assert searcher.ask() is None


def test_a_point_that_was_never_asked_may_be_told():
    searcher = Searcher(SPACE, "exhaustive")
    searcher.tell({"x": 1, "y": 1}, 0.5)
    assert searcher.best == (Configuration({"x": 1, "y": 1}), 0.5)
    rest = [searcher.ask() for _ in range(len(SPACE))]
    assert rest == [*(SPACE[row] for row in range(1, len(SPACE))), None]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_what_is_told_unasked_is_learned_like_the_rest(sampler):
    def points(told_by_hand):
        searcher = Searcher(SPACE, sampler, seed=4)
        first = [SPACE[0], SPACE[3]]
        if told_by_hand:
            for value, point in enumerate(first):
                searcher.tell(point, float(value))
        return [searcher.ask() for _ in range(3)]

    assert set(points(told_by_hand=True)).isdisjoint({SPACE[0], SPACE[3]})
    assert points(told_by_hand=True) == points(told_by_hand=True)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_refused_and_the_point_stays_open(value):
    searcher = Searcher(SPACE)
    point = searcher.ask()
    with pytest.raises(InputError, match="finite number, or None"):
        searcher.tell(point, value)
    searcher.tell(point, 1.0)
    assert searcher.best == (point, 1.0)


def test_telling_twice_is_refused():
    searcher = Searcher(SPACE)
    point = searcher.ask()
    searcher.tell(point, 2.0)
    with pytest.raises(InputError, match="told once"):
        searcher.tell(point, 1.0)
    assert searcher.best == (point, 2.0)


@pytest.mark.parametrize("point", [{"x": 4, "y": 2}, {"x": 3, "y": 1}, {"x": 1}, {}])
def test_a_point_outside_the_space_is_refused(point):
    with pytest.raises(SpaceError):
        Searcher(SPACE).tell(point, 1.0)


def test_the_wrong_kind_of_point_is_refused():
    with pytest.raises(SpaceError, match="takes configurations"):
        Searcher(SPACE).tell(Candidate("a", Configuration({"x": 1})), 1.0)
    with pytest.raises(SpaceError, match="takes candidates"):
        Searcher(UNION).tell({"x": 1}, 1.0)


def test_a_union_gives_candidates():
    searcher = Searcher(UNION, "exhaustive")
    candidate = searcher.ask()
    assert candidate == Candidate("a", Configuration({"x": 1}))
    searcher.tell(candidate, 3.0)
    assert searcher.best == (candidate, 3.0)


def test_an_empty_space_and_one_of_a_single_point():
    assert Searcher(SearchSpace({"x": [1, 2]}, ["x > 5"])).ask() is None
    searcher = Searcher(SearchSpace({"x": [7], "y": ["only"]}))
    point = searcher.ask()
    assert point == {"x": 7, "y": "only"}
    assert searcher.ask() is None
    searcher.tell(point, 1.0)
    assert searcher.ask() is None


def test_listed_configurations_are_a_space():
    rows = [{"x": 1, "m": "a"}, {"x": 2, "m": "b"}, {"x": 5, "m": "a"}]
    searcher = Searcher(SearchSpace.from_configurations(rows), "tpe", seed=2)
    asked = [searcher.ask() for _ in rows]
    assert sorted(map(str, asked)) == sorted(str(Configuration(row)) for row in rows)


def test_an_unknown_sampler():
    with pytest.raises(UnknownNameError):
        Searcher(SPACE, "annealing")


@pytest.mark.parametrize("point", [5, "x", [1], None])
def test_what_is_no_point_is_refused_in_one_line(point):
    searcher = Searcher(SearchSpace({"x": [1]}), sampler="random")
    assert searcher.ask() == {"x": 1}
    assert searcher.ask() is None
    with pytest.raises(InputError, match=r"must be a mapping|nothing is left to tell"):
        searcher.tell(point, 1.0)


@pytest.mark.parametrize("value", ["1.0", "fast", [1.0], 10**400, object()])
def test_a_value_that_is_no_number_is_refused(value):
    searcher = Searcher(SearchSpace({"x": [1]}), sampler="random")
    with pytest.raises(InputError, match="a told value must be a finite number"):
        searcher.tell({"x": 1}, value)


def test_an_instance_of_an_optuna_sampler_proposes():
    space = SearchSpace({"x": [1, 2, 4], "y": [0, 1, 2]}, ["x > y"])

    def proposals(seed):
        searcher = Searcher(space, sampler=optuna.samplers.NSGAIISampler(seed=seed))
        found = []
        while (point := searcher.ask()) is not None:
            searcher.tell(point, float(point["x"] - point["y"]))
            found.append(point)
        return found

    assert sorted(map(space.index, proposals(1))) == list(range(space.size))
    assert proposals(1) == proposals(1) != proposals(3)


@pytest.mark.parametrize("sampler", [None, 5, optuna.samplers.TPESampler, ["tpe"]])
def test_what_is_no_sampler_is_refused_in_one_line(sampler):
    with pytest.raises(InputError, match=r"a sampler must be a name \(auto, tpe, "):
        Searcher(SearchSpace({"x": [1]}), sampler=sampler)


def test_what_is_no_space_or_no_seed_is_refused_in_one_line():
    with pytest.raises(InputError, match="a space must be a SearchSpace or a SpaceUnion, got"):
        Searcher({"x": [1]})
    with pytest.raises(InputError, match=r"seed must be .* got 0\.5"):
        Searcher(SearchSpace({"x": [1]}), seed=0.5)
