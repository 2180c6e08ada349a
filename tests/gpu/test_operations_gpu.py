"""The example operations on a GPU: tuned, stored, verified and called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune import find_operation, load, tune
from autotune.cli import main
from autotune.core.measurement import Outcome
from autotune.cpu.call import NumpyKernel
from autotune.measuring.effort import Effort

pytestmark = pytest.mark.gpu

FOLDER = Path(__file__).parents[2] / "examples" / "operations"
SHAPES = {
    "gemv": (2048, 4096),
    "batched_gemm": (64, 96, 80, 112),
    "gemm_bias_relu": (768, 512, 640),
    "stencil": (2048, 1500),
    "row_sum": (2048, 4096),
}
BASELINES = {"gemv", "batched_gemm"}
QUICK = Effort(budget_s=0.03, finals_s=0.3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SHAPES)
def test_it_is_tuned_and_called(name: str, dtype: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    problem = find_operation(name, [FOLDER]).at(SHAPES[name], dtype=dtype)
    options: dict[str, Any] = {"cache": tmp_path, "extra_families": [FOLDER], "target": "cuda"}
    result = tune(problem, trials=6, effort=QUICK, **options)
    assert Outcome.WRONG_RESULT not in result.counts
    assert result.best.operation == name
    if name in BASELINES:
        assert result.best.baseline is not None
        assert result.best.baseline.name.startswith("cuBLAS")
    else:
        assert result.best.baseline is None
    kernel = load(problem, **options)
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=each.shape).astype(each.dtype) for each in problem.operands]
    *inputs, out = arrays
    expected = np.empty_like(out)
    NumpyKernel(problem)(*inputs, expected, *dict(problem.defined.scalars).values())
    there = [torch.from_numpy(each).cuda() for each in inputs]
    scale = 1e-3 if dtype == "float32" else 1e-10
    np.testing.assert_allclose(kernel(*there).cpu().numpy(), expected, rtol=scale, atol=scale)
    given = torch.from_numpy(out).cuda()
    assert kernel(*there, out=given) is given
    np.testing.assert_allclose(given.cpu().numpy(), expected, rtol=scale, atol=scale)


@pytest.mark.parametrize("name", SHAPES)
def test_it_is_benched_and_verified(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = ["--shape", "x".join(map(str, SHAPES[name])), "--target", "cuda"]
    where = ["--families", str(FOLDER), "--cache", str(tmp_path)]
    assert main(["tune", name, *shape, *where, "--trials", "3", "--timeout", "60", "-q"]) == 0
    assert main(["bench", name, *shape, *where, "-q"]) == 0
    assert "tuned (" in capsys.readouterr().out
    assert main(["cache", "verify", *where]) == 0
    assert "1 ok, 0 stale, 0 invalid" in capsys.readouterr().out
