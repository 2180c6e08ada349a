"""CUDA C++ of one's own on a GPU: tuned at the first call, loaded afterwards."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_kernels import BRIEF, DOTS, FLAT, dots, total

import autotune
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


def test_blocks_wait_for_each_other(tmp_path: Path) -> None:
    cupy: Any = pytest.importorskip("cupy")
    effort = {**BRIEF, "trials": 20, "sampler": "exhaustive"}
    kernel = total(cache=tmp_path, **effort)
    x = cupy.random.default_rng(0).random(1_000_003, dtype="float32")
    np.testing.assert_allclose(kernel(x).get(), x.sum(dtype="float64").get(), rtol=1e-5)
    result = kernel.tune(N=1_000_003, dtype="float32")
    tried = {
        (each.candidate.configuration["BLOCKS"], each.measurement.outcome.name)
        for each in result.trials
    }
    assert (132, "OK") in tried
    assert tried & {(1, "OK"), (1, "ABANDONED")}  # one block is right, and slow
    assert not any(blocks == 2244 for blocks, _ in tried)
    # A graph holds the launch, too.
    stream, out = cupy.cuda.Stream(non_blocking=True), cupy.zeros((), "float32")
    with stream:
        stream.begin_capture()
        kernel(x, out=out)
        graph = stream.end_capture()
        graph.launch(stream)
    stream.synchronize()
    np.testing.assert_allclose(out.get(), x.sum(dtype="float64").get(), rtol=1e-5)


def test_the_compilers_options_are_tuned(tmp_path: Path) -> None:
    cupy: Any = pytest.importorskip("cupy")
    kernel = dots(
        cache=tmp_path,
        compiler_options=["--maxrregcount={THREADS}", "--fmad=false"],
        **BRIEF,
    )
    a, x = cupy.ones((300, 520), "float32"), cupy.ones(520, "float32")
    np.testing.assert_allclose(kernel(a, x).get(), 520, rtol=1e-5)


def test_outputs_follow_single_elements_that_change(tmp_path: Path) -> None:
    """What remembers computes an element where nothing is written yet, and never again."""
    kernel = autotune.kernel(
        source="""
        __global__ void shifted(const T* x, T* y, int N) {
          int i = blockIdx.x * THREADS + threadIdx.x;
          if (i < N && !(REMEMBERS && y[i] == y[i])) y[i] = x[i] + x[N - 1 - i];
        }
        """,
        name="shifted",
        operands={"x": "N"},
        out={"y": "N"},
        reference=lambda x: x + x[::-1],
        parameters={"THREADS": [128], "REMEMBERS": [0, 1]},
        grid=["ceildiv(N, THREADS)"],
        block=["THREADS"],
        cache=tmp_path,
        **{**BRIEF, "sampler": "exhaustive"},
    )
    tried = {
        each.candidate.configuration["REMEMBERS"]: each.measurement
        for each in kernel.tune(N=100_003, dtype="float32").trials
    }
    assert tried[0].ok, tried[0].reason
    told = r"y\[\d+\] stays .*, expected .*, once x\[\d+\] has changed"
    assert re.search(told, tried[1].reason), tried[1]
