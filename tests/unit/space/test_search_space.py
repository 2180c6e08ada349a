"""Search spaces and their unions against brute force, and on recorded spaces of real kernels."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.core.configuration import Candidate, Configuration
from autotune.core.errors import ExpressionError, SpaceError
from autotune.space import (
    Expression,
    Rejection,
    Restriction,
    SearchSpace,
    SpaceUnion,
    TunableParameter,
)

RECORDED = Path(__file__).parents[2] / "fixtures" / "spaces"
VALID = {
    "dedispersion": 11_130,
    "expdist": 294_000,
    "gemm": 116_928,
    "hotspot": 349_853,
    "microhh": 138_600,
    "prl_2x2": 1_200,
    "prl_4x4": 10_800,
    "prl_8x8": 48_720,
}


def recorded(name: str) -> tuple[dict[str, list[int]], list[str]]:
    """Parameters and restrictions, with the limit that Kernel Tuner adds by itself."""
    data = json.loads((RECORDED / f"{name}.json").read_text())
    axes = [f"block_size_{axis}" for axis in "xyz" if f"block_size_{axis}" in data["parameters"]]
    limit = [f"{' * '.join(axes)} <= 1024"] if axes else []
    return data["parameters"], data["restrictions"] + limit


def holds(restrictions: list[str], names: dict[str, Any]) -> bool:
    """The oracle: Python itself."""
    scope = {"__builtins__": {}, "min": min, "max": max, **names}
    try:
        return all(eval(restriction, scope) for restriction in restrictions)
    except ZeroDivisionError:
        return False


def brute_force(parameters: dict[str, list[Any]], restrictions: list[str]) -> list[dict[str, Any]]:
    """Valid configurations, by trying all."""
    points = (
        dict(zip(parameters, values, strict=True))
        for values in itertools.product(*parameters.values())
    )
    return [names for names in points if holds(restrictions, names)]


@pytest.mark.parametrize("name", VALID)
def test_recorded_space(name: str) -> None:
    parameters, restrictions = recorded(name)
    space = SearchSpace(parameters, restrictions)
    assert space.cartesian == json.loads((RECORDED / f"{name}.json").read_text())["cartesian"]
    assert len(space) == VALID[name]
    columns = space.columns
    rows = np.stack(list(columns.values()), axis=1)
    assert len(np.unique(rows, axis=0)) == VALID[name]
    for row in np.random.default_rng(0).integers(0, len(space), 200):
        configuration = space[int(row)]
        assert {each: column[row] for each, column in columns.items()} == configuration
        assert space.index(configuration) == space.find(configuration) == row
        assert configuration in space
        assert space.rejection(configuration) is None
        assert holds(restrictions, dict(configuration))
    assert space.funnel()[-1].remaining == VALID[name]


small_values = st.one_of(
    st.lists(st.integers(0, 8), min_size=1, max_size=4, unique=True),
    st.lists(st.sampled_from([0.5, 1.5, 2.0, 8.0]), min_size=1, max_size=3, unique=True),
    st.just([False, True]),
)
small_restrictions = st.lists(
    st.sampled_from(
        [
            "a * b <= 12",
            "a % b == 0",
            "b == 0 or a % b == 0",
            "c != 0 and a / c < 3",
            "1 <= a + d < 9",
            "(a < 5 or c > 2) and d >= b",
            "a in [0, 1, 4] and e != a",
            "not (c == d)",
            "min(a, d) < max(b, e)",
            "e",
            "b > 1",
            "a * b * c * d * e >= 0 and c // d <= 2",
            "2 > 1",
        ]
    ),
    max_size=5,
)
small_spaces = st.tuples(
    st.fixed_dictionaries(dict.fromkeys("abcde", small_values)), small_restrictions
)


@given(small_spaces)
def test_rows_are_those_of_brute_force(drawn: tuple[dict[str, list[Any]], list[str]]) -> None:
    parameters, restrictions = drawn
    expected = brute_force(parameters, restrictions)
    space = SearchSpace(parameters, restrictions)
    assert space.size == len(expected)
    found = list(space)
    assert sorted(map(repr, found)) == sorted(repr(Configuration(each)) for each in expected)
    # rows are numbered, and found again, whatever way one asks
    for row, configuration in enumerate(found):
        assert space[row] == space[row - len(found)] == configuration
        assert space.index(configuration) == row
    for name, column in space.columns.items():
        assert column.tolist() == [configuration[name] for configuration in found]
    codes = space.codes(np.arange(space.size))
    for parameter, column in zip(space.parameters, codes.T, strict=True):
        values = [parameter.values[code] for code in column]
        assert values == [configuration[parameter.name] for configuration in found]
    valid = set(found)
    for point in itertools.product(*parameters.values()):
        configuration = Configuration(dict(zip(parameters, point, strict=True)))
        assert (configuration in space) == (configuration in valid)
        assert (space.rejection(configuration) is None) == (configuration in valid)


@given(small_spaces)
def test_funnel_is_that_of_brute_force(drawn: tuple[dict[str, list[Any]], list[str]]) -> None:
    parameters, restrictions = drawn
    steps = SearchSpace(parameters, restrictions).funnel()
    assert [step.expr for step in steps] == restrictions
    assert [step.remaining for step in steps] == [
        len(brute_force(parameters, restrictions[: number + 1]))
        for number in range(len(restrictions))
    ]


def test_order_of_rows() -> None:
    connected = SearchSpace({"x": [4, 1, 2], "y": [1, 2, 3]}, ["x + y < 6"])
    assert [(c["x"], c["y"]) for c in connected] == [
        (4, 1), (1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)
    ]  # fmt: skip
    # two groups, {a, c} and {b}: the group of the first parameter is the most significant
    grouped = SearchSpace({"a": [1, 2], "b": [1, 2], "c": [1, 2]}, ["a != c"])
    assert [(c["a"], c["c"], c["b"]) for c in grouped] == [
        (1, 2, 1), (1, 2, 2), (2, 1, 1), (2, 1, 2)
    ]  # fmt: skip


def distance(parameters: dict[str, list[Any]], left: Any, right: Any) -> Fraction:
    total = Fraction(0)
    for name, values in parameters.items():
        if any(isinstance(value, bool | str) for value in values):
            total += left[name] != right[name]
        elif len(values) > 1:
            ranks = sorted(values)
            gap = abs(ranks.index(left[name]) - ranks.index(right[name]))
            total += Fraction(gap, len(values) - 1)
    return total


@given(small_spaces, st.data())
def test_nearest_is_that_of_brute_force(
    drawn: tuple[dict[str, list[Any]], list[str]], data: st.DataObject
) -> None:
    parameters = {**drawn[0], "mode": ["x", "y"]}
    space = SearchSpace(parameters, drawn[1])
    target = data.draw(
        st.fixed_dictionaries({n: st.sampled_from(v) for n, v in parameters.items()})
    )
    ranked = sorted(
        range(space.size), key=lambda row: (distance(parameters, target, space[row]), row)
    )
    excluded = set(
        data.draw(st.sampled_from([ranked[:n] for n in (0, 1, 5, 70, len(ranked) - 1)]))
    )
    excluded |= set(data.draw(st.lists(st.sampled_from(ranked))) if ranked else [])
    expected = next((row for row in ranked if row not in excluded), None)
    assert space.nearest(target, excluded) == expected
    assert space.nearest(target, set(ranked)) is None


@pytest.mark.parametrize(
    "restrictions",
    [["a + b + c + d <= 9"], ["a + b == c + d"], ["a < b", "b < c"], ["a + d == 8"]],
    ids=" and ".join,
)
def test_where_hardly_anything_is_valid_the_nearest_is_that_of_brute_force(
    restrictions: list[str],
) -> None:
    """What the last parameters must be decides which first ones lead to the nearest row."""
    drawn, parted = random.Random(0), 0
    for _ in range(20):
        parameters = {name: sorted(drawn.sample(range(9), 4)) for name in "abcd"}
        space = SearchSpace(parameters, restrictions)
        target = {name: drawn.choice(values) for name, values in parameters.items()}
        ranked = sorted(
            range(space.size), key=lambda row: (distance(parameters, target, space[row]), row)
        )
        parted += target not in space
        for visited in (0, 1, 3):
            expected = ranked[visited] if visited < space.size else None
            assert space.nearest(target, set(ranked[:visited])) == expected
    assert parted > 5


def test_nearest_of_values_that_are_not_in_the_space() -> None:
    space = SearchSpace({"x": [1, 2, 4, 8], "mode": ["a", "b"], "y": [10, 20]}, ["x != 4"])
    assert space[space.nearest({"x": 4, "mode": "b", "y": 20}) or 0] == {
        "x": 2,
        "mode": "b",
        "y": 20,
    }
    assert space[space.nearest({"x": 100, "y": 14}) or 0] == {"x": 8, "mode": "a", "y": 10}
    assert space[space.nearest({"x": 7, "mode": "?", "z": 1}) or 0] == {
        "x": 8,
        "mode": "a",
        "y": 10,
    }
    assert space.nearest({}) == 0
    assert space.nearest({"x": "text", "mode": 3, "y": None}) == 0  # type: ignore[dict-item]


def test_nearest_with_thousands_of_exclusions() -> None:
    space = SearchSpace({name: list(range(8)) for name in "abcdef"}, ["a != b"])
    target = dict(zip("abcdef", (3, 3, 0, 7, 2, 5), strict=True))
    gaps = np.abs(space.codes(np.arange(space.size)) - list(target.values())).sum(axis=1)
    ranked = np.argsort(gaps, kind="stable").tolist()
    for visited in (1, 60, 500, 4000):
        assert space.nearest(target, set(ranked[:visited])) == ranked[visited]


def test_a_space_too_large_to_list() -> None:
    """A trillion valid configurations: counted, indexed, found and sampled group by group."""
    parameters = {f"{axis}{i}": list(range(1, 17)) for i in range(6) for axis in "xy"}
    restrictions = [f"x{i} * y{i} <= 64" for i in range(6)]
    space = SearchSpace(parameters, restrictions)
    pairs = len(brute_force({"x": [*range(1, 17)], "y": [*range(1, 17)]}, ["x * y <= 64"]))
    assert space.size == pairs**6 > 10**12
    assert space.cartesian == 256**6
    rows = [0, 1, space.size // 3, space.size - 1, *space.sample(50, np.random.default_rng(1))]
    for row in map(int, rows):
        assert space.index(space[row]) == row
        assert all(space[row][f"x{i}"] * space[row][f"y{i}"] <= 64 for i in range(6))  # type: ignore[operator]
    assert {"x0": 16, "y0": 5} | {n: 1 for n in parameters if n not in ("x0", "y0")} not in space
    assert [step.remaining for step in space.funnel()] == [
        pairs**n * 256 ** (6 - n) for n in range(1, 7)
    ]
    assert space.nearest(dict.fromkeys(parameters, 16)) is not None
    with pytest.raises(SpaceError, match="too many to list"):
        _ = space.columns


def test_more_rows_than_an_integer_register_counts() -> None:
    space = SearchSpace({f"p{i}": list(range(100)) for i in range(12)})
    assert space.size == 10**24
    assert space.index(space[10**24 - 1]) == 10**24 - 1
    assert space.nearest(dict.fromkeys(space[0], 99)) == 10**24 - 1
    with pytest.raises(SpaceError, match="cannot sample"):
        space.sample(1, np.random.default_rng(0))


def test_a_group_whose_rows_need_several_words() -> None:
    """Forty connected parameters with 2**80 combinations, of which 43 are valid."""
    names = [f"p{i:02}" for i in range(40)]
    ordered = [f"{left} <= {right}" for left, right in itertools.pairwise(names)]
    space = SearchSpace(
        {name: [0, 1, 2, 3] for name in names}, [*ordered, "p00 >= p39 - 1", "p39 < 2"]
    )
    assert space.cartesian == 2**80
    expected = [[0] * (40 - ones) + [1] * ones for ones in range(41)]
    assert [list(configuration.values()) for configuration in space] == expected
    for row, configuration in enumerate(space):
        assert space.index(configuration) == row
    assert dict(zip(names, [1] + [0] * 39, strict=True)) not in space


def test_sampling_is_uniform_over_valid_configurations() -> None:
    space = SearchSpace({"x": [1, 2, 3], "y": [1, 2, 3], "z": [0, 1]}, ["x >= y"])
    rows = space.sample(12_000, np.random.default_rng(0))
    counts = np.bincount(rows, minlength=space.size)
    assert len(counts) == 12
    assert counts.min() > 850
    assert counts.max() < 1150
    assert np.array_equal(rows, space.sample(12_000, np.random.default_rng(0)))


def test_restrictions_never_wrap_around() -> None:
    space = SearchSpace({"x": [2**40, 2**62, 3], "y": [2**40, 4]}, ["x * y >= 2 ** 63"])
    assert [(c["x"], c["y"]) for c in space] == [(2**40, 2**40), (2**62, 2**40), (2**62, 4)]


def test_values_of_several_kinds() -> None:
    space = SearchSpace(
        {"mode": ["fast", "exact", 3], "on": [True, False], "s": [1, 0.5], "n": [10**30, 1]},
        [
            "mode in ['fast', 3] or s < 1",
            "on or mode != 3",
            "mode != 'fast' and mode != 'exact' or n == 1",
        ],
    )
    assert all(c["mode"] == 3 or c["n"] == 1 for c in space)
    kinds = {name: column.dtype.kind for name, column in space.columns.items()}
    assert kinds == {"mode": "O", "on": "b", "s": "f", "n": "O"}
    assert [type(c["on"]) for c in space] == [bool] * len(space)
    assert {type(c["s"]) for c in space} == {int, float}


def test_numpy_values_and_equal_values() -> None:
    space = SearchSpace({"x": np.array([1, 2, 4], dtype=np.int16), "y": [np.float32(0.5)]})  # type: ignore[dict-item]
    assert type(space[0]["x"]) is int
    assert {"x": np.int64(2), "y": 0.5} in space
    assert {"x": True, "y": 0.5} in space
    assert space.index({"x": 1.0, "y": 0.5}) == 0


def test_a_space_that_is_empty() -> None:
    for restriction in ("x > 5", "x + y > 50", "limit > 3", "1 > 2", "x / zero > 0"):
        space = SearchSpace(
            {"x": [1, 2], "y": [3, 4]}, [restriction], constants={"limit": 2, "zero": 0}
        )
        assert len(space) == 0
        assert not space
        assert list(space) == []
        assert {"x": 1, "y": 3} not in space
        assert space.nearest({"x": 1, "y": 3}) is None
        assert [column.size for column in space.columns.values()] == [0, 0]
        assert space.funnel()[0].remaining == 0
        with pytest.raises(IndexError):
            space[0]
        with pytest.raises(SpaceError, match="cannot sample"):
            space.sample(1, np.random.default_rng(0))


def threads_space() -> SearchSpace:
    whole = {
        "threads": Expression.parse("(sm / ty) * (sk / tx)", exact_division=True),
        "registers": Expression.parse("tx * ty + 2 * sm / threads", exact_division=True),
    }
    return SearchSpace(
        {"sm": [32, 64, 128], "sk": [64, 128], "ty": [1, 3, 8], "tx": [1, 8, 0]},
        [
            Restriction(
                Expression.parse("threads <= max_threads_per_block"),
                "hardware limit on threads per block",
            ),
            "registers >= 2",
        ],
        constants={"max_threads_per_block": 1024, "unused": 1},
        definitions=whole,
    )


def test_definitions_imply_whole_divisions() -> None:
    space = threads_space()
    assert [(each.text, each.reason) for each in space.restrictions[:3]] == [
        ("sm % ty == 0", "sm / ty must be a whole number (threads)"),
        ("sk % tx == 0", "sk / tx must be a whole number (threads)"),
        ("2 * sm % threads == 0", "2 * sm / threads must be a whole number (registers)"),
    ]
    expected = []
    for sm, sk, ty, tx in itertools.product([32, 64, 128], [64, 128], [1, 3, 8], [1, 8, 0]):
        if tx == 0 or sm % ty or sk % tx:
            continue
        threads = (sm // ty) * (sk // tx)
        if 2 * sm % threads == 0 and threads <= 1024 and tx * ty + 2 * sm // threads >= 2:
            expected.append({"sm": sm, "sk": sk, "ty": ty, "tx": tx})
    assert [dict(configuration) for configuration in space] == expected
    remaining = [step.remaining for step in space.funnel()]
    assert remaining[-1] == len(expected)
    assert remaining == sorted(remaining, reverse=True)


def test_rejections_show_the_numbers() -> None:
    space = SearchSpace(
        {"sm": [32, 64, 128], "sk": [64, 128], "ty": [1, 3], "tx": [1, 4]},
        [
            Restriction(
                Expression.parse("threads <= max_threads_per_block"),
                "hardware limit on threads per block",
            )
        ],
        constants={"max_threads_per_block": 1024},
        definitions={"threads": Expression.parse("sm / ty * (sk / tx)", exact_division=True)},
    )
    rejection = space.rejection({"sm": 32, "sk": 64, "ty": 1, "tx": 1})
    assert rejection == Rejection(
        "threads <= max_threads_per_block",
        "hardware limit on threads per block",
        {"threads": 2048, "max_threads_per_block": 1024},
    )
    assert str(rejection) == (
        "threads <= max_threads_per_block: hardware limit on threads per block "
        "(threads = 2048, max_threads_per_block = 1024)"
    )
    assert str(space.rejection({"sm": 32, "sk": 64, "ty": 3, "tx": 1})) == (
        "sm % ty == 0: sm / ty must be a whole number (threads) (sm = 32, ty = 3)"
    )
    assert str(space.rejection({"sm": 33, "sk": 64, "ty": 3, "tx": 1})) == (
        "sm in [32, 64, 128]: not one of the parameter's values (sm = 33)"
    )
    assert space.rejection({"sm": 32, "sk": 64, "ty": 1, "tx": 4}) is None
    with pytest.raises(SpaceError, match="not in the space: sm % ty == 0"):
        space.index({"sm": 32, "sk": 64, "ty": 3, "tx": 1})
    assert space.find({"sm": 32, "sk": 64, "ty": 3, "tx": 1}) is None
    assert space.find({"sm": 33, "sk": 64, "ty": 3, "tx": 1}) is None


@pytest.mark.parametrize("method", ["rejection", "index", "find"])
def test_configurations_with_other_parameters_are_refused(method: str) -> None:
    space = SearchSpace({"x": [1], "y": [2]})
    with pytest.raises(SpaceError, match=r"lacks \['y'\]; the parameters are x, y"):
        getattr(space, method)({"x": 1})
    with pytest.raises(SpaceError, match=r"has unknown \['z'\]"):
        getattr(space, method)({"x": 1, "y": 2, "z": 3})
    assert {"x": 1} not in space
    assert {"x": 1, "y": 2, "z": 3} not in space
    assert "x" not in space


@pytest.mark.parametrize(
    ("parameters", "restrictions", "message"),
    [
        ({}, [], "at least one parameter"),
        ({"x": []}, [], "parameter x: needs at least one value"),
        ({"x": [1, 2, 1]}, [], "parameter x: value 1 repeats 1"),
        ({"x": [1, True]}, [], "parameter x: value True repeats 1"),
        (
            {"x": [1, [2]]},
            [],
            r"parameter x: values: expected a bool, int, float or str, got \[2\]",
        ),
        ({"x": [None]}, [], "parameter x: values: expected"),
        ({"x": [float("nan")]}, [], "parameter x: NaN"),
        ({"x": "abc"}, [], "parameter x: values must be a list"),
        ({"x": 3}, [], "parameter x: values"),
        ({"": [1]}, [], "name must be a non-empty text"),
        ({"x": [1]}, ["x < y"], "restriction 'x < y': unknown name 'y'; known names: x"),
        ({"x": [1]}, "x < 1", "restrictions must be a list"),
    ],
)
def test_bad_spaces_are_refused(parameters: Any, restrictions: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=message) as refused:
        SearchSpace(parameters, restrictions)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("default", [2, np.int64(2), np.float32(2), 2.0])
def test_a_default_is_a_value_of_python_whatever_it_was_given_as(default: Any) -> None:
    kept = TunableParameter("x", (1, 2.0, 3), default=default).default
    assert kept == 2
    assert type(kept) in (int, float)


def test_bad_names_are_refused() -> None:
    with pytest.raises(SpaceError, match="parameter x is declared twice"):
        SearchSpace([TunableParameter("x", (1,)), TunableParameter("x", (2,))])
    with pytest.raises(SpaceError, match="default 3 is not one of its values"):
        TunableParameter("x", (1, 2), default=3)
    with pytest.raises(SpaceError, match="constant x: a parameter has that name"):
        SearchSpace({"x": [1]}, constants={"x": 1})
    with pytest.raises(SpaceError, match="constant y: expected"):
        SearchSpace({"x": [1]}, constants={"y": [1]})  # type: ignore[dict-item]
    with pytest.raises(SpaceError, match="definition x: a parameter or constant"):
        SearchSpace({"x": [1]}, definitions={"x": Expression.parse("1")})
    with pytest.raises(SpaceError, match="definition d = 'e': unknown name 'e'"):
        SearchSpace(
            {"x": [1]}, definitions={"d": Expression.parse("e"), "e": Expression.parse("x")}
        )
    with pytest.raises(ExpressionError, match="not an expression"):
        SearchSpace({"x": [1]}, ["x <"])


def test_ordering_text_against_a_number_names_the_restriction() -> None:
    space = SearchSpace({"mode": ["a", "b"], "x": [1, 2]}, ["mode < x"])
    with pytest.raises(ExpressionError, match="expression 'mode < x': < cannot order 'a' and 1"):
        len(space)


def test_from_configurations() -> None:
    rows = [
        {"x": 4, "mode": "b"},
        {"x": 1, "mode": "b"},
        {"x": 4, "mode": "a"},
        {"x": 2.5, "mode": "a"},
    ]
    space = SearchSpace.from_configurations(rows)
    assert [parameter.values for parameter in space.parameters] == [(1, 2.5, 4), ("b", "a")]
    assert [dict(configuration) for configuration in space] == [rows[1], rows[3], rows[0], rows[2]]
    assert all(row in space for row in rows)
    assert {"x": 1, "mode": "a"} not in space
    assert str(space.rejection({"x": 1, "mode": "a"})) == (
        "listed: not one of the 4 listed configurations (x = 1, mode = a)"
    )
    assert space.funnel() == []
    assert space[space.nearest({"x": 1, "mode": "a"}) or 0] == {"x": 2.5, "mode": "a"}
    assert SearchSpace.from_configurations([{"x": 1}, {"x": 2}])[0] == {"x": 1}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "at least one configuration"),
        ([{"x": 1}, {"x": 2}, {"x": 1.0}], "configuration 2 repeats configuration 0"),
        (
            [{"x": 1}, {"y": 1}],
            r"configuration 1 has parameters \['y'\], the first one has \['x'\]",
        ),
        ([{"x": [1]}], "parameter x: expected"),
        ([{}], "at least one parameter"),
    ],
)
def test_bad_configurations_are_refused(rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        SearchSpace.from_configurations(rows)


def test_from_configurations_agrees_with_restrictions() -> None:
    restricted = SearchSpace({"x": [1, 2, 3], "y": [1, 2, 3]}, ["x <= y"])
    listed = SearchSpace.from_configurations(reversed(list(restricted)))
    assert list(listed) == list(restricted)


def test_digest_is_about_what_decides_validity() -> None:
    def digest(**changes: Any) -> str:
        arguments: dict[str, Any] = {
            "parameters": {"x": [1, 2], "y": [3, 4]},
            "restrictions": ["x < y + limit"],
            "constants": {"limit": 1, "unused": 5},
        }
        return SearchSpace(**(arguments | changes)).digest

    assert digest() == digest()
    assert len(digest()) == 16
    assert digest(constants={"limit": 1, "unused": 6}) == digest()
    different = [
        digest(constants={"limit": 2}),
        digest(parameters={"x": [2, 1], "y": [3, 4]}),
        digest(parameters={"x": [1, 2], "z": [3], "y": [3, 4]}),
        digest(parameters={"x": [1.0, 2], "y": [3, 4]}),
        digest(restrictions=["x < y + limit", "x > 0"]),
        digest(definitions={"d": Expression.parse("x")}),
        SearchSpace.from_configurations([{"x": 1, "y": 1}, {"x": 2, "y": 2}]).digest,
        SearchSpace.from_configurations([{"x": 1, "y": 2}, {"x": 2, "y": 1}]).digest,
    ]
    assert len({digest(), *different}) == len(different) + 1


def test_a_step_of_the_funnel_that_is_too_expensive_is_unknown() -> None:
    """A thousand million combinations that no two values of a parameter have in common."""
    parameters = {name: [3**power for power in range(30)] for name in "abcdef"}
    product = "(a + b) * (a + c) * (a + d) * (a + e) * (a + f) % 7 != 3"
    space = SearchSpace(parameters, [product, "a == 1 and b == 1 and c == 1 and d == 1"])
    # the first count stops at its allowance; shrink it, since only the giving up matters here
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("autotune.space.building._COUNTING_ALLOWANCE", 100_000)
        first, last = (step.remaining for step in space.funnel())
    assert first is None
    assert last == sum(
        2 * 2 * 2 * (1 + 3**e) * (1 + 3**f) % 7 != 3 for e in range(30) for f in range(30)
    )


def test_rows_outside_the_space() -> None:
    space = SearchSpace({"x": [1, 2]})
    for row in (2, -3):
        with pytest.raises(IndexError, match="outside a space of 2"):
            space[row]
    with pytest.raises(IndexError, match=r"0\.\.1"):
        space.codes(np.array([0, 2]))


@settings(max_examples=20)
@given(st.integers(2, 40), st.integers(2, 40))
def test_distances_are_exact_multiples(first: int, second: int) -> None:
    """Moving to the far end of any parameter costs the same, so the lowest row wins."""
    space = SearchSpace({"a": list(range(first)), "b": list(range(second))})
    ends = {0, (first - 1) * second, second - 1}
    middle = set(range(space.size)) - ends
    assert space.nearest({"a": 0, "b": 0}, middle | {0}) == second - 1


@pytest.mark.parametrize(
    "space",
    [
        SearchSpace({"x": [1, 2, 4], "mode": ["a", "b"]}, ["x ** 2 < 9 or mode == 'a' and not x"]),
        SearchSpace(
            {"x": range(9)}, ["half <= 3"], definitions={"half": Expression.parse("x // 2")}
        ),
        SearchSpace.from_configurations([{"x": 2}, {"x": 1}]),
    ],
    ids=["restrictions", "definitions", "listed"],
)
def test_spaces_are_copied_and_sent_to_other_processes(space: SearchSpace) -> None:
    rows = list(space)
    for other in (pickle.loads(pickle.dumps(space)), copy.deepcopy(space)):
        assert other.digest == space.digest
        assert list(other) == rows
        assert [step.remaining for step in other.funnel()] == [
            step.remaining for step in space.funnel()
        ]


def test_a_slice_is_a_list_of_configurations() -> None:
    space = SearchSpace({"x": range(10)}, ["x % 2 == 0"])
    assert space[0:2] == [{"x": 0}, {"x": 2}]
    assert space[::-2] == [{"x": 8}, {"x": 4}, {"x": 0}]
    assert space[7:] == []
    assert space[np.int64(-1)] == {"x": 8}
    with pytest.raises(TypeError, match="'str' object cannot be interpreted as an integer"):
        space["x"]  # type: ignore[call-overload]
    huge = SearchSpace({name: range(1000) for name in "abcdefgh"})
    assert len(huge[-2:]) == 2
    with pytest.raises(SpaceError, match="a slice lists at most 268435456 rows"):
        huge[:]


SMALL = SearchSpace({"x": [1, 2]})


def test_values_may_come_from_a_generator() -> None:
    assert SearchSpace({"x": (each for each in range(3))}).parameters[0].values == (0, 1, 2)
    assert SearchSpace({"x": iter(np.arange(2))}).parameters[0].values == (0, 1)
    assert SMALL.codes([]).shape == (0, 1)
    assert SMALL.sample(0, np.random.default_rng(0)).shape == (0,)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SearchSpace(5), "parameters must be a mapping .*, got 5"),
        (lambda: SearchSpace(["x"]), "parameters must be a mapping"),
        (lambda: SearchSpace({"x": [10**6000]}), "an integer of 19932 bits is too large"),
        (lambda: SearchSpace({"x": range(10**12)}), "1000000000000 values are too many"),
        (lambda: SearchSpace({"x": [1]}, 5), "restrictions must be a list, got 5"),
        (lambda: SearchSpace({"x": [1]}, constants={"y": -(10**6000)}), "constant y: an integer"),
        (lambda: SearchSpace({"x": [1]}, constants=3), "constants must be a mapping .*, got 3"),
        (
            lambda: SearchSpace({"x": [1]}, constants={3: 4}),
            "constants must be a mapping of names",
        ),
        (
            lambda: SearchSpace({"x": [1]}, definitions=3),
            "definitions must be a mapping .*, got 3",
        ),
        (lambda: SearchSpace({"x": [1]}, definitions={"d": "x + 1"}), "definition d must be an E"),
        (lambda: SearchSpace({"x": np.array(3)}), r"values must be a list, got array\(3\)"),
        (lambda: SMALL.nearest(None), "a configuration must be a mapping, got None"),
        (lambda: SMALL.sample(-1, np.random.default_rng(0)), "count must be a whole .* got -1"),
        (lambda: SMALL.sample(1.5, np.random.default_rng(0)), "count must be a whole .* got 1.5"),
        (lambda: SMALL.sample(2, 0), "rng must be a generator, .* got 0"),
        (lambda: SMALL.codes("x"), "rows must be an array of whole numbers, got 'x'"),
        (lambda: SMALL.codes([0.5]), "rows must be an array of whole numbers"),
        (lambda: SMALL.codes([[0], [0, 1]]), "rows must be an array of whole numbers"),
        (lambda: SMALL.codes(None), "rows must be an array of whole numbers"),
        (lambda: SearchSpace.from_configurations(None), "configurations must be a list"),
        (lambda: SearchSpace.from_configurations([5]), "configuration 0 must be a mapping"),
        (lambda: SearchSpace.from_configurations([{1: 2}]), "must be a non-empty text, got 1"),
        (lambda: SearchSpace.from_configurations([{1: 2}, {"a": 1}]), "configuration 1 has param"),
    ],
)
def test_what_is_no_space_is_refused_in_one_line(make: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=message) as caught:
        make()
    assert len(str(caught.value)) < 200


def test_names_are_those_that_were_written() -> None:
    """Python's parser would have a micro sign be a Greek letter, and a ligature two letters."""
    space = SearchSpace({"\u00b5": [1, 2, 4], "\ufb01": [1, 2]}, ["\u00b5 <= 2 and \ufb01 > 0"])
    assert len(space) == 4
    assert {"\u00b5": 2, "\ufb01": 1} in space
    with pytest.raises(SpaceError, match=r"\('\\u03bc' is not '\\xb5'\)$"):
        SearchSpace({"\u00b5": [1, 2]}, ["\u03bc <= 2"])


@pytest.fixture
def union() -> SpaceUnion:
    return SpaceUnion(
        {
            "loops": SearchSpace({"order": ["ijk", "ikj"], "threads": [1, 2]}),
            "none": SearchSpace({"x": [1, 2]}, ["x > 2"]),
            "block": SearchSpace(
                {"sm": [32, 64, 128], "threads": [1, 2, 4]}, ["sm >= 32 * threads"]
            ),
        }
    )


def candidate(family: str, **values: int | str) -> Candidate:
    return Candidate(family, Configuration(values))


def test_rows_are_numbered_family_after_family(union: SpaceUnion) -> None:
    assert len(union) == union.size == 4 + 0 + 6
    candidates = [union[row] for row in range(len(union))]
    assert [each.family for each in candidates] == ["loops"] * 4 + ["block"] * 6
    assert len(set(candidates)) == 10
    for row, each in enumerate(candidates):
        assert union.index(each) == union.find(each) == row
        assert each in union
        assert union[row - len(union)] == each
    for row in (10, -11):
        with pytest.raises(IndexError, match="outside a union of 10"):
            union[row]


def test_membership(union: SpaceUnion) -> None:
    assert candidate("block", sm=64, threads=2) in union
    assert candidate("block", sm=32, threads=2) not in union
    assert candidate("loops", sm=64, threads=2) not in union
    assert candidate("other", sm=64, threads=2) not in union
    assert {"sm": 64, "threads": 2} not in union
    with pytest.raises(SpaceError, match="unknown family 'other'; families: loops, none, block"):
        union.index(candidate("other", sm=64))
    with pytest.raises(SpaceError, match="unknown family 'other'"):
        union.find(candidate("other", sm=64))
    assert union.find(candidate("block", sm=32, threads=2)) is None
    with pytest.raises(SpaceError, match="not in the space: sm >= 32"):
        union.index(candidate("block", sm=32, threads=2))


def test_flat_names_tell_families_apart(union: SpaceUnion) -> None:
    flat = union.flatten(candidate("block", sm=64, threads=2))
    assert flat == {"family": "block", "block.sm": 64, "block.threads": 2}
    for row in range(len(union)):
        assert union.unflatten(union.flatten(union[row])) == union[row]
    everything = {**union.flatten(union[0]), **flat}
    assert union.unflatten(everything) == candidate("block", sm=64, threads=2)
    assert union.unflatten({**flat, "block.sm": 32}) == candidate("block", sm=32, threads=2)


def test_bad_flat_names_are_refused(union: SpaceUnion) -> None:
    with pytest.raises(SpaceError, match="needs a family"):
        union.unflatten({"block.sm": 64})
    with pytest.raises(SpaceError, match="unknown family 'other'"):
        union.unflatten({"family": "other"})
    with pytest.raises(SpaceError, match=r"family block needs block\.threads"):
        union.unflatten({"family": "block", "block.sm": 64})


def test_nearest_stays_in_the_family_while_it_can(union: SpaceUnion) -> None:
    wanted = candidate("block", sm=32, threads=4)
    visited: list[int] = []
    while (row := union.nearest(wanted, visited)) is not None:
        visited.append(row)
    assert sorted(visited[:6]) == [4, 5, 6, 7, 8, 9]
    assert sorted(visited) == list(range(10))
    # other families by the parameters they share: threads = 4 is nearest to 2
    assert [union[row].configuration["threads"] for row in visited[6:]] == [2, 2, 1, 1]
    assert union.nearest(candidate("none", x=1)) == 0
    with pytest.raises(SpaceError, match="unknown family"):
        union.nearest(candidate("other", x=1))


def test_digest_depends_on_names_and_spaces(union: SpaceUnion) -> None:
    spaces = dict(union.spaces)
    assert SpaceUnion(spaces).digest == union.digest
    renamed = {name.replace("loops", "loop"): space for name, space in spaces.items()}
    changed = {**spaces, "loops": SearchSpace({"order": ["ijk"], "threads": [1, 2]})}
    assert len({union.digest, SpaceUnion(renamed).digest, SpaceUnion(changed).digest}) == 3


@pytest.mark.parametrize(
    "spaces", [{"a": 3}, {3: SearchSpace({"x": [1]})}, SearchSpace({"x": [1]}), None, "a"]
)
def test_what_is_no_mapping_of_spaces_is_refused(spaces: Any) -> None:
    with pytest.raises(SpaceError, match="spaces must be a mapping of families' names"):
        SpaceUnion(spaces)


@pytest.mark.parametrize("method", ["index", "nearest", "flatten", "unflatten"])
@pytest.mark.parametrize("candidate", [None, 3, "loops"])
def test_what_is_no_candidate_is_refused(union: SpaceUnion, method: str, candidate: Any) -> None:
    with pytest.raises(SpaceError, match="a candidate must be a"):
        getattr(union, method)(candidate)


def test_an_empty_union_is_refused() -> None:
    with pytest.raises(SpaceError, match="at least one family"):
        SpaceUnion({})
    assert not SpaceUnion({"none": SearchSpace({"x": [1]}, ["x > 1"])})
