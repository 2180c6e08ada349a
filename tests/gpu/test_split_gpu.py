"""Families that split operands into planes, held to their promises as trials are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autotune.core.configuration import Candidate
from autotune.families.program_cache import ProgramCache
from autotune.gpu.measure.evaluator import GpuEvaluator
from autotune.measuring.effort import Effort, Work
from autotune.operations.problem import Gemm
from autotune.targets.families import load_families

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.core.device import Device

FAMILIES = load_families(target="cuda", operation="gemm")
SPLIT = [
    name for name, family in FAMILIES.items() if any(p.name == "plane" for p in family.parameters)
]


@pytest.mark.parametrize("name", SPLIT)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("shape", [(512, 512, 512), (1023, 2049, 777)])
def test_every_preset_keeps_its_promise(
    shape: tuple[int, int, int], layout: str, name: str, gpu: Device, tmp_path: Path
) -> None:
    family = FAMILIES[name]
    if "mma" not in name and gpu.limits.names()["compute_capability"] != 90:
        pytest.skip("wgmma is a feature of compute capability 9.0")
    problem = Gemm(*shape, family.dtypes[0], layout=layout, accuracy=family.accuracy)
    effort = Effort(budget_s=0.02)
    work = Work(problem, {name: family}, gpu, ProgramCache(tmp_path), effort=effort, workers=1)
    with GpuEvaluator(work) as evaluator:
        for preset in family.presets.values():
            measurement = evaluator.evaluate(Candidate(name, preset.configuration), None)
            assert measurement.ok, (preset.name, measurement)
