"""Kernels that never end cost one trial each; the device is theirs, for they slow down others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cuda_suspects import suspect, write_suspects

from autotune.core.measurement import Outcome
from autotune.families.program_cache import ProgramCache
from autotune.gpu.measure.evaluator import GpuEvaluator
from autotune.measuring.effort import Effort, Work
from autotune.operations.problem import Gemm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.core.device import Device


@pytest.fixture(scope="module")
def evaluator(gpu: Device, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuEvaluator]:
    folder = tmp_path_factory.mktemp("suspects")
    family = write_suspects(folder)
    with GpuEvaluator(
        Work(
            Gemm(1300, 1300, 1300),  # large enough for the result to be sampled
            {family.name: family},
            gpu,
            ProgramCache(folder / "programs"),
            effort=Effort(budget_s=0.02, timeout_s=16.0, compile_timeout_s=60.0),
            workers=2,
        )
    ) as evaluator:
        yield evaluator


def test_a_hung_kernel_costs_one_trial(evaluator: GpuEvaluator) -> None:
    measurement = evaluator.evaluate(suspect("hangs"), None)
    assert measurement.outcome is Outcome.TIMEOUT, measurement
    assert "still running after 8 s" in measurement.reason
    assert measurement.median_s is None
    following = evaluator.evaluate(suspect(), None)
    assert following.ok, following


def test_a_fault_among_the_finalists_leaves_the_others(evaluator: GpuEvaluator) -> None:
    finals = evaluator.finals([suspect("illegal"), suspect(), suspect("hangs"), suspect(step=2)])
    outcomes = [measurement.outcome for measurement in finals.measurements]
    assert outcomes == [Outcome.LAUNCH_FAILED, Outcome.OK, Outcome.TIMEOUT, Outcome.OK]
