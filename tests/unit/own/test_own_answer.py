"""An answer in place of a reference: arrays that belong to operands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_kernels import BRIEF, DOTS

import autotune
from autotune.core.errors import InputError, TuningFailedError
from autotune.operations.cases import cases_of
from autotune.targets.families import catalog

RNG = np.random.default_rng(0)
A, X, STATE = RNG.random((37, 20)), RNG.random(20), RNG.random(37)


def summed(reference: Any, cache: Path, **changed: Any) -> Any:
    """A product, its sum, and a state that it is added to in place."""
    said: dict[str, Any] = {
        "operands": {"A": "MxN", "x": "N", "state": "M"},
        "out": {"y": "M", "total": (), "state": "M"},
        "inputs": {"A": A, "x": X, "state": STATE},
        "parameters": {"step": [1, 2]},
    }

    @autotune.kernel(**{**said, **changed}, reference=reference, cache=cache, **BRIEF)
    def product(A, x, state, y, total, step):  # type: ignore[no-untyped-def]
        sums = 0.0
        for i in range(A.shape[0]):
            y[i] = 0.0
            for j in range(A.shape[1]):
                y[i] += A[i, j] * x[j]
            state[i] += y[i]
            sums += y[i]
        total[0] = sums

    return product


def answer() -> tuple[Any, ...]:
    """Outputs in the order of the operation: those in place come with the inputs."""
    return STATE + A @ X, A @ X, (A @ X).sum()


def test_an_answer_is_of_its_operands(tmp_path: Path) -> None:
    kernel = summed(answer(), tmp_path)
    problem = kernel.problem(M=37, N=20, dtype="float64")
    assert [case.sizes for case in cases_of(problem)] == [(37, 20)]
    state = STATE.copy()
    found = kernel(A, X, state)
    for got, wanted in zip(found, answer(), strict=True):
        np.testing.assert_allclose(np.squeeze(got), wanted, rtol=1e-12)
    with pytest.raises(InputError, match="no configuration of product is valid for 36x20"):
        kernel(A[1:].copy(), X, STATE[1:].copy())
    other = summed((answer()[0] + 1, *answer()[1:]), tmp_path)
    assert other.folder != kernel.folder
    with pytest.raises(TuningFailedError, match=r"at M?.*state\[\d+\] is .*, expected"):
        other(A, X, STATE.copy())


def test_a_source_has_an_answer_too(tmp_path: Path) -> None:
    kernel = autotune.kernel(
        source=DOTS,
        operands={"A": "MxN", "x": "N"},
        out={"y": "M"},
        scalars={"alpha": 1.0, "beta": 0.0},
        reference=A @ X,
        inputs={"A": A, "x": X},
        parameters={"THREADS": [32], "ROWS": [1], "USE_BETA": [True]},
        restrictions="ROWS <= M",
        grid=["ceildiv(M, ROWS)"],
        block=["THREADS"],
        cache=tmp_path,
    )
    family = catalog("cuda", "dots", [kernel.folder])["dots"]
    texts = [each.text for each in family.restrictions]
    assert texts[-3:] == ["ROWS <= M", "M == 37", "N == 20"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"inputs": None}, "inputs must be the operands that the answer is for"),
        ({"inputs": {"A": A}}, "must be 3 arrays, with the inputs A, x, state, got 3, with A$"),
        ({"reference": A @ X}, "must be 3 arrays, with .* got 1, with"),
        ({"reference": (STATE[1:], *answer()[1:])}, "must have state of one shape"),
        ({"inputs": {"A": A.T, "x": X, "state": STATE}}, "x has N = 20, and A has N = 37"),
        ({"reference": "A @ x"}, "inputs must be a function, unless reference is an answer"),
        ({"inputs": {"A": A.astype(str), "x": X, "state": STATE}}, "A must be an array of num"),
    ],
)
def test_answers_that_do_not_fit_are_one_line(
    changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    reference = changed.pop("reference", answer())
    with pytest.raises(InputError, match=message):
        summed(reference, tmp_path, **changed)
