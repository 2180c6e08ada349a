"""The dense survey: programs that count, and those that it selects."""

from __future__ import annotations

import argparse
from typing import Any

import dense_survey
import numpy as np
import pytest

from autotune import Gemm
from autotune.core.configuration import Candidate


@pytest.fixture(scope="module")
def device() -> Any:
    args = argparse.Namespace(device="h200", first=None, accuracy="", own=[])
    return dense_survey.Device.named(args, "bfloat16")


def test_programs_count_where_a_call_is_valid(device: Any) -> None:
    family = device.families["wgmma"]
    declared = {each.name: each.default for each in family.parameters}
    fours = {**declared, **family.presets["layer-crossed"].configuration}  # clusters of four
    program = device.book().program(Candidate("wgmma", family.conform(fours)), "nt")
    few = dense_survey.Sizes.of(device.problem((256, 4096, 2048), "nt"))
    many = dense_survey.Sizes.of(device.problem((8192, 4096, 8192), "nt"))
    assert np.isfinite(program.expected(many)[1])  # prices do not know what is valid
    assert dense_survey._expected(device, program, many) == np.inf
    assert 0 < dense_survey._expected(device, program, few) < 1


@pytest.mark.parametrize("sizes", [(1, 4096, 4096), (512, 2048, 1024), (4096, 4096, 4096)])
def test_calls_are_valid_and_near_the_best(device: Any, sizes: tuple[int, int, int]) -> None:
    problem: Gemm = device.problem(sizes, "nt")
    found = 0
    for program in device.book().programs:
        if program.key.layout != "nt":
            continue
        calls = dense_survey._calls(device, program, problem)
        family = device.families[program.key.family]
        for call in calls:
            planner = dense_survey.planner_of(family, call, problem.dtype, device.limits)
            assert planner.valid(problem)
        assert len(calls) <= 2
        seconds = [s for call, s in dense_survey._valid(device, program, problem) if call in calls]
        assert not calls or max(seconds) <= dense_survey.SECOND * min(seconds)
        found += len(calls)
    assert found


def chosen(
    seconds: list[list[float]],
    told: list[list[float]],
    begin: list[int],
    most: int,
    fixed: int = 0,
) -> list[int]:
    rows, _ = dense_survey._as_chosen(np.array(seconds), np.array(told), begin, fixed, most)
    return sorted(rows)


def test_where_there_is_no_room_a_program_is_exchanged() -> None:
    seconds = [[4.0, 4.0], [3.0, 3.0], [2.0, 2.0]]
    assert chosen(seconds, seconds, [0], most=1) == [2]
    assert chosen(seconds, seconds, [0, 1], most=2, fixed=1) == [0, 2]


def test_a_program_that_promises_too_much_is_taken_out() -> None:
    seconds = [[2.0, 2.0], [6.0, 6.0]]
    told = [[2.0, 2.0], [1.0, 1.0]]
    assert chosen(seconds, told, [0, 1], most=2) == [0]
    assert chosen(seconds, told, [1, 0], most=2, fixed=1) == [0, 1]


def test_programs_that_bring_nothing_are_not_put_in() -> None:
    seconds = [[1.0, 2.0], [1.0, 2.0], [2.0, 1.0]]
    assert chosen(seconds, seconds, [0], most=3) == [0, 2]
