"""CUDA families for thin products, compiled for real: registers, spills and shared memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from autotune.core.configuration import Configuration
from autotune.families.rendering import render
from autotune.gpu.compiling import SPILL_LIMIT
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.gpu.nvidia.nvrtc import compile_cuda
from autotune.operations.problem import Gemm
from autotune.targets.families import load_families

pytestmark = pytest.mark.slow

FAMILIES = load_families(target="cuda", operation="gemm")
LIMITS = find_gpu("h200").limits
PROBLEMS = {
    "skinny": (
        Gemm(1, 4096, 4096),
        Gemm(4096, 4096, 3, layout="nt"),
        Gemm(8, 4096, 4096, dtype="float64", layout="tt"),
        Gemm(4096, 4096, 2, layout="tn"),
        Gemm(2, 4096, 4096, dtype="bfloat16", out_dtype="float32"),
    ),
    "outer": (
        Gemm(4096, 1, 4096),
        Gemm(4096, 7, 4096, layout="tt"),
        Gemm(4096, 16, 4096, dtype="float64", layout="tn"),
        Gemm(4096, 32, 4096, layout="nt"),
    ),
}
PRESETS = [(name, preset) for name in PROBLEMS for preset in FAMILIES[name].presets]


def drawn() -> Iterator[tuple[str, Gemm, Configuration]]:
    """A configuration for each problem."""
    rng = np.random.default_rng(4)
    for name, problems in PROBLEMS.items():
        for problem in problems:
            space = FAMILIES[name].space(problem, LIMITS)
            yield name, problem, space[int(space.sample(1, rng)[0])]


@pytest.mark.parametrize(
    ("name", "problem", "configuration"),
    [pytest.param(*each, id=f"{each[0]}-{each[1].label}") for each in drawn()],
)
def test_binaries_need_what_was_predicted(
    name: str, problem: Gemm, configuration: Configuration
) -> None:
    family = FAMILIES[name]
    assert family.launch is not None
    names = family.values(configuration, problem, LIMITS)
    source = render(
        family,
        configuration,
        dtype=problem.dtype,
        layout=problem.layout,
        out_dtype=problem.out_dtype,
    )
    kernel = compile_cuda(source.text, "sm_90").kernels["gemm"]
    dynamic = int(family.launch.shared_bytes.evaluate(names))
    assert kernel.shared_bytes + dynamic == names["shared_bytes"]
    assert kernel.max_threads == names["threads"]
    assert kernel.registers <= int(names["registers_allowed"])
    assert 0.7 < kernel.registers / int(names["registers"]) < 1.4


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("name", "preset"), PRESETS)
@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_presets_spill_nothing(name: str, preset: str, layout: str) -> None:
    family = FAMILIES[name]
    configuration = family.presets[preset].configuration
    dtype = "bfloat16" if preset.endswith("16-bits") else "float32"
    text = render(family, configuration, dtype=dtype, layout=layout).text
    compiled = compile_cuda(text, "sm_90")
    assert compiled.spill_bytes.get("gemm", 0) <= SPILL_LIMIT
    assert compiled.kernels["gemm"].local_bytes == 0
