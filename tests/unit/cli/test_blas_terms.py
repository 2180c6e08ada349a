"""Shapes as BLAS says them: k is the reduction."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune import Gemm
from autotune.cli import main, parse
from autotune.cli.problems import shapes_text

SIZES = st.integers(1, 40)


@given(SIZES, SIZES, SIZES)
def test_a_problem_is_the_product_that_blas_makes(m: int, n: int, k: int) -> None:
    problem = Gemm.from_blas(m, n, k, dtype="float64", layout="nt")
    assert problem == Gemm(m=m, n=k, k=n, dtype="float64", layout="nt")
    assert problem.blas == (m, n, k)
    a, b = np.ones((m, k)), np.ones((k, n))
    assert problem.c_shape == (a @ b).shape
    assert problem.flops == 2 * m * n * k


@pytest.mark.parametrize("command", ["tune", "bench", "space", "sweep", "emit goto"])
def test_commands_take_it(command: str) -> None:
    args = parse([*command.split(), "--blas", "10,20,30", "--blas=1, 2,3"])
    assert args.blas == ["10x30x20", "1x3x2"]


def test_it_is_what_is_counted_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    where = ["space", "loops", "--target", "cpu"]
    assert main([*where, "--blas", "10,20,30", "--json"]) == 0
    [one] = json.loads(capsys.readouterr().out)
    assert main([*where, "--shape", "10x30x20", "--json"]) == 0
    [other] = json.loads(capsys.readouterr().out)
    assert one["problem"] == other["problem"]
    assert main([*where, "--shape", "10x30x20"]) == 0
    out = capsys.readouterr().out
    assert "C[10x20] = A[10x30] @ B[30x20]  float32  (BLAS m=10, n=20, k=30) on" in out
    assert out.count("BLAS") == 1


def test_progress_does_not_repeat_it() -> None:
    problem = Gemm.from_blas(1, 2, 3)
    assert shapes_text(problem) == "C[1x2] = A[1x3] @ B[3x2]  float32"
    assert shapes_text(problem, blas=True).endswith("float32  (BLAS m=1, n=2, k=3)")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["tune", "--blas", "10,20"], "must be three sizes, m,n,k"),
        (["tune", "--blas", "10x20x30"], "must be three sizes"),
        (["space", "--target", "cpu", "--blas", "8,0,8"], "got '8x8x0'"),
        (["space", "--blas", "8,8,8", "--shape", "8x8x8"], "not allowed with argument"),
        (["tune", "--preset", "cpu", "--blas", "8,8,8"], "--preset cpu says itself"),
        (["emit", "--record", "abc", "--blas", "8,8,8"], "--record says itself"),
    ],
)
def test_what_cannot_be_meant(
    capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = int(stop.code or 0)
    err = capsys.readouterr().err
    assert (code, err.count("\n")) == (2, 1)
    assert told in err
