"""Families for tensor cores, compiled for real: registers, spills, and their instructions."""

from __future__ import annotations

import struct

import pytest

from autotune.families.rendering import render
from autotune.gpu.compiling import SPILL_LIMIT
from autotune.gpu.nvidia.cubin import _sections
from autotune.gpu.nvidia.known_gpus import find_gpu
from autotune.gpu.nvidia.nvrtc import compile_cuda
from autotune.operations.problem import Gemm
from autotune.targets.families import load_families

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


@pytest.mark.sampled(8)
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
