"""Numba CUDA families, run in Numba's simulator against float64."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.core.configuration import Configuration
from autotune.core.limits import GpuLimits
from autotune.families.family import KernelFamily
from autotune.families.rendering import render
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.operations.problem import Gemm
from autotune.targets.families import load_families

CONFIGURATIONS = 4
"""Per family and dtype."""

MOST_THREADS = 64
"""Per block: the simulator starts a Python thread for each."""

# A process of its own runs this: the simulator is chosen when Numba is imported.
SIMULATION = """
import importlib.util, json, sys
import numpy as np
from numba import cuda

GAP = 3  # elements between the rows of every operand
jit = cuda.jit


def simulated(launch_bounds):  # the simulator has no compiler, whose registers they would bound
    return jit()


cuda.jit = simulated
for job in json.load(sys.stdin):
    spec = importlib.util.spec_from_file_location("emitted", job["source"])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with np.load(job["operands"]) as operands:
        (m, n), k = operands["a"].shape, operands["b"].shape[1]
        stored = [
            np.pad(operands[name], ((0, 0), (0, GAP)), constant_values=np.nan) for name in "abc"
        ]
    a, b, c = (cuda.to_device(each.ravel()) for each in stored)
    lda, ldb, ldc = (each.shape[1] for each in stored)
    alpha, beta = (stored[2].dtype.type(job[name]) for name in ("alpha", "beta"))
    kernel = module.gemm[tuple(job["grid"]), tuple(job["block"]), 0, job["shared_bytes"]]
    kernel(m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
    result = c.copy_to_host().reshape(m, ldc)
    assert np.isnan(result[:, -GAP:]).all(), "wrote between the rows of C"
    np.save(job["result"], result[:, :-GAP])
"""

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("numba_cuda") is None,
    reason="numba-cuda is not installed: pip install '.[numba-cuda]'",
)


@pytest.fixture(scope="module")
def families() -> dict[str, KernelFamily]:
    return load_families(target="numba-cuda", operation="gemm")


@pytest.fixture(scope="module")
def limits() -> GpuLimits:
    return find_gpu("h200").limits


def run(script: str, given: object, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment},
        input=json.dumps(given),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def emitted(family: KernelFamily, configuration: Configuration, dtype: str, folder: Path) -> str:
    """The path of an emitted module."""
    folder.mkdir()
    path = folder / "gemm.py"
    path.write_text(render(family, configuration, dtype=dtype).text)
    return str(path)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["naive", "tiled", "block"])
def test_random_configurations_compute_the_product(
    name: str, dtype: str, families: dict[str, KernelFamily], limits: GpuLimits, tmp_path: Path
) -> None:
    family = families[name]
    assert family.launch is not None
    limits = dataclasses.replace(limits, max_threads_per_block=MOST_THREADS)
    rng = np.random.default_rng(11)
    jobs: list[dict[str, Any]] = []
    expected = []
    for number in range(CONFIGURATIONS):
        m, n, k = (int(rng.choice([1, *rng.integers(2, 28, 3)])) for _ in "mnk")
        problem = Gemm(m=m, n=n, k=k, dtype=dtype)
        space = family.space(problem, limits)
        configuration = space[int(space.sample(1, rng)[0])]
        names = family.values(configuration, problem, limits)
        folder = tmp_path / str(number)
        alpha, beta = (-0.75, 0.5) if number % 2 else (1.0, 0.0)
        job: dict[str, Any] = {
            "configuration": str(configuration),
            "source": emitted(family, configuration, dtype, folder),
            "grid": [each.evaluate(names) for each in family.launch.grid],
            "block": [each.evaluate(names) for each in family.launch.block],
            "shared_bytes": family.launch.shared_bytes.evaluate(names),
            "operands": str(folder / "operands.npz"),
            "result": str(folder / "c.npy"),
            "alpha": alpha,
            "beta": beta,
        }
        a, b, c = (rng.uniform(-1, 1, shape).astype(dtype) for shape in ((m, n), (n, k), (m, k)))
        exact = alpha * (a.astype(float) @ b.astype(float))
        if beta == 0:
            c.fill(np.nan)  # must not be read
        else:
            exact += beta * c.astype(float)
        np.savez(folder / "operands.npz", a=a, b=b, c=c)
        jobs.append(job)
        expected.append(exact)

    run(SIMULATION, jobs, NUMBA_ENABLE_CUDASIM="1")
    for job, exact in zip(jobs, expected, strict=True):
        error = np.abs(np.load(job["result"]) - exact).max()
        assert error < 30 * np.finfo(dtype).eps, f"{job['configuration']} on {exact.shape}"
