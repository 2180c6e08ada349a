"""CUDA C++ of one's own on a GPU: tuned at the first call, loaded afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_kernels import BRIEF, DOTS, FLAT, dots

from autotune import NotTunedError
from autotune.core.errors import OperandError

# Of CuPy while it is imported.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    for kind in ("DeprecationWarning", "FutureWarning", "UserWarning")
]


@pytest.mark.parametrize("source", [DOTS, FLAT], ids=["padded", "packed"])
def test_the_first_call_tunes_and_others_load(source: str, tmp_path: Path) -> None:
    cupy: Any = pytest.importorskip("cupy")
    kernel = dots(source, cache=tmp_path, **BRIEF)
    rng = np.random.default_rng(3)
    wide = cupy.asarray(rng.uniform(-1, 1, (300, 520)), cupy.float32)
    a, x = wide[:, :513].copy(), cupy.asarray(rng.uniform(-1, 1, 513), cupy.float32)
    expected = cupy.asnumpy(a).astype(float) @ cupy.asnumpy(x).astype(float)
    y = kernel(a, x)
    np.testing.assert_allclose(cupy.asnumpy(y), expected, atol=1e-4)
    kernel(a, x, out=y, alpha=2.0, beta=1.0)
    np.testing.assert_allclose(cupy.asnumpy(y), 3 * expected, atol=3e-4)
    again = dots(source, cache=tmp_path, tune=False)
    np.testing.assert_allclose(cupy.asnumpy(again(a, x)), expected, atol=1e-4)
    if source is DOTS:
        np.testing.assert_allclose(cupy.asnumpy(again(wide[:, :513], x)), expected, atol=1e-4)
    else:
        with pytest.raises(OperandError, match="must have rows that follow each other"):
            again(wide[:, :513], x)
    with pytest.raises(NotTunedError, match="forbidden"):
        again(a[:7], x)
