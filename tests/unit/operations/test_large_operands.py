"""Operands of large products: drawn from few random numbers, referred to block by block."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.core.dtypes import DTYPES
from autotune.operations import sums
from autotune.operations.drawing import MANY, random_elements
from autotune.operations.references import FullReference, SampledReference

SHAPE = (1025, 1027)


def drawn(distribution: str, dtype: str, seed: int = 0) -> NDArray[Any]:
    rng = np.random.default_rng(seed)
    return random_elements(rng, SHAPE, distribution, dtype, large=False)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize(("distribution", "deviation"), [("uniform", 3**-0.5), ("normal", 1.0)])
def test_elements_of_large_arrays_are_as_random_as_others(
    distribution: str, deviation: float, dtype: str
) -> None:
    assert SHAPE[0] * SHAPE[1] > MANY
    values = drawn(distribution, dtype)
    assert (values.dtype, values.shape) == (DTYPES[dtype].numpy, SHAPE)
    exact = values.astype(np.float64)
    assert abs(exact.mean()) < 0.01
    assert exact.std() == pytest.approx(deviation, rel=0.01)
    assert (np.abs(exact).max() <= 1) == (distribution == "uniform")
    # No row or column is like the next one, nor is an element.
    for one, other in ((exact[1:], exact[:-1]), (exact[:, 1:], exact[:, :-1])):
        assert abs((one * other).mean()) < 0.01
        assert not (one == other).all(axis=0).any()
    assert (values == drawn(distribution, dtype)).all()
    assert not (values == drawn(distribution, dtype, seed=1)).all()


def test_no_number_is_drawn_too_often() -> None:
    values, counts = np.unique(drawn("normal", "float32"), return_counts=True)
    assert len(values) > 2**15
    assert counts.max() < 3 * counts.mean()


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "_BLOCK", 500)


FACTORS = tuple(np.random.default_rng(3).normal(size=size) for size in ((41, 97), (97, 53)))
BEFORE = np.random.default_rng(4).normal(size=(41, 53))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_blocks_make_up_the_whole_product(dtype: str) -> None:
    a, b = (each.astype(DTYPES[dtype].numpy) for each in FACTORS)
    left, right = a.astype(np.float64), b.astype(np.float64)
    reference = FullReference.of_product(a, b, BEFORE, -1.5, 0.5)
    terms = np.abs(left)[:, :, None] * np.abs(right)[None]
    expected = -1.5 * np.einsum("ij,jk->ik", left, right) + 0.5 * BEFORE
    np.testing.assert_allclose(reference.expected, expected, rtol=1e-12, atol=1e-12)
    scale = 1.5 * terms.sum(axis=1) + 0.5 * np.abs(BEFORE)
    np.testing.assert_allclose(reference.scale, scale, rtol=1e-12)
    lengths = np.linalg.norm(left, axis=1)[:, None] * np.linalg.norm(right, axis=0)
    norms = reference.relative_to("norms")
    np.testing.assert_allclose(norms, 1.5 * lengths + 0.5 * np.abs(BEFORE), rtol=1e-12)


@pytest.mark.usefixtures("small_blocks")
def test_parts_of_a_large_product_are_those_of_the_whole() -> None:
    a, b = FACTORS
    whole = FullReference.of_product(a, b, BEFORE, 2.0, -1.0)
    some = SampledReference(a, b, BEFORE, 2.0, -1.0, np.random.default_rng(5))
    of_rows, of_columns = some._row_part, some._column_part
    for part, place in ((of_rows, (some.rows, ...)), (of_columns, (..., some.columns))):
        np.testing.assert_allclose(part.expected, whole.expected[place], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(part.scale, whole.scale[place], rtol=1e-12)
        for_norms = whole.relative_to("norms")
        assert isinstance(for_norms, np.ndarray)
        np.testing.assert_allclose(part.relative_to("norms"), for_norms[place], rtol=1e-12)
    image = whole.expected @ some.vectors
    np.testing.assert_allclose(some._expected, image, rtol=1e-9, atol=1e-9)
    # Sums of squares of rows are bounded by norms of B's rows, and of all of B.
    rows = np.linalg.norm(BEFORE, axis=1, keepdims=True)
    terms = 2 * np.abs(a) @ np.linalg.norm(b, axis=1, keepdims=True) + rows
    lengths = 2 * np.linalg.norm(a, axis=1, keepdims=True) * np.linalg.norm(b) + rows
    np.testing.assert_allclose(some._scales["terms"], terms, rtol=1e-12)
    np.testing.assert_allclose(some._scales["norms"], lengths, rtol=1e-12)
