"""The surrogate model: what it sees of configurations, and its posterior."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from autotune.core.configuration import Candidate
from autotune.search.claims import StudySpace
from autotune.search.model.features import FeatureMap, Groups, Points
from autotune.search.model.gaussian import Kernel, Posterior, _Evidence, fit
from autotune.search.model.surrogate import (
    SuccessModel,
    informative,
    log_expected_improvement,
    response,
)
from autotune.space import SearchSpace, SpaceUnion


def seen(space, name_of_columns=False):
    features = FeatureMap(StudySpace(space))
    return features, features.of(range(space.size))


class TestFeatures:
    def test_powers_of_two_are_evenly_spaced(self):
        _, points = seen(SearchSpace({"x": [1, 2, 4, 8, 16]}))
        assert points.features.tolist() == [[0.0, 0.25, 0.5, 0.75, 1.0]]

    def test_zero_and_negative_values(self):
        _, zero = seen(SearchSpace({"x": [0, 1, 3]}))
        assert zero.features.tolist() == [[0.0, 0.5, 1.0]]
        _, negative = seen(SearchSpace({"x": [-1, 0, 3]}))
        assert negative.features.tolist() == [[0.0, 0.25, 1.0]]

    def test_divisibility_has_a_column(self):
        features, points = seen(SearchSpace({"x": [32, 40, 48, 64]}))
        assert features.groups.columns.tolist() == [0, 0]
        # 2 divides them 5, 3, 4 and 6 times.
        assert points.features[1] == pytest.approx([5 / 6, 3 / 6, 4 / 6, 1.0])

    def test_any_two_texts_are_one_apart(self):
        features, points = seen(SearchSpace({"mode": ["a", "b", "c"]}))
        assert features.groups.columns.tolist() == [0, 0, 0]
        for one, other in [(0, 1), (0, 2), (1, 2)]:
            gap = points.features[:, one] - points.features[:, other]
            assert float(gap @ gap) == pytest.approx(1.0)

    def test_booleans_and_single_values(self):
        features, points = seen(SearchSpace({"flag": [False, True], "one": [7], "x": [1, 2]}))
        assert features.parameters == 2
        assert features.groups.values.tolist() == [2, 2]
        assert points.features.tolist() == [[0, 0, 1, 1], [0, 1, 0, 1]]
        assert points.levels.tolist() == [[0, 0, 1, 1], [0, 1, 0, 1]]

    def test_values_of_several_kinds_are_categories(self):
        _, points = seen(SearchSpace({"x": [1, "auto", 2.5]}))
        assert points.features == pytest.approx(math.sqrt(0.5) * np.eye(3))

    def test_nothing_to_tell_apart(self):
        features, points = seen(SearchSpace({"x": [3]}))
        assert features.parameters == 0
        assert len(points) == 1

    def test_families_share_what_has_one_name(self):
        union = SpaceUnion(
            {"a": SearchSpace({"x": [1, 4], "y": [1, 2]}), "b": SearchSpace({"x": [2, 16]})}
        )
        features, points = seen(union)
        assert features.parameters == 3  # x, y and the family
        assert points.features[0].tolist() == [0.0, 0.0, 0.5, 0.5, 0.25, 1.0]
        assert points.features[1].tolist() == [0.0, 1.0, 0.0, 1.0, 0.5, 0.5]
        assert points.levels[1].tolist() == [0, 1, 0, 1, -1, -1]
        assert points.levels[2].tolist() == [0, 0, 0, 0, 1, 1]

    def test_rows_may_come_in_any_order(self):
        union = SpaceUnion(
            {"a": SearchSpace({"x": [1, 2, 4]}), "b": SearchSpace({"y": ["u", "v"]})}
        )
        features = FeatureMap(StudySpace(union))
        whole = features.of(range(5))
        some = features.of([4, 0, 3, 0])
        assert np.array_equal(some.features, whole.features[:, [4, 0, 3, 0]])
        assert np.array_equal(some.levels, whole.levels[:, [4, 0, 3, 0]])

    def test_rows_beyond_64_bits(self):
        space = SearchSpace({f"p{i}": list(range(1, 101)) for i in range(12)})
        points = FeatureMap(StudySpace(space)).of([0, space.size - 1])
        assert points.levels.tolist() == [[0, 99]] * 12

    def test_points_of_another_space(self):
        space = SearchSpace({"x": [1, 4], "mode": ["a", "b"]})
        others = [{"x": 16, "gone": 3}, {"x": 1, "mode": "b"}]
        features = FeatureMap(StudySpace(space), others)
        placed = features.of_points(others)
        assert placed.features[0].tolist() == [1.0, 0.0]
        assert placed.features[1].tolist() == [0.5, 1.0]
        assert features.of(range(4)).features[0].tolist() == [0.0, 0.0, 0.5, 0.5]

    def test_candidates_of_another_union(self):
        union = SpaceUnion({"a": SearchSpace({"x": [1, 2]}), "b": SearchSpace({"x": [1, 2]})})
        others = [Candidate("b", union.spaces["b"][1]), Candidate("gone", union.spaces["b"][0])]
        placed = FeatureMap(StudySpace(union), others).of_points(others)
        assert placed.levels[1].tolist() == [1, -1]

    def test_columns_of_values(self):
        union = SpaceUnion({"a": SearchSpace({"x": [1, 2]}), "b": SearchSpace({"y": [5, 6, 7]})})
        found = list(FeatureMap(StudySpace(union)).columns([4, 1, 2]))
        assert [(family, inside.tolist()) for family, inside, _ in found] == [
            ("a", [1]),
            ("b", [0, 2]),
        ]
        assert found[0][2]["x"].tolist() == [2]
        assert found[1][2]["y"].tolist() == [7, 5]


class TestResponse:
    def test_order_is_kept(self):
        values = np.array([3.0, 1.0, 1e3, 2.0, 40.0])
        assert np.argsort(response(values)).tolist() == np.argsort(values).tolist()

    def test_units_do_not_matter(self):
        values = np.array([3.0, 1.0, 1e3, 2.0, 40.0])
        assert response(values * 1e-6) == pytest.approx(response(values))

    def test_the_bad_tail_is_compressed(self):
        responses = response(np.array([1.0, 2.0, 4.0, 8.0, 1e9]))
        assert responses[4] - responses[3] < 5 * (responses[1] - responses[0])

    @settings(deadline=None)
    @given(
        st.lists(
            st.one_of(st.floats(-1e300, 1e300), st.sampled_from([0.0, 1e-9, 1e3, 5e-324])),
            min_size=1,
            max_size=9,
        )
    )
    def test_anything_finite(self, values):
        responses = response(np.array(values))
        assert np.isfinite(responses).all()
        assert abs(responses.mean()) < 1e-6
        assert responses.std() < 1 + 1e-6

    def test_informative_keeps_the_best_and_a_spread(self):
        values = np.random.default_rng(0).permutation(1000).astype(float)
        chosen = informative(values, 20)
        assert len(set(chosen)) == 20
        kept = np.sort(values[chosen])
        assert kept[:10].tolist() == list(range(10))
        assert kept[-1] == 999.0
        assert informative(values[:20], 20) == list(range(20))


class TestSuccess:
    def model(self, space):
        features, points = seen(space)
        return SuccessModel(points, features.groups), points, features

    def test_no_failure_no_opinion(self):
        model, points, _ = self.model(SearchSpace({"x": [1, 2, 4, 8, 16]}))
        model.observe(points[:1], True)
        assert model.log_probability() == 0.0

    def test_failures_make_their_surroundings_unlikely(self):
        model, points, _ = self.model(SearchSpace({"x": [1, 2, 4, 8, 16]}))
        model.observe(points[:1], True)
        model.observe(points[4:], False)
        chance = model.log_probability()
        assert (np.diff(chance) < 0).all()
        assert math.exp(chance[0]) > 0.9
        assert math.exp(chance[4]) < 0.1

    def test_a_limit_on_a_product_holds_where_nothing_was_tried(self):
        """Threads per block, say: seen to fail at a few points, all others are foretold."""
        powers = [1, 2, 4, 8, 16, 32, 64, 128]
        space = SearchSpace({"x": powers, "y": powers, "z": [1, 2, 4]})
        model, points, _ = self.model(space)
        succeeds = np.array(
            [space[row]["x"] * space[row]["y"] <= 128 for row in range(space.size)]
        )
        rng = np.random.default_rng(0)
        for row in rng.choice(space.size, 40, replace=False).tolist():
            model.observe(points[row : row + 1], bool(succeeds[row]))
        likely = model.log_probability() > math.log(0.5)
        assert (likely == succeeds).mean() > 0.9

    def test_all_fail(self):
        model, points, _ = self.model(SearchSpace({"x": [1, 2, 4, 8, 16]}))
        for at in range(4):
            model.observe(points[at : at + 1], False)
        assert np.isfinite(model.log_probability()).all()

    def test_watching_others_is_the_same_as_having_had_them(self):
        whole, points, features = self.model(SearchSpace({"x": [1, 2, 4, 8, 16], "y": [1, 2, 3]}))
        widened = SuccessModel(points[:6], features.groups)
        for each, good in ((2, True), (11, False), (7, True)):
            whole.observe(points[each : each + 1], good)
            widened.observe(points[each : each + 1], good)
        widened.log_probability()
        widened.watch(points)
        assert widened.log_probability() == pytest.approx(whole.log_probability(), abs=1e-4)

    def test_when_it_is_asked_does_not_matter(self):
        often, points, features = self.model(SearchSpace({"x": [1, 2, 4, 8, 16], "y": [1, 2, 3]}))
        once = SuccessModel(points, features.groups)
        for each in range(12):
            for model in (often, once):
                model.observe(points[each : each + 1], each % 3 != 1)
            often.log_probability()
        assert np.array_equal(often.log_probability(), once.log_probability())


COLUMNS = 3
GROUPS = Groups(np.array([0, 1, 1]), names=("few", "many"), values=np.array([2, 16]))


def points(count, seed, priors=0):
    """Random points; the levels are those of a coarse grid, so that some agree."""
    rng = np.random.default_rng(seed)
    features = rng.integers(0, 4, (COLUMNS, count)) / 3
    levels = np.stack([features[0] * 3, features[1] * 3]).astype(np.int32)
    expectations = rng.standard_normal((priors, count))
    return Points(features.astype(np.float32), levels, expectations.astype(np.float32))


def kernel(noise=1e-2):
    return Kernel(np.array([1.5, 0.8, 2.0]), signal=1.3, effects=0.4, noise=noise)


def dense(kernel, some, others):
    """The covariance written out, one pair at a time, in double precision."""
    result = np.empty((len(some), len(others)))
    for i in range(len(some)):
        for j in range(len(others)):
            gap = (some.features[:, i].astype(float) - others.features[:, j]) * kernel.scales
            r = math.sqrt(3 * float(gap @ gap))
            smooth = (1 + r) * math.exp(-r)
            agree = float(np.mean(some.levels[:, i] == others.levels[:, j]))
            prior = float(some.expectations[:, i] @ others.expectations[:, j])
            effects = 0.3 + 0.7 * (agree + agree**2) / 2
            result[i, j] = kernel.signal * smooth + kernel.effects * effects + prior
    return result


def dense_posterior(kernel, candidates, observed, responses):
    """Textbook mean and variance (Rasmussen and Williams, equations 2.25 and 2.26)."""
    covariance = dense(kernel, observed, observed)
    covariance += (kernel.noise + 1e-6) * np.eye(len(observed))
    cross = dense(kernel, candidates, observed)
    prior = 0.5 * observed.expectations.sum(axis=0)
    mean = cross @ np.linalg.solve(covariance, responses - prior)
    mean += 0.5 * candidates.expectations.sum(axis=0)
    explained = np.einsum("ij,ji->i", cross, np.linalg.solve(covariance, cross.T))
    variance = dense(kernel, candidates, candidates).diagonal() - explained
    return mean, variance


class TestPosterior:
    @pytest.mark.parametrize("priors", [0, 2])
    def test_agrees_with_the_textbook(self, priors):
        candidates, observed = points(40, 0, priors), points(12, 1, priors)
        responses = np.random.default_rng(2).standard_normal(12)
        posterior = Posterior(kernel(), candidates, observed, capacity=12)
        mean, variance = dense_posterior(kernel(), candidates, observed, responses)
        assert posterior.mean(responses) == pytest.approx(mean, abs=2e-4)
        assert posterior.variance == pytest.approx(variance, abs=2e-4)
        assert posterior.predict(candidates, responses) == pytest.approx(mean, abs=2e-4)
        together = posterior.covariance([3, 0, 7])
        assert together.diagonal() == pytest.approx(variance[[3, 0, 7]], abs=2e-4)
        some, cross = candidates[[3, 0, 7]], dense(kernel(), candidates[[3, 0, 7]], observed)
        noisy = dense(kernel(), observed, observed) + (kernel().noise + 1e-6) * np.eye(12)
        textbook = dense(kernel(), some, some) - cross @ np.linalg.solve(noisy, cross.T)
        assert together == pytest.approx(textbook, abs=2e-4)
        at_points, _ = dense_posterior(kernel(), observed, observed, responses)
        assert posterior.fitted(responses) == pytest.approx(at_points, abs=2e-4)

    def test_one_point_at_a_time_is_the_same_as_all_at_once(self):
        candidates, observed = points(30, 0, 1), points(15, 1, 1)
        responses = np.random.default_rng(2).standard_normal(15)
        whole = Posterior(kernel(), candidates, observed, capacity=15)
        grown = Posterior(kernel(), candidates, observed[:4], capacity=15)
        for at in range(4, 15):
            grown.append(observed[at : at + 1])
        assert grown.mean(responses) == pytest.approx(whole.mean(responses), abs=1e-4)
        assert grown.variance == pytest.approx(whole.variance, abs=1e-4)

    def test_truncating_restores_exactly_what_there_was(self):
        candidates, observed = points(30, 0), points(9, 1)
        posterior = Posterior(kernel(), candidates, observed[:5], capacity=9)
        before = posterior.variance.copy()
        for at in range(5, 9):
            posterior.append(observed[at : at + 1])
        assert posterior.variance.sum() < before.sum()
        posterior.truncate(5)
        assert np.array_equal(posterior.variance, before)
        assert len(posterior) == 5

    def test_settled_points_stay(self):
        candidates, observed = points(30, 0), points(9, 1)
        posterior = Posterior(kernel(), candidates, observed[:5], capacity=9)
        for at in range(5, 9):
            posterior.append(observed[at : at + 1])
            posterior.settle(7 if at >= 7 else 5)
        seven = Posterior(kernel(), candidates, observed[:7], capacity=9)
        posterior.truncate(7)
        assert posterior.variance == pytest.approx(seven.variance, abs=1e-4)

    def test_widening_is_the_same_as_having_had_the_candidates(self):
        candidates, observed = points(30, 0, 1), points(9, 1, 1)
        responses = np.random.default_rng(2).standard_normal(9)
        whole = Posterior(kernel(), candidates, observed, capacity=10)
        widened = Posterior(kernel(), candidates[:20], observed, capacity=10)
        widened.widen(candidates[20:])
        assert widened.mean(responses) == pytest.approx(whole.mean(responses), abs=1e-4)
        assert widened.variance == pytest.approx(whole.variance, abs=1e-4)
        widened.append(observed[:1])

    def test_equal_points_without_noise(self):
        """The nugget keeps what is singular solvable."""
        same = points(1, 0)[[0] * 6]
        posterior = Posterior(kernel(noise=0.0), same, same, capacity=8)
        posterior.append(same[:1])
        assert np.isfinite(posterior.mean(np.ones(7))).all()
        assert np.isfinite(posterior.variance).all()


class TestFit:
    def test_finds_which_parameter_matters(self):
        observed = points(60, 3)
        responses = np.sin(3 * observed.features[0].astype(float))
        responses = (responses - responses.mean()) / responses.std()
        found = fit(observed, responses, GROUPS)
        assert found.scales[0] > 3 * found.scales[1]
        assert found.scales[1] == found.scales[2], "columns of one parameter share a scale"
        assert found.noise < 1e-2

    def test_expects_less_of_parameters_with_few_values(self):
        found = fit(points(1, 0), np.zeros(1), GROUPS)
        assert found.scales[0] < 0.5 * found.scales[1], "nothing was learned yet"
        told = fit(points(1, 0), np.zeros(1), GROUPS, lengths={"few": 0.1})
        assert 1 / told.scales[0] == pytest.approx(0.1, rel=0.1)
        assert told.scales[1] == pytest.approx(found.scales[1], rel=0.1)

    def test_finds_the_noise(self):
        observed = points(100, 4)
        responses = np.random.default_rng(5).standard_normal(100)
        found = fit(observed, responses, GROUPS)
        assert found.noise > 0.3

    @settings(max_examples=30, deadline=None)
    @given(
        count=st.integers(1, 12),
        seed=st.integers(0, 99),
        kind=st.sampled_from(["constant", "noise", "one outlier"]),
    )
    def test_fits_anything_in_silence(self, count, seed, kind):
        observed = points(count, seed)
        rng = np.random.default_rng(seed)
        responses = rng.standard_normal(count) if kind == "noise" else np.zeros(count)
        responses[0] = 30.0 if kind == "one outlier" else responses[0]
        found = fit(observed, responses, GROUPS)
        assert np.isfinite(found.scales).all()
        assert found.signal > 0
        assert found.noise > 0


class TestExpectedImprovement:
    @pytest.mark.parametrize("z", [-6.0, -3.0, -1.001, -0.999, 0.0, 0.7, 4.0])
    def test_is_the_expectation(self, z):
        """Against numerical integration of max(best - f, 0) over the density of f."""
        best, deviation = 0.4, 0.3
        mean = best - z * deviation
        # Beyond 12 deviations there is nothing.
        found, _ = quad(
            lambda f: (best - f) * norm.pdf(f, mean, deviation),
            mean - 12 * deviation,
            best,
            epsabs=1e-14,
        )
        scored = log_expected_improvement(
            np.array([mean], np.float32), np.array([deviation**2], np.float32), best
        )
        assert scored[0] == pytest.approx(math.log(found), abs=2e-3)

    def test_orders_hopeless_candidates(self):
        mean = np.linspace(0.0, 500.0, 200, dtype=np.float32)
        scored = log_expected_improvement(mean, np.full(200, 0.04, np.float32), best=-1.0)
        assert np.isfinite(scored).all()
        assert (np.diff(scored) < 0).all()

    def test_has_no_step_where_its_forms_meet(self):
        z = np.linspace(-31, -29, 400, dtype=np.float32)
        scored = log_expected_improvement(-z, np.ones(400, np.float32), best=0.0)
        steps = np.diff(scored)
        assert (steps > 0).all()
        assert steps.max() < 1.1 * steps.min()

    def test_a_variance_that_rounding_made_negative(self):
        scored = log_expected_improvement(
            np.array([1.0], np.float32), np.array([-1e-7], np.float32), best=0.0
        )
        assert np.isfinite(scored).all()


def test_the_gradient_of_the_evidence():
    """Against central differences, in every parameter."""
    observed = points(25, 7, priors=1)
    responses = np.random.default_rng(8).standard_normal(25)
    evidence = _Evidence(observed, responses, GROUPS, {})
    at = np.array([-0.4, 0.3, 0.2, -0.5, -2.0])
    _, gradient = evidence.negative(at)
    for number, step in enumerate(1e-5 * np.eye(len(at))):
        above, below = (evidence.negative(at + sign * step)[0] for sign in (1, -1))
        assert gradient[number] == pytest.approx((above - below) / 2e-5, rel=1e-4, abs=1e-4)
