"""Operands and references of cases: those that there is time for, whatever a reference takes."""

from __future__ import annotations

import math

import pytest
from example_kernels import NAMES, kernel, module

from autotune import Gemm
from autotune.core.errors import InputError
from autotune.measuring.harness import DEVICE_PRODUCTS, DRAWING_S, DrawnCases, device_cases
from autotune.operations.cases import Case, cases_of
from autotune.operations.problem import Problem


class Drawing:
    """Draws cases in a time of its own."""

    def __init__(self, case_s: float) -> None:
        self.now_s = 0.0
        self.case_s = case_s
        self.order: list[Case] = []

    def __call__(self, case: Case) -> str:
        self.order.append(case)
        self.now_s += self.case_s
        return f"drawn {case}"

    def of(self, problem: Problem) -> DrawnCases[str]:
        return DrawnCases(problem, device_cases(problem), self, lambda: self.now_s)


def own_problem(name: str) -> Problem:
    own = kernel(module(name), "cuda")
    return own.problem(**dict.fromkeys(own.operation.sizes, 64))


@pytest.mark.parametrize("case_s", [0.3 * DRAWING_S, 1e3 * DRAWING_S])
def test_a_slow_reference_in_python_leaves_out_large_cases(case_s: float) -> None:
    problem, drawing = own_problem("softmax"), Drawing(case_s)
    found, wanted = drawing.of(problem), device_cases(problem)
    assert drawing.now_s < DRAWING_S + case_s
    assert len(drawing.order) == math.ceil(DRAWING_S / case_s) < len(wanted)
    traffic = [problem.with_sizes(*each.sizes).traffic for each in wanted]
    left_out = [problem.with_sizes(*each.sizes) for each in wanted if each not in drawing.order]
    assert min(each.traffic for each in left_out) >= sorted(traffic)[len(drawing.order) - 1]
    special = drawing.order[0].drawn_from("special")
    assert found.of([special, *wanted]) == [
        f"drawn {each}" for each in wanted if each in drawing.order
    ]
    assert special not in drawing.order


def test_further_cases_are_drawn_once_while_there_is_time() -> None:
    drawing = Drawing(1e-3)
    found = drawing.of(own_problem("softmax"))
    special = drawing.order[0].drawn_from("special")
    for _ in range(2):
        assert found.of([special]) == [f"drawn {special}"]
    assert drawing.order.count(special) == 1


def test_what_cannot_be_drawn_is_told_to_who_asks_for_it() -> None:
    problem, drawn = own_problem("softmax"), []

    def make(case: Case) -> str:
        if min(case.sizes) < 4:
            raise InputError(f"no operands of {case}")
        drawn.append(case)
        return f"drawn {case}"

    wanted = device_cases(problem)
    found = DrawnCases(problem, wanted, make)
    large = [case for case in wanted if min(case.sizes) >= 4]
    assert found.of(large) == [f"drawn {each}" for each in large]
    assert sorted(map(str, drawn)) == sorted(map(str, large))
    assert 0 < len(large) < len(wanted)
    with pytest.raises(InputError, match="no operands of"):
        found.of(wanted)


def test_products_are_drawn_whatever_it_takes() -> None:
    drawing = Drawing(1e3 * DRAWING_S)
    drawing.of(Gemm(8, 8, 8))
    assert tuple(drawing.order) == cases_of(Gemm(8, 8, 8))


@pytest.mark.parametrize("name", NAMES)
def test_no_case_of_an_example_keeps_numpy_busy_for_long(name: str) -> None:
    problem = own_problem(name)
    cases = device_cases(problem)
    assert cases
    for case in cases:
        assert problem.with_sizes(*case.sizes).flops <= 2 * DEVICE_PRODUCTS
    said = {case.sizes for case in cases_of(problem)}
    assert (said != {case.sizes for case in cases}) == (name == "convolution")
