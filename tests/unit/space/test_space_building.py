"""Building spaces: random restrictions of the shapes that kernels have, against plain Python."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.core.configuration import Configuration
from autotune.core.errors import ExpressionError
from autotune.space import SearchSpace

Parameters = dict[str, list[Any]]

WAYS: dict[str, dict[str, int]] = {
    "all combinations": {"building._SMALL": 10**9},
    "parameter by parameter": {"building._SMALL": 0},
    "as if it were large": {
        "building._SMALL": 0,
        "building._BLOCK": 6,
        "terms._SMALL_TABLE": 0,
        "terms._FEW": 0,
        "terms._SCATTERED": 0,
        "terms._LARGEST_RADIX": 10,
    },
}
"""Limits that decide how a group is built, which is not to be seen from outside."""

AXES = ("a", "b", "c", "d", "e", "f")
CONSTANTS = {"limit": 24, "half": 0.5, "zero": 0, "arch": "sm_90"}


def ceildiv(numerator: Any, denominator: Any) -> Any:
    return -(-numerator // denominator)


def ispow2(value: Any) -> bool:
    return value in [2**exponent for exponent in range(100)]


def holds(restriction: str, names: dict[str, Any]) -> bool:
    """The oracle: Python itself."""
    scope = {"min": min, "max": max, "ceildiv": ceildiv, "ispow2": ispow2, "__builtins__": {}}
    try:
        return bool(eval(restriction, scope | CONSTANTS | names))
    except (ZeroDivisionError, OverflowError):
        return False


def brute_force(parameters: Parameters, restrictions: list[str]) -> list[dict[str, Any]]:
    """Valid configurations in ascending order of their values' positions."""
    points = (
        dict(zip(parameters, values, strict=True))
        for values in itertools.product(*parameters.values())
    )
    return [names for names in points if all(holds(each, names) for each in restrictions)]


def restrictions() -> st.SearchStrategy[str]:
    """Products and sums under a limit, divisibility, guards, negations and comparisons."""
    name = st.sampled_from(AXES)
    number = st.sampled_from(["0", "1", "2", "3", "8", "limit", "half", "2.5", "-4", "zero"])
    leaf = st.one_of(name, name, number)
    sides = st.sampled_from(["<=", "<", ">=", ">", "==", "!="])

    def chain(operator: str) -> st.SearchStrategy[str]:
        return st.lists(leaf, min_size=2, max_size=5).map(f" {operator} ".join)

    amount = st.one_of(
        leaf,
        chain("*"),
        chain("+"),
        chain("-"),
        st.builds("({} {} {})".format, leaf, st.sampled_from(["//", "/", "%"]), leaf),
        st.builds("ceildiv({}, {})".format, leaf, leaf),
        st.builds("min({}, {}, {})".format, leaf, leaf, leaf),
        st.builds("max({}, {})".format, leaf, leaf),
        st.builds("({} + {}) * ({} + {})".format, leaf, leaf, leaf, leaf),
        st.builds("{} ** 2".format, name),
    )
    fact = st.one_of(
        st.builds("{} {} {}".format, amount, sides, amount),
        st.builds("{} <= {} < {}".format, leaf, amount, leaf),
        st.builds("({}) % ({}) == 0".format, amount, amount),
        st.builds("{} in [1, 4, 0.5]".format, amount),
        st.builds("{} not in (0, 8)".format, name),
        st.builds("ispow2({})".format, amount),
        name,
    )
    return st.recursive(
        fact,
        lambda inner: st.one_of(
            st.builds("({} and {})".format, inner, inner),
            st.builds("({} or {})".format, inner, inner),
            st.builds("not ({})".format, inner),
            st.builds("{} == 0 or ({})".format, name, inner),
        ),
        max_leaves=4,
    )


def values() -> st.SearchStrategy[list[Any]]:
    return st.one_of(
        st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True),
        st.lists(st.sampled_from([1, 2, 4, 8, 16]), min_size=1, max_size=4, unique=True),
        st.lists(st.integers(-3, 3), min_size=2, max_size=3, unique=True),
        st.lists(st.sampled_from([0.5, 1.0, 2.5, 3, 8]), min_size=1, max_size=3, unique=True),
        st.just([False, True]),
    )


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small groups are built in another way than large ones."""
    for name, limit in WAYS[request.param].items():
        monkeypatch.setattr(f"autotune.space.{name}", limit)


spaces = st.tuples(
    st.fixed_dictionaries(dict.fromkeys(AXES, values())), st.lists(restrictions(), max_size=4)
)


@pytest.mark.usefixtures("way")
@settings(max_examples=60)
@given(spaces)
def test_rows_are_those_of_plain_python(drawn: tuple[Parameters, list[str]]) -> None:
    parameters, rules = drawn
    space = SearchSpace(parameters, rules, constants=CONSTANTS)
    expected = brute_force(parameters, rules)
    assert space.size == len(expected)
    rows = list(space)
    assert set(rows) == {Configuration(each) for each in expected}
    for row in itertools.islice(range(space.size), 0, None, 1 + space.size // 20):
        assert space.index(rows[row]) == row
        assert space[row] == rows[row]
    listed = space.columns
    assert [
        dict(zip(listed, values, strict=True))
        for values in zip(*(column.tolist() for column in listed.values()), strict=True)
    ] == [dict(row) for row in rows]


@pytest.mark.usefixtures("way")
@settings(max_examples=30)
@given(spaces)
def test_rows_of_one_group_are_in_order(drawn: tuple[Parameters, list[str]]) -> None:
    """Connected, the rows are exactly those of brute force, in its order."""
    parameters, rules = drawn
    everything = " + ".join(AXES) + " < 1000"
    space = SearchSpace(parameters, [*rules, everything], constants=CONSTANTS)
    assert [dict(each) for each in space] == brute_force(parameters, rules)


@pytest.mark.usefixtures("way")
@settings(max_examples=50)
@given(spaces, st.data())
def test_membership_is_validity(drawn: tuple[Parameters, list[str]], data: st.DataObject) -> None:
    parameters, rules = drawn
    space = SearchSpace(parameters, rules, constants=CONSTANTS)
    point = data.draw(
        st.fixed_dictionaries({n: st.sampled_from(v) for n, v in parameters.items()})
    )
    valid = all(holds(each, point) for each in rules)
    assert (point in space) == valid == (space.rejection(point) is None)


@pytest.mark.usefixtures("way")
def test_text_booleans_and_constants() -> None:
    parameters: Parameters = {
        "layout": ["row", "column", 4],
        "vector": [1, 2, 4],
        "cached": [False, True],
        "only": ["here"],
    }
    rules = [
        "layout != 'row' or vector in [1, 4]",
        "layout == 4 and vector < 4 or layout == 'row' or cached",
        "cached or vector == 1 or layout == 'column'",
        "arch == 'sm_90' and only != 'there'",
        "layout == 'row' or layout == 'column' or layout % vector == 0 and layout >= 4",
    ]
    space = SearchSpace(parameters, rules, constants=CONSTANTS)
    assert [dict(each) for each in space] == brute_force(parameters, rules)
    assert space.size > 5


@pytest.mark.usefixtures("way")
def test_a_guard_in_the_same_restriction_protects() -> None:
    """What would be an error is never evaluated where its guard is false, however it is built."""
    parameters: Parameters = {"mode": ["auto", 2, 3], "x": [2, 40, 1000], "y": [1, 2, 30]}
    guarded = ["mode == 'auto' or mode < 3", "x > 40 or y > 2 or x ** y > 3"]
    space = SearchSpace(parameters, guarded)
    assert [dict(each) for each in space] == brute_force(parameters, guarded)
    with pytest.raises(ExpressionError, match="'mode < 3': < cannot order 'auto' and 3"):
        _ = SearchSpace(parameters, ["mode < 3"]).size


@pytest.mark.usefixtures("way")
def test_an_earlier_restriction_protects_a_later_one() -> None:
    """As row by row, where the first restriction that fails is the last that is looked at."""
    parameters: Parameters = {"mode": ["auto", 2, 3], "x": [2, 40], "y": [1, 2, 30]}
    rules = ["mode != 'auto' and x > y", "mode < 3"]
    space = SearchSpace(parameters, rules)
    assert [dict(each) for each in space] == brute_force(parameters, rules)
    assert [step.remaining for step in space.funnel()] == [8, 4]
    with pytest.raises(ExpressionError, match="'mode < 3': < cannot order 'auto' and 3"):
        _ = SearchSpace(parameters, rules[::-1]).size


def test_integers_beyond_64_bits_and_floats_are_exact() -> None:
    """Sums of a float and of an integer differ where floats round, so they are not one state."""
    parameters: Parameters = {
        "x": [2**53, 2.0**53 + 2, 3**50],
        "one": [1, 1.0 + 2**-40],
        "y": [0, 1, 2, 2**70],
    }
    rules = ["(x + one) * 2 + y != 2 ** 54", "(x + one) + y > 2 ** 53 + 1"]
    space = SearchSpace(parameters, rules)
    assert [dict(each) for each in space] == brute_force(parameters, rules)


def test_a_group_of_thousands_of_millions() -> None:
    """What the restrictions still need is a sum, a product or a remainder, so few nodes do."""
    values = list(range(1, 1001))
    space = SearchSpace(dict.fromkeys("abcd", values), ["a + b + c + d <= 2000"])
    # by inclusion and exclusion over which of them exceed 1000
    count = sum(
        (-1) ** over * math.comb(4, over) * math.comb(2000 - 1000 * over, 4) for over in range(3)
    )
    assert space.size == count
    rows = space.sample(1000, np.random.default_rng(0))
    codes = space.codes(rows)
    assert ((codes + 1).sum(axis=1) <= 2000).all()
    for row in map(int, rows[:50]):
        assert space.index(space[row]) == row
    assert space[0] == dict.fromkeys("abcd", 1)
    assert space[space.size - 1] == {"a": 1000, "b": 998, "c": 1, "d": 1}


def test_more_rows_in_one_group_than_64_bits_number() -> None:
    names = [f"p{number:02}" for number in range(30)]
    space = SearchSpace({name: list(range(10)) for name in names}, [" + ".join(names) + " > 0"])
    assert space.size == 10**30 - 1
    for row in (0, 1, 10**29, 10**30 - 2):
        assert "".join(str(value) for value in space[row].values()) == str(row + 1).zfill(30)
        assert space.index(space[row]) == row
    assert space.nearest(dict.fromkeys(names, 9)) == 10**30 - 2
    names = [f"p{number:03}" for number in range(320)]
    linked = [f"{left} + {right} >= 0" for left, right in itertools.pairwise(names)]
    assert SearchSpace(dict.fromkeys(names, range(10)), linked).size == 10**320


def chi_square(counts: np.ndarray[Any, Any], expected: np.ndarray[Any, Any] | float) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.usefixtures("way")
def test_samples_are_uniform_over_rows_not_over_prefixes() -> None:
    """One value of x leaves 1 row, another 40: each row is as likely as any other."""
    space = SearchSpace(
        {"x": [1, 2, 3, 4], "y": list(range(40)), "z": [0, 1, 2]},
        ["y <= 13 * (x - 1)", "z == 0 or x + y > 3"],
    )
    draws = 60_000
    rows = space.sample(draws, np.random.default_rng(2))
    by_row = np.bincount(rows, minlength=space.size)
    # 5 standard deviations of chi-square with that many degrees of freedom
    free = space.size - 1
    assert chi_square(by_row, draws / space.size) < free + 5 * math.sqrt(2 * free)
    by_value = np.bincount(space.codes(rows)[:, 0], minlength=4)
    shares = np.array([sum(each["x"] == x for each in space) for x in (1, 2, 3, 4)])
    assert chi_square(by_value, draws * shares / space.size) < 3 + 5 * math.sqrt(6)


def test_independent_groups_multiply() -> None:
    parameters: Parameters = {f"{axis}{i}": list(range(1, 9)) for i in range(3) for axis in "xy"}
    one = len(brute_force({"x": [*range(1, 9)], "y": [*range(1, 9)]}, ["x % y == 0"]))
    rules = [f"x{i} % y{i} == 0" for i in range(3)]
    assert SearchSpace(parameters, rules).size == one**3
    linked = SearchSpace(parameters, [*rules, "x0 != x1", "y1 != y2"])
    assert linked.size == len(brute_force_linked())


def brute_force_linked() -> list[tuple[int, ...]]:
    pairs = [(x, y) for x in range(1, 9) for y in range(1, 9) if x % y == 0]
    return [
        (*first, *second, *third)
        for first, second, third in itertools.product(pairs, repeat=3)
        if first[0] != second[0] and second[1] != third[1]
    ]


@pytest.mark.usefixtures("way")
@settings(max_examples=30)
@given(spaces)
def test_funnel_counts_what_each_restriction_leaves(drawn: tuple[Parameters, list[str]]) -> None:
    parameters, rules = drawn
    steps = SearchSpace(parameters, rules, constants=CONSTANTS).funnel()
    assert [step.remaining for step in steps] == [
        len(brute_force(parameters, rules[: number + 1])) for number in range(len(rules))
    ]
