"""The example operations tuned, stored, loaded and called on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from operation_examples import FOLDER, example

from autotune import load, tune
from autotune.measuring.effort import Effort

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHAPES = {
    "gemv": (1023, 2050),
    "row_sum": (1023, 2050),
    "batched_gemm": (33, 48, 50, 47),
    "gemm_bias_relu": (257, 300, 131),
    "stencil": (513, 1030),
}

# Of CuPy while it is imported.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    for kind in ("DeprecationWarning", "FutureWarning", "UserWarning")
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_tuned_kernel_is_stored_loaded_and_right(name: str, dtype: str, tmp_path: Path) -> None:
    cupy: Any = pytest.importorskip("cupy")
    operation = example(name)
    problem = operation.at(SHAPES[name], dtype=dtype)
    result = tune(
        problem,
        target="cuda",
        trials=8,
        timeout=120,
        cache=tmp_path,
        extra_families=[FOLDER],
        effort=Effort(budget_s=0.02, finals_s=0.1),
    )
    assert result.best.median_s > 0
    kernel = load(problem, target="cuda", cache=tmp_path, extra_families=[FOLDER])
    rng = np.random.default_rng(5)
    operands: dict[str, NDArray[Any]] = {
        each.name: rng.uniform(-1, 1, each.shape).astype(dtype) for each in problem.operands
    }
    scalars = {scalar: 0.5 - number for number, (scalar, _) in enumerate(operation.scalars)}
    inputs = [cupy.asarray(operands[each.name]) for each in operation.inputs]
    out = cupy.asarray(operands[operation.output.name])
    kernel(*inputs, out=out, **scalars)
    exact = {each: array.astype(np.float64) for each, array in operands.items()}
    expected = operation.result.evaluate({**exact, **scalars})
    scale = operation.result.magnitude({**exact, **scalars})
    error = np.abs(cupy.asnumpy(out) - expected) / scale
    assert error.max() <= 16 * np.finfo(dtype).eps
