"""Run by itself: a target of another vendor is tuned, loaded and called."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
from stand_in import LIBRARY_S, STAND_IN, WATTS, Array

from autotune import Gemm, MatchQuality, load, tune
from autotune.gpu import driver
from autotune.measuring import rounds, sustained
from autotune.measuring.effort import Effort

HERE = Path(__file__).parent


def main(cache: Path) -> None:
    problem = Gemm(33, 20, 41)
    options = {"cache": cache, "extra_families": [HERE / "families"], "target": "stand-in"}
    # As few turns without a pause as there may be, and all the time for them.
    sustained.MOST_HEATING, sustained.MOST_ROUNDS = 2, 1
    rounds.DISAGREE = math.inf  # a baseline, whatever disturbs the library here
    effort = Effort(budget_s=0.02, finals_s=0.05, sustained_s=300.0)
    result = tune(problem, trials=1, timeout=600, effort=effort, rank="sustained", **options)
    assert result.best.candidate.family == "simple"
    assert result.best.fingerprint.name == "Stand-in 942"
    assert result.best.binary is not None
    assert result.best.binary.architecture == "gfx942"
    assert result.best.baseline is not None
    assert result.best.baseline.name == "NumPy 2 (float32)"
    held = result.best.sustained
    assert held is not None
    assert held.baseline is not None
    for each in (held.kernel, held.baseline):
        assert each.watts is not None
        assert each.sm_clock_mhz is not None
        assert abs(each.watts / WATTS - 1) < 0.01
        assert abs(each.joules / (each.watts * each.median_s) - 1) < 0.1
        assert 1000 < each.sm_clock_mhz < 1050  # it fell before the turns that count
    assert held.baseline.median_s > LIBRARY_S
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
