"""Operations that are gemm with an epilogue, compiled for real for all families."""

from __future__ import annotations

from pathlib import Path

import pytest
from epilogue_families import write_families, write_operations

from autotune.families.gpu.launch import architecture_of, kernel_layout
from autotune.families.rendering import render
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.gpu.nvidia.nvrtc import compile_cuda
from autotune.targets.families import catalog

pytestmark = pytest.mark.slow


ABLE = [name for name, family in catalog("cuda").items() if family.epilogue]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("operation", ["linear_relu", "gated"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", [*ABLE, "plain"])
def test_defaults_compile(name: str, dtype: str, operation: str, tmp_path: Path) -> None:
    folders = [write_operations(tmp_path / "operations"), write_families(tmp_path / "families")]
    family = catalog("cuda", operation, folders)[name]
    if dtype not in family.dtypes:
        pytest.skip(f"{name} is for {', '.join(family.dtypes)}")
    limits = find_gpu("h200").limits
    problem = family.defined.at((512, 256, 384), dtype=dtype)
    layout = kernel_layout(family, "nn")
    source = render(family, family.default(problem, limits), dtype=dtype, layout=layout)
    architecture = architecture_of(family, limits.architecture)
    assert operation in compile_cuda(source.text, architecture).kernels
