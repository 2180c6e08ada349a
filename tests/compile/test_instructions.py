"""Families for tensor cores and warp groups compiled for real: instructions, registers, spills."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path

import pytest
from epilogue_families import write_operations

from autotune.core.configuration import Configuration
from autotune.families.family import KernelFamily
from autotune.families.rendering import render
from autotune.gpu.compiling import SPILL_LIMIT
from autotune.gpu.nvidia.cubin import _sections
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.gpu.nvidia.nvrtc import Compiled, compile_cuda
from autotune.operations.problem import Gemm
from autotune.targets.families import catalog, load_families

pytestmark = pytest.mark.slow

FAMILIES = load_families(target="cuda", operation="gemm")
DEVICES = ("a100", "rtx3090", "rtx4090", "h200", "rtx5090")
OPCODES = {"dmma": 0x23F, "mma": 0x23C, "mma_tf32": 0x23C}
"""DMMA and HMMA."""

LDSM, LDGSTS = 0x83B, 0xFAE
"""Of ldmatrix, and of asynchronous copies."""

SHAPES = ((4096, 4096, 4096), (64, 65536, 64), (16, 16384, 4096), (512, 4096, 512))


def opcodes(cubin: bytes) -> list[int]:
    """Of a kernel's instructions, which have 16 bytes: the twelve lowest bits."""
    (code,) = (each.content for each in _sections(cubin) if each.name == ".text.gemm")
    words = struct.unpack(f"<{len(code) // 8}Q", code)
    return [word & 0xFFF for word in words[::2]]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("name", "preset"), [(name, each) for name in OPCODES for each in FAMILIES[name].presets]
)
def test_presets_compile_to_tensor_cores(name: str, preset: str, device: str, layout: str) -> None:
    family, limits = FAMILIES[name], find_gpu(device).limits
    chosen = family.presets[preset].configuration
    for shape in SHAPES:
        problem = Gemm(*shape, family.dtypes[0], layout=layout, accuracy=family.accuracy)
        if family.space(problem, limits).rejection(chosen) is None:
            break
    else:
        pytest.skip(f"{name} has no preset {preset} on {device}")
    names = family.values(chosen, problem, limits)
    text = render(family, chosen, dtype=problem.dtype, layout=layout).text
    binary = compile_cuda(text, limits.architecture)
    kernel = binary.kernels["gemm"]
    assert binary.spill_bytes.get("gemm", 0) <= SPILL_LIMIT
    assert kernel.max_threads == names["threads"]
    assert kernel.registers <= int(names["registers_allowed"])
    assert 0.75 < kernel.registers / int(names["registers"]) < 1.6
    found = opcodes(binary.cubin)
    # A warp's products of a tile, in a loop for aligned rows and in one for any.
    products = int(names["warp_m"]) // int(names["mma_m"]) * (int(names["warp_k"]) // 8)
    assert found.count(OPCODES[name]) == 2 * products * int(names["sn"]) // int(names["mma_k"])
    assert (found.count(LDSM) > 0) == (name == "mma")
    assert found.count(LDGSTS) > 0


def test_instructions_of_16_rows_are_for_90_and_those_of_8_for_80() -> None:
    family = FAMILIES["dmma"]
    problem = Gemm(4096, 4096, 4096, "float64")
    for device, rows in (("a100", {8}), ("h200", {8, 16})):
        space = family.space(problem, find_gpu(device).limits)
        assert {space[row]["mma_m"] for row in range(0, space.size, 97)} == rows
    for device in ("rtx3090", "rtx4090", "rtx5090"):
        assert family.space(problem, find_gpu(device).limits).size == 0


H200 = find_gpu("h200").limits
STORED = (
    ("wgmma", "float16", "float16"),
    ("wgmma", "bfloat16", "float32"),
    ("wgmma_tf32", "float32", "float32"),
)
CASES = [(*each, layout) for each in STORED for layout in FAMILIES[each[0]].layouts]

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


@pytest.mark.sampled(1)
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


@pytest.mark.sampled(1)
@pytest.mark.parametrize("operation", ["linear_relu", "gated"])
@pytest.mark.parametrize(("name", "dtype", "out_dtype"), STORED)
def test_what_follows_a_product_is_in_the_boxes(
    operation: str, name: str, dtype: str, out_dtype: str, tmp_path: Path
) -> None:
    family = catalog("cuda", operation, [write_operations(tmp_path / "operations")])[name]
    chosen = family.presets["large-tma"].configuration
    binary, found = compiled(family, chosen, (dtype, out_dtype), family.layouts[0])
    assert binary.spill_bytes[operation] == 0
    assert found[UTMASTG] > 0
