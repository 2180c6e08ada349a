"""Thin products on a GPU: every layout, aligned and not; the same bits each time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from autotune import Gemm
from autotune.core.configuration import Candidate
from autotune.core.measurement import Outcome
from autotune.families.program_cache import ProgramCache
from autotune.gpu.measure.evaluator import GpuEvaluator
from autotune.measuring.effort import Effort, Work
from autotune.targets.families import load_families
from autotune.targets.registry import make_target

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.core.device import Device

# Of libraries while they are imported.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    for kind in ("DeprecationWarning", "FutureWarning", "UserWarning")
]

QUICK = Effort(budget_s=0.02, finals_s=0.2, timeout_s=20.0)
DRAWN = 6
"""Configurations of each problem that are tried."""

THIN = [(1, 4096, 4096), (3, 1001, 2777), (16, 65536, 16), (4096, 4096, 1), (2777, 333, 7)]
SHORT = [(2000, 1, 4096), (1777, 7, 1555), (512, 32, 3000)]


@pytest.mark.sampled(48)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "sizes"),
    [*(("skinny", sizes) for sizes in THIN), *(("outer", sizes) for sizes in SHORT)],
)
def test_configurations_are_verified_and_timed(
    name: str,
    sizes: tuple[int, int, int],
    dtype: str,
    layout: str,
    gpu: Device,
    programs: ProgramCache,
) -> None:
    family = load_families(target="cuda", operation="gemm")[name]
    if dtype not in family.dtypes:
        pytest.skip(f"{name} has no {dtype}")
    problem = Gemm(*sizes, dtype=dtype, layout=layout)
    space = family.space(problem, gpu.limits)
    rows = space.sample(min(DRAWN, space.size), np.random.default_rng(sum(sizes)))
    candidates = [Candidate(name, space[int(row)]) for row in rows]
    with GpuEvaluator(
        Work(problem, {name: family}, gpu, programs, effort=QUICK, workers=2)
    ) as harness:
        harness.prepare(candidates)
        for candidate in candidates:
            measurement = harness.evaluate(candidate, None)
            # What spills is not run; whatever is run is right.
            rejected = measurement.outcome is Outcome.REJECTED
            assert measurement.ok or rejected, f"{measurement.reason}: {candidate}"


def test_many_blocks_add_up_in_the_same_order_each_time(tmp_path: Path, gpu: Device) -> None:
    cupy: Any = pytest.importorskip("cupy")
    family = load_families(target="cuda", operation="gemm")["skinny"]
    problem = Gemm(3, 60000, 1000)
    declared = {p.name: p.default for p in family.parameters if p.default is not None}
    configuration = {**declared, "splits": 96}
    target = make_target("cuda")
    candidate = Candidate("skinny", family.conform(configuration))
    kernel = target.kernel(family, candidate, problem, gpu, ProgramCache(tmp_path))
    rng = cupy.random.default_rng(1)
    a = rng.standard_normal((3, 60000), dtype=cupy.float32)
    b = rng.standard_normal((60000, 1000), dtype=cupy.float32)
    first = kernel(a, b)
    for _ in range(50):
        assert bool((kernel(a, b) == first).all())
