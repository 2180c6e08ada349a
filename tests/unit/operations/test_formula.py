"""Formulas of operations of one's own: what they mean, and what they may not contain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.core.errors import ExpressionError
from autotune.operations.formula import Formula

TRIANGULAR = Formula("alpha * tril(A) @ B + beta * C")
OTHERS = (
    Formula("maximum(alpha * A @ B - beta * C, 0)"),
    Formula("-alpha * triu(A) @ (2 * B) - -C"),
)


def values(seed: int = 0, alpha: float = 1.5, beta: float = -0.5) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shapes = {"A": (5, 7), "B": (7, 3), "C": (5, 3), "S": (4, 5, 7), "x": (7,)}
    drawn = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    return {**drawn, "alpha": alpha, "beta": beta}


def test_a_formula_is_what_numpy_makes_of_it() -> None:
    v = values()
    a, b, c, s, x = (v[name] for name in "ABCSx")
    moved = np.zeros_like(a)
    moved[2:, :-1] = a[:-2, 1:]
    for text, expected in (
        ("alpha * tril(A) @ B + beta * C", 1.5 * np.tril(a) @ b - 0.5 * c),
        ("maximum(alpha * A @ B - beta * C, 0)", np.maximum(1.5 * a @ b + 0.5 * c, 0)),
        ("-alpha * triu(A) @ (2 * B) - -C", -3 * np.triu(a) @ b + c),
        ("minimum(A, 0.5) + relu(A)", np.minimum(a, 0.5) + np.maximum(a, 0)),
        ("sum(A, 1) + max(A, -1)", a.sum(1) + a.max(1)),
        ("shift(A, 2, -1)", moved),
        ("shift(A, 9, 0)", 0 * a),
        ("exp(-A) * tanh(A)", np.exp(-a) * np.tanh(a)),
        ("S @ B", s @ b),
        ("A * x + A @ x * 0", None),
        ("A @ x", a @ x),
    ):
        if expected is None:
            with pytest.raises(ExpressionError, match="does not fit together"):
                Formula(text).evaluate(v)
            continue
        np.testing.assert_allclose(Formula(text).evaluate(v), expected)


def test_it_is_computed_in_the_precision_of_the_operands() -> None:
    v = {name: np.asarray(x, "f4") if np.ndim(x) else x for name, x in values().items()}
    for formula in (TRIANGULAR, *OTHERS):
        assert formula.evaluate(v).dtype == np.float32


def test_what_multiplies_an_operand_says_whether_it_is_read() -> None:
    assert TRIANGULAR.factors_of("C") == (frozenset({"beta"}),)
    assert TRIANGULAR.factors_of("D") == ()
    twice = Formula("alpha * (beta * C + A) + C")
    assert twice.factors_of("C") == (frozenset({"alpha", "beta"}), frozenset())
    assert Formula("beta * tril(C)").factors_of("C") == (frozenset({"beta"}),)
    assert TRIANGULAR.names == {"alpha", "A", "B", "beta", "C"}


@given(
    seed=st.integers(0, 99),
    alpha=st.floats(-2, 2),
    beta=st.floats(-2, 2),
    formula=st.sampled_from((TRIANGULAR, *OTHERS)),
)
def test_the_magnitude_bounds_the_value(
    seed: int, alpha: float, beta: float, formula: Formula
) -> None:
    v = values(seed, alpha, beta)
    magnitude = formula.magnitude(v)
    assert (np.abs(formula.evaluate(v)) <= magnitude * (1 + 1e-12)).all()
    # No sign of any operand matters to it: it is the sum of what terms could cancel.
    turned = {**v, "A": -v["A"], "C": -v["C"], "alpha": -alpha}
    np.testing.assert_array_equal(magnitude, formula.magnitude(turned))


@pytest.mark.parametrize(
    "text",
    [
        "maximum(A @ B, C)",
        "minimum(A @ B, C)",
        "sum(A, 1)",
        "shift(A, 1, -1) - A",
        "exp(A @ B)",
        "tanh(A @ B) * C",
        "relu(A @ B + C)",
        "S @ B",
    ],
)
def test_rounding_errors_are_small_beside_the_magnitude(text: str) -> None:
    exact = values()
    short = {name: np.asarray(x, "f4") for name, x in exact.items()}
    widened = {name: np.asarray(x, "f8") for name, x in short.items()}
    formula = Formula(text)
    error = np.abs(formula.evaluate(short) - formula.evaluate(widened))
    assert (error <= 4 * np.finfo("f4").eps * formula.magnitude(widened)).all()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("A @", "is not a formula"),
        ("A / B", "'A / B'"),
        ("A ** 2", r"'A \*\* 2'"),
        ("inv(A) @ B", r"'inv\(A\)'"),
        ("tril(A, 1) @ B", r"tril\(A, 1\)"),
        ("tril(A, k=1)", "k=1"),
        ("maximum(A)", r"'maximum\(A\)'"),
        ("A.T @ B", "'A.T'"),
        ("A[0]", r"'A\[0\]'"),
        ("__import__('os')", "__import__"),
        ("True * A", "'True'"),
        ("'A'", "\"'A'\""),
        ("+".join("A" * 300), "at most 400"),
        ("sum(A)", r"'sum\(A\)'"),
        ("sum(A, alpha)", r"'sum\(A, alpha\)'"),
        ("sum(A, 1.0)", r"'sum\(A, 1.0\)'"),
        ("shift(A, True)", r"'shift\(A, True\)'"),
        ("shift(A, 1, 2, 3, 4)", "shift"),
        ("shift(A, 99999999)", "shift"),
        ("1e300 * A @ B", "got '1e[+]300'"),
        ("9" * 190 + " * A @ B", "got '9999"),
        ("(" * 150, "is not a formula"),
    ],
)
def test_anything_else_is_refused(text: str, part: str) -> None:
    with pytest.raises(ExpressionError, match=part):
        Formula(text)
