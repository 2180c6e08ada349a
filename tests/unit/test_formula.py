"""Formulas of operations of one's own: what they mean, and what they may not contain."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from autotune.core.errors import ExpressionError
from autotune.operations.formula import Formula

TRIANGULAR = Formula("alpha * tril(A) @ B + beta * C")
OTHERS = (
    Formula("maximum(alpha * A @ B - beta * C, 0)"),
    Formula("-alpha * triu(A) @ (2 * B) - -C"),
)


def operands(seed: int = 0) -> list[NDArray[np.float64]]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in ((5, 7), (7, 3), (5, 3))]


def test_a_formula_is_what_numpy_makes_of_it() -> None:
    a, b, c = operands()
    np.testing.assert_allclose(
        TRIANGULAR.evaluate(a, b, c, 1.5, -0.5), 1.5 * np.tril(a) @ b - 0.5 * c
    )
    np.testing.assert_allclose(
        OTHERS[0].evaluate(a, b, c, 1.5, -0.5), np.maximum(1.5 * a @ b + 0.5 * c, 0)
    )
    np.testing.assert_allclose(OTHERS[1].evaluate(a, b, c, 1.5, -0.5), -3 * np.triu(a) @ b + c)


def test_what_must_not_be_read_counts_as_zero() -> None:
    a, b, _ = operands()
    result = TRIANGULAR.evaluate(a.astype("f4"), b.astype("f4"), None, 2.0, 0.0)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, 2 * np.tril(a) @ b, rtol=1e-5)


def test_a_function_of_what_must_not_be_read() -> None:
    a, b, _ = operands()
    result = Formula("A @ B + beta * tril(C)").evaluate(a, b, None, 1.0, 0.0)
    np.testing.assert_allclose(result, a @ b)


@given(
    seed=st.integers(0, 99),
    alpha=st.floats(-2, 2),
    beta=st.floats(-2, 2),
    formula=st.sampled_from((TRIANGULAR, *OTHERS)),
)
def test_the_magnitude_bounds_the_value(
    seed: int, alpha: float, beta: float, formula: Formula
) -> None:
    a, b, c = operands(seed)
    magnitude = formula.magnitude(a, b, c, alpha, beta)
    assert (np.abs(formula.evaluate(a, b, c, alpha, beta)) <= magnitude * (1 + 1e-12)).all()
    # No sign of any operand matters to it: it is the sum of what terms could cancel.
    np.testing.assert_array_equal(magnitude, formula.magnitude(-a, b, -c, -alpha, beta))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("A @", "is not a formula"),
        ("A / B", "'A / B'"),
        ("A ** 2", r"'A \*\* 2'"),
        ("alpha * D", "'D'"),
        ("inv(A) @ B", r"'inv\(A\)'"),
        ("tril(A, 1) @ B", r"tril\(A, 1\)"),
        ("tril(A, k=1)", "k=1"),
        ("maximum(A)", r"'maximum\(A\)'"),
        ("A.T @ B", "'A.T'"),
        ("A[0]", r"'A\[0\]'"),
        ("__import__('os')", "__import__"),
        ("True * A", "'True'"),
        ("'A'", "\"'A'\""),
        ("+".join("A" * 150), "at most 200"),
        ("A + B", "does not fit together"),
        ("tril(alpha) @ B", "does not fit together"),
        ("A @ 1", "does not fit together"),
        ("alpha * beta", "must give a matrix M x K"),
        ("1e300 * A @ B", "got '1e[+]300'"),
        ("9" * 190 + " * A @ B", "got '9999"),
        ("(" * 150, "is not a formula"),
    ],
)
def test_anything_else_is_refused(text: str, part: str) -> None:
    with pytest.raises(ExpressionError, match=part):
        Formula(text)
