"""What a survey of a processor measures: presets as its threads and its vectors allow them."""

from __future__ import annotations

import dataclasses

import pytest
from cpu_machines import AVX2, AVX512, SINGLE
from records import DEVICE

from autotune.core.configuration import Candidate
from autotune.core.limits import CpuLimits
from autotune.families.gpu.planning import Planner
from autotune.operations.problem import Gemm
from autotune.surveying.pool import worth_knowing
from autotune.targets.families import load_families
from autotune.targets.registry import make_target

FAMILIES = load_families(target="cpu", operation="gemm")
SIZES = (
    (1, 3000, 4000),
    (4000, 3000, 2),
    (9, 9, 9),
    (70, 80, 90),
    (2000, 2000, 2000),
    (900, 8, 900),
)


def pool(limits: CpuLimits, dtype: str = "float32") -> list[Candidate]:
    device = dataclasses.replace(DEVICE, limits=limits)
    problems = [Gemm(*sizes, dtype=dtype) for sizes in SIZES]
    return worth_knowing(problems, make_target("cpu"), device, FAMILIES, seed=0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("limits", [AVX512, AVX2, SINGLE], ids=["avx512", "avx2", "single"])
def test_every_program_is_valid_for_a_problem(limits: CpuLimits, dtype: str) -> None:
    found = pool(limits, dtype)
    assert {each.family for each in found} == {"goto", "skinny", "unpacked"}
    for each in found:
        assert any(
            Planner(FAMILIES[each.family], each.configuration, dtype, limits).valid(problem)
            for problem in (Gemm(*sizes, dtype=dtype) for sizes in SIZES)
        )


def test_threads_that_presets_leave_open_are_those_there_are() -> None:
    shared = pool(AVX512)
    assert {each.configuration["threads"] for each in shared} == {1, 2}
    alone = pool(dataclasses.replace(AVX512, max_threads=1))
    assert {each.configuration["threads"] for each in alone} == {1}
    stated = {each for family in FAMILIES.values() for each in family.presets}
    assert len(alone) >= 15, stated
