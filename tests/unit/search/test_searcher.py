"""Searchers and samplers."""

from __future__ import annotations

import importlib.util
import math
from collections import Counter

import optuna
import pytest

from autotune.core.configuration import Candidate, Configuration
from autotune.core.errors import InputError, MissingDependencyError, SpaceError, UnknownNameError
from autotune.search import (
    FeasibleSampler,
    Searcher,
    check_sampler,
    make_sampler,
    sampler_names,
)
from autotune.search.claims import Ledger, StudySpace
from autotune.search.feasible import Encoding, MirrorProposer
from autotune.search.samplers import RandomProposer
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


@pytest.mark.parametrize("stored", [False, True])
def test_a_point_told_again_is_a_repeat_and_its_median_counts(stored, tmp_path):
    searcher = Searcher(SPACE, "exhaustive", storage=tmp_path if stored else None)
    first, second = searcher.ask(), searcher.ask()
    searcher.tell(first, 2.0)
    searcher.tell(second, 1.0)
    assert searcher.repeats(second) == 1
    for value in (4.0, 3.0, None):
        searcher.tell(second, value)
    assert searcher.best == (first, 2.0)
    assert (searcher.repeats(first), searcher.repeats(second)) == (1, 3)
    searcher.tell(first, 5.0)
    assert searcher.best == (second, 3.0)
    rest = [searcher.ask() for _ in range(len(SPACE) - 1)]
    assert set(rest) == {*SPACE, None} - {first, second}
    if stored:
        again = Searcher(SPACE, storage=tmp_path)
        assert (again.best, again.repeats(second)) == ((second, 3.0), 3)
        again.close()
    searcher.close()


def test_a_model_takes_repeats():
    searcher = Searcher(SPACE, "auto")
    for _ in range(len(SPACE) - 1):
        point = searcher.ask()
        for value in (1.0, 1.5):
            searcher.tell(point, value * point["x"])
    assert searcher.ask() is not None


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


MODES = SearchSpace({"x": [1, 2, 4], "mode": ["a", "b", "c"]}, ["x < 4 or mode == 'a'"])
FAMILIES = SpaceUnion(
    {"a": SearchSpace({"x": [10, 20, 30]}), "b": SearchSpace({"y": [5, 6], "z": ["u", "v"]})}
)


class NeedsMore(optuna.samplers.RandomSampler):
    def __init__(self, population):
        super().__init__()


class Recorder(optuna.samplers.RandomSampler):
    """Draws at random and notes the distributions it is asked for."""

    def __init__(self, seed=None):
        super().__init__(seed=seed)
        self.asked = {}

    def sample_independent(self, study, trial, param_name, param_distribution):
        self.asked[param_name] = param_distribution
        return super().sample_independent(study, trial, param_name, param_distribution)


class TestNames:
    def test_the_names(self):
        assert set(sampler_names()) == {
            "auto",
            "tpe",
            "gp",
            "cmaes",
            "nsga2",
            "random",
            "exhaustive",
        }

    @pytest.mark.parametrize(
        "name",
        ["annealing", "", "optuna.samplers.Nothing", "no.such.module.Sampler", "os.path", "..x"],
    )
    def test_unknown_names_are_refused(self, name):
        with pytest.raises(UnknownNameError) as caught:
            make_sampler(name, MODES)
        assert "\n" not in str(caught.value)

    def test_an_unknown_name_lists_what_there_is(self):
        with pytest.raises(UnknownNameError, match="tpe, gp, cmaes, nsga2, random, exhaustive"):
            make_sampler("annealing", MODES)

    def test_a_class_that_needs_more_is_refused_with_the_way_out(self):
        with pytest.raises(InputError, match="give an instance of it"):
            make_sampler(f"{__name__}.NeedsMore", MODES)

    def test_a_negative_seed_is_refused(self):
        with pytest.raises(InputError, match="seed must be a whole number >= 0, got -1"):
            make_sampler("random", MODES, seed=-1)

    @pytest.mark.parametrize(("name", "package"), [("cmaes", "cmaes"), ("gp", "torch")])
    def test_a_missing_package_is_named(self, name, package, monkeypatch):
        found = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda n: None if n == package else found(n)
        )
        with pytest.raises(MissingDependencyError, match=f"pip install {package}"):
            make_sampler(name, MODES)

    def test_a_dotted_class_takes_the_seed(self):
        def first(seed):
            return Searcher(FAMILIES, f"{__name__}.Recorder", seed).ask()

        assert first(1) == first(1)
        assert len({first(seed) for seed in range(8)}) > 1


class TestOurs:
    def test_exhaustive_goes_in_canonical_order(self):
        searcher = Searcher(FAMILIES, "exhaustive")
        assert [searcher.ask() for _ in range(7)] == [FAMILIES[row] for row in range(7)]
        assert searcher.ask() is None

    def test_exhaustive_skips_what_is_visited(self):
        searcher = Searcher(MODES, "exhaustive")
        searcher.tell(MODES[1], 1.0)
        assert [searcher.ask(), searcher.ask()] == [MODES[0], MODES[2]]

    def test_random_is_uniform_over_the_valid_rows_that_are_left(self):
        space = StudySpace(MODES)
        proposer = RandomProposer(space, seed=0)
        ledger = Ledger(space)
        ledger.visited = {0, 3, 4}
        draws = Counter(space.row(proposer.propose(number, ledger)) for number in range(4000))
        left = set(range(space.size)) - ledger.visited
        assert set(draws) == left
        # Five standard deviations around 1000 draws each.
        assert all(abs(count - 4000 / len(left)) < 140 for count in draws.values())

    def test_a_space_too_large_to_list(self):
        space = SearchSpace({f"p{i}": list(range(100)) for i in range(12)}, ["p0 <= p1"])
        for sampler in ("auto", "random", "exhaustive", "tpe"):
            searcher = Searcher(space, sampler)
            points = [searcher.ask() for _ in range(12)]
            for value, point in enumerate(points):
                searcher.tell(point, float(value))
            assert len(set(points)) == 12
            assert all(point in space for point in points)


class TestEncodings:
    def asked(self, space, **encoding):
        recorder = Recorder(seed=0)
        study_space = StudySpace(space)
        proposer = MirrorProposer(Encoding(study_space, **encoding), lambda seed: recorder)
        study = optuna.create_study(sampler=FeasibleSampler(proposer, space))
        study.ask(dict.fromkeys(["family"], study_space.distributions["family"]))
        return recorder.asked

    def test_numeric_samplers_see_positions_of_every_name(self):
        asked = self.asked(FAMILIES, flat=True, ordinal=True)
        assert asked == {
            "family": optuna.distributions.IntDistribution(0, 1),
            "a.x": optuna.distributions.IntDistribution(0, 2),
            "b.y": optuna.distributions.IntDistribution(0, 1),
            "b.z": optuna.distributions.IntDistribution(0, 1),
        }

    def test_conditional_samplers_see_the_chosen_family_only(self):
        asked = self.asked(FAMILIES, flat=False)
        assert asked["family"] == optuna.distributions.CategoricalDistribution(("a", "b"))
        assert set(asked) in ({"family", "a.x"}, {"family", "b.y", "b.z"})

    def test_nothing_of_the_inner_sampler_reaches_the_users_study(self):
        pytest.importorskip("cmaes", reason="sampler cmaes needs cmaes")
        study = optuna.create_study(sampler=make_sampler("cmaes", MODES))

        def objective(trial):
            x = trial.suggest_categorical("x", [1, 2, 4])
            return x + ord(trial.suggest_categorical("mode", ["a", "b", "c"]))

        study.optimize(objective, n_trials=7)
        attrs = [set(t.system_attrs) for t in study.trials]
        assert attrs == [{"autotune:claim"}] * len(study.trials)


def test_tpe_finds_the_good_corner_sooner_than_random():
    """The wrapped sampler still learns: medians over seeds of a smooth objective."""
    space = SearchSpace(
        {name: list(range(10)) for name in ("a", "b", "c")}, ["(a + b + c) % 2 == 0"]
    )

    def best_after(sampler, seed):
        searcher = Searcher(space, sampler, seed)
        for _ in range(60):
            point = searcher.ask()
            searcher.tell(point, 1.0 + sum((point[n] - 7) ** 2 for n in ("a", "b", "c")))
        return searcher.best[1]

    tpe = sorted(best_after("tpe", seed) for seed in range(5))[2]
    random = sorted(best_after("random", seed) for seed in range(5))[2]
    assert tpe < random


class Fails(optuna.samplers.RandomSampler):
    """Fails where it is told to."""

    def __init__(self, when="sample"):
        if when == "init":
            raise OSError("no such\nfile")
        super().__init__()
        self.when = when

    def sample_independent(self, study, trial, param_name, param_distribution):
        if self.when == "sample":
            raise ValueError("a tree\nof parameters")
        return super().sample_independent(study, trial, param_name, param_distribution)

    def after_trial(self, study, trial, state, values):
        if self.when == "tell":
            raise RuntimeError("cannot stop")


class FailsToBegin(Fails):
    def __init__(self):
        super().__init__("init")


def exhaust(searcher):
    while (point := searcher.ask()) is not None:
        searcher.tell(point, 1.0)


class TestForeignSamplersThatFail:
    @pytest.mark.parametrize("when", ["sample", "tell"])
    def test_one_line_names_them(self, when):
        searcher = Searcher(MODES, Fails(when))
        with pytest.raises(InputError, match=r"sampler .*\.Fails failed in trial [01] ") as told:
            exhaust(searcher)
        assert "\n" not in str(told.value)

    def test_so_do_those_that_optuna_has(self):
        searcher = Searcher(FAMILIES, "optuna.samplers.BruteForceSampler")
        with pytest.raises(InputError, match="BruteForceSampler failed in trial"):
            exhaust(searcher)

    def test_a_class_that_cannot_be_built(self):
        with pytest.raises(InputError, match=r"FailsToBegin cannot be built \(OSError: no such\)"):
            check_sampler(f"{__name__}.FailsToBegin")

    def test_a_module_that_cannot_be_imported(self, tmp_path, monkeypatch):
        (tmp_path / "broken_samplers.py").write_text("1 / 0")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(UnknownNameError, match="division by zero"):
            check_sampler("broken_samplers.Any")

    def test_seeds_of_more_than_32_bits(self):
        for seed in (2**32, 2**63 - 1):
            first, again = (
                Searcher(MODES, "optuna.samplers.RandomSampler", seed) for _ in range(2)
            )
            assert [first.ask() for _ in range(5)] == [again.ask() for _ in range(5)]
