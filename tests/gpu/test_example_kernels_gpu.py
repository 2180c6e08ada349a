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


def test_an_operator_of_pytorch_is_captured() -> None:
    torch: Any = pytest.importorskip("torch")
    own = kernel(module("softmax"), "cuda")
    x = torch.randn(130, 515, device="cuda")
    own.tune(x, trials=2, timeout=60)
    operator = own.torch_operator()
    torch.testing.assert_close(operator(x), torch.softmax(x, dim=1))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = operator(x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(y, torch.softmax(x, dim=1))
    compiled = torch.compile(lambda a: operator(2 * a), fullgraph=True)
    torch.testing.assert_close(compiled(x), torch.softmax(2 * x, dim=1))
