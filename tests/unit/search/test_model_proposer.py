"""The sampler `auto` as a whole: what it proposes, from what, and how fast it gets there."""

from __future__ import annotations

import math
import random
from collections import Counter
from itertools import product

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.core.configuration import Candidate
from autotune.core.errors import InputError
from autotune.core.measurement import Measurement, Outcome
from autotune.search import Searcher, open_study
from autotune.search.claims import Ledger, StudySpace
from autotune.search.model import EstimatedPrior, MeasuredPrior, ModelProposer
from autotune.search.model.features import FeatureMap, History, HistoryReader
from autotune.search.model.proposer import log_costs
from autotune.space import SearchSpace, SpaceUnion, TunableParameter

TILES = SearchSpace(
    {
        "sm": [8, 16, 32, 48, 64, 96, 128],
        "sk": [8, 16, 32, 48, 64, 96, 128],
        "tx": [1, 2, 4, 8],
        "ty": [1, 2, 4, 8],
        "mode": ["plain", "packed", "padded"],
    },
    ["sm % ty == 0 and sk % tx == 0", "sm * sk <= 128 * tx * ty * 8"],
)


def time_of(point):
    """A made-up time, with one best point: of tiles, ratios and a category."""
    tile = abs(math.log2(point["sm"] / 64)) + abs(math.log2(point["sk"] / 32))
    thread = abs(math.log2(point["tx"] * point["ty"] / 16)) + 0.3 * (point["tx"] != 4)
    return 1e-3 * (1 + tile) * (1 + 0.5 * thread) * (1.3 if point["mode"] == "plain" else 1.0)


def drive(proposer, space, steps, value, batch=1):
    """Rows that a proposer comes up with when `batch` trials run at any time."""
    rows, observed, running = [], [], []
    while len(observed) < steps:
        while len(running) < batch and len(rows) < min(steps, space.size):
            taken = {row for row, _ in observed} | set(running)
            row = proposer.row(History(tuple(observed), tuple(running), taken))
            assert row not in taken
            rows.append(row)
            running.append(row)
        done = running.pop(0)
        observed.append((done, value(done)))
    return rows


def spaces():
    """Small random spaces of every kind of parameter, with a restriction."""
    values = st.one_of(
        st.lists(st.integers(-2, 64), min_size=1, max_size=5, unique=True),
        st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3, unique=True),
        st.lists(st.booleans(), min_size=1, max_size=2, unique=True),
        st.lists(st.sampled_from([0.1, 0.5, 1.5, 1e3]), min_size=1, max_size=4, unique=True),
    )
    named = st.dictionaries(st.sampled_from("pqrs"), values, min_size=1, max_size=4)

    def restricted(values):
        numeric = [n for n, v in values.items() if all(type(each) is int for each in v)]
        limit = [f"{' + '.join(numeric)} <= 70"] if numeric else []
        return SearchSpace(values, limit)

    return named.map(restricted).filter(bool)


class TestProposals:
    @settings(max_examples=25, deadline=None)
    @given(
        space=spaces(),
        seed=st.integers(0, 9),
        batch=st.integers(1, 4),
        kind=st.sampled_from(["spread", "constant", "huge range", "mostly fails", "all fail"]),
    )
    def test_every_row_of_any_space_comes_once(self, space, seed, batch, kind):
        rng = np.random.default_rng(seed)

        def value(row):
            if kind == "all fail" or (kind == "mostly fails" and rng.random() < 0.8):
                return None
            if kind == "huge range":
                return float(10.0 ** rng.uniform(-9, 3))
            return 1.0 if kind == "constant" else float(rng.uniform(1, 2))

        steps = min(space.size, 40)
        rows = drive(ModelProposer(StudySpace(space), seed), space, steps, value, batch)
        assert len(set(rows)) == len(rows) == steps
        assert set(rows) <= set(range(space.size))

    def test_finds_the_best_of_many_early(self):
        times = [time_of(TILES[row]) for row in range(TILES.size)]
        assert TILES.size > 800
        for seed in range(3):
            rows = drive(ModelProposer(StudySpace(TILES), seed), TILES, 100, times.__getitem__)
            assert min(times[row] for row in rows) == min(times)

    def test_noise_does_not_stop_it(self):
        rng = np.random.default_rng(0)
        times = [time_of(TILES[row]) for row in range(TILES.size)]
        noisy = [time * math.exp(0.05 * rng.standard_normal()) for time in times]
        for seed in range(3):
            rows = drive(ModelProposer(StudySpace(TILES), seed), TILES, 80, noisy.__getitem__)
            assert min(times[row] for row in rows) <= 1.05 * min(times)

    def test_one_in_three_is_next_to_the_best_as_long_as_there_is_anybody(self):
        cube = SearchSpace({name: [0, 1, 2] for name in "abcd"})

        def apart(row, other):
            return sum(cube[row][name] != cube[other][name] for name in "abcd")

        for best in (0, cube.size // 2, cube.size - 1):
            near = [row for row in range(cube.size) if apart(row, best) == 1]
            far = next(row for row in range(cube.size) if apart(row, best) == 4)
            # All that is near is slow: a model alone would go far away.
            for others, nearest in (([*near[:-1], far], 1), (near, 2)):
                observed = ((best, 1e-3), *((row, 2e-3) for row in others))
                assert len(observed) % 3 == 0
                history = History(observed, (), {best, *others})
                row = ModelProposer(StudySpace(cube), 0).row(history)
                assert apart(row, best) == nearest

    def test_learns_where_it_fails(self):
        """Large tiles fail, which no restriction tells; the best point is next to those."""
        times = [time_of(TILES[row]) for row in range(TILES.size)]
        fails = [TILES[row]["sm"] * TILES[row]["sk"] > 48 * 48 for row in range(TILES.size)]
        assert 0.2 < np.mean(fails) < 0.6

        def value(row):
            return None if fails[row] else times[row]

        best = min(time for time, failed in zip(times, fails, strict=True) if not failed)
        found = []
        for seed in range(3):
            rows = drive(ModelProposer(StudySpace(TILES), seed), TILES, 100, value)
            found.append(min(times[row] for row in rows if not fails[row]))
        assert sorted(found)[1] <= 1.01 * best

    def test_a_batch_is_spread_out(self):
        times = [time_of(TILES[row]) for row in range(TILES.size)]
        proposer = ModelProposer(StudySpace(TILES), 0)
        rows = drive(proposer, TILES, 30, times.__getitem__)
        observed = tuple((row, times[row]) for row in rows)
        running: list[int] = []
        for _ in range(16):
            visited = set(rows) | set(running)
            running.append(proposer.row(History(observed, tuple(running), visited)))
        assert len(set(running)) == 16
        points = [TILES[row] for row in running]
        assert len({(p["sm"], p["sk"], p["tx"], p["ty"]) for p in points}) >= 8

    def test_a_batch_of_eight_still_converges(self):
        times = [time_of(TILES[row]) for row in range(TILES.size)]
        rows = drive(ModelProposer(StudySpace(TILES), 1), TILES, 96, times.__getitem__, batch=8)
        assert min(times[row] for row in rows) == min(times)

    def test_following_the_promising_rows_only_changes_little(self, monkeypatch):
        """Most proposals are those of a model that follows every row, and the best is found."""
        times = [time_of(TILES[row]) for row in range(TILES.size)]
        whole = drive(ModelProposer(StudySpace(TILES), 0), TILES, 60, times.__getitem__)
        monkeypatch.setattr("autotune.search.model.surrogate._MOST_TRACKED", 128)
        monkeypatch.setattr("autotune.search.model.surrogate._BLOCK", 200)
        few = drive(ModelProposer(StudySpace(TILES), 0), TILES, 60, times.__getitem__)
        assert min(times[row] for row in few) == min(times)
        assert len(set(whole) & set(few)) >= 50

    def test_parameters_of_one_value(self):
        space = SearchSpace.from_configurations([{"x": 1, "y": "only"}])
        assert drive(ModelProposer(StudySpace(space), 0), space, 1, lambda row: 1.0) == [0]

    def test_many_trials(self):
        """Past every limit on how many observations the model keeps."""
        times = [time_of(TILES[row]) for row in range(TILES.size)]
        observed = tuple((row, times[row]) for row in range(TILES.size - 4))
        proposer = ModelProposer(StudySpace(TILES), 0)
        visited = {row for row, _ in observed}
        assert proposer.row(History(observed, (), visited)) not in visited


class TestRepeatability:
    def rows(self, seed, steps, batch=1):
        times = [time_of(TILES[row]) for row in range(TILES.size)]
        failing = [None if row % 7 == 3 else time for row, time in enumerate(times)]
        proposer = ModelProposer(StudySpace(TILES), seed)
        return drive(proposer, TILES, steps, failing.__getitem__, batch)

    def test_seeds(self):
        assert self.rows(3, 40) == self.rows(3, 40)
        assert self.rows(3, 40, batch=3) == self.rows(3, 40, batch=3)
        assert self.rows(3, 5) != self.rows(4, 5)

    def test_a_fresh_proposer_goes_on_where_another_stopped(self):
        """At every length, so also right before and after the kernel is fitted anew."""
        rows = self.rows(0, 50)
        times = [None if row % 7 == 3 else time_of(TILES[row]) for row in rows]
        observed = tuple(zip(rows, times, strict=True))
        for done in range(0, 50, 3):
            fresh = ModelProposer(StudySpace(TILES), 0)
            history = History(observed[:done], (), set(rows[:done]))
            assert fresh.row(history) == rows[done], f"after {done} trials"

    def test_what_is_told_together_is_as_if_told_in_turn(self):
        rows = self.rows(0, 40)
        observed = tuple((row, time_of(TILES[row])) for row in rows)
        step, leap = (ModelProposer(StudySpace(TILES), 0) for _ in range(2))
        for done in (15, 16, 24, 40):
            history = History(observed[:done], (), set(rows[:done]))
            if done != 24:
                leaped = leap.row(history)
            stepped = step.row(history)
        assert leaped == stepped

    def test_a_history_that_is_another_one(self):
        """A trial of another worker may come to light out of order."""
        rows = self.rows(0, 30)
        observed = [(row, time_of(TILES[row])) for row in rows]
        swapped = (*observed[:20], observed[25], *observed[20:25], *observed[26:])
        slow_is_fast = tuple((row, 1 / time) for row, time in observed)
        for other in (swapped, slow_is_fast, slow_is_fast[:20]):
            proposer, fresh = (ModelProposer(StudySpace(TILES), 0) for _ in range(2))
            proposer.row(History(tuple(observed), (), set(rows)))
            history = History(other, (), {row for row, _ in other})
            assert proposer.row(history) == fresh.row(history)


class TestHistory:
    def history(self, study, space):
        ledger = Ledger(StudySpace(space))
        ledger.refresh(study.get_trials(deepcopy=False))
        return HistoryReader().read(ledger)

    def test_states(self, tmp_path):
        space = SearchSpace({"x": [1, 2, 3, 4, 5, 6]})
        with open_study(space, None, "states", tmp_path, "exhaustive") as study:
            proposals = study.ask_batch(5)
            ok, slow, failed, lost, _running = proposals
            study.tell(failed, Measurement(Outcome.LAUNCH_FAILED, None))
            study.tell(slow, Measurement(Outcome.ABANDONED, 9.0))
            study.tell(ok, Measurement(Outcome.OK, 2.0))
            study.release(lost)
            history = self.history(study.optuna, space)
            assert history.observed == ((2, None), (1, 9.0), (0, 2.0)), "in order of their ends"
            assert history.pending == (4,)

    def test_pruned_without_a_value_is_a_failure(self):
        space = SearchSpace({"x": [1, 2]})
        study = optuna.create_study()
        trial = study.ask()
        trial.suggest_categorical("x", [1, 2])
        study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        assert [value for _, value in self.history(study, space).observed] == [None]


class TestUnions:
    UNION = SpaceUnion(
        {
            "slow": SearchSpace({"sm": [8, 16, 32, 64], "unroll": list(range(1, 33))}),
            "fast": SearchSpace(
                {"sm": [8, 16, 32, 64, 96], "stages": [1, 2, 3], "pad": [0, 1, 4]}
            ),
            "never": SearchSpace({"sm": [1]}, ["sm > 1"]),
        }
    )

    def value(self, candidate):
        sm = abs(math.log2(candidate.configuration["sm"] / 64))
        if candidate.family == "slow":
            return 4 + sm + 0.01 * candidate.configuration["unroll"]
        c = candidate.configuration
        return 1 + sm + 0.5 * abs(c["stages"] - 2) + 0.1 * c["pad"]

    def test_turns_to_the_better_family(self):
        for seed in range(3):
            searcher = Searcher(self.UNION, "auto", seed)
            families = []
            for _ in range(40):
                candidate = searcher.ask()
                families.append(candidate.family)
                searcher.tell(candidate, self.value(candidate))
            best, value = searcher.best
            assert value == 1.0
            assert best.configuration["sm"] == 64
            # The slow family has three of four rows.
            assert families[12:].count("fast") > families[12:].count("slow")


class TestLargeSpaces:
    @pytest.mark.parametrize("count", [9, 22])
    def test_more_rows_than_can_be_listed(self, count):
        """1e9 rows, and more than 64 bits can number: neither is ever listed."""
        values = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
        space = SearchSpace(
            {f"p{i}": values for i in range(count)}, [f"p{i} + p{i + 1} <= 56" for i in (0, 2, 4)]
        )

        def value(row):
            point = space[row]
            return 1.0 + sum(abs(math.log2(point[f"p{i}"] / 8)) for i in range(4))

        steps = 60 if count == 9 else 16
        rows = drive(ModelProposer(StudySpace(space), 0), space, steps, value, batch=2)
        assert len(set(rows)) == steps
        assert all(0 <= row < space.size for row in rows)
        if count == 9:
            assert min(map(value, rows)) < 0.8 * min(map(value, rows[:10]))

    def test_resumes_like_any_other(self):
        space = SearchSpace({f"p{i}": list(range(1, 33)) for i in range(6)}, ["p0 >= p1"])

        def value(row):
            return float(sum(space[row].values()))

        proposer = ModelProposer(StudySpace(space), 5)
        rows = drive(proposer, space, 26, value)
        observed = tuple((row, value(row)) for row in rows)
        for done in (12, 19, 25):
            fresh = ModelProposer(StudySpace(space), 5)
            assert fresh.row(History(observed[:done], (), set(rows[:done]))) == rows[done]


class TestPriors:
    def times(self):
        return [time_of(TILES[row]) for row in range(TILES.size)]

    def best_of(self, prior, steps, seed=0):
        times = self.times()
        proposer = ModelProposer(StudySpace(TILES), seed, (prior,) if prior else ())
        rows = drive(proposer, TILES, steps, times.__getitem__)
        return min(times[row] for row in rows) / min(times)

    def test_measurements_elsewhere_help(self):
        """Of another device, whose times are off by a factor and by values it cannot have."""
        elsewhere = SearchSpace({p.name: p.values for p in TILES.parameters[:4]}, ["tx < 8"])
        rows = elsewhere.sample(150, np.random.default_rng(0)).tolist()
        points = [elsewhere[row] for row in rows]
        known = [(p, 50 * time_of({**p, "mode": "plain"})) for p in points]
        prior = MeasuredPrior(known)
        with_prior = np.mean([self.best_of(prior, 14, seed) for seed in range(3)])
        without = np.mean([self.best_of(None, 14, seed) for seed in range(3)])
        assert with_prior < without

    @pytest.mark.parametrize("sign", [1, -1])
    def test_an_estimate_can_be_overruled(self, sign):
        """Also one that says the opposite of what is true."""
        times = np.array(self.times())
        order = {tuple(TILES[row].values()): times[row] for row in range(TILES.size)}

        def estimate(columns):
            keys = zip(*(columns[p.name].tolist() for p in TILES.parameters), strict=True)
            return sign * np.log([order[key] for key in keys])

        assert self.best_of(EstimatedPrior({"": estimate}), 2 if sign > 0 else 100) == 1.0

    @staticmethod
    def told(values):
        """A prior that expects these values, by row."""
        return MeasuredPrior([(TILES[row], value) for row, value in enumerate(values)])

    def test_of_two_priors_the_one_that_is_right_is_heeded(self):
        """The other one is the same values in another order."""
        times = self.times()
        shuffled = np.random.default_rng(0).permutation(times).tolist()
        right, wrong = self.told(times), self.told(shuffled)
        for priors, heeded in (([wrong, right], 1), ([right, wrong], 0), ([wrong], None)):
            proposer = ModelProposer(StudySpace(TILES), 0, priors)
            drive(proposer, TILES, 16, times.__getitem__)
            expected = [] if heeded is None else [proposer._expectations[heeded]]
            assert proposer._heeded == expected

    def test_a_prior_tells_which_parameters_matter(self):
        space = SearchSpace({"x": [1, 2, 4, 8, 16], "y": [1, 2, 4, 8, 16]})
        known = [(each, float(each["x"])) for each in (space[row] for row in range(25))]
        lengths = MeasuredPrior(known).over(StudySpace(space)).lengths
        assert lengths["x"] < 0.5 * lengths["y"]

    def test_a_prior_without_an_opinion(self):
        for estimate in (lambda columns: np.zeros(len(columns["sm"])), lambda columns: np.nan):
            rows = [
                drive(
                    ModelProposer(StudySpace(TILES), 0, priors), TILES, 14, lambda row: row + 1.0
                )
                for priors in ([EstimatedPrior({"": estimate})], [EstimatedPrior({})])
            ]
            assert rows[0] == rows[1]

    def test_families_of_a_union(self):
        union = SpaceUnion({"a": SearchSpace({"x": [1, 2, 4]}), "b": SearchSpace({"x": [1, 2]})})
        known = [
            (Candidate("a", union.spaces["a"][1]), 1.0),
            (Candidate("b", union[3].configuration), 5.0),
        ]
        expected = MeasuredPrior(known).over(StudySpace(union)).times(range(5))
        assert np.isfinite(expected).all()
        assert expected[1] == min(expected)
        estimated = EstimatedPrior({"b": lambda columns: 1.0 * columns["x"]}).over(
            StudySpace(union)
        )
        assert estimated.times(range(5)).tolist()[3:] == [1.0, 2.0]
        assert np.isnan(estimated.times(range(3))).all()

    def test_through_a_searcher(self):
        known = [(TILES[row], time_of(TILES[row])) for row in range(0, TILES.size, 7)]
        searcher = Searcher(TILES, "auto", seed=0, prior=[MeasuredPrior(known)])
        assert time_of(searcher.ask()) < 1.5 * min(self.times())

    def test_too_little_to_learn_from(self):
        with pytest.raises(InputError, match="measurements with finite times, got 1 of 1"):
            MeasuredPrior([(TILES[0], 1.0)])
        with pytest.raises(InputError, match="got 2 of 3: leave out failures"):
            MeasuredPrior([(TILES[0], 1.0), (TILES[1], math.inf), (TILES[2], 1.0)])

    @pytest.mark.parametrize("measured", [None, [1, 2, 3], [(TILES[0], "fast"), (TILES[1], 1.0)]])
    def test_measurements_that_are_none(self, measured):
        with pytest.raises(InputError, match="a prior needs pairs of a point and its time, got"):
            MeasuredPrior(measured)


def test_all_of_a_space_in_order_of_promise():
    """A small space to the end: the proposals are its rows, the good ones first."""
    space = SearchSpace({"x": [1, 2, 4, 8, 16], "y": [1, 2, 4, 8, 16]})
    value = {
        space.index({"x": x, "y": y}): 1.0 + abs(math.log2(x / 4)) + abs(math.log2(y / 2))
        for x, y in product([1, 2, 4, 8, 16], repeat=2)
    }
    rows = drive(ModelProposer(StudySpace(space), 0), space, 25, value.__getitem__)
    assert sorted(rows) == list(range(25))
    assert min(value[row] for row in rows[:16]) == 1.0


class TestPrograms:
    """Parameters that are passed at the call make several configurations one program."""

    SPACE = SpaceUnion(
        {
            "one": SearchSpace(
                [
                    TunableParameter("tx", (1, 2, 4, 8, 16, 32)),
                    TunableParameter("block", (16, 32, 64, 128), runtime=True),
                ]
            ),
            "other": SearchSpace([TunableParameter("block", (16, 32, 64), runtime=True)]),
        }
    )

    def test_costs_are_those_of_programs_that_are_not_there(self):
        space = StudySpace(self.SPACE)
        features = FeatureMap(space)
        rows = range(space.size)
        begun = [0, space.size - 1]
        costs = log_costs(features.of(rows), features.of(begun), features.compiled)
        known = {_program(space.point(row)) for row in begun}
        for row, cost in zip(rows, costs, strict=True):
            assert (cost == 0) == (_program(space.point(row)) in known)
        assert len(set(costs.tolist())) == 2

    def test_a_search_compiles_less_than_it_tries(self):
        space = StudySpace(self.SPACE)

        def seconds(row):
            point = space.point(row)
            tile = abs(math.log2(point.configuration.get("tx", 1) / 8))
            return 1e-3 * (1 + tile + 0.1 * abs(math.log2(point.configuration["block"] / 64)))

        rows = drive(ModelProposer(space), space, 16, seconds)
        tried = [_program(space.point(row)) for row in rows]
        assert tried.count(_program(space.point(min(rows, key=seconds)))) == 4
        assert seconds(min(rows, key=seconds)) == pytest.approx(1e-3)


def _program(candidate):
    return candidate.family, candidate.configuration.get("tx")


class TestLongStudies:
    """What a proposal costs does not grow with the trials that have ended."""

    @pytest.mark.parametrize("sampler", ["auto", "random"])
    def test_every_trial_is_read_a_few_times_only(self, sampler, monkeypatch):
        read = Counter()
        was = Ledger._row

        def counted(ledger, trial):
            read[trial.number] += 1
            return was(ledger, trial)

        monkeypatch.setattr(Ledger, "_row", counted)
        searcher = Searcher(SearchSpace({"x": range(30), "y": range(30)}), sampler)
        slow = searcher.ask()  # a trial that runs all the while
        for _ in range(80):
            point = searcher.ask()
            searcher.tell(point, 1.0 + point["x"])
        searcher.tell(slow, 1.0)
        del read[0]
        assert max(read.values()) <= 6

    def test_a_reader_that_goes_on_reads_what_a_new_one_does(self):
        space = SearchSpace({"x": list(range(12))})
        study = optuna.create_study()
        ledger, reader, rng = Ledger(StudySpace(space)), HistoryReader(), random.Random(3)
        running = []
        for step in range(12):
            running.append(study.ask())
            running[-1].suggest_categorical("x", list(range(12)))
            if step % 3:
                ended = running.pop(rng.randrange(len(running)))
                state = rng.choice(["COMPLETE", "FAIL"])
                value = 1.0 if state == "COMPLETE" else None
                study.tell(ended, value, optuna.trial.TrialState[state])
            ledger.refresh(study.get_trials(deepcopy=False))
            again = Ledger(StudySpace(space))
            again.refresh(study.get_trials(deepcopy=False))
            assert reader.read(ledger) == HistoryReader().read(again)
            assert ledger.visited == again.visited
            assert ledger.rows == again.rows
