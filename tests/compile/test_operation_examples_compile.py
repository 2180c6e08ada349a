"""The example operations' CUDA kernels compiled for real, and what was predicted of them."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from operation_examples import LARGE, example, family_of

from autotune.families.rendering import render
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.gpu.nvidia.nvrtc import compile_cuda

pytestmark = pytest.mark.slow


@pytest.mark.sampled(5)
@pytest.mark.parametrize("device", ["t4", "a100", "h200"])
@pytest.mark.parametrize("name", LARGE)
def test_valid_configurations_compile_and_need_what_was_predicted(name: str, device: str) -> None:
    family, operation, limits = family_of(name, "cuda"), example(name), find_gpu(device).limits
    assert family.launch is not None
    rng = np.random.default_rng(zlib.crc32(f"{name} {device}".encode()))
    for dtype in ("float32", "float64"):
        problem = operation.at(LARGE[name], dtype=dtype)
        space = family.space(problem, limits)
        drawn = [space[int(row)] for row in space.sample(2, rng)]
        for configuration in (family.default(problem, limits), *drawn):
            source = render(family, configuration, dtype=dtype)
            binary = compile_cuda(source.text, limits.architecture)
            names = family.values(configuration, problem, limits)
            kernel = binary.kernels[name]
            dynamic = int(family.launch.shared_bytes.evaluate(names))
            assert kernel.shared_bytes + dynamic == names["shared_bytes"], configuration
            block = [int(extent.evaluate(names)) for extent in family.launch.block]
            assert np.prod(block) == names["threads"], configuration
            assert kernel.max_threads is not None
            assert kernel.max_threads >= int(names["threads"]), configuration
            assert binary.spill_bytes[name] <= 64, configuration
            assert 0.5 < int(names["registers"]) / kernel.registers < 2.0, configuration
            for auxiliary in (*family.launch.before, *family.launch.after):
                if auxiliary.when.holds(names):
                    assert auxiliary.kernel in binary.kernels, configuration
