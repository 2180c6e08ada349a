"""Promises of accuracy classes on a GPU, by kernels that are said to promise what they may not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from autotune import Gemm
from autotune.core.configuration import Candidate
from autotune.core.measurement import ERROR_NORM, Outcome
from autotune.families.program_cache import ProgramCache
from autotune.gpu.measure.evaluator import GpuEvaluator
from autotune.measuring.effort import Effort, Work
from autotune.targets.families import load_families

if TYPE_CHECKING:
    from autotune.core.device import Device

QUICK = Effort(budget_s=0.02, finals_s=0.2, timeout_s=20.0)

# Of libraries while they are imported.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    for kind in ("DeprecationWarning", "FutureWarning", "UserWarning")
]


@pytest.mark.parametrize("shape", [(512, 1024, 512), (8192, 512, 8192)])
@pytest.mark.parametrize(
    ("name", "dtype", "accuracy", "outcome"),
    [
        ("block", "float32", "fp32", Outcome.OK),
        ("block", "float32", "fp32-normwise", Outcome.OK),
        ("mma_tf32", "float32", "tf32", Outcome.OK),
        ("mma_tf32", "float32", "fp32", Outcome.WRONG_RESULT),
        ("mma_tf32", "float32", "fp32-normwise", Outcome.WRONG_RESULT),
        ("dmma", "float64", "fp64", Outcome.OK),
    ],
)
def test_kernels_are_held_to_the_class_that_they_promise(
    name: str,
    dtype: str,
    accuracy: str,
    outcome: Outcome,
    shape: tuple[int, int, int],
    gpu: Device,
    programs: ProgramCache,
) -> None:
    problem = Gemm(*shape, dtype, accuracy=accuracy)
    family = replace(load_families(target="cuda")[name], accuracy=accuracy)
    if not family.space(problem, gpu.limits).size:
        pytest.skip(f"{name} is for other devices")
    candidate = Candidate(name, family.default(problem, gpu.limits))
    with GpuEvaluator(Work(problem, {name: family}, gpu, programs, effort=QUICK)) as evaluator:
        measurement = evaluator.evaluate(candidate, None)
        assert measurement.outcome is outcome, measurement
        if outcome is Outcome.OK:
            norm = measurement.details[ERROR_NORM]
            assert isinstance(norm, float)
            assert norm < {"float64": 1e-13}.get(dtype, 1e-3 if accuracy == "tf32" else 1e-5)
