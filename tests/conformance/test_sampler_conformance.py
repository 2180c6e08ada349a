"""What every sampler must do, whatever it is: one class over all of them.

A sampler is driven three ways: by a `Searcher`, by `study.optimize`, and by a `TuningStudy`.
"""

from __future__ import annotations

import importlib.util
from itertools import product

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.core.configuration import Candidate, Configuration
from autotune.core.measurement import Measurement, Outcome
from autotune.search import Searcher, make_sampler, open_study, sampler_names
from autotune.space import SearchSpace, SpaceUnion

NEEDS = {"cmaes": ("cmaes",), "gp": ("torch", "scipy")}
DOTTED = ("optuna.samplers.TPESampler", "optuna.samplers.QMCSampler")


def _param(name):
    missing = [p for p in NEEDS.get(name, ()) if importlib.util.find_spec(p) is None]
    reason = f"sampler {name} needs {', '.join(missing)}"
    return pytest.param(name, marks=pytest.mark.skipif(bool(missing), reason=reason))


SAMPLERS = [_param(name) for name in (*sampler_names(), *DOTTED)]

PLAIN = SearchSpace(
    {"x": [1, 2, 4, 8], "y": [1, 2, 3], "mode": ["a", "b"], "one": [7]},
    ["x <= 4 or y == 1", "mode == 'a' or x > 1"],
)
UNION = SpaceUnion(
    {
        "loops": SearchSpace({"order": ["ijk", "ikj", "kij"], "threads": [1, 2]}),
        "tiles": SearchSpace({"sm": [8, 16, 32], "sn": [8, 16, 32]}, ["sm * sn <= 512"]),
        "never": SearchSpace({"sm": [1]}, ["sm > 1"]),
    }
)


def expected_points(space):
    """Every valid point, found without the space's own enumeration."""
    if space is UNION:
        orders = product(["ijk", "ikj", "kij"], [1, 2])
        loops = [Configuration({"order": o, "threads": t}) for o, t in orders]
        tiles = [
            Configuration({"sm": sm, "sn": sn})
            for sm, sn in product([8, 16, 32], repeat=2)
            if sm * sn <= 512
        ]
        return {Candidate("loops", c) for c in loops} | {Candidate("tiles", c) for c in tiles}
    return {
        Configuration({"x": x, "y": y, "mode": mode, "one": 7})
        for x, y, mode in product([1, 2, 4, 8], [1, 2, 3], ["a", "b"])
        if (x <= 4 or y == 1) and (mode == "a" or x > 1)
    }


def value_of(point):
    """A smooth objective of any point; the same in every process."""
    text = str(point)
    return 1e-3 * (1 + sum(ord(c) * (i + 1) for i, c in enumerate(text)) % 97)


def walk(space, sampler, seed, steps):
    """The first points a searcher proposes when every fifth of them fails."""
    searcher = Searcher(space, sampler, seed)
    points = []
    for step in range(steps):
        point = searcher.ask()
        if point is None:
            break
        points.append(point)
        searcher.tell(point, None if step % 5 == 4 else value_of(point))
    return points


@pytest.mark.parametrize("sampler", SAMPLERS)
class TestEverySampler:
    @pytest.mark.parametrize("space", [PLAIN, UNION], ids=["plain", "union"])
    def test_visits_every_valid_point_once_then_ends(self, sampler, space):
        points = walk(space, sampler, seed=0, steps=1000)
        assert len(points) == len(set(points))
        assert set(points) == expected_points(space)

    @pytest.mark.parametrize("space", [PLAIN, UNION], ids=["plain", "union"])
    def test_same_seed_and_values_give_the_same_points(self, sampler, space):
        assert walk(space, sampler, 3, 16) == walk(space, sampler, 3, 16)

    def test_runs_under_plain_study_optimize(self, sampler):
        study = optuna.create_study(sampler=make_sampler(sampler, PLAIN, seed=1))
        ran = []

        def objective(trial):
            point = Configuration(
                {p.name: trial.suggest_categorical(p.name, p.values) for p in PLAIN.parameters}
            )
            ran.append(point)
            return value_of(point)

        study.optimize(objective, n_trials=1000)
        assert len(ran) == len(set(ran))
        assert set(ran) == expected_points(PLAIN)
        assert [Configuration(t.params) for t in study.trials] == ran

    def test_conditional_space_under_plain_study_optimize(self, sampler):
        study = optuna.create_study(sampler=make_sampler(sampler, UNION, seed=1))

        def objective(trial):
            family = trial.suggest_categorical("family", ["loops", "tiles"])
            for p in UNION.spaces[family].parameters:
                trial.suggest_categorical(f"{family}.{p.name}", p.values)
            return value_of(UNION.unflatten(trial.params))

        study.optimize(objective, n_trials=1000)
        ran = [UNION.unflatten(t.params) for t in study.trials]
        assert len(ran) == len(set(ran))
        assert set(ran) == expected_points(UNION)

    def test_batches_hold_distinct_points(self, sampler, tmp_path):
        with open_study(UNION, None, "batches", tmp_path, sampler) as study:
            told = []
            while batch := study.ask_batch(4):
                for proposal in reversed(batch):
                    told.append(proposal.candidate)
                    study.tell(proposal, Measurement(Outcome.OK, value_of(proposal.candidate)))
        assert len(told) == len(set(told))
        assert set(told) == expected_points(UNION)

    def test_says_nothing(self, sampler, capfd):
        walk(UNION, sampler, seed=0, steps=14)
        captured = capfd.readouterr()
        assert captured.out == ""
        assert captured.err == ""

    @settings(max_examples=5, deadline=None)
    @given(data=st.data())
    def test_random_spaces(self, sampler, data):
        names = data.draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True))
        values = {
            name: data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True))
            for name in names
        }
        limit = data.draw(st.integers(0, 24))
        valid = {
            Configuration(dict(zip(names, row, strict=True)))
            for row in product(*values.values())
            if sum(row) % 3 != 1 and sum(row) <= limit
        }
        total = " + ".join(names)
        space = SearchSpace(values, [f"({total}) % 3 != 1", f"{total} <= {limit}"])
        points = walk(space, sampler, seed=0, steps=12)
        assert len(points) == len(set(points)) == min(12, len(valid))
        assert set(points) <= valid


@pytest.mark.parametrize("sampler", ["auto", "tpe", "random", "exhaustive"])
@pytest.mark.parametrize("space", [PLAIN, UNION], ids=["plain", "union"])
def test_a_resumed_study_proposes_what_an_uninterrupted_one_would(sampler, space, tmp_path):
    def run(folder, stops):
        points = []
        for steps in stops:
            with open_study(space, None, "resume", tmp_path / folder, sampler, seed=5) as study:
                for _ in range(steps):
                    proposal = study.ask()
                    points.append(proposal.candidate)
                    outcome = Outcome.LAUNCH_FAILED if len(points) % 6 == 5 else Outcome.OK
                    if len(points) % 7 == 6:
                        outcome = Outcome.ABANDONED
                    median = value_of(proposal.candidate)
                    study.tell(
                        proposal,
                        Measurement(outcome, None if outcome is Outcome.LAUNCH_FAILED else median),
                    )
        return points

    assert run("once", [14]) == run("thrice", [3, 9, 2])
