"""The examples of kernels of one's own on a GPU: tuned at the first call, and right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from example_kernels import KERNEL_TUNERS, NAMES, agree, expected, kernel, module, source

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


OPERANDS: dict[str, Callable[[np.random.Generator], tuple[Any, ...]]] = {
    "vector_add": lambda rng: (rng.random(1000), rng.random(1000)),
    "convolution": lambda rng: (rng.random((80, 90)), rng.random((17, 17))),
    "matmul": lambda rng: (rng.random((70, 50)), rng.random((50, 90))),
    "reduction": lambda rng: (rng.random(5000),),
    "pnpoly": lambda rng: (
        *reversed(module("kernels", "kernel_tuner").ring(rng, 999, 60).values()),
    ),
    "expdist": lambda rng: (
        *(rng.random((99, 2)), rng.random((77, 2))),
        *(0.1 + rng.random(99), 0.1 + rng.random(77)),
    ),
}
"""Of the kernels that Kernel Tuner's users know."""


@pytest.mark.parametrize("name", KERNEL_TUNERS)
def test_an_example_of_kernel_tuner_is_tuned_on_a_gpu(name: str, tmp_path: Path) -> None:
    cupy: Any = pytest.importorskip("cupy")
    own = source(f"kernel_tuner/{name}")
    own._cache = tmp_path
    given = OPERANDS[name](np.random.default_rng(3))
    inputs = dict(zip((each.name for each in own.operation.inputs), given, strict=True))
    wanted = own.operation.result.evaluate(inputs)
    own.tune(*map(cupy.asarray, given), trials=2, timeout=60)
    found = cupy.asnumpy(own(*map(cupy.asarray, given)))
    assert found.shape == np.shape(wanted)
    if name == "pnpoly":
        assert np.mean(found != wanted) < 1e-2
    else:
        agree(found, (wanted,), 1e-9)


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
