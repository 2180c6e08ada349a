"""The expression language against Python's own `eval`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from true_rows import true_rows

from autotune.core.errors import ExpressionError
from autotune.space import Expression, UndefinedError
from autotune.space.expression import MAX_TEXT

UNDEFINED = object()
NAMES = ("a", "b", "c", "d")


def ceildiv(numerator: Any, denominator: Any) -> Any:
    return -(-numerator // denominator)


def ispow2(value: Any) -> bool:
    return value in [2**exponent for exponent in range(200)]


def by_python(text: str, names: dict[str, Any]) -> Any:
    """The oracle: Python itself, with `and` and `or` made to give truth values by the caller."""
    scope = {"min": min, "max": max, "ceildiv": ceildiv, "ispow2": ispow2, "__builtins__": {}}
    try:
        return eval(text, {**scope, "truth": bool, **names})
    except (ZeroDivisionError, OverflowError):
        return UNDEFINED


def same(left: Any, right: Any) -> bool:
    if left is UNDEFINED or right is UNDEFINED:
        return left is right
    return left == right or (left != left and right != right)


def texts() -> st.SearchStrategy[str]:
    """Random numeric expressions; `truth` marks what the language reduces to a truth value."""
    leaves = st.one_of(
        st.sampled_from(NAMES),
        st.integers(0, 9).map(str),
        st.sampled_from(["0.5", "2.0", "True", "False", "3000000000", "9007199254740993"]),
    )

    def compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        operators = st.sampled_from(
            ["+", "-", "*", "/", "//", "%", "<", "<=", ">", ">=", "==", "!="]
        )
        comparison = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
        return st.one_of(
            st.builds("({} {} {})".format, inner, operators, inner),
            st.builds("({} {} {} {} {})".format, inner, comparison, inner, comparison, inner),
            st.builds("truth({} {} {})".format, inner, st.sampled_from(["and", "or"]), inner),
            st.builds("({} {})".format, st.sampled_from(["-", "+", "not"]), inner),
            st.builds(
                "{}({}, {})".format, st.sampled_from(["min", "max", "ceildiv"]), inner, inner
            ),
            st.builds("ispow2({})".format, inner),
            st.builds("({} in [1, 2, -3, 0.5])".format, inner),
            st.builds("({} not in (4, True))".format, inner),
        )

    return st.recursive(leaves, compound, max_leaves=12)


numbers = st.one_of(
    st.integers(-6, 6),
    st.integers(-(2**40), 2**40),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([0.0, 0.5, -1.5, 7.0, 1e300]),
)
columns = st.one_of(
    st.lists(st.integers(-6, 6), min_size=5, max_size=5),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=5, max_size=5),
    st.lists(st.sampled_from([0.0, 0.5, -1.5, 7.0, 1e300]), min_size=5, max_size=5),
    st.lists(st.booleans(), min_size=5, max_size=5),
)


@given(text=texts(), names=st.fixed_dictionaries(dict.fromkeys(NAMES, numbers)))
def test_one_point_agrees_with_python(text: str, names: dict[str, Any]) -> None:
    expected = by_python(text, names)
    try:
        found = Expression.parse(text.replace("truth", "")).evaluate(names)
    except UndefinedError:
        found = UNDEFINED
    assert same(found, expected)


@given(text=texts(), names=st.fixed_dictionaries(dict.fromkeys(NAMES, columns)))
@example("(a * b)", {"a": [2**62] * 5, "b": [2] * 5, "c": [0] * 5, "d": [0] * 5})
@example("((a * b) // c)", {"a": [2**40] * 5, "b": [2**40] * 5, "c": [2**30] * 5, "d": [0] * 5})
@example("(a / b)", {"a": [2**63 - 1] * 5, "b": [3] * 5, "c": [0] * 5, "d": [0] * 5})
@example("(a == 0.5)", {"a": [2**53 + 1] * 5, "b": [0] * 5, "c": [0] * 5, "d": [0] * 5})
@example("(a // b)", {"a": [-(2**63)] * 5, "b": [-1] * 5, "c": [0] * 5, "d": [0] * 5})
@example(
    "truth((b == 0) or ((a % b) == 0))",
    {"a": [4] * 5, "b": [0, 1, 2, 3, 4], "c": [0] * 5, "d": [0] * 5},
)
def test_columns_agree_with_python(text: str, names: dict[str, list[Any]]) -> None:
    expression = Expression.parse(text.replace("truth", ""))
    # two names vary along one axis and two along the other, as in the enumeration
    arrays = {
        name: np.array(values)[:, None] if name in "ab" else np.array(values)
        for name, values in names.items()
    }
    values, defined = expression.evaluate_columns(arrays)
    values = np.broadcast_to(values, (5, 5))
    defined = np.broadcast_to(True if defined is None else defined, (5, 5))
    holds = np.broadcast_to(true_rows(expression, arrays), (5, 5))
    for i in range(5):
        for j in range(5):
            point = {name: column[i if name in "ab" else j] for name, column in names.items()}
            expected = by_python(text, point)
            assert (
                same(
                    values[i, j].item() if isinstance(values[i, j], np.generic) else values[i, j],
                    expected,
                )
                if defined[i, j]
                else expected is UNDEFINED
            )
            assert bool(holds[i, j]) == (expected is not UNDEFINED and bool(expected))
            assert expression.holds(point) == bool(holds[i, j])


@given(text=texts())
def test_written_out_it_means_the_same(text: str) -> None:
    """An implied restriction's text, parsed again, is the same expression."""
    original = Expression.parse(text.replace("truth", ""))
    multiple = original.is_multiple_of(Expression.parse("a - (b - c) ** 2"))
    assume(len(multiple.text) <= MAX_TEXT)
    assert Expression.parse(multiple.text).root == multiple.root


@pytest.mark.parametrize(
    ("text", "a", "expected"),
    [
        ("a ** 2", 3, 9),
        ("a ** -1", 2, 0.5),
        ("-a ** 2", 3, -9),
        ("2 ** a ** 2", 3, 512),
        ("a ** 0.5", 16, 4.0),
        ("a ** 63", 2, 2**63),
        ("a ** 0", 10**30, 1),
    ],
)
def test_powers(text: str, a: int, expected: float) -> None:
    expression = Expression.parse(text)
    assert expression.evaluate({"a": a}) == expected
    values, defined = expression.evaluate_columns({"a": np.array([a, a])})
    assert defined is None
    assert values.tolist() == [expected] * 2


@pytest.mark.parametrize(
    "text", ["a ** -1", "1 / a", "1 // a", "5 % a", "(a - 8) ** 0.5", "1e300 ** (a + 2)"]
)
def test_undefined(text: str) -> None:
    expression = Expression.parse(text)
    with pytest.raises(UndefinedError, match="no value"):
        expression.evaluate({"a": 0})
    assert not expression.holds({"a": 0})
    _, defined = expression.evaluate_columns({"a": np.array([0])})
    assert defined is not None
    assert not defined.any()


def test_powers_are_exact_as_far_as_integers_go() -> None:
    """A power that is too large has no value, as a float that overflows; nothing hangs."""
    power = Expression.parse("a ** 40 == 10 ** 120")
    assert power.evaluate({"a": 1000}) is True
    assert true_rows(power, {"a": np.array([2, 1000])}).tolist() == [False, True]
    absurd = Expression.parse("9 ** 9 ** a > 0")
    with pytest.raises(UndefinedError, match=r"9 \*\* 387420489 has no value: it is beyond 10000"):
        absurd.evaluate({"a": 9})
    assert true_rows(absurd, {"a": np.array([1, 9, 99])}).tolist() == [True, False, False]


def test_a_row_goes_no_further_than_its_first_operand_without_a_value() -> None:
    """The text of the second operand is never reached where the first has no value."""
    parsed = Expression.parse("(4 / a) + mode > 1")
    mode = np.array(["auto", 1], dtype=object)
    assert true_rows(parsed, {"a": np.array([0, 2]), "mode": mode}).tolist() == [False, True]
    inner = Expression.parse("(4 / a) + (mode * 2) > 1")
    assert true_rows(inner, {"a": np.array([0, 2]), "mode": mode}).tolist() == [False, True]
    assert not inner.holds({"a": 0, "mode": "auto"})
    with pytest.raises(ExpressionError, match="takes numbers, not the text 'auto'"):
        true_rows(inner, {"a": np.array([1, 2]), "mode": mode})


def test_text_values() -> None:
    mode = np.array(["auto", "fast", 4], dtype=object)
    for text, expected in {
        "mode == 'fast'": [False, True, False],
        "mode != 4": [True, True, False],
        "mode in ['auto', 4]": [True, False, True],
        "mode in ('auto', 'fast') or mode < 5": [True, True, True],
        "mode not in ('auto', 'fast') and mode % 2 == 0": [False, False, True],
    }.items():
        expression = Expression.parse(text)
        assert true_rows(expression, {"mode": mode}).tolist() == expected
        assert [expression.holds({"mode": value}) for value in mode] == expected


@pytest.mark.parametrize(
    "text", ["mode < 3", "mode + 1 == 2", "-mode", "mode * 2", "min(mode, 2)", "ispow2(mode)"]
)
def test_text_where_a_number_is_needed_is_an_error_that_names_the_expression(text: str) -> None:
    expression = Expression.parse(text)
    with pytest.raises(ExpressionError) as at_a_point:
        expression.evaluate({"mode": "fast"})
    with pytest.raises(ExpressionError) as in_a_column:
        expression.evaluate_columns({"mode": np.array(["fast", "slow"], dtype=object)})
    assert str(at_a_point.value) == str(in_a_column.value)
    assert repr(text) in str(at_a_point.value)


def test_exact_division() -> None:
    expression = Expression.parse("(sm / ty) * (sk / tx)", exact_division=True)
    assert expression.evaluate({"sm": 64, "ty": 4, "sk": 32, "tx": 8}) == 64
    assert isinstance(expression.evaluate({"sm": 64, "ty": 4, "sk": 32, "tx": 8}), int)
    for ty in (0, 5):
        with pytest.raises(UndefinedError, match="64 / "):
            expression.evaluate({"sm": 64, "ty": ty, "sk": 32, "tx": 8})
    values, defined = expression.evaluate_columns(
        {"sm": 64, "ty": np.arange(9), "sk": 32, "tx": 8}
    )
    assert defined is not None
    assert defined.tolist() == [ty in (1, 2, 4, 8) for ty in range(9)]
    assert values[defined].tolist() == [256, 128, 64, 32]


def test_divisions_leave_out_guarded_ones() -> None:
    expression = Expression.parse("(a + 1) / b / c + (a == 0 or d / a > 1)", exact_division=True)
    pairs = [(str(left), str(right)) for left, right in expression.divisions()]
    assert pairs == [("a + 1", "b"), ("(a + 1) / b", "c")]
    assert Expression.parse("a / b").divisions() == ()


def test_substitution_keeps_each_division() -> None:
    threads = Expression.parse("sm / ty", exact_division=True)
    ratio = Expression.parse("threads / 3 > 1").substitute({"threads": threads})
    assert ratio.text == "threads / 3 > 1"
    assert ratio.names == {"sm", "ty"}
    assert ratio.holds({"sm": 64, "ty": 16})
    assert not ratio.holds({"sm": 65, "ty": 16})


def test_integers_are_bounded() -> None:
    product = Expression.parse("x * x")
    for _ in range(11):
        product = Expression.parse("y * y").substitute({"y": product})
    assert product.evaluate({"x": 2}) == 2**4096
    with pytest.raises(UndefinedError, match="beyond 10000 bits"):
        product.evaluate({"x": 10})
    assert true_rows(product, {"x": np.array([2, 10])}).tolist() == [True, False]


def test_substitution_is_bounded() -> None:
    expression = Expression.parse("y + y")
    for _ in range(11):
        expression = Expression.parse("y + y").substitute({"y": expression})
    with pytest.raises(ExpressionError, match="too large"):
        Expression.parse("y + y").substitute({"y": expression})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a b",
        "a.b",
        "a[0]",
        "lambda: 1",
        "(a := 1)",
        "f'{a}'",
        "[1, 2]",
        "a @ b",
        "a is b",
        "a in b",
        "a in []",
        "a in [b]",
        "1 < a in [2] < 3",
        "__import__('os')",
        "min(a)",
        "min(a, key=b)",
        "min(a, b, key=a)",
        "a.min(a, b)",
        "min(*a)",
        "ceildiv(a)",
        "ispow2(a, b)",
        "abs(a, b)",
        "log2()",
        "sqrt(a)",
        "None",
        "1j",
        "b'x'",
        "...",
        "'\\n'",
        "a\0",
        "a; b",
        "{a}",
        "[x for x in a]",
        "(" * 500 + "a" + ")" * 500,
        "-" * 1900 + "a",
        "not " * 400 + "a",
        "+".join(["a"] * 500),
        "a" * 3000,
    ],
)
def test_what_is_outside_the_language_is_one_clear_line(text: str) -> None:
    with pytest.raises(ExpressionError, match=r"^expression ['\"]") as refused:
        Expression.parse(text)
    assert "\n" not in str(refused.value)


def test_a_long_number_is_exact() -> None:
    assert Expression.parse("9" * 1999).evaluate({}) == 10**1999 - 1


def test_a_refusal_shows_what_is_allowed() -> None:
    with pytest.raises(ExpressionError, match=r"'a\.b' is not allowed; there is names, .*ispow2"):
        Expression.parse("a.b + 1")


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(ExpressionError, match="unknown name 'b'; known names: a, c"):
        Expression.parse("a + b").evaluate({"a": 1, "c": 2})


def test_numpy_scalars_become_python_values() -> None:
    value = Expression.parse("a * b").evaluate({"a": np.int32(2**30), "b": np.int32(4)})
    assert value == 2**32
    assert type(value) is int


def test_unsigned_and_narrow_arrays_do_not_wrap_around() -> None:
    expression = Expression.parse("a - 200 + b * b")
    values, _ = expression.evaluate_columns(
        {"a": np.array([100], dtype=np.uint8), "b": np.array([2**63], dtype=np.uint64)}
    )
    assert values.tolist() == [100 - 200 + 2**126]


def test_the_kind_of_division_belongs_to_equality() -> None:
    expression = Expression.parse("a / b <= 3", exact_division=True)
    assert expression == Expression.parse("a / b <= 3", exact_division=True)
    assert expression != Expression.parse("a / b <= 3")
    assert math.isclose(Expression.parse("a / b").evaluate({"a": 1, "b": 3}), 1 / 3)
