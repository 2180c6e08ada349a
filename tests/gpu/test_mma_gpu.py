"""Families for tensor cores on a GPU: verified in all types and layouts, beside cuBLAS, tuned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from autotune import Gemm, load, tune
from autotune.core.configuration import Candidate
from autotune.core.measurement import Outcome
from autotune.families.program_cache import ProgramCache
from autotune.gpu.measure.evaluator import GpuEvaluator
from autotune.measuring.effort import Effort, Work
from autotune.targets.families import load_families

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.core.device import Device

QUICK = Effort(budget_s=0.02, finals_s=0.2, timeout_s=20.0)
PROBLEMS = {
    "float64": ("dmma", {"dtype": "float64"}, "(float64, TF32 off)"),
    "float16": ("mma", {"dtype": "float16"}, "(float16, sums in float32)"),
    "bfloat16": (
        "mma",
        {"dtype": "bfloat16", "out_dtype": "float32"},
        "(bfloat16, sums in float32)",
    ),
    "tf32": ("mma_tf32", {"accuracy": "tf32"}, "(float32, TF32 on)"),
}

# Of libraries while they are imported.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    for kind in ("DeprecationWarning", "FutureWarning", "UserWarning")
]


@pytest.mark.sampled(24)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("kind", PROBLEMS)
@pytest.mark.parametrize("sizes", [(512, 4096, 512), (511, 1023, 515), (510, 1022, 514)])
def test_configurations_are_right_at_every_shape_and_cublas_is(
    sizes: tuple[int, int, int], kind: str, layout: str, gpu: Device, programs: ProgramCache
) -> None:
    name, fields, vendor = PROBLEMS[kind]
    problem = Gemm(*sizes, layout=layout, **fields)
    family = load_families(target="cuda")[name]
    space = family.space(problem, gpu.limits)
    if not space.size:
        pytest.skip(f"{name} is for other devices")
    rows = space.sample(6, np.random.default_rng(sizes[1]))
    points = [family.default(problem, gpu.limits), *(space[int(row)] for row in rows)]
    for preset in ("few-tiles", "few-rows"):
        row = space.nearest(family.presets[preset].configuration)
        assert row is not None
        points.append(space[row])
    candidates = [Candidate(name, each) for each in dict.fromkeys(points)]
    with GpuEvaluator(
        Work(problem, {name: family}, gpu, programs, effort=QUICK, workers=4)
    ) as evaluator:
        evaluator.prepare(candidates)
        for candidate in candidates:
            measurement = evaluator.evaluate(candidate, None)
            assert measurement.outcome in (Outcome.OK, Outcome.REJECTED), (candidate, measurement)
        assert evaluator.evaluate(candidates[0], None).ok
        baseline = evaluator.baseline()
        assert baseline is not None, "cuBLAS is missing, or its product is not accurate"
        assert baseline.name.endswith(vendor)


def test_a_class_that_was_asked_for_excludes_tensor_cores(
    gpu: Device, programs: ProgramCache
) -> None:
    problem = Gemm(512, 512, 512, dtype="float16", accuracy="ieee")
    family = load_families(target="cuda")["block"]
    with GpuEvaluator(
        Work(problem, {"block": family}, gpu, programs, effort=QUICK, workers=1)
    ) as evaluator:
        assert evaluator.evaluate(Candidate("block", family.default(problem, gpu.limits)), None).ok
        baseline = evaluator.baseline()
        assert baseline is not None
        assert baseline.name.endswith("(float16, sums in float32, no tensor cores)")


@pytest.mark.parametrize("kind", PROBLEMS)
def test_they_are_tuned_and_loaded(kind: str, gpu: Device, tmp_path: Path) -> None:
    cupy = pytest.importorskip("cupy")
    name, fields, _ = PROBLEMS[kind]
    if kind == "bfloat16":
        pytest.skip("CuPy has no bfloat16")
    problem = Gemm(300, 500, 260, **fields)
    if not load_families(target="cuda")[name].space(problem, gpu.limits).size:
        pytest.skip(f"{name} is for other devices")
    tune(
        problem,
        target="cuda",
        families=[name],
        trials=6,
        timeout=90.0,
        cache=tmp_path,
        effort=QUICK,
    )
    kernel = load(problem, "cuda", cache=tmp_path)
    rng = np.random.default_rng(5)
    a, b = (
        rng.uniform(-1, 1, shape).astype(problem.dtype)
        for shape in (problem.a_shape, problem.b_shape)
    )
    first, again = (cupy.asnumpy(kernel(cupy.asarray(a), cupy.asarray(b))) for _ in range(2))
    assert first.tobytes() == again.tobytes()
    wide = a.astype(np.float64), b.astype(np.float64)
    expected, scale = wide[0] @ wide[1], np.abs(wide[0]) @ np.abs(wide[1])
    limit = {"float64": 2.0**-46, "float16": 2.0**-15, "tf32": 2.0**-10}[kind] * scale
    limit = limit + 2.0**-10 * np.abs(expected) if kind == "float16" else limit
    assert (np.abs(first - expected) <= limit).all()
