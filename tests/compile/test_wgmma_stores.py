"""How `wgmma` stores C, compiled for real: boxes spill no more than stores from registers."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path

import pytest
from epilogue_families import write_operations

from autotune.core.configuration import Configuration
from autotune.families.family import KernelFamily
from autotune.families.rendering import render
from autotune.gpu.nvidia.cubin import _sections
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.gpu.nvidia.nvrtc import Compiled, compile_cuda
from autotune.operations.problem import Gemm
from autotune.targets.families import catalog, load_families

pytestmark = pytest.mark.slow

FAMILIES = load_families(target="cuda", operation="gemm")
H200 = find_gpu("h200").limits
TYPES = (
    ("wgmma", "float16", "float16"),
    ("wgmma", "bfloat16", "float32"),
    ("wgmma_tf32", "float32", "float32"),
)
CASES = [(*each, layout) for each in TYPES for layout in FAMILIES[each[0]].layouts]

BOXED = [
    name
    for name, each in FAMILIES["wgmma_tf32"].presets.items()
    if each.configuration["cluster_n"] == 1
]
"""Presets of which a block stores what it has multiplied."""

STSM, UTMASTG = 0x844, 0x3B5
"""Of stmatrix, and of copies to global memory by tensor maps."""


def compiled(
    family: KernelFamily, configuration: Configuration, types: tuple[str, str], layout: str
) -> tuple[Compiled, Counter[int]]:
    """A binary, and how often it has each of the twelve bits that say what an instruction is."""
    dtype, out_dtype = types
    text = render(family, configuration, dtype=dtype, layout=layout, out_dtype=out_dtype).text
    binary = compile_cuda(text, "sm_90a")
    section = f".text.{family.operation}"
    (code,) = (each.content for each in _sections(binary.cubin) if each.name == section)
    words = struct.unpack(f"<{len(code) // 8}Q", code)
    return binary, Counter(word & 0xFFF for word in words[::2])


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "dtype", "out_dtype", "layout"), CASES)
@pytest.mark.parametrize("preset", BOXED)
def test_boxes_cost_no_spills(
    preset: str, name: str, dtype: str, out_dtype: str, layout: str
) -> None:
    family = FAMILIES[name]
    declared = family.presets[preset].configuration
    problem = Gemm(4096, 4096, 4096, dtype, layout=layout, accuracy=family.accuracy)
    space = family.space(problem, H200)
    chosen = Configuration({**declared, "splits": 1, "store": "tma"})
    while space.rejection(chosen) is not None:  # boxes take the room of a stage
        chosen = Configuration({**chosen, "stages": int(chosen["stages"]) - 1})
    names = family.values(chosen, problem, H200)
    direct, _ = compiled(
        family, Configuration({**chosen, "store": "direct"}), (dtype, out_dtype), layout
    )
    boxed, found = compiled(family, chosen, (dtype, out_dtype), layout)
    assert boxed.spill_bytes.get("gemm", 0) <= direct.spill_bytes.get("gemm", 0)
    assert boxed.kernels["gemm"].local_bytes == 0
    # 64 rows of 128 bytes are a box, and four blocks of 8 x 8 numbers are stored at a time.
    itemsize = {"float16": 2, "bfloat16": 2, "float32": 4}[out_dtype]
    elements = int(names["group_rows"]) * int(names["sk"])
    assert found[UTMASTG] == elements * itemsize // (64 * 128)
    assert found[STSM] == (elements // (4 * 4 * 64) if itemsize == 2 else 0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("operation", ["linear_relu", "gated"])
@pytest.mark.parametrize(("name", "dtype", "out_dtype"), TYPES)
def test_what_follows_a_product_is_in_the_boxes(
    operation: str, name: str, dtype: str, out_dtype: str, tmp_path: Path
) -> None:
    family = catalog("cuda", operation, [write_operations(tmp_path / "operations")])[name]
    chosen = family.presets["large-tma"].configuration
    binary, found = compiled(family, chosen, (dtype, out_dtype), family.layouts[0])
    assert binary.spill_bytes[operation] == 0
    assert found[UTMASTG] > 0
