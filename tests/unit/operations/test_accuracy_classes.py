"""Accuracy by element type: classes of tensor cores, 16-bit numbers and integers."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune import Gemm, find_operation
from autotune.core.dtypes import DTYPES, Dtype
from autotune.core.errors import InputError
from autotune.operations import contents
from autotune.operations.accuracy import ACCURACIES, Tolerance, admits
from autotune.operations.cases import SMALL_CASES, Case, cases_of, special_cases
from autotune.operations.poke import Poke
from autotune.operations.references import FullReference
from autotune.operations.verification import Check, ProductCheck

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
    assert {"ieee": 7, "fp32": 3, "fp32-normwise": 2}.get(offered, 1) == len(served)


def test_errors_of_small_elements_may_be_large_where_norms_or_the_largest_count() -> None:
    a = np.array([[1.0, 1e-6]])
    b = np.array([[1e-6, 1.0, 1.0], [1.0, 1e-6, 1.0]])
    reference = FullReference.of_product(a, b, None, 2.0, 0.0)
    assert reference.relative_to("terms") == pytest.approx(2 * np.array([[2e-6, 1.0, 1.0]]))
    norms = 2 * np.array([[1.0, 1.0, np.sqrt(2)]])
    assert reference.relative_to("norms") == pytest.approx(norms)
    assert reference.relative_to("largest") == pytest.approx(2.0)
    by_terms, by_norms = (
        reference.allowed(Tolerance.of(accuracy, "float32", (1, 64, 3)))
        for accuracy in ("fp32", "fp32-normwise")
    )
    assert by_norms == pytest.approx(64 * 2.0**-24 * norms)
    assert by_terms[0, 0] < 1e-5 * by_norms[0, 0]


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
        monkeypatch.setattr(contents, "FULL_PRODUCTS", 0)
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
        assert Tolerance.of("ieee", dtype, (8, 8, 8)) == Tolerance(16 * eps)
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


INT32 = Dtype(
    name="int32",
    aliases=("i32",),
    itemsize=4,
    accuracy="ieee",
    accumulation="int32",
    c_type="int",
    typestrs=("<i4",),
    dlpack=0,
    nccl=2,
    cublas=10,
    tensor_map=3,
    kind="integer",
    letter="i",
    scalar=ctypes.c_int,
)
INT8 = replace(
    INT32, name="int8", aliases=("i8",), itemsize=1, c_type="signed char", typestrs=("|i1",)
)
Product = Callable[..., None]


@pytest.fixture(autouse=True)
def rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in (INT32, INT8):
        monkeypatch.setitem(DTYPES, row.name, row)  # type: ignore[arg-type]


def textbook(a: Any, b: Any, c: Any, alpha: int, beta: int) -> None:
    product = a.astype(np.int32) @ b.astype(np.int32)
    c[...] = alpha * product + (beta * c if beta else 0)


def zeros(a: Any, b: Any, c: Any, alpha: int, beta: int) -> None:
    c[...] = 0


def one_off(a: Any, b: Any, c: Any, alpha: int, beta: int) -> None:
    textbook(a, b, c, alpha, beta)
    c[-1, -1] += 1


def narrow(a: Any, b: Any, c: Any, alpha: int, beta: int) -> None:
    """Sums in 8 bits, as where nothing says that they need more."""
    c[...] = alpha * (a @ b) + (beta * c if beta else 0)


def idle(a: Any, b: Any, c: Any, alpha: int, beta: int) -> None:
    pass


def checked(kernel: Product, case: Case, dtype: str = "int8") -> Any:
    check = ProductCheck(case, Gemm(1, 1, 1, dtype=dtype), np.random.default_rng(3))
    return check.run(kernel, "ieee")


def test_results_of_int8_are_int32() -> None:
    problem = Gemm(3, 4, 5, dtype="int8")
    assert problem.accuracy == "ieee"
    assert [each.dtype for each in problem.operands] == ["int8", "int8", "int32"]
    assert Gemm(3, 4, 5, dtype="int8", out_dtype="int32") == problem
    assert Tolerance.of("ieee", "int8", (3, 4, 5)) == Tolerance(0.0)


@pytest.mark.parametrize("dtype", ["int8", "int32"])
@pytest.mark.parametrize("case", SMALL_CASES, ids=str)
def test_integers_are_exact(case: Case, dtype: str) -> None:
    assert checked(textbook, case, dtype).error == 0
    verdict = checked(one_off, case, dtype)
    assert not verdict.right
    assert "expected" in verdict.reason


@pytest.mark.parametrize("kernel", [zeros, narrow, idle])
def test_wrong_kernels_are_found(kernel: Product) -> None:
    assert not checked(kernel, Case(17, 33, 9)).right
    assert not checked(kernel, Case(17, 33, 9, scalars={"beta": 0.5})).right


@pytest.mark.parametrize("case", cases_of(Gemm(1, 1, 1)), ids=str)
def test_sums_fit_whatever_the_size(case: Case) -> None:
    m, n, k = case.sizes
    case = Case(min(m, 70), n, min(k, 70), scalars=dict(case.scalars))
    assert checked(textbook, case).right
    assert checked(textbook, case, "int32").right


def test_operands_use_the_range_and_fractions_become_whole() -> None:
    case = Case(40, 50, 60, scalars={"alpha": -1.5, "beta": 0.25})
    check = ProductCheck(case, Gemm(1, 1, 1, dtype="int8"), np.random.default_rng(0))
    assert (check.a.min(), check.a.max()) == (-127, 127)
    assert check.arguments[3:] == (-2, 1)
    assert special_cases(check.problem, [case]) == ()


def test_a_change_of_one_integer_shows() -> None:
    case = Case(40, 50, 60)
    rng = np.random.default_rng(0)
    check = ProductCheck(case, Gemm(1, 1, 1, dtype="int8"), rng)
    for kernel, right in ((textbook, True), (idle, False)):
        check.prepare()
        textbook(*check.arguments)
        poke = Poke(case, check.problem, check, lambda run=kernel: run(*check.arguments), rng)
        poke.begin(1e-4)
        kernel(*check.arguments)
        poke.end()
        assert (not poke.flaw) is right, poke.flaw
