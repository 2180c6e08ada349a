"""Integer element types: a row each is all that problems and verification need of one."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune import Gemm
from autotune.core.dtypes import DTYPES, Dtype
from autotune.operations.accuracy import Tolerance
from autotune.operations.cases import SMALL_CASES, Case, cases_of, special_cases
from autotune.operations.poke import Poke
from autotune.operations.verification import ProductCheck

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
    assert Tolerance.of("ieee", "int8", (3, 4, 5)) == Tolerance(0.0, False)


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
