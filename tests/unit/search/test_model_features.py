"""What the model sees of configurations, of values, and of failures."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.core.configuration import Candidate
from autotune.search.claims import StudySpace
from autotune.search.model.features import FeatureMap
from autotune.search.model.surrogate import SuccessModel, informative, response
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
        assert features.groups.tolist() == [0, 0]
        # 2 divides them 5, 3, 4 and 6 times.
        assert points.features[1] == pytest.approx([5 / 6, 3 / 6, 4 / 6, 1.0])

    def test_any_two_texts_are_one_apart(self):
        features, points = seen(SearchSpace({"mode": ["a", "b", "c"]}))
        assert features.groups.tolist() == [0, 0, 0]
        for one, other in [(0, 1), (0, 2), (1, 2)]:
            gap = points.features[:, one] - points.features[:, other]
            assert float(gap @ gap) == pytest.approx(1.0)

    def test_booleans_and_single_values(self):
        features, points = seen(SearchSpace({"flag": [False, True], "one": [7], "x": [1, 2]}))
        assert features.parameters == 2
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

    def test_widening_is_the_same_as_having_had_the_candidates(self):
        whole, points, features = self.model(SearchSpace({"x": [1, 2, 4, 8, 16], "y": [1, 2, 3]}))
        widened = SuccessModel(points[:6], features.groups)
        for each, good in ((2, True), (11, False), (7, True)):
            whole.observe(points[each : each + 1], good)
            widened.observe(points[each : each + 1], good)
        widened.log_probability()
        widened.widen(points[6:])
        assert widened.log_probability() == pytest.approx(whole.log_probability(), abs=1e-4)

    def test_when_it_is_asked_does_not_matter(self):
        often, points, features = self.model(SearchSpace({"x": [1, 2, 4, 8, 16], "y": [1, 2, 3]}))
        once = SuccessModel(points, features.groups)
        for each in range(12):
            for model in (often, once):
                model.observe(points[each : each + 1], each % 3 != 1)
            often.log_probability()
        assert np.array_equal(often.log_probability(), once.log_probability())
