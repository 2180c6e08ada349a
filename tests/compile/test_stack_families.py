"""Kernels of stacks and of groups of rows compile, without spills, wherever they may run."""

from __future__ import annotations

import pytest

from autotune.families.gpu.launch import architecture_of
from autotune.families.rendering import render
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.gpu.nvidia.nvrtc import compile_cuda
from autotune.targets.families import find_operation, load_families

pytestmark = pytest.mark.slow

SHAPES = {
    "bmm": (64, 1024, 64, 1024),
    "grouped": (8, 8192, 4096, 4096),
    "grouped_masked": (8, 512, 4096, 4096),
}
PLACES = (("wgmma", "h100"), ("mma", "a100"), ("mma", "rtx4090"))
CASES = [
    (name, family, device, preset, number)
    for name in SHAPES
    for family, device in PLACES
    for preset in load_families(target="cuda", operation=name)[family].presets
    for number in range(len(load_families(target="cuda", operation=name)[family].layouts))
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "family", "device", "preset", "number"), CASES)
def test_presets_compile_without_spills(
    name: str, family: str, device: str, preset: str, number: int
) -> None:
    made = load_families(target="cuda", operation=name)[family]
    limits = find_gpu(device).limits
    layout, dtype = made.layouts[number], made.dtypes[number % 2]
    out_dtype = (None, "float32")[number // 2]
    problem = find_operation(name).at(
        SHAPES[name], dtype=dtype, out_dtype=out_dtype, layout=layout
    )
    assert made.unsupported(problem) is None
    configuration = made.presets[preset].placed(made.space(problem, limits))
    if configuration not in made.space(problem, limits):
        pytest.skip(f"{family} has no preset {preset} for {problem.label} on {device}")
    source = render(made, configuration, dtype=dtype, out_dtype=out_dtype, layout=layout)
    compiled = compile_cuda(source.text, architecture_of(made, limits.architecture))
    assert compiled.kernels[name].local_bytes == 0
