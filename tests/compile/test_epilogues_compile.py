"""Operations that are gemm with an epilogue, compiled for real for all families."""

from __future__ import annotations

from pathlib import Path

import pytest
from epilogue_families import write_families, write_operations

from autotune.families.catalog import catalog
from autotune.families.rendering import render
from autotune.targets.cuda.compile.nvrtc import compile_cuda
from autotune.targets.cuda.device.known_gpus import find_gpu

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("operation", ["linear_relu", "gated"])
def test_every_family_s_default_compiles(operation: str, tmp_path: Path) -> None:
    folders = [write_operations(tmp_path / "operations"), write_families(tmp_path / "families")]
    limits = find_gpu("h200").limits
    for family in catalog("cuda", operation, folders).values():
        for dtype in family.dtypes:
            problem = family.defined.at((512, 256, 384), dtype=dtype)
            source = render(family, family.default(problem, limits), dtype=dtype)
            binary = compile_cuda(source.text, limits.architecture)
            assert operation in binary.kernels, (family.name, dtype)
