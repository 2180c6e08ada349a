from __future__ import annotations

import importlib.util
from collections import Counter

import optuna
import pytest

from autotune.core.errors import InputError, MissingDependencyError, UnknownNameError
from autotune.search import (
    FeasibleSampler,
    Searcher,
    check_sampler,
    make_sampler,
    sampler_names,
)
from autotune.search.claims import Ledger, StudySpace
from autotune.search.feasible import Encoding, MirrorProposer
from autotune.search.searcher import RandomProposer
from autotune.space import SearchSpace, SpaceUnion

SPACE = SearchSpace({"x": [1, 2, 4], "mode": ["a", "b", "c"]}, ["x < 4 or mode == 'a'"])
UNION = SpaceUnion(
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
            make_sampler(name, SPACE)
        assert "\n" not in str(caught.value)

    def test_an_unknown_name_lists_what_there_is(self):
        with pytest.raises(UnknownNameError, match="tpe, gp, cmaes, nsga2, random, exhaustive"):
            make_sampler("annealing", SPACE)

    def test_a_class_that_needs_more_is_refused_with_the_way_out(self):
        with pytest.raises(InputError, match="give an instance of it"):
            make_sampler(f"{__name__}.NeedsMore", SPACE)

    def test_a_negative_seed_is_refused(self):
        with pytest.raises(InputError, match="seed must be a whole number >= 0, got -1"):
            make_sampler("random", SPACE, seed=-1)

    @pytest.mark.parametrize(("name", "package"), [("cmaes", "cmaes"), ("gp", "torch")])
    def test_a_missing_package_is_named(self, name, package, monkeypatch):
        found = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda n: None if n == package else found(n)
        )
        with pytest.raises(MissingDependencyError, match=f"pip install {package}"):
            make_sampler(name, SPACE)

    def test_a_dotted_class_takes_the_seed(self):
        def first(seed):
            return Searcher(UNION, f"{__name__}.Recorder", seed).ask()

        assert first(1) == first(1)
        assert len({first(seed) for seed in range(8)}) > 1


class TestOurs:
    def test_exhaustive_goes_in_canonical_order(self):
        searcher = Searcher(UNION, "exhaustive")
        assert [searcher.ask() for _ in range(7)] == [UNION[row] for row in range(7)]
        assert searcher.ask() is None

    def test_exhaustive_skips_what_is_visited(self):
        searcher = Searcher(SPACE, "exhaustive")
        searcher.tell(SPACE[1], 1.0)
        assert [searcher.ask(), searcher.ask()] == [SPACE[0], SPACE[2]]

    def test_random_is_uniform_over_the_valid_rows_that_are_left(self):
        space = StudySpace(SPACE)
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
        asked = self.asked(UNION, flat=True, ordinal=True)
        assert asked == {
            "family": optuna.distributions.IntDistribution(0, 1),
            "a.x": optuna.distributions.IntDistribution(0, 2),
            "b.y": optuna.distributions.IntDistribution(0, 1),
            "b.z": optuna.distributions.IntDistribution(0, 1),
        }

    def test_conditional_samplers_see_the_chosen_family_only(self):
        asked = self.asked(UNION, flat=False)
        assert asked["family"] == optuna.distributions.CategoricalDistribution(("a", "b"))
        assert set(asked) in ({"family", "a.x"}, {"family", "b.y", "b.z"})

    def test_nothing_of_the_inner_sampler_reaches_the_users_study(self):
        pytest.importorskip("cmaes", reason="sampler cmaes needs cmaes")
        study = optuna.create_study(sampler=make_sampler("cmaes", SPACE))

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
        searcher = Searcher(SPACE, Fails(when))
        with pytest.raises(InputError, match=r"sampler .*\.Fails failed in trial [01] ") as told:
            exhaust(searcher)
        assert "\n" not in str(told.value)

    def test_so_do_those_that_optuna_has(self):
        searcher = Searcher(UNION, "optuna.samplers.BruteForceSampler")
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
                Searcher(SPACE, "optuna.samplers.RandomSampler", seed) for _ in range(2)
            )
            assert [first.ask() for _ in range(5)] == [again.ask() for _ in range(5)]
