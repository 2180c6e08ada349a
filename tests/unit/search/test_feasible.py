from __future__ import annotations

import optuna
import pytest
from optuna.trial import TrialState

from autotune.core.configuration import Configuration
from autotune.core.errors import AutotuneError, SpaceError
from autotune.search import FeasibleSampler, SpaceExhaustedError, make_sampler
from autotune.search.claims import (
    CLAIM,
    INTERRUPTED,
    ORPHANED,
    Ledger,
    Owner,
    StudySpace,
    claim,
    fail,
    orphans,
    withdraw,
)
from autotune.space import SearchSpace, SpaceUnion

SPACE = SearchSpace({"x": [1, 2, 4, 8], "y": [1, 2, 3]}, ["x * y <= 8"])
UNION = SpaceUnion({"a": SearchSpace({"x": [1, 2]}), "b": SearchSpace({"y": [1, 2]})})


def objective(trial):
    return trial.suggest_categorical("x", [1, 2, 4, 8]) * trial.suggest_categorical("y", [1, 2, 3])


class Stubborn(optuna.samplers.BaseSampler):
    """Always proposes the same point, and notes what it was shown."""

    def __init__(self, point):
        self.point = point
        self.seen = []

    def infer_relative_search_space(self, study, trial):
        return {}

    def sample_relative(self, study, trial, search_space):
        self.seen.append([t for t in study.trials if t.number < trial.number])
        return {}

    def sample_independent(self, study, trial, param_name, param_distribution):
        return self.point[param_name]


def study_of(sampler):
    return optuna.create_study(sampler=sampler)


class TestMoving:
    def test_an_invalid_proposal_is_moved_to_the_nearest_and_recorded(self):
        study = study_of(FeasibleSampler(Stubborn({"x": 8, "y": 3}), SPACE))
        study.optimize(objective, n_trials=1)
        trial = study.trials[0]
        assert trial.params == {"x": 2, "y": 3}
        assert trial.system_attrs[CLAIM]["proposed"] == {"x": 8, "y": 3}

    def test_a_valid_proposal_is_kept(self):
        study = study_of(FeasibleSampler(Stubborn({"x": 2, "y": 3}), SPACE))
        study.optimize(objective, n_trials=1)
        assert study.trials[0].params == {"x": 2, "y": 3}
        assert "proposed" not in study.trials[0].system_attrs[CLAIM]

    def test_a_stubborn_sampler_visits_everything(self):
        study = study_of(FeasibleSampler(Stubborn({"x": 8, "y": 3}), SPACE))
        study.optimize(objective, n_trials=100)
        assert {Configuration(t.params) for t in study.trials} == set(SPACE)
        assert len(study.trials) == len(SPACE)

    def test_the_inner_sampler_learns_what_ran_not_what_it_proposed(self):
        inner = Stubborn({"x": 8, "y": 3})
        study = study_of(FeasibleSampler(inner, SPACE))
        study.optimize(objective, n_trials=4)
        seen = inner.seen[-1]
        assert [t.params for t in seen] == [t.params for t in study.trials[:3]]
        assert [t.value for t in seen] == [t.value for t in study.trials[:3]]

    def test_a_sampler_that_keeps_state_is_told_every_end(self):
        class Counting(Stubborn):
            ended = 0

            def after_trial(self, study, trial, state, values):
                self.ended += 1

        inner = Counting({"x": 1, "y": 1})
        study = study_of(FeasibleSampler(inner, SPACE))
        study.optimize(objective, n_trials=5)
        assert inner.ended == 4  # the last is told when the next proposal needs it


class TestOptimize:
    def test_threads_share_a_study_without_duplicates(self):
        study = study_of(make_sampler("tpe", SPACE))
        study.optimize(objective, n_trials=100, n_jobs=3)
        ran = [Configuration(t.params) for t in study.trials if t.state is TrialState.COMPLETE]
        assert len(ran) == len(set(ran)) == len(SPACE)

    def test_a_trial_that_raised_is_visited(self):
        study = study_of(make_sampler("exhaustive", SPACE))

        def raises(trial):
            objective(trial)
            raise ZeroDivisionError

        study.optimize(raises, n_trials=100, catch=(ZeroDivisionError,))
        assert len({Configuration(t.params) for t in study.trials}) == len(SPACE)
        assert len(study.trials) == len(SPACE)

    def test_an_exhausted_study_runs_nothing_more(self):
        study = study_of(make_sampler("random", SPACE))
        study.optimize(objective, n_trials=100)
        study.optimize(objective, n_trials=100)
        assert [t.state for t in study.trials].count(TrialState.COMPLETE) == len(SPACE)
        assert len(study.trials) == len(SPACE) + 1
        assert study.trials[-1].state is TrialState.PRUNED
        assert study.trials[-1].params == {}

    def test_ask_says_that_nothing_is_left(self):
        study = study_of(make_sampler("random", SPACE))
        study.optimize(objective, n_trials=100)
        with pytest.raises(SpaceExhaustedError, match="all 9 valid configurations"):
            study.ask(dict(StudySpace(SPACE).distributions))

    def test_exhaustion_is_one_of_ours_and_prunes(self):
        assert issubclass(SpaceExhaustedError, AutotuneError)
        assert issubclass(SpaceExhaustedError, optuna.TrialPruned)

    def test_enqueued_points_run_first_and_are_moved_if_they_must(self):
        study = study_of(make_sampler("exhaustive", SPACE))
        for point in ({"x": 4, "y": 2}, {"x": 8, "y": 3}, {"x": 4, "y": 2}, {"x": 3, "y": 1}):
            study.enqueue_trial(point)
        study.optimize(objective, n_trials=5)
        params = [Configuration(t.params) for t in study.trials]
        assert params[0] == {"x": 4, "y": 2}
        assert params[1] == {"x": 2, "y": 3}
        assert len(set(params)) == 5
        assert all(point in SPACE for point in params)

    def test_an_enqueued_part_of_a_point_is_completed(self):
        study = study_of(make_sampler("tpe", SPACE))
        study.enqueue_trial({"x": 8})
        study.optimize(objective, n_trials=1)
        assert study.trials[0].params == {"x": 8, "y": 1}

    def test_a_parameter_of_another_family_is_refused(self):
        study = study_of(make_sampler("exhaustive", UNION))

        def wrong(trial):
            assert trial.suggest_categorical("family", ["a", "b"]) == "a"
            trial.suggest_categorical("b.y", [1, 2])

        with pytest.raises(SpaceError, match=r"'b.y' is no parameter of the configuration"):
            study.optimize(wrong, n_trials=1)

    def test_other_values_are_refused(self):
        study = study_of(make_sampler("random", SPACE))
        with pytest.raises(ValueError, match="dynamic value space"):
            study.optimize(lambda t: t.suggest_categorical("x", [1, 2, 3]), n_trials=1)

    def test_trials_added_by_hand_are_visited(self):
        study = study_of(make_sampler("exhaustive", SPACE))
        space = StudySpace(SPACE)
        study.add_trial(
            optuna.trial.create_trial(
                value=1.0, params=dict(SPACE[0]), distributions=dict(space.distributions)
            )
        )
        study.optimize(objective, n_trials=100)
        assert len(study.trials) == len(SPACE)
        assert study.trials[1].params == SPACE[1]


class TestClaims:
    """Two workers on one study, step by step."""

    def workers(self):
        study = optuna.create_study()
        space = StudySpace(SPACE)
        trials = [study.ask(), study.ask()]
        frozen = [study.trials[t.number] for t in trials]
        return study, frozen, [Ledger(space), Ledger(space)]

    def test_the_later_writer_gives_way(self):
        study, (first, second), (mine, theirs) = self.workers()
        assert claim(study, second, theirs, row=4, proposed=None)
        assert not claim(study, first, mine, row=4, proposed=None)
        assert claim(study, first, mine, row=5, proposed=None)
        theirs.refresh(study.trials)
        assert theirs.visited == {4, 5}

    def test_of_two_that_see_each_other_the_lower_number_wins_the_wait(self, monkeypatch):
        study, (first, second), (mine, theirs) = self.workers()
        # The second has written, not yet read; while the first waits, it reads and moves on.
        study._storage.set_trial_system_attr(
            second._trial_id, CLAIM, {"row": 4, "owner": str(Owner.current())}
        )
        moves = iter([lambda: claim(study, second, theirs, row=6, proposed=None)])
        monkeypatch.setattr("autotune.search.claims.time.sleep", lambda seconds: next(moves)())
        assert claim(study, first, mine, row=4, proposed=None)
        assert mine.visited == {6}

    def test_a_withdrawn_claim_holds_nothing(self):
        study, (first, _), (mine, _) = self.workers()
        assert claim(study, first, mine, row=4, proposed=None)
        withdraw(study, first)
        mine.refresh(study.trials)
        assert mine.visited == set()

    def test_what_was_interrupted_is_free_again(self):
        study, (first, _), (mine, _) = self.workers()
        assert claim(study, first, mine, row=4, proposed=None)
        assert fail(study, first, INTERRUPTED)
        mine.refresh(study.trials)
        assert mine.visited == set()
        assert not fail(study, first, INTERRUPTED)

    def test_what_was_orphaned_twice_is_visited(self):
        study, frozen, (mine, _) = self.workers()
        for expected, trial in zip([set(), {4}], frozen, strict=True):
            assert claim(study, trial, mine, row=4, proposed=None)
            assert fail(study, trial, ORPHANED)
            mine.refresh(study.trials)
            assert mine.visited == expected

    @pytest.mark.parametrize(
        ("owner", "heard_s_ago", "orphaned"),
        [
            ("elsewhere:b:n:7:9", 5, False),
            ("elsewhere:b:n:7:9", 91, True),
            (f"{Owner.current().host}:otherboot:n:7:9", 0, True),
            ("gibberish", 91, True),
            (str(Owner.current()), 10_000, False),
        ],
        ids=["far", "far and silent", "before a restart", "unreadable", "this process"],
    )
    def test_who_is_taken_for_dead(self, owner, heard_s_ago, orphaned, monkeypatch):
        study, (first, _), _ = self.workers()
        study._storage.set_trial_system_attr(first._trial_id, CLAIM, {"row": 1, "owner": owner})
        now = first.datetime_start.timestamp() + 50_000
        monkeypatch.setattr("autotune.search.claims.time.time", lambda: now)
        fail(study, study.trials[1], INTERRUPTED)
        dead = orphans(study, {owner: now - heard_s_ago})
        assert [trial.number for trial in dead] == ([0] if orphaned else [])


def test_an_owner_is_read_back_and_known_to_be_alive():
    owner = Owner.current()
    assert Owner.parse(str(owner)) == owner
    assert owner.alive() is True
    assert Owner.parse("nonsense") is None
