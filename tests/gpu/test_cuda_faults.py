"""Whatever a kernel does, it costs one trial, and the next candidate is measured as usual."""

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

    from autotune.core.configuration import Candidate
    from autotune.core.device import Device

FAULTS = {
    "illegal address": (suspect("illegal"), Outcome.LAUNCH_FAILED, "CUDA_ERROR_ILLEGAL_ADDRESS"),
    "misaligned access": (
        suspect("misaligned"),
        Outcome.LAUNCH_FAILED,
        "CUDA_ERROR_MISALIGNED_ADDRESS",
    ),
    "trap": (suspect("trap"), Outcome.LAUNCH_FAILED, "CUDA_ERROR_"),
    "more shared memory than there is": (
        suspect(more_shared=300_000),
        Outcome.REJECTED,
        "shared_bytes <= shared_bytes_per_block",
    ),
    "more workspace than there is": (
        suspect(more_workspace=1_000_000),
        Outcome.LAUNCH_FAILED,
        "CUDA_ERROR_OUT_OF_MEMORY",
    ),
    "wrong result": (suspect("wrong"), Outcome.WRONG_RESULT, "times what ieee allows"),
    "wrong at ragged sizes": (suspect("ragged"), Outcome.WRONG_RESULT, "times what ieee allows"),
    "one wrong element in a large result": (
        suspect("one_element"),
        Outcome.WRONG_RESULT,
        "times what ieee allows",
    ),
    "partly written result": (suspect("partial"), Outcome.WRONG_RESULT, "unwritten"),
    "write after C": (suspect("overrun"), Outcome.WRONG_RESULT, "wrote outside C, after"),
    "write before C": (suspect("underrun"), Outcome.WRONG_RESULT, "wrote outside C, before"),
    "read of C": (suspect("reads_c"), Outcome.WRONG_RESULT, "1x1x1"),
    "modified input": (suspect("modifies_a"), Outcome.WRONG_RESULT, "modified A"),
    "local memory": (suspect("local_memory"), Outcome.REJECTED, "<= spill_limit"),
    "compile error": (suspect("does_not_compile"), Outcome.COMPILE_FAILED, "undeclared"),
    "endless compile": (suspect("compiles_forever"), Outcome.TIMEOUT, "no result within 20 s"),
}


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
            effort=Effort(budget_s=0.02, timeout_s=60.0, compile_timeout_s=20.0),
            workers=2,
        )
    ) as evaluator:
        yield evaluator


@pytest.mark.parametrize(("candidate", "outcome", "told"), FAULTS.values(), ids=FAULTS)
def test_a_fault_costs_one_trial(
    evaluator: GpuEvaluator, candidate: Candidate, outcome: Outcome, told: str
) -> None:
    measurement = evaluator.evaluate(candidate, None)
    assert measurement.outcome is outcome, measurement
    assert told in measurement.reason
    assert "\n" not in measurement.reason
    assert measurement.median_s is None
    following = evaluator.evaluate(suspect(), None)
    assert following.ok, following


def test_faults_in_a_row_cost_a_trial_each(evaluator: GpuEvaluator) -> None:
    for fault in ("illegal", "overrun", "trap"):
        assert not evaluator.evaluate(suspect(fault, step=2), None).ok
    assert evaluator.evaluate(suspect(step=2), None).ok
