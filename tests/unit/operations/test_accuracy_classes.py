"""The accuracy classes of tensor cores: what they allow, and what is meant where none is named."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune import Gemm, find_operation
from autotune.core.dtypes import DTYPES
from autotune.core.errors import InputError
from autotune.operations.accuracy import ACCURACIES, Tolerance, admits
from autotune.operations.references import FullReference

Matrix = NDArray[np.float64]

M, K = 24, 40


def towards_zero(values: Matrix) -> Matrix:
    """Float64 numbers truncated to float32."""
    nearest = values.astype(np.float32)
    beyond = np.abs(nearest.astype(np.float64)) > np.abs(values)
    return np.where(beyond, np.nextafter(nearest, np.float32(0)), nearest).astype(np.float64)


def tensor_core(a: Matrix, b: Matrix, block: int) -> Matrix:
    """A B as the unit adds it up, in one accumulator.

    Exact products, `block` of them at a time, and what was there before are truncated to 24 bits
    below the largest of them, added up, and truncated to float32, as a V100 does, the least exact
    of its kind (Fasi et al., 2021).
    """
    c = np.zeros((a.shape[0], b.shape[1]))
    for start in range(0, a.shape[1], block):
        steps = slice(start, start + block)
        addends = np.concatenate([c[None], a[:, steps].T[:, :, None] * b[steps][:, None, :]])
        largest = np.abs(addends).max(axis=0)
        quantum = 2.0 ** (np.floor(np.log2(np.where(largest > 0, largest, 1.0))) - 23)
        c = towards_zero((np.trunc(addends / quantum) * quantum).sum(axis=0))
    return c


def significand(values: Matrix, bits: int) -> Matrix:
    """Numbers rounded to so many bits of significand."""
    fraction, exponent = np.frexp(values)
    return np.ldexp(np.round(fraction * 2.0**bits) / 2.0**bits, exponent)


def drawn(n: int, dtype: str, distribution: str, seed: int) -> tuple[Matrix, Matrix]:
    """Operands as checks draw them."""
    rng = np.random.default_rng(seed)

    def one(shape: tuple[int, int]) -> Matrix:
        values = rng.uniform(-1, 1, shape) if distribution == "uniform" else rng.normal(size=shape)
        return values.astype(DTYPES[dtype].numpy).astype(np.float64)

    return one((M, n)), one((n, K))


def error(a: Matrix, b: Matrix, c: Matrix, accuracy: str, dtype: str) -> float:
    """Of a float32 result, relative to what the class allows."""
    reference = FullReference.of_product(a, b, None, 1.0, 0.0)
    tolerance = Tolerance.of(accuracy, dtype, (M, a.shape[1], K), "float32")
    return reference.error(c, tolerance)


@pytest.mark.parametrize("distribution", ["uniform", "normal"])
@pytest.mark.parametrize("n", [1, 3, 16, 150, 1024, 16384])
@pytest.mark.parametrize("block", [4, 16])
def test_what_the_unit_does_is_allowed(distribution: str, n: int, block: int) -> None:
    for dtype, accuracy in (("float16", "native"), ("bfloat16", "native"), ("float32", "tf32")):
        a, b = drawn(n, dtype, distribution, n + block)
        left, right = (significand(each, 11) if accuracy == "tf32" else each for each in (a, b))
        found = error(a, b, tensor_core(left, right, block), accuracy, dtype)
        assert found < (1.0 if n < 100 else 0.5), (dtype, found)


def test_truncation_is_more_than_ieee_allows_of_a_long_sum() -> None:
    a, b = (np.abs(each) for each in drawn(16384, "float16", "uniform", 0))
    c = tensor_core(a, b, 4)
    assert error(a, b, c, "ieee", "float16") > 1
    assert error(a, b, c, "native", "float16") > 1  # checks draw numbers of either sign


@pytest.mark.parametrize("distribution", ["uniform", "normal"])
@pytest.mark.parametrize("n", [1, 2, 7, 64, 500, 4096, 16384])
@pytest.mark.parametrize(("dtype", "accuracy"), [("float16", "native"), ("float32", "tf32")])
def test_a_dropped_or_doubled_term_is_refused(
    dtype: str, accuracy: str, n: int, distribution: str
) -> None:
    a, b = drawn(n, dtype, distribution, n)
    for factor in (0.0, 2.0):
        wrong = a.copy()
        wrong[:, n // 2] *= factor
        assert error(a, b, wrong @ b, accuracy, dtype) > 1


@pytest.mark.parametrize("n", [64, 500, 4096])
@pytest.mark.parametrize(("dtype", "accuracy"), [("float16", "native"), ("float32", "tf32")])
def test_sums_in_16_bits_are_refused(dtype: str, accuracy: str, n: int) -> None:
    a, b = drawn(n, dtype, "uniform", n)
    c = np.zeros((M, K), np.float16)
    for step in range(n):
        c += (a[:, step, None] * b[None, step]).astype(np.float16)
    assert error(a, b, c.astype(np.float64), accuracy, dtype) > 1


@pytest.mark.parametrize("n", [256, 4096])
def test_an_error_that_does_not_average_out_is_refused(n: int) -> None:
    a, b = drawn(n, "float32", "uniform", n)
    assert error(a, b, a @ b + 2.0**-10 * (np.abs(a) @ np.abs(b)), "tf32", "float32") > 1


@pytest.mark.parametrize("n", [1, 16, 1024])
def test_operands_of_fewer_bits_than_tf32_are_refused(n: int) -> None:
    a, b = drawn(n, "float32", "normal", n)
    assert error(a, b, significand(a, 8) @ significand(b, 8), "tf32", "float32") > 1
    assert error(a, b, significand(a, 11) @ significand(b, 11), "ieee", "float32") > 1


def test_classes_of_products_need_to_know_the_reduction() -> None:
    with pytest.raises(InputError, match="accuracy native is for matrix products"):
        Tolerance.of("native", "float16", (8, 8))


def test_16_bit_operands_mean_native_where_no_class_is_named() -> None:
    for dtype, usual in (
        ("float16", "native"),
        ("bf16", "native"),
        ("float32", "ieee"),
        ("float64", "ieee"),
    ):
        problem = Gemm(4, 5, 6, dtype=dtype)
        assert problem.accuracy == usual
        assert problem == Gemm(4, 5, 6, dtype=dtype, accuracy=usual)
        assert usual not in problem.label
        assert problem.with_sizes(7, 8, 9).accuracy == usual
        exact = Gemm(4, 5, 6, dtype=dtype, accuracy="ieee")
        assert exact.defined.problem_from_key(exact.key()) == exact
        assert ("ieee" in exact.label) == (usual != "ieee")
    own = find_operation("gemv", ["examples/operations"]).problem(M=4, N=4, dtype="float16")
    assert own.accuracy == "native"
    assert dataclasses.replace(own, accuracy="ieee").accuracy == "ieee"


def test_kernels_that_promise_more_serve_every_class() -> None:
    for wanted in ("ieee", "native", "tf32", "strassen"):
        assert admits(wanted, "ieee")
    assert admits("tf32", "tf32")
    assert admits("native", "native")
    assert not admits("ieee", "native")
    assert not admits("ieee", "tf32")
    assert not admits("native", "tf32")


@pytest.mark.parametrize("offered", ACCURACIES)
def test_a_class_serves_those_whose_bounds_are_looser(offered: str) -> None:
    def factor(accuracy: str) -> float:
        return Tolerance.of(accuracy, "float32", (512, 512, 512)).factor

    served = [wanted for wanted in ACCURACIES if admits(wanted, offered)]
    assert offered in served
    assert all(factor(offered) <= factor(wanted) for wanted in served)
    assert {"ieee": 6, "fp32": 3}.get(offered, 1) == len(served)


def test_normwise_errors_of_small_elements_may_be_large() -> None:
    scale = np.array([[1.0, 1e-6]])
    normwise, elementwise = (
        Tolerance.of(accuracy, "float32", (1, 64, 2)).allowed(scale, 1.0, scale)
        for accuracy in ("fp32-normwise", "fp32")
    )
    assert np.ptp(normwise) == 0
    assert elementwise[0, 1] < 1e-5 * float(np.max(normwise))
