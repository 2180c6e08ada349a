"""Layers: products with what usually follows them, and the functions that they use."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune import find_operation, load, tune
from autotune.core.errors import NotTunedError, ProblemError
from autotune.families.catalog import catalog as catalog_of
from autotune.operations.accuracy import Tolerance
from autotune.operations.formula import Formula
from autotune.operations.layers import ACTIVATIONS, LAYERS, PARTS, built_in
from autotune.operations.problem import GEMM, Gemm, product_of
from autotune.runtime.shape_list import UsedShape, append, read_shapes
from autotune.targets.families import catalog
from autotune.targets.registry import LANGUAGES

RNG = np.random.default_rng(7)
M, N, K = 5, 4, 3


def gelu(x: float) -> float:
    """By the complementary error function, which does not cancel."""
    return 0.5 * x * math.erfc(-x / math.sqrt(2))


def gelu_tanh(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def sigmoid(x: float) -> float:
    return 0.5 * (1 + math.tanh(0.5 * x))


EXACT: dict[str, Callable[[float], float]] = {
    "": lambda x: x,
    "relu": lambda x: max(x, 0.0),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": lambda x: x * sigmoid(x),
    "sigmoid": sigmoid,
}


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_a_layer_computes_what_its_name_lists(name: str) -> None:
    layer = LAYERS[name]
    defined = layer.operation
    assert defined is built_in(name)
    shapes = {"A": (M, N), "B": (N, K), "row_scale": (M, 1), "column_scale": (K,), "bias": (K,)}
    shapes |= {"multiply": (M, K), "residual": (M, K)}
    given = {part: RNG.normal(size=shapes[part]) for part in ("A", "B", *layer.parts)}
    words = (
        name.removeprefix("layer").replace("row_scale", "rows").replace("column_scale", "columns")
    )
    expected = given["A"] @ given["B"]
    for word in filter(None, words.replace("gelu_tanh", "gelu-tanh").split("_")):
        match word:
            case "rows" | "columns":
                expected = expected * given[f"{word[:-1]}_scale"]
            case "bias" | "residual":
                expected = expected + given[word]
            case "multiply":
                expected = expected * given[word]
            case _:
                expected = np.vectorize(EXACT[word.replace("-", "_")])(expected)
    found = defined.result.evaluate(given)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


def test_names_are_one_for_each_choice_of_parts() -> None:
    assert len(LAYERS) == 2 ** len(PARTS) * (1 + len(ACTIVATIONS)) - 1
    assert built_in("gemm") is GEMM
    assert built_in("layer") is built_in("layer_gelu_bias") is None


@pytest.mark.parametrize("name", ["sigmoid", "silu", "gelu", "gelu_tanh"])
@given(st.lists(st.floats(-200, 200, width=32), min_size=1, max_size=50), st.floats(-1, 1))
def test_what_rounding_may_change_is_allowed(name: str, xs: list[float], off: float) -> None:
    """A float32 program, on an argument that is off by what its sums may be."""
    formula, exact = Formula(f"{name}(x)"), np.array(xs)
    tolerance = Tolerance.of("ieee", "float32", (4, 4, 4))
    allowed = tolerance.factor * formula.magnitude({"x": exact})
    near = (exact * (1 + 0.5 * tolerance.factor * off)).astype(np.float32)
    one = np.float32(1)
    with np.errstate(over="ignore"):
        inner = near * (np.float32(-1.5957691) + np.float32(-0.071354814) * near * near)
        found = {
            "sigmoid": lambda: one / (one + np.exp(-near)),
            "silu": lambda: near / (one + np.exp(-near)),
            "gelu_tanh": lambda: near / (one + np.exp(inner)),
            "gelu": lambda: (
                np.float32(0.5) * near * (one + np.vectorize(math.erf)(near / np.sqrt(2)))
            ).astype(np.float32),
        }[name]()
    expected = np.array([EXACT[name](x) for x in xs])
    np.testing.assert_allclose(formula.evaluate({"x": exact}), expected, rtol=1e-9, atol=1e-13)
    smallest = 2.0**-149  # of float32
    assert (np.abs(found - expected) <= allowed + smallest).all()


@pytest.mark.parametrize("name", ["sigmoid", "silu", "gelu", "gelu_tanh"])
def test_a_wrong_function_is_not_allowed(name: str) -> None:
    formula, x = Formula(f"{name}(x)"), np.linspace(-4, 4, 81)
    tolerance = Tolerance.of("native", "bfloat16", (64, 4096, 64))
    allowed = tolerance.factor * formula.magnitude({"x": x}) + 2.0**-8 * np.abs(x)
    for other in {"silu", "gelu", "relu"} - {name, name.removesuffix("_tanh")}:  # near in 16 bits
        wrong = Formula(f"{other}(x)").evaluate({"x": x})
        assert (np.abs(wrong - formula.evaluate({"x": x})) > allowed).any()


def test_infinity_and_nan_come_out_as_pytorch_has_them() -> None:
    x = np.array([np.inf, -np.inf, np.nan])
    with np.errstate(invalid="ignore"):
        for name in ("silu", "gelu", "gelu_tanh"):
            np.testing.assert_array_equal(
                Formula(f"{name}(x)").evaluate({"x": x}), [np.inf, np.nan, np.nan]
            )
        np.testing.assert_array_equal(Formula("sigmoid(x)").evaluate({"x": x}), [1, 0, np.nan])


def test_the_error_function_of_many_elements_is_that_of_few() -> None:
    x = np.linspace(-6, 6, 5000).reshape(50, 100)
    many, few = (Formula("gelu(x)").evaluate({"x": part}) for part in (x, x[:2]))
    np.testing.assert_allclose(many[:2], few, rtol=1e-13, atol=1e-15)


def test_a_problem_says_how_its_product_is_stored() -> None:
    defined = LAYERS["layer_bias_silu"].operation
    plain = defined.problem(M=M, N=N, K=K)
    stored = defined.problem(M=M, N=N, K=K, layout="nt", dtype="float64")
    assert "layout" not in plain.key()
    assert defined.problem_from_key(plain.key()) == plain
    assert defined.problem_from_key(stored.key()) == stored
    assert [each.shape for each in stored.operands] == [(M, N), (K, N), (K,), (M, K)]
    assert stored.named({"B": np.zeros((K, N))})["B"].shape == (N, K)
    assert product_of(stored) == Gemm(M, N, K, "float64", layout="nt")
    assert "nt" in stored.label
    with pytest.raises(ProblemError, match="layout must be one of nn, nt, tn, tt"):
        defined.problem(M=M, N=N, K=K, layout="no")


def test_families_of_gemm_compute_a_layer_and_leave_gemm_s_as_they_are() -> None:
    families, own = catalog("cuda", "layer_bias_gelu"), catalog("cuda")
    assert {"wgmma", "mma", "skinny", "naive"} <= set(families) <= set(own)
    digests = {families.digests["wgmma"], own.digests["wgmma"]}
    digests.add(catalog("cuda", "layer_bias_silu").digests["wgmma"])
    assert len(digests) == 3
    problem = LAYERS["layer_bias_gelu"].operation.problem(
        M=64, N=64, K=64, dtype="bfloat16", layout="nt"
    )
    assert families["wgmma"].unsupported(problem) is None
    assert own["wgmma"].unsupported(problem) is not None


def test_no_shipped_family_has_a_name_that_a_layer_uses() -> None:
    for name in ("layer_row_scale_column_scale_bias_gelu_multiply_residual",):
        for target in ("cpu", "cuda"):
            assert len([*catalog_of(target, name, languages=LANGUAGES)]) > 3


def test_numba_has_no_error_function() -> None:
    problem = LAYERS["layer_gelu"].operation.problem(M=8, N=8, K=8)
    with pytest.raises(NotTunedError, match=r"none can be: .*goto has no gelu on cpu"):
        load(problem, target="cpu")


@pytest.mark.thorough
def test_a_layer_is_tuned_recorded_and_loaded_like_a_product(tmp_path: Path) -> None:
    defined = find_operation("layer_bias_silu_multiply")
    problem = defined.problem(M=37, N=24, K=30, layout="nt", threads=1)
    tuned = tune(
        problem, target="cpu", families=["unpacked"], trials=1, timeout=20, cache=tmp_path
    )
    assert tuned.best is not None
    kernel = load(problem, target="cpu", cache=tmp_path)
    assert str(kernel.match) == "EXACT"
    a, b = RNG.normal(size=(37, 24)), RNG.normal(size=(30, 24))
    bias, gate = RNG.normal(size=30), RNG.normal(size=(37, 30))
    given: list[Any] = [each.astype("f4") for each in (a, b, bias, gate)]
    value = a @ b.T + bias
    expected = value / (1 + np.exp(-value)) * gate
    np.testing.assert_allclose(kernel(*given), expected, rtol=1e-5, atol=1e-5)
    listed = tmp_path / "shapes.jsonl"
    append(listed, [UsedShape(problem, "cpu", 3.0)])
    (used,) = read_shapes(listed, defined.name)
    assert used == UsedShape(problem, "cpu", 3.0)
    assert replace(used.problem, layout="nn") != problem
