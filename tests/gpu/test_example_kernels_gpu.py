"""The examples of kernels of one's own on a GPU: tuned at the first call, and right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from example_kernels import NAMES, agree, expected, kernel, module

# Of CuPy while it is imported.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    for kind in ("DeprecationWarning", "FutureWarning", "UserWarning")
]


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_tuned_on_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cupy: Any = pytest.importorskip("cupy")
    example = module(name)
    given = example.operands(np.random.default_rng(3))
    wanted = expected(example, given)
    kernel(example, "cuda").tune(*map(cupy.asarray, given), trials=4, timeout=60)
    monkeypatch.setenv("AUTOTUNE_TUNE", "0")
    found = kernel(module(name), "cuda")(*map(cupy.array, given))
    several = found if isinstance(found, tuple) else (found,)
    agree(tuple(map(cupy.asnumpy, several)), wanted, 1e-9, least=name == "quantisation")
