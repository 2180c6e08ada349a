"""Run by itself: a target of another vendor is tuned, loaded and called."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from stand_in import STAND_IN, Array

from autotune import Gemm, MatchQuality, load, tune
from autotune.gpu import driver
from autotune.measuring.evaluator import Effort

HERE = Path(__file__).parent


def main(cache: Path) -> None:
    problem = Gemm(33, 20, 41)
    options = {"cache": cache, "extra_families": [HERE / "families"], "target": "stand-in"}
    result = tune(problem, trials=1, effort=Effort(budget_s=0.02, finals_s=0.05), **options)
    assert result.best.candidate.family == "simple"
    assert result.best.fingerprint.name == "Stand-in 942"
    assert result.best.binary is not None
    assert result.best.binary.architecture == "gfx942"
    kernel = load(problem, **options)
    assert kernel.match is MatchQuality.EXACT
    rng = np.random.default_rng(0)
    a, b = (rng.random(shape).astype("float32") for shape in (problem.a_shape, problem.b_shape))
    out = Array(np.full(problem.c_shape, np.nan, "float32"))
    kernel(Array(a), Array(b), out)
    np.testing.assert_allclose(out.values, a @ b, rtol=1e-5)
    assert driver.vendor() is STAND_IN
    for name in ("vendor", "bindings", "nvrtc", "cublas"):
        assert f"autotune.gpu.nvidia.{name}" not in sys.modules


if __name__ == "__main__":
    main(Path(sys.argv[1]))
