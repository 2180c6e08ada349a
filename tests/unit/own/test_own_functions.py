"""Functions of restrictions and launches, against what they give for every row of values."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autotune.core.errors import InputError
from autotune.own.tracing import expressions, restriction_text
from autotune.space import Expression

VALUES: dict[str, list[Any]] = {"a": [1, 2, 4], "b": [0, 3], "f": [True, False], "o": [None, 2]}
WORDS = {"o": ["None", "o-2"]}
SIZES = (5, 64, 200)

ATOMS = st.sampled_from(["a", "b", "f", "N", "0", "1", "2", "True", "False", "(o is None)"])
TESTS = ("f is True", "isinstance(a, int)", "type(f) is bool", "b is not None", "not {}")


def _joined(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = st.sampled_from(
        ["+", "-", "*", "//", "%", "<", "<=", "==", "!=", "and", "or", "is"]
    )
    return st.one_of(
        st.tuples(parts, operators, parts).map(lambda each: f"({' '.join(each)})"),
        st.tuples(parts, parts, parts).map("({0[0]} if {0[1]} else {0[2]})".format),
        st.tuples(st.sampled_from(["min", "max"]), parts, parts).map(
            "{0[0]}({0[1]}, {0[2]})".format
        ),
        st.tuples(st.sampled_from(TESTS), parts).map(lambda each: f"({each[0].format(each[1])})"),
    )


TEXTS = st.recursive(ATOMS, _joined, max_leaves=6)


def of_text(text: str) -> Any:
    return eval(f"lambda a, b, f, o, N: {text}" if "N" in text else f"lambda a, b, f, o: {text}")


def rows(text: str) -> Any:
    """Every row for an expression, and what the function gives there; None where it fails."""
    function = of_text(text)
    for values in itertools.product(*VALUES.values(), SIZES if "N" in text else [()]):
        given = values if "N" in text else values[:-1]
        point = dict(zip([*VALUES, "N"], values, strict=True))
        point["o"] = WORDS["o"][VALUES["o"].index(point["o"])]
        try:
            yield point, function(*given)
        except ZeroDivisionError:
            yield point, None


def found_or_refused(made: Callable[..., str], *given: Any) -> tuple[str, str]:
    """The text that is made, or the message of why there is none."""
    try:
        return made(*given), ""
    except InputError as error:
        return "", str(error)


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@given(TEXTS)
@example("f is True")
@example("a == 4 and type(a) is int and N > 9")
def test_a_restriction_holds_where_its_function_does(text: str) -> None:
    wanted = list(rows(text))
    found, refused = found_or_refused(restriction_text, of_text(text), VALUES, ["N"], WORDS)
    if refused:
        fails = any(each is None for _, each in wanted)
        assert refused.startswith(f"restriction <lambda>(a, b, f, o{', N' * ('N' in text)}) ")
        assert "N is a size of any value" in refused if "N" in text else fails
        return
    expression = Expression.parse(found)
    for point, each in wanted:
        assert each is None or expression.holds(point) is bool(each)


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@given(TEXTS)
@example("max(1, N // a)")
@example("2 if f else 1")
@example("a * 4 if f is True else N")
@example("b or a")
def test_a_number_of_a_launch_is_what_its_function_gives(text: str) -> None:
    wanted = list(rows(text))
    found, refused = found_or_refused(expressions, of_text(text), [*VALUES, "N"], VALUES, WORDS)
    if refused:
        assert "N" in text or any(each is None for _, each in wanted)
        assert "must be arithmetic of a, b, f, o, N" in refused
        return
    expression = Expression.parse(found, exact_division=True)
    for point, each in wanted:
        assert each is None or expression.evaluate(point) == each


@pytest.mark.parametrize(
    "function",
    [
        lambda d: all(each is not None for each in d.values()),
        lambda **d: d["a"] * d["b"] < 12 and d["o"] != 2,
        lambda a, **others: a > 1 or None in others.values(),
        lambda d: {**d}["f"] is True,
    ],
)
def test_a_dictionary_may_be_taken_as_a_whole(function: Any) -> None:
    expression = Expression.parse(restriction_text(function, VALUES, ["N"], WORDS))
    named = function.__code__.co_flags & inspect.CO_VARKEYWORDS
    for values in itertools.product(*VALUES.values()):
        row = dict(zip(VALUES, values, strict=True))
        point = row | {"o": WORDS["o"][VALUES["o"].index(row["o"])], "N": 64}
        assert expression.holds(point) is bool(function(**row) if named else function(row))
