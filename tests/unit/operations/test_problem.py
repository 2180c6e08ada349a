"""Problems, and formulas of operations of one's own."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.core.errors import ExpressionError, InputError, ProblemError
from autotune.distributed.mpi.target import MpiTarget
from autotune.operations.formula import Formula
from autotune.operations.problem import GEMM, Gemm, gemm_from_key


def test_shapes_follow_the_layout() -> None:
    sizes = {"m": 2, "n": 3, "k": 5}
    assert (Gemm(**sizes).a_shape, Gemm(**sizes).b_shape) == ((2, 3), (3, 5))
    transposed = Gemm(**sizes, layout="tt")
    assert (transposed.a_shape, transposed.b_shape, transposed.c_shape) == ((3, 2), (5, 3), (2, 5))


def test_fields_are_normalised() -> None:
    problem = Gemm(np.int64(4), 5, 6, dtype=np.float64, out_dtype="float64")
    assert problem == Gemm(4, 5, 6, dtype="float64")
    assert problem.key()["m"] == 4
    assert type(problem.m) is int
    assert Gemm(4, 5, 6, dtype=np.dtype("float32")).dtype == "float32"


def test_key_round_trips() -> None:
    problem = Gemm(7, 8, 9, dtype="float64", layout="nt", accuracy="strassen", threads=2)
    assert gemm_from_key(problem.key()) == problem


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"m": 0}, "m must"),
        ({"n": -3}, "n must"),
        ({"k": 2.5}, "k must"),
        ({"m": True}, "m must"),
        ({"m": "8"}, "m must"),
        ({"dtype": "int8"}, "dtype must"),
        ({"dtype": 3}, "dtype must"),
        ({"layout": "xx"}, "layout must"),
        ({"accuracy": "exact"}, "accuracy must"),
        ({"threads": 0}, "threads must"),
    ],
)
def test_bad_fields_are_named(fields: dict, named: str) -> None:
    with pytest.raises(ProblemError, match=named):
        Gemm(**({"m": 1, "n": 1, "k": 1} | fields))


def test_labels_tell_problems_apart() -> None:
    problems = [
        Gemm(1, 2, 3),
        Gemm(1, 2, 3, dtype="float64"),
        Gemm(1, 2, 3, layout="tn"),
        Gemm(1, 2, 3, accuracy="strassen"),
        Gemm(1, 2, 3, dtype="float16", accuracy="ieee"),
        Gemm(1, 2, 3, threads=1),
        Gemm(1, 2, 3, threads=2),
    ]
    assert len({problem.label for problem in problems}) == len(problems)


@pytest.mark.parametrize(
    "text", ["", "1x2", "1x2x3x4", "0x1x1", "-1x2x3", "axbxc", "1 x2x3", "²x1x1"]
)
def test_bad_shapes_are_refused(text: str) -> None:
    with pytest.raises(ProblemError, match="MxNxK"):
        GEMM.parse_shape(text)


def test_shapes_are_read() -> None:
    assert GEMM.parse_shape("16x4096X7") == (16, 4096, 7)


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        ("7x7x9223372036854775808", "k must be a whole number < 2^63"),
        ("7x7x99999999999999999999", "three whole numbers < 2^63"),
        (
            "99999999x99999999x99999999",
            "* K of operation 'gemm' must be a number < 2^63",
        ),
        ("7x0x7", "three whole numbers >= 1"),
    ],
)
def test_a_shape_that_is_too_large_is_told_the_upper_limit(shape: str, told: str) -> None:
    with pytest.raises(InputError, match=re.escape(told)):
        _ = GEMM.at(GEMM.parse_shape(shape)).flops


@pytest.mark.parametrize("ranks", [10**9, 2**70])
def test_ranks_that_nobody_has_are_refused_at_once(ranks: int) -> None:
    with pytest.raises(InputError, match=f"ranks must be at most 1048576, got {ranks}"):
        MpiTarget(ranks)


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
