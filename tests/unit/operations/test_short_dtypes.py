"""Verifying products of 16-bit numbers: sums in float32 pass, sums in 16 bits do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from autotune.core.dtypes import DTYPES
from autotune.operations import references
from autotune.operations.accuracy import Tolerance
from autotune.operations.cases import SMALL_CASES, Case
from autotune.operations.problem import Gemm
from autotune.operations.verification import Check

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHORT = ["float16", "bfloat16"]


class Summed:
    """A running sum, the order with the largest rounding errors, kept in a type of its own."""

    def __init__(self, sums: str) -> None:
        self.sums = DTYPES[sums].numpy

    def __call__(
        self, a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], alpha: float, beta: float
    ) -> None:
        total = np.zeros(out.shape, np.float32)
        for column, row in zip(a.T.astype(np.float32), b.astype(np.float32), strict=True):
            total = (total + np.outer(column, row)).astype(self.sums).astype(np.float32)
        value = np.float32(alpha) * total
        if beta:
            value = value + np.float32(beta) * out.astype(np.float32)
        out[...] = value.astype(out.dtype)


def check(case: Case, dtype: str, out_dtype: str) -> Check:
    return Check(case, Gemm(1, 1, 1, dtype, out_dtype), np.random.default_rng(3))


@pytest.mark.parametrize("case", SMALL_CASES, ids=str)
@pytest.mark.parametrize("result", ["own", "float32"])
@pytest.mark.parametrize("dtype", SHORT)
def test_sums_in_float32_pass_at_small_sizes(dtype: str, result: str, case: Case) -> None:
    out_dtype = dtype if result == "own" else result
    verdict = check(case, dtype, out_dtype).run(Summed("float32"), "ieee")
    assert verdict.right, verdict.reason


@pytest.mark.parametrize("full", [True, False], ids=["every element", "samples"])
@pytest.mark.parametrize("n", [1, 7, 4096])
@pytest.mark.parametrize("dtype", SHORT)
def test_sums_in_float32_pass_and_short_sums_do_not(
    dtype: str, n: int, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not full:
        monkeypatch.setattr(references, "FULL_PRODUCTS", 0)
    for out_dtype in (dtype, "float32"):
        for beta in (0.0, 0.5):
            product = check(
                Case(37, n, 41, scalars={"alpha": 0.75, "beta": beta}), dtype, out_dtype
            )
            verdict = product.run(Summed("float32"), "ieee")
            assert verdict.right, verdict.reason
            if n == 4096:
                wrong = product.run(Summed(dtype), "ieee")
                assert wrong.error > 10, wrong


@pytest.mark.parametrize("dtype", SHORT)
def test_a_result_that_is_cut_off_is_wrong(dtype: str) -> None:
    """Rounding towards zero is off by twice what rounding to nearest is."""
    exact = check(Case(64, 512, 64), dtype, dtype)

    def cut(a: Any, b: Any, out: Any, alpha: float, beta: float) -> None:
        value = a.astype(np.float64) @ b.astype(np.float64)
        nearest = value.astype(out.dtype)
        word = nearest.view("u2")
        away = np.abs(nearest.astype(np.float64)) > np.abs(value)
        out.view("u2")[...] = word - away.astype("u2")

    verdict = exact.run(cut, "ieee")
    assert 1.5 < verdict.error < 2.1, verdict


def test_tolerances_of_results_as_wide_as_sums_are_what_they_were() -> None:
    for dtype in ("float32", "float64"):
        eps = float(np.finfo(dtype).eps)
        assert Tolerance.of("ieee", dtype, (8, 8, 8)) == Tolerance(16 * eps, normwise=False)
    wide = Tolerance.of("ieee", "float16", (8, 8, 8), "float32")
    assert wide == Tolerance.of("ieee", "float32", (8, 8, 8))
    short = Tolerance.of("ieee", "float16", (8, 8, 8))
    assert (short.factor, short.rounding, short.absolute) == (wide.factor, 2.0**-11, 2.0**-25)


@pytest.mark.parametrize("dtype", SHORT)
def test_guards_of_short_numbers_tell_who_wrote(dtype: str) -> None:
    product = check(Case(5, 6, 7, padding=3), dtype, "float32")
    right = Summed("float32")

    def past(a: Any, b: Any, out: Any, alpha: float, beta: float) -> None:
        right(a, b, out, alpha, beta)
        np.lib.stride_tricks.as_strided(out, (5, 8), out.strides)[:, 7] = 0

    assert product.run(right, "ieee").right
    assert product.run(past, "ieee").damaged
    assert "unwritten" in product.run(lambda *_: None, "ieee").reason
