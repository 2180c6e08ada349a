"""Every Numba-CUDA family compiled for real, and what was predicted held against the binaries."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="pip install '.[numba-cuda]'")

from autotune.families.family import KernelFamily
from autotune.families.gpu.planning import Planner
from autotune.families.rendering import render
from autotune.gpu.compiling import SPILL_LIMIT, compile_source
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.operations.problem import Gemm
from autotune.targets.families import load_families

pytestmark = pytest.mark.slow

FAMILIES = load_families(target="numba-cuda")
DEVICES = ("t4", "a100", "rtx4090", "h200", "b200")
SAMPLES = 1
SLACK = 4  # registers, between versions of the compiler


@pytest.mark.sampled(3)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_valid_configurations_compile_and_need_what_was_predicted(
    family: KernelFamily, device: str
) -> None:
    limits = find_gpu(device).limits
    rng = np.random.default_rng(0)
    for dtype in family.dtypes:
        problem = Gemm(m=4096, n=4096, k=4096, dtype=dtype)
        space = family.space(problem, limits)
        drawn = [space[int(row)] for row in space.sample(SAMPLES, rng)]
        for configuration in (family.default(problem, limits), *drawn):
            where = f"{configuration} {problem.label}"
            source = render(family, configuration, dtype=dtype)
            binary = compile_source(source, family.name, limits.architecture)
            (step,) = Planner(family, configuration, problem.dtype, limits).plan(problem).steps
            names = family.values(configuration, problem, limits)
            kernel = binary.kernels[step.kernel]
            assert kernel.shared_bytes + step.shared_bytes == names["shared_bytes"], where
            assert math.prod(step.block) == names["threads"], where
            assert kernel.max_threads is not None, where  # launch_bounds
            assert kernel.max_threads >= step.threads, where
            # The estimate is the least: with more, valid configurations would be turned away.
            assert int(names["registers"]) <= kernel.registers + SLACK, where


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "block"])
def test_every_configuration_of_a_small_family_passes_the_gate(name: str) -> None:
    limits = find_gpu("h200").limits
    family = FAMILIES[name]
    space = family.space(Gemm(m=4096, n=4096, k=4096, dtype="float64"), limits)
    for row in range(0, len(space), 1 + len(space) // 8):
        source = render(family, space[row], dtype="float64")
        binary = compile_source(source, name, limits.architecture)
        assert binary.spill_bytes["gemm"] <= SPILL_LIMIT, space[row]
        assert binary.kernels["gemm"].local_bytes <= SPILL_LIMIT, space[row]


def test_what_the_estimate_turns_away_would_spill() -> None:
    """Of `block`, the most that a block can have: accumulators that no such block can hold."""
    limits = find_gpu("h200").limits
    family = FAMILIES["block"]
    problem = Gemm(m=4096, n=4096, k=4096, dtype="float64")
    largest = {**family.default(problem, limits), "sm": 256, "sk": 256, "ty": 8, "tx": 8, "sn": 4}
    rejection = family.space(problem, limits).rejection(largest)
    assert rejection is not None
    assert "registers" in str(rejection)
    binary = compile_source(render(family, largest, dtype="float64"), "block", limits.architecture)
    assert binary.spill_bytes["gemm"] > SPILL_LIMIT
